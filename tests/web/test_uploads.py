"""Pictures that strangers send: what is made of them, what is refused, and how much memory that takes."""

import io
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from bombs import blocks, flat_tiff, saved
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import aipo
from aipo.errors import InputError
from aipo.web.decode import BYTES_PER_PIXEL, MAX_BYTES, MAX_PIXELS, decode, decoding_memory
from aipo.web.pictures import DECODING, WORKSPACE, pack, read_upload, unpack

SIDE = int(MAX_PIXELS**0.5)
BOMBS = {
    "transparent PNG": lambda: saved(blocks(SIDE, SIDE), "PNG", compress_level=1),
    "PNG with a palette": lambda: saved(blocks(SIDE, SIDE, "P"), "PNG", compress_level=1, transparency=3),
    "progressive JPEG": lambda: saved(blocks(SIDE, SIDE, "CMYK"), "JPEG", quality=20, progressive=True),
    "narrow JPEG": lambda: saved(blocks(40_000, 1000, "RGB"), "JPEG", quality=20, progressive=True, subsampling=0),
    "TIFF with 16 bits": lambda: flat_tiff(SIDE, SIDE, samples=4, bits=16),
    "lossless WebP": lambda: saved(blocks(SIDE, SIDE), "WEBP", lossless=True, quality=0, method=0),
}
MEASURE = """
import json, sys
from pathlib import Path
from aipo.web.budget import return_large_blocks
from aipo.web.decode import decode
from aipo.web.pictures import read_upload

def memory(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))

def peak(work, content):
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = memory("VmRSS")
    work(content)
    return memory("VmHWM") - before

return_large_blocks()
files = [Path(name).read_bytes() for name in sys.argv[1:]]
read_upload(files[0], (64, 64))  # what is loaded once stays
print(json.dumps([[peak(decode, f), peak(lambda f: read_upload(f, (64, 64)), f)] for f in files]))
"""


def encoded(array, format="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format=format, **options)
    return buffer.getvalue()


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


class TestReading:
    def test_a_picture_of_the_right_size_is_taken_as_it_is(self):
        array = noise(64, 64, 3)
        x, note = read_upload(encoded(array), (64, 64))
        assert torch.equal((x * 255).round().to(torch.uint8).permute(1, 2, 0), torch.from_numpy(array))
        assert note == "Used as it is: 64x64 pixels."

    def test_the_square_in_the_middle_is_scaled(self):
        array = np.zeros((128, 256, 3), np.uint8)
        array[:, 64:192] = noise(128, 128, 3)
        x, note = read_upload(encoded(array), (64, 64))
        means = array[:, 64:192].reshape(64, 2, 64, 2, 3).mean((1, 3))
        assert np.abs(x.permute(1, 2, 0).numpy() * 255 - means).max() <= 1
        assert "256x128" in note
        assert "middle" in note

    def test_the_face_of_a_photograph_is_found(self):
        sample = (aipo.samples.load("astronaut") * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        photograph = np.full((300, 400, 3), 128, np.uint8)
        photograph[40:232, 20:212] = sample.repeat(3, 0).repeat(3, 1)
        x, note = read_upload(encoded(photograph), (64, 64))
        assert "its face was found" in note
        # The sample itself lies where the priors expect it, within a few pixels.
        truth = torch.from_numpy(sample).permute(2, 0, 1) / 255
        moved = [x.roll((i, j), (1, 2)) for i in range(-4, 5) for j in range(-4, 5)]
        assert min((m - truth)[:, 8:-8, 8:-8].square().mean() for m in moved) < 0.01

    def test_a_small_picture_is_enlarged(self):
        x, note = read_upload(encoded(np.full((16, 16, 3), 51, np.uint8)), (64, 64))
        assert x.shape == (3, 64, 64)
        assert torch.allclose(x, torch.tensor(0.2))
        assert note == "Your picture has 16x16 pixels; it was scaled to 64x64."

    def test_gray_becomes_color_and_transparent_becomes_white(self):
        gray, _ = read_upload(encoded(np.full((64, 64), 51, np.uint8)), (64, 64))
        assert torch.allclose(gray, torch.tensor(0.2))
        clear, _ = read_upload(encoded(np.zeros((64, 64, 4), np.uint8)), (64, 64))
        assert torch.equal(clear, torch.ones(3, 64, 64))

    @pytest.mark.parametrize("channels", [1, 3, 4])
    @pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
    def test_a_turned_photograph_is_set_upright(self, channels, format):
        """Whatever its colors: making a transparent picture opaque once lost how it is turned."""
        array = np.zeros((64, 64, channels), np.uint8)
        array[:32] = 255
        array[..., 3:] = 255  # opaque
        exif = Image.Exif()
        exif[0x0112] = 6  # stored turned by 90 degrees
        content = encoded(array.squeeze(), format, exif=exif, **({"lossless": True} if format == "WEBP" else {}))
        x, _ = read_upload(content, (64, 64))
        assert x[:, :, 32:].mean() == 1
        assert x[:, :, :32].mean() == 0

    def test_the_size_that_is_told_is_that_of_the_upright_picture(self):
        exif = Image.Exif()
        exif[0x0112] = 8
        assert "100x200 pixels" in read_upload(encoded(noise(100, 200, 4), exif=exif), (64, 64))[1]

    @pytest.mark.parametrize("size", [(5000, 3700), (1700, 1601), (1601, 70), (40_000, 9)])
    def test_a_large_picture_is_made_small_as_a_whole(self, size):
        """Tile by tile gives what one average over the whole picture gives."""
        rows, columns = np.linspace(0, 1, size[1]), np.linspace(0, 1, size[0])
        array = np.stack([255 * (rows[:, None] + columns) / 2, 255 * (1 - rows[:, None]) * columns], -1)
        array = np.concatenate([array, np.full_like(array, 128)], -1).astype(np.uint8)  # half transparent
        small, found = decode(encoded(array, compress_level=1))
        assert found == size
        assert max(small.size) == 1600
        on_white = 255 + (array[..., :3].astype(np.float32) - 255) * 128 / 255
        wanted = Image.fromarray(on_white.round().astype(np.uint8)).resize(small.size, Image.Resampling.BOX)
        assert np.abs(np.asarray(small).astype(int) - np.asarray(wanted)).max() <= 3

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"no picture", "this is not a picture"),
            (b"", "this is not a picture"),
            (encoded(noise(64, 64, 3))[:500], "it is damaged"),
            (b"x" * (MAX_BYTES + 1), "the limit is 20 MB"),
            (encoded(noise(64, 64).astype(np.uint16)), "more than 8 bits"),
            (flat_tiff(64, 64)[:-9], "it is damaged"),
            (encoded(noise(64, 64, 3), "JPEG")[:-2] + b"\xff\xda" * 101, "in more than 100 passes"),
        ],
    )
    def test_what_cannot_be_used_is_refused_in_one_line(self, content, message):
        with pytest.raises(InputError, match=message) as caught:
            read_upload(content, (64, 64))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("side", [int(MAX_PIXELS**0.5) + 1, 100_000])
    def test_a_bomb_is_refused_by_its_header(self, side):
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
        with pytest.raises(InputError, match="the limit is 40 million pixels"):
            read_upload(bomb, (64, 64))

    def test_a_bomb_of_tiles_is_refused_by_its_header(self):
        """A hundred pixels in a tile of a gigabyte."""
        bomb = flat_tiff(10, 10, tile=(1 << 15, 1 << 15))
        with pytest.raises(InputError, match="tiles larger than itself"):
            read_upload(bomb, (64, 64))


