"""A large image as overlapping tiles, and the whole again: work whose memory does not grow with the image.

Every tile is computed with a margin around it, and only its inside is kept: what a method does at a border shows
nowhere but at the border of the image itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Tile", "by_tiles", "tiles"]


@dataclass(frozen=True)
class Tile:
    """Rows and columns of an image: what to compute, with the margin, and what of it to keep."""

    rows: slice
    columns: slice
    kept_rows: slice
    kept_columns: slice

    def cut(self, x: Tensor) -> Tensor:
        """The tile of images (..., H, W), margin included."""
        return x[..., self.rows, self.columns]

    def put(self, whole: Tensor, part: Tensor) -> None:
        """Write the inside of a computed tile to its place in the whole."""
        top, left = self.kept_rows.start - self.rows.start, self.kept_columns.start - self.columns.start
        height, width = self.kept_rows.stop - self.kept_rows.start, self.kept_columns.stop - self.kept_columns.start
        whole[..., self.kept_rows, self.kept_columns] = part[..., top : top + height, left : left + width]


def tiles(height: int, width: int, side: int, margin: int, multiple: int = 1) -> Iterator[Tile]:
    """Tiles of about `side` pixels that cover an image, row by row; those inside begin at multiples of `multiple`.

    An image that is hardly larger than a tile with its margins is one tile.
    """
    for top, bottom in _spans(height, side, margin, multiple):
        for left, right in _spans(width, side, margin, multiple):
            yield Tile(
                slice(max(0, top - margin), min(height, bottom + margin)),
                slice(max(0, left - margin), min(width, right + margin)),
                slice(top, bottom),
                slice(left, right),
            )


def by_tiles(function: Callable[[Tensor], Tensor], x: Tensor, side: int, margin: int, multiple: int = 1) -> Tensor:
    """function(x) of images (B, C, H, W), tile by tile; the function keeps the size of what it is given."""
    whole = x.new_empty(x.shape)
    for tile in tiles(x.shape[-2], x.shape[-1], side, margin, multiple):
        tile.put(whole, function(tile.cut(x)))
    return whole


def _spans(size: int, side: int, margin: int, multiple: int) -> list[tuple[int, int]]:
    if size <= side + 2 * margin:
        return [(0, size)]
    count = -(-size // side)
    # Margins are multiples too, so that a tile begins where the whole image's blocks begin.
    starts = [round(size * i / count / multiple) * multiple for i in range(count)]
    return list(zip(starts, [*starts[1:], size], strict=True))
