"""A photograph is saved as the kind of file it was: format, bits, transparency, camera data, colors."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from aipo.errors import InputError
from aipo.images.photograph import read_photograph
from aipo.images.png16 import decode_png16, encode_png16, is_png16

MAKE, ORIENTATION = 0x010F, 0x0112


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def decoded(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def filtered(values, kinds):
    """A PNG's rows with the given filters, straight from the standard: the oracle of the decoder."""
    height, _, channels = values.shape
    rows = values.astype(">u2").view(np.uint8).reshape(height, -1).astype(int)
    step, out = 2 * channels, []
    for y in range(height):
        line = [kinds[y]]
        for i in range(rows.shape[1]):
            a = rows[y, i - step] if i >= step else 0
            b = rows[y - 1, i] if y else 0
            c = rows[y - 1, i - step] if y and i >= step else 0
            p = a + b - c
            paeth = min((abs(p - v), k) for k, v in enumerate((a, b, c)))[1]
            line.append((rows[y, i] - [0, a, b, (a + b) // 2, (a, b, c)[paeth]][kinds[y]]) % 256)
        out.append(bytes(int(v) for v in line))
    return b"".join(out)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 2, 3, 4]), st.randoms())
def test_every_filter_of_a_16_bit_png_is_undone(height, width, channels, random):
    import struct
    import zlib

    values = np.random.default_rng(random.randrange(10**6)).integers(0, 65536, (height, width, channels), np.uint16)
    data = encode_png16(values)
    start = data.index(b"IDAT") - 4
    body = zlib.compress(filtered(values, [random.randrange(5) for _ in range(height)]))
    chunk = struct.pack(">I", len(body)) + b"IDAT" + body + struct.pack(">I", zlib.crc32(b"IDAT" + body))
    assert np.array_equal(decode_png16(data[:start] + chunk), values)


def test_a_16_bit_png_is_the_one_that_others_read_and_write():
    values = np.random.default_rng(1).integers(0, 65536, (20, 30, 1), np.uint16)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encode_png16(values)))), values[..., 0])
    buffer = io.BytesIO()
    Image.fromarray(np.cumsum(values[..., 0], 1).astype(np.uint16)).save(buffer, "PNG")
    assert is_png16(buffer.getvalue())
    assert np.array_equal(decode_png16(buffer.getvalue())[..., 0], np.cumsum(values[..., 0], 1).astype(np.uint16))


def test_16_bits_of_color_are_kept(tmp_path):
    values = np.random.default_rng(1).integers(0, 65536, (20, 30, 3), np.uint16)
    exif = Image.Exif()
    exif[MAKE] = "Somebody"
    (tmp_path / "deep.png").write_bytes(encode_png16(values, icc=b"a profile", exif=exif.tobytes()))
    photo = read_photograph(tmp_path / "deep.png")
    assert (photo.bits, photo.format) == (16, "PNG")
    assert np.array_equal((photo.x * 65535).round().numpy().astype(int), values.transpose(2, 0, 1))
    again = photo.encode(photo.x)
    assert np.array_equal(decode_png16(again), values)
    image = Image.open(io.BytesIO(again))
    assert (image.getexif()[MAKE], image.info["icc_profile"]) == ("Somebody", b"a profile")


