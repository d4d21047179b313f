"""Decoding takes no more memory than it says beforehand, for the heaviest pictures of every format."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bombs import blocks, flat_tiff, saved

from aipo.web.decode import BYTES_PER_PIXEL, MAX_PIXELS, decoding_memory
from aipo.web.pictures import DECODING
from aipo.web.upload import WORKSPACE

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
from aipo.web.decode import decode
from aipo.web.memory import return_large_blocks
from aipo.web.upload import read_upload

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
