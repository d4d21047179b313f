"""Tiles cover an image exactly once, and keep what was computed away from their borders."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from aipo.images.tiles import by_tiles, tiles

SIZES = st.integers(1, 70)


@settings(max_examples=60, deadline=None)
@given(
    height=SIZES, width=SIZES, side=st.integers(8, 40), margin=st.integers(0, 9), multiple=st.sampled_from([1, 2, 4])
)
def test_every_pixel_is_kept_once(height, width, side, margin, multiple):
    count = torch.zeros(height, width)
    for tile in tiles(height, width, side, margin, multiple):
        count[tile.kept_rows, tile.kept_columns] += 1
        assert tile.kept_rows.start % multiple == tile.kept_columns.start % multiple == 0
        # The margin is there on every side that is not a border of the image.
        assert tile.rows.start == max(0, tile.kept_rows.start - margin)
        assert tile.rows.stop == min(height, tile.kept_rows.stop + margin)
        assert tile.columns.start == max(0, tile.kept_columns.start - margin)
        assert tile.columns.stop == min(width, tile.kept_columns.stop + margin)
        assert max(tile.rows.stop - tile.rows.start, tile.columns.stop - tile.columns.start) <= (
            side + 2 * margin + 2 * multiple
        )
    assert (count == 1).all()


@settings(max_examples=20, deadline=None)
@given(height=SIZES, width=SIZES, side=st.integers(8, 40))
def test_a_local_function_does_not_notice_the_tiles(height, width, side):
    x = torch.rand(2, 3, height, width)

    def blurred(part):
        return F.avg_pool2d(part, 5, 1, 2, count_include_pad=False)

    torch.testing.assert_close(by_tiles(blurred, x, side, margin=2), blurred(x))


def test_a_small_image_is_one_tile():
    assert len(list(tiles(50, 40, side=32, margin=9))) == 1