@pytest.mark.parametrize("cut", [40, 60, 200])
def test_a_damaged_16_bit_png_is_one_line(tmp_path, cut):
    data = encode_png16(np.random.default_rng(1).integers(0, 65536, (20, 30, 3), np.uint16))
    (tmp_path / "cut.png").write_bytes(data[:cut])
    with pytest.raises(InputError, match=r"cut\.png"):
        read_photograph(tmp_path / "cut.png")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF", "AVIF", "BMP"])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_format_size_gray_and_transparency_stay(tmp_path, format, mode):
    if mode == "RGBA" and format in ("JPEG", "BMP"):
        pytest.skip("has no transparency")
    values = pixels(24, 40, len(mode)) if len(mode) > 1 else pixels(24, 40)
    path = tmp_path / f"a.{format.lower()}"
    Image.fromarray(values).save(path, format, **({"lossless": True} if format == "WEBP" else {}))
    photo = read_photograph(path)
    again = Image.open(io.BytesIO(photo.encode(photo.x)))
    assert (again.format, again.size) == (format, (40, 24))
    color = format == "WEBP"  # which has no gray of its own
    assert again.mode == ("RGB" if mode == "L" and color else mode)
    if format in ("PNG", "TIFF", "BMP"):
        assert np.array_equal(np.asarray(again), values)
    if mode == "RGBA":
        assert np.abs(np.asarray(again)[..., 3].astype(int) - values[..., 3]).max() <= (0 if format == "PNG" else 60)


def test_camera_data_and_profile_stay_and_the_orientation_is_applied_once(tmp_path):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image = Image.fromarray(pixels(24, 40, 3))
    exif = image.getexif()
    exif[MAKE], exif[ORIENTATION] = "Somebody", 6
    image.save(tmp_path / "a.jpg", exif=exif, icc_profile=profile, quality=95)
    photo = read_photograph(tmp_path / "a.jpg")
    assert photo.x.shape == (3, 40, 24)
    again = Image.open(io.BytesIO(photo.encode(photo.x)))
    assert again.size == (24, 40)
    assert again.getexif()[MAKE] == "Somebody"
    assert again.getexif().get(ORIENTATION, 1) == 1
    assert again.info["icc_profile"] == profile


@pytest.mark.parametrize("mode", ["RGBA", "RGB", "L"])
def test_a_tiff_file_says_nothing_of_how_another_stores_its_pixels(tmp_path, mode):
    """One whose alpha channel is opaque loses it; the tag for it would make the new file unreadable."""
    exif = Image.Exif()
    exif[0x010F] = "AIPO"
    Image.new(mode, (40, 30), (200, 100, 50, 255)[: len(mode)] if mode != "L" else 90).save(
        tmp_path / "a.tif", exif=exif
    )
    photo = read_photograph(tmp_path / "a.tif")
    for format, ending in (("TIFF", "tif"), ("JPEG", "jpg"), ("PNG", "png")):
        path = tmp_path / f"b.{ending}"
        path.write_bytes(photo.encode(photo.x.repeat_interleave(2, 1).repeat_interleave(2, 2), format))
        with Image.open(path) as image:
            image.load()
            assert image.size == (80, 60)
            assert image.getexif()[0x010F] == "AIPO"


def test_print_colors_become_screen_colors(tmp_path):
    Image.fromarray(pixels(24, 40, 3)).convert("CMYK").save(tmp_path / "a.jpg")
    photo = read_photograph(tmp_path / "a.jpg")
    assert "CMYK" in photo.notes[0]
    assert Image.open(io.BytesIO(photo.encode(photo.x))).mode == "RGB"


def test_an_array_stays_an_array_of_floats(tmp_path):
    values = np.random.default_rng(0).normal(0.5, 0.2, (12, 16, 3)).astype(np.float32)
    np.save(tmp_path / "a.npy", values)
    photo = read_photograph(tmp_path / "a.npy")
    assert np.array_equal(np.load(io.BytesIO(photo.encode(photo.x))), values)


def test_another_format_can_be_asked_for(tmp_path):
    Image.fromarray(pixels(24, 40, 4)).save(tmp_path / "a.png")
    photo = read_photograph(tmp_path / "a.png")
    low, high = (photo.encode(photo.x, "JPEG", quality) for quality in (20, 95))
    assert Image.open(io.BytesIO(low)).format == "JPEG"
    assert len(low) < len(high) / 2


def test_transparency_grows_with_the_picture(tmp_path):
    Image.fromarray(pixels(24, 40, 4)).save(tmp_path / "a.png")
    photo = read_photograph(tmp_path / "a.png")
    assert decoded(photo.encode(torch.rand(3, 48, 80))).shape == (48, 80, 4)
