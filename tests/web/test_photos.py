"""Photographs over HTTP: what comes back, what is kept of a file, what is refused, and how much memory it takes."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bombs import flat_tiff
from PIL import Image

import aipo
from aipo.errors import InputError
from aipo.images.metrics import psnr
from aipo.web.decode import PHOTOS
from aipo.web.photo_job import BYTES_PER_PIXEL, WORKSPACE, Stopped, blend, photo_memory, read, restore_photo
from aipo.web.photo_request import Stroke, painted_pixels, parse_request
from aipo.web.photos import WORK
from app_client import save_photo_prior


@pytest.fixture(scope="module")
def prior(tmp_path_factory):
    """Not trained, hence a Gaussian: it denoises a little, and at once."""
    return aipo.load_prior(save_photo_prior(tmp_path_factory.mktemp("prior") / "gauss.safetensors"))


def picture(height, width, channels=3):
    rows, columns = np.mgrid[:height, :width]
    waves = np.sin(rows / 9) + np.sin(columns / 7)
    planes = [(waves * (i + 1) * 20 + 128) for i in range(channels)]
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def noisy(array, sigma=25, seed=0):
    moved = array + np.random.default_rng(seed).normal(0, sigma, array.shape)
    return np.clip(np.round(moved), 0, 255).astype(np.uint8)


def saved(array, format="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(array.squeeze()).save(buffer, format, **options)
    return buffer.getvalue()


def opened(content):
    return Image.open(io.BytesIO(content))


def run(prior, content, strokes=None, look=None, stop=None, **options):
    """All messages of a restoration, with their bytes."""
    said = []

    def tell(message, more):
        if message["status"] == "running" and stop and stop(message):
            raise Stopped("Stopped by you")
        said.append((message, more))

    header = {"options": {"task": "denoise", **options}, "strokes": strokes, "look": look}
    restore_photo(prior, parse_request(header, prior), content, tell)
    return said


def result(prior, content, strokes=None, **options):
    message, file = run(prior, content, strokes, **options)[-1]
    assert message["status"] == "done", message
    return message, file


class TestResult:
    def test_the_file_is_what_the_command_line_computes(self, prior):
        content = saved(noisy(picture(90, 130)))
        message, file = result(prior, content, sigma=0.1)
        y = read(content).x[None]
        wanted = (prior.denoise(y, 0.1)[0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        assert np.abs(np.asarray(opened(file)).astype(int) - wanted).max() <= 1
        assert message["result"] == {"ending": ".png", "type": "image/png"}
        assert message["size"] == [130, 90]

    @pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
    def test_format_and_size_stay(self, prior, format):
        file = opened(result(prior, saved(noisy(picture(50, 70)), format))[1])
        assert (file.format, file.size, file.mode) == (format, (70, 50), "RGB")

    def test_what_the_camera_wrote_and_the_profile_stay_and_it_is_upright(self, prior):
        from PIL import ImageCms

        exif = Image.Exif()
        exif[0x010F], exif[0x0112] = "A camera", 6
        profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
        content = saved(noisy(picture(40, 60)), "JPEG", exif=exif, icc_profile=profile)
        message, file = result(prior, content)
        kept = opened(file)
        assert kept.size == (40, 60)
        assert kept.getexif()[0x010F] == "A camera"
        assert 0x0112 not in kept.getexif()
        assert kept.info["icc_profile"] == profile
        assert "the camera's data, the color profile" in " ".join(message["facts"])

    def test_transparency_gray_and_16_bits_stay(self, prior):
        clear = np.concatenate([noisy(picture(40, 60)), np.full((40, 60, 1), 99, np.uint8)], -1)
        file = opened(result(prior, saved(clear))[1])
        assert (np.asarray(file)[..., 3] == 99).all()
        assert opened(result(prior, saved(noisy(picture(40, 60, 1))))[1]).mode == "L"
        deep = opened(result(prior, saved(noisy(picture(40, 60, 1)).astype(np.uint16) * 257))[1])
        assert np.asarray(deep).max() > 255
        assert len(np.unique(np.asarray(deep) % 257)) > 1

    def test_only_what_was_painted_changes(self, prior):
        array = picture(80, 120)
        strokes = [[4, 0, 20, 40, 100, 40], [4, 1, 50, 40, 70, 40]]
        message, file = result(prior, saved(array), strokes, task="inpaint")
        painted = painted_pixels((Stroke(((20, 40), (100, 40)), 4), Stroke(((50, 40), (70, 40)), 4, True)), (80, 120))
        after = np.asarray(opened(file))
        assert (after[~painted.numpy()] == array[~painted.numpy()]).all()
        assert np.abs(after[painted.numpy()].astype(int) - array[painted.numpy()]).mean() < 25  # waves, continued
        assert f"{int(painted.sum())} pixels were filled in" in " ".join(message["facts"])

    def test_transparent_pixels_are_missing_too(self, prior):
        array = np.concatenate([picture(40, 60), np.full((40, 60, 1), 255, np.uint8)], -1)
        array[10:20, 10:20, 3] = 0
        file = opened(result(prior, saved(array), task="inpaint")[1])
        assert file.mode == "RGB"
        assert (np.asarray(file)[30:] == array[30:, :, :3]).all()

    @pytest.mark.parametrize("factor", [2, 3])
    def test_it_is_enlarged(self, prior, factor):
        message, file = result(prior, saved(picture(40, 60)), task="superres", factor=factor)
        assert opened(file).size == (60 * factor, 40 * factor)
        assert message["size"] == [60 * factor, 40 * factor]

    def test_the_other_tasks(self, prior):
        for options in ({"task": "deblur", "blur": 1.5}, {"task": "deblur", "motion": "7,45"}):
            assert opened(result(prior, saved(picture(40, 60)), **options)[1]).size == (60, 40)
        mosaic = result(prior, saved(picture(40, 60, 1)), task="demosaic", pattern="bggr")[1]
        assert opened(mosaic).mode == "RGB"


class TestMessages:
    def test_a_first_look_comes_before_the_whole_and_where_the_user_looks(self, prior):
        array = picture(900, 1300)
        said = run(prior, saved(noisy(array)), look=[0.25, 0.75], sigma=0.1)
        first = next(message for message, _ in said if message.get("first"))
        left, top, width, height = first["patch"]
        assert (width, height) == (192, 192)
        assert left <= 325 <= left + width
        assert top <= 675 <= top + height
        shown = next(more for message, more in said if message.get("first"))
        truth = torch.from_numpy(array[top : top + 192, left : left + 192]).permute(2, 0, 1) / 255
        part = torch.from_numpy(np.array(opened(shown))).permute(2, 0, 1) / 255
        before = torch.from_numpy(noisy(array)[top : top + 192, left : left + 192]).permute(2, 0, 1) / 255
        assert psnr(part[None], truth[None]) > psnr(before[None], truth[None]) + 3

    def test_the_parts_cover_the_whole_once_and_agree_with_the_file(self, prior):
        said = run(prior, saved(noisy(picture(1100, 1200))), sigma=0.1)
        covered = np.zeros((1100, 1200), int)
        whole = np.zeros((1100, 1200, 3))
        for message, more in said:
            if "patch" in message and not message.get("first"):
                left, top, width, height = message["patch"]
                covered[top : top + height, left : left + width] += 1
                whole[top : top + height, left : left + width] = np.asarray(opened(more))
        assert (covered == 1).all()
        assert len([1 for m, _ in said if "patch" in m]) == 5  # the first look and four tiles
        assert np.abs(whole - np.asarray(opened(said[-1][1]))).mean() < 4  # JPEG of what is still noisy
        shares = [message["share"] for message, _ in said if "share" in message]
        assert shares == sorted(shares)
        assert shares[-1] == 1

    def test_what_was_painted_is_looked_at_first(self, prior):
        said = run(prior, saved(picture(300, 500)), [[3, 0, 400, 50, 420, 60]], task="inpaint")
        left, top, width, height = next(message for message, _ in said if message.get("first"))["patch"]
        assert left <= 400 <= left + width
        assert top <= 50 <= top + height

    def test_stop(self, prior):
        said = run(prior, saved(noisy(picture(600, 700))), stop=lambda m: m.get("share", 0) > 0, sigma=0.1)
        assert said[-1][0]["status"] == "stopped"
        assert "There is no file" in said[-1][0]["text"]

    def test_stop_while_the_noise_is_measured(self, prior):
        asked = []
        said = run(prior, saved(noisy(picture(300, 300))), stop=lambda m: asked.append(m) or len(asked) > 3)
        assert [message["text"] for message in asked[1:]] == 3 * ["Measuring the noise …"]
        assert said[-1][0]["status"] == "stopped"

    @pytest.mark.parametrize(
        ("content", "options", "text"),
        [
            (saved(picture(40, 60)), {"task": "inpaint"}, "Nothing is painted yet"),
            (saved(picture(40, 60)), {"task": "demosaic"}, "The picture is in color; a mosaic"),
            (b"hello", {}, "This is not a picture"),
            (saved(picture(40, 60))[:200], {}, "amaged"),
        ],
    )
    def test_what_cannot_be_done_is_said_in_one_line(self, prior, content, options, text):
        message, file = run(prior, content, **options)[-1]
        assert message["status"] == "failed"
        assert text in message["text"]
        assert "\n" not in message["text"]
        assert "--" not in message["text"]
        assert "/" not in message["text"].removeprefix("This is not a picture")
        assert file == b""

    def test_a_large_hole_is_filled_only_if_the_user_insists(self, prior):
        content, strokes = saved(picture(200, 200)), [[40, 0, 100, 100, 101, 101]]
        message, _ = run(prior, content, strokes, task="inpaint")[-1]
        assert message["status"] == "failed"
        assert message["anyway"]
        result(prior, content, strokes, task="inpaint", anyway=True)


class TestStrokes:
    def test_a_line_is_as_wide_as_the_brush(self):
        painted = painted_pixels((Stroke(((10.0, 20.0), (50.0, 20.0)), 5),), (40, 60)).numpy()
        assert painted[16:25, 10:51].all()
        assert not painted[:14].any()
        assert not painted[27:].any()
        assert painted[20, 5]  # its ends are round
        assert not painted[16, 5]

    def test_the_smallest_brush_is_a_pixel_and_what_lies_outside_is_nothing(self):
        assert painted_pixels((Stroke(((7.2, 3.9),), 0.5),), (10, 10)).nonzero().tolist() == [[3, 7]]
        assert not painted_pixels((Stroke(((-90.0, 900.0), (-80.0, 900.0)), 5),), (10, 10)).any()

    def test_erasing_takes_away_what_came_before_it(self):
        dab = Stroke(((5.0, 5.0),), 3)
        wiped = Stroke(((5.0, 5.0),), 4, erase=True)
        assert not painted_pixels((dab, wiped), (10, 10)).any()
        assert painted_pixels((wiped, dab), (10, 10)).any()


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"options": []},
        {"options": {}},
        {"options": {"task": "colorize"}},
        {"options": {"task": "denoise", "prior": "/etc/passwd"}},
        {"options": {"task": "denoise", "mask": "/etc/passwd"}},
        {"options": {"task": "denoise", "sigma": "0.1"}},
        {"options": {"task": "denoise", "sigma": True}},
        {"options": {"task": "denoise", "sigma": -1}},
        {"options": {"task": "denoise", "sigma": float("nan")}},
        {"options": {"task": "superres", "factor": 100}},
        {"options": {"task": "deblur"}},
        {"options": {"task": "deblur", "motion": "9" * 50}},
        {"options": {"task": "deblur", "blur": 1e9}},
        {"options": {"task": "inpaint"}, "strokes": {"0": 1}},
        {"options": {"task": "inpaint"}, "strokes": [[1, 0, 2]]},
        {"options": {"task": "inpaint"}, "strokes": [[1, 0, 2, float("inf")]]},
        {"options": {"task": "inpaint"}, "strokes": [[1, 0] + [5] * 300_000]},
        {"options": {"task": "inpaint"}, "strokes": [["1", 0, 2, 3]]},
    ],
)
def test_what_the_page_would_not_send_is_refused(prior, header):
    def restore():
        restore_photo(prior, parse_request(header, prior), saved(picture(40, 60)), _raise)

    with pytest.raises(InputError) as caught:
        restore()
    assert "\n" not in str(caught.value)


def _raise(message, _):
    if message["status"] == "failed":
        raise InputError(message["text"])


def test_a_mixture_lies_between(prior):
    before, after = np.full((20, 30, 3), 100, np.uint8), np.full((20, 30, 3), 200, np.uint8)
    mixed = np.asarray(opened(blend(saved(before), saved(after), 0.25)))
    assert (mixed == 125).all()
    with pytest.raises(InputError, match="different sizes"):
        blend(saved(before), saved(after[:10]), 0.5)


class TestLimits:
    def test_large_files_are_refused_by_their_header(self):
        side = int(PHOTOS.pixels**0.5)
        assert photo_memory(flat_tiff(side, side)) <= WORK
        for content, factor in ((flat_tiff(side + 9, side + 9), 1), (flat_tiff(side // 2, side // 2), 3)):
            with pytest.raises(InputError, match=r"the limit is 24"):
                photo_memory(content, factor=factor)

    def test_the_largest_fits_into_the_budget(self):
        assert PHOTOS.pixels * BYTES_PER_PIXEL + WORKSPACE <= WORK

    @pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says")
    def test_a_restoration_keeps_to_what_it_announced(self, prior, tmp_path):
        """A picture of 2 megapixels, in a process of its own, as the server has it."""
        (tmp_path / "p.jpg").write_bytes(saved(noisy(picture(1500, 1500)), "JPEG", quality=90))
        save_photo_prior(tmp_path / "gauss.safetensors")
        command = [sys.executable, "-c", MEASURE, tmp_path / "gauss.safetensors", tmp_path / "p.jpg"]
        peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert peak <= photo_memory((tmp_path / "p.jpg").read_bytes())


MEASURE = """
import sys
from pathlib import Path
import aipo
from aipo.web.budget import return_large_blocks
from aipo.web.photo_job import restore_photo
from aipo.web.photo_request import parse_request

def memory(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))

return_large_blocks()
prior, content = aipo.load_prior(sys.argv[1]), Path(sys.argv[2]).read_bytes()
request = parse_request({"options": {"task": "denoise", "sigma": 0.1}}, prior)
before = memory("VmRSS")
restore_photo(prior, request, content, lambda *_: None)
print(memory("VmHWM") - before)
"""
