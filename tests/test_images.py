"""Pictures survive the way to a file and back, and every unusable one is refused with one clear line."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from aipo.errors import InputError
from aipo.images import png_bytes, read_image, read_mask, tile, to_uint8, write_image

LEVELS = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
PICTURE = Image.fromarray(LEVELS)
TENSOR = torch.from_numpy(LEVELS).permute(2, 0, 1).float() / 255


def encoded(picture, file_format="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, format=file_format, **options)
    return buffer.getvalue()


def raw_png(width, height, bits, colour_type, rows=b""):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npz(array):
    buffer = io.BytesIO()
    np.savez(buffer, array)
    return buffer.getvalue()


# --- pictures in ---


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.png", encoded(PICTURE)),
        ("a.bmp", encoded(PICTURE, "BMP")),
        ("a.tif", encoded(PICTURE, "TIFF")),
        ("a.webp", encoded(PICTURE, "WEBP", lossless=True)),
        ("hwc.npy", npy(LEVELS)),
        ("chw.npy", npy(LEVELS.transpose(2, 0, 1))),
        ("float32.npy", npy(LEVELS.astype(np.float32) / 255)),
        ("big_endian.NPY", npy((LEVELS / 255).astype(">f8"))),
    ],
)
def test_lossless_files_are_read_exactly(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    x = read_image(tmp_path / name)
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    assert torch.equal(x, TENSOR)


def test_jpeg_is_read_within_its_loss(tmp_path):
    ramp = np.linspace(0, 255, 64).astype(np.uint8)
    smooth = Image.fromarray(np.broadcast_to(ramp[:, None, None], (64, 64, 3)).copy())
    smooth.save(tmp_path / "a.jpg", quality=95)
    x = read_image(str(tmp_path / "a.jpg"))
    assert (x[0, :, 0] - torch.from_numpy(ramp) / 255).abs().max() < 0.02


def test_a_picture_is_turned_as_its_orientation_tag_says(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise by 90 degrees
    PICTURE.resize((64, 32)).save(tmp_path / "a.png", exif=exif)
    x = read_image(tmp_path / "a.png", shape=(3, 64, 32))
    expected = np.rot90(np.asarray(PICTURE.resize((64, 32))), k=-1)
    assert np.array_equal(to_uint8(x).permute(1, 2, 0).numpy(), expected)


BAD_PICTURES = {
    "empty.png": (b"", "damaged"),
    "text.png": (b"not a picture", "damaged"),
    "truncated.png": (encoded(PICTURE)[:5000], "damaged"),
    "truncated.jpg": (encoded(PICTURE, "JPEG")[:1500], "damaged"),
    "gif.png": (encoded(PICTURE, "GIF"), "damaged"),
    "wide.png": (encoded(PICTURE.resize((80, 64))), "80x64 pixels (width x height), expected 64x64"),
    "bomb.png": (raw_png(10_000, 10_000, 8, 2), "10000x10000"),
    "larger_bomb.png": (raw_png(30_000, 30_000, 8, 2), "far too large"),
    "alpha.png": (encoded(PICTURE.convert("RGBA")), "alpha"),
    "grey_alpha.png": (encoded(PICTURE.convert("LA")), "alpha"),
    "transparent_colour.png": (encoded(PICTURE, transparency=(1, 2, 3)), "alpha"),
    "grey.png": (encoded(PICTURE.convert("L")), "greyscale"),
    "one_bit.png": (encoded(PICTURE.convert("1")), "1-bit"),
    "palette.png": (encoded(PICTURE.convert("P")), "palette"),
    "cmyk.jpg": (encoded(PICTURE.convert("CMYK"), "JPEG"), "CMYK"),
    "grey16.png": (encoded(Image.fromarray(LEVELS[..., 0].astype(np.uint16))), "16 bits"),
    "colour16.png": (raw_png(64, 64, 16, 2, bytes(64 * (1 + 64 * 6))), "16 bits"),
    "animated.png": (encoded(PICTURE, save_all=True, append_images=[PICTURE.rotate(90)]), "2 pictures"),
    "animated.webp": (
        encoded(PICTURE, "WEBP", save_all=True, append_images=[PICTURE.rotate(90)]),
        "2 pictures",
    ),
    "pages.tif": (encoded(PICTURE, "TIFF", save_all=True, append_images=[PICTURE]), "2 pictures"),
    "text.npy": (b"not an array", "not a readable .npy"),
    "archive.npy": (npz(LEVELS), "not a readable .npy"),
    "truncated.npy": (npy(LEVELS)[:-1], "not a readable .npy"),
    "objects.npy": (npy(np.array([{}], dtype=object)), "not a readable .npy"),
    "small.npy": (npy(LEVELS[:32]), "shape (32, 64, 3), expected (64, 64, 3) or (3, 64, 64)"),
    "integers.npy": (npy(LEVELS.astype(np.int64)), "int64"),
    "nan.npy": (npy(np.full((64, 64, 3), np.nan)), "NaN"),
    "infinite.npy": (npy(np.full((64, 64, 3), np.inf)), "infinite"),
    "bright.npy": (npy(LEVELS.astype(np.float32)), "span [0, 255]"),
    "negative.npy": (npy(LEVELS / 255 - 0.5), "span [-0.5, 0.5]"),
}


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_an_unusable_picture_is_refused_in_one_line(tmp_path, name):
    content, reason = BAD_PICTURES[name]
    (tmp_path / name).write_bytes(content)
    assert_refused(read_image, tmp_path / name, reason)


@pytest.mark.parametrize("read", [read_image, lambda path: read_mask(path, (64, 64))])
def test_missing_files_and_folders_are_refused_in_one_line(tmp_path, read):
    assert_refused(read, tmp_path / "missing.png", "no such file")
    assert_refused(read, tmp_path, "folder")


def assert_refused(read, path, reason):
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message
    assert reason in message
    assert ";" in message, "says what to do"
    assert "\n" not in message


@settings(deadline=None)
@given(
    position=st.integers(0, 399),
    level=st.integers(0, 255),
    file_format=st.sampled_from(["PNG", "WEBP", "TIFF"]),
)
def test_a_damaged_byte_gives_a_picture_or_an_input_error(tmp_path_factory, position, level, file_format):
    content = bytearray(encoded(PICTURE, file_format))
    content[position] = level
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content)
    try:
        x = read_image(path)
    except InputError:
        return
    assert x.shape == (3, 64, 64)


# --- masks in ---


def checks():
    return np.kron(np.indices((8, 8)).sum(axis=0) % 2, np.ones((8, 8))).astype(np.uint8) * 255


@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_white_is_observed_and_black_is_missing(tmp_path, mode):
    Image.fromarray(checks()).convert(mode).save(tmp_path / "mask.png")
    mask = read_mask(tmp_path / "mask.png", (64, 64))
    assert mask.dtype == torch.float32
    assert torch.equal(mask, torch.from_numpy(checks() / 255).float().unsqueeze(0))


def test_a_mask_of_nearly_black_and_white_is_accepted(tmp_path):
    levels = np.where(checks() > 0, 223, 32).astype(np.uint8)
    Image.fromarray(levels).save(tmp_path / "mask.png")
    assert torch.equal(read_mask(tmp_path / "mask.png", (64, 64))[0], torch.from_numpy(checks() / 255).float())


def painted(value, mode="L"):
    picture = Image.fromarray(checks()).convert(mode)
    picture.putpixel((5, 3), value)
    return picture


@pytest.mark.parametrize(
    ("picture", "reason"),
    [
        (Image.new("L", (64, 64), 0), "all black"),
        (Image.new("L", (64, 65), 255), "64x65"),
        (painted(33), "1 mask pixels are neither black nor white, the first at row 3, column 5"),
        (painted(222), "neither"),
        (painted((255, 255, 0), "RGB"), "neither"),
        (Image.fromarray(checks()).convert("RGBA"), "alpha"),
    ],
)
def test_an_unusable_mask_is_refused_in_one_line(tmp_path, picture, reason):
    picture.save(tmp_path / "mask.png")
    assert_refused(lambda path: read_mask(path, (64, 64)), tmp_path / "mask.png", reason)


# --- pictures out ---


@settings(deadline=None)
@given(
    levels=array_shapes(min_dims=2, max_dims=2, max_side=9).flatmap(
        lambda size: st.sampled_from([1, 3]).flatmap(lambda channels: arrays(np.uint8, (channels, *size)))
    )
)
def test_every_8_bit_picture_survives_png(levels):
    content = png_bytes(torch.from_numpy(levels).float() / 255)
    decoded = np.asarray(Image.open(io.BytesIO(content)))
    assert np.array_equal(decoded.reshape(*levels.shape[1:], -1).transpose(2, 0, 1), levels)


def test_a_written_picture_is_read_back(tmp_path):
    write_image(tmp_path / "a.png", TENSOR)
    assert torch.equal(read_image(tmp_path / "a.png"), TENSOR)


def test_levels_are_clamped_and_rounded():
    x = torch.tensor([-1.0, 0.49 / 255, 0.51 / 255, 254.51 / 255, 7.0, float("inf")])
    assert to_uint8(x).tolist() == [0, 0, 1, 255, 255, 255]


def test_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="1 of 12288 image values are NaN"):
        write_image(tmp_path / "a.png", torch.where(torch.arange(3 * 64 * 64).view(3, 64, 64) == 7, torch.nan, 0.5))
    assert list(tmp_path.iterdir()) == []


def test_only_png_names_are_written(tmp_path):
    with pytest.raises(InputError, match=r"a\.jpg.*\.png"):
        write_image(tmp_path / "a.jpg", TENSOR)


def test_enlargement_repeats_pixels():
    decoded = np.asarray(Image.open(io.BytesIO(png_bytes(TENSOR, scale=3))))
    assert np.array_equal(decoded, LEVELS.repeat(3, axis=0).repeat(3, axis=1))


@pytest.mark.parametrize("shape", [(64, 64), (2, 64, 64), (1, 3, 64, 64)])
def test_only_single_pictures_are_encoded(shape):
    with pytest.raises(ValueError, match="expected a picture"):
        png_bytes(torch.zeros(shape))


def test_tile_places_pictures_row_by_row_on_white():
    images = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 1, 2) / 10
    sheet = tile(list(images), columns=2, gap=1)
    assert torch.equal(
        sheet,
        torch.tensor([[[0, 0, 1, 0.1, 0.1], [1, 1, 1, 1, 1], [0.2, 0.2, 1, 1, 1]]]),
    )