class TestPacking:
    @given(st.binary(min_size=2 * 3 * 3, max_size=2 * 3 * 3), st.text(max_size=200))
    def test_there_and_back(self, levels, note):
        x = torch.tensor(list(levels)).view(3, 2, 3) / 255
        sent = json.loads(json.dumps(pack(x, note)))
        y, said = unpack(sent, (2, 3))
        assert torch.equal(x, y)
        assert said == note

    @pytest.mark.parametrize(
        ("sent", "message"),
        [
            (None, "no picture has arrived"),
            ("/etc/passwd", "no picture has arrived"),
            ({"path": "/etc/passwd"}, "no picture has arrived"),
            ({"picture": "AAAA"}, "no picture has arrived"),
            ({"picture": 7, "note": "x"}, "no picture has arrived"),
            ({"picture": "A" * 24, "note": "x" * 201}, "no picture has arrived"),
            ({"picture": "/etc/passwd?", "note": "x"}, "did not arrive complete"),
            ({"picture": "A" * 20, "note": "x"}, "did not arrive complete"),
            ({"picture": "A" * 4000, "note": "x"}, "did not arrive complete"),
            ({"picture": "Ä" * 24, "note": "x"}, "did not arrive complete"),
        ],
    )
    def test_only_content_is_taken(self, sent, message):
        with pytest.raises(InputError, match=message):
            unpack(sent, (2, 3))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """For every bomb, bytes at the peak of decoding it, and of making an image of it."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("only Linux says how much memory a process had at most")
    folder, files = tmp_path_factory.mktemp("bombs"), []
    for i, make in enumerate(BOMBS.values()):
        files.append(folder / str(i))
        files[-1].write_bytes(make())
    answer = subprocess.run([sys.executable, "-c", MEASURE, *files], capture_output=True, text=True, check=True)
    contents = [file.read_bytes() for file in files]
    return dict(zip(BOMBS, zip(contents, json.loads(answer.stdout), strict=True), strict=True))


@pytest.mark.parametrize("kind", BOMBS)
def test_decoding_keeps_to_what_it_announced(measured, kind):
    content, (decoding, whole) = measured[kind]
    announced = decoding_memory(content)
    assert decoding <= announced + 60e6  # to make it smaller; that counts as work space
    assert whole <= announced + WORKSPACE


def test_the_heaviest_picture_fits_into_the_budget():
    assert MAX_PIXELS * max(BYTES_PER_PIXEL.values()) + WORKSPACE <= DECODING
