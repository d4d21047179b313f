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
from aipo.images import (
    color_mask,
    open_image,
    png_bytes,
    read_image,
    read_kernel,
    read_mask,
    read_numbers,
    tile,
    to_uint8,
    write_image,
)

LEVELS = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
PICTURE = Image.fromarray(LEVELS)
TENSOR = torch.from_numpy(LEVELS).permute(2, 0, 1).float() / 255


def encoded(picture, file_format="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, format=file_format, **options)
    return buffer.getvalue()


def raw_png(width, height, bits, color_type, rows=b""):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
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


def gray(levels):
    return Image.fromarray(levels[..., 0])


def test_gray_is_one_channel_and_becomes_color_by_copying(tmp_path):
    gray(LEVELS).save(tmp_path / "a.png")
    gray(LEVELS).convert("LA").save(tmp_path / "b.png")
    np.save(tmp_path / "c.npy", LEVELS[..., 0])
    for name in ("a.png", "b.png", "c.npy"):
        assert torch.equal(open_image(tmp_path / name).x, TENSOR[:1])
        assert torch.equal(read_image(tmp_path / name), TENSOR[:1].expand(3, 64, 64))
    Image.fromarray(checks()).convert("1").save(tmp_path / "d.png")
    assert torch.equal(open_image(tmp_path / "d.png").x[0], torch.from_numpy(checks() / 255).float())


def test_16_bits(tmp_path):
    deep = np.random.default_rng(0).integers(0, 2**16, (64, 64), dtype=np.uint16)
    expected = torch.from_numpy(deep.astype(np.float32) / 65535)
    Image.fromarray(deep).save(tmp_path / "a.png")
    Image.fromarray(deep).save(tmp_path / "a.tif")
    np.save(tmp_path / "a.npy", deep)
    for name in ("a.png", "a.tif", "a.npy"):
        opened = open_image(tmp_path / name)
        assert torch.equal(opened.x[0], expected)
        assert opened.notes == ()
    color = np.repeat(deep[..., None], 3, axis=2).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in color)
    (tmp_path / "color.png").write_bytes(raw_png(64, 64, 16, 2, rows))
    opened = open_image(tmp_path / "color.png")
    assert (opened.x[0] - expected).abs().max() < 1.01 / 255
    assert opened.notes == ("16 bits per channel: only the upper 8 are used",)


def test_palette_and_opaque_alpha_are_exact(tmp_path):
    coarse = PICTURE.quantize(64)
    coarse.save(tmp_path / "a.png")
    coarse.convert("RGBA").save(tmp_path / "b.png")
    expected = torch.from_numpy(np.asarray(coarse.convert("RGB")).copy()).permute(2, 0, 1) / 255
    assert torch.equal(read_image(tmp_path / "a.png"), expected)
    opened = open_image(tmp_path / "b.png")
    assert torch.equal(opened.x, expected)
    assert opened.transparent is None
    assert opened.notes == ("opaque alpha channel: dropped",)


def test_transparent_pixels_are_told_apart(tmp_path):
    alpha = Image.fromarray(checks())
    picture = PICTURE.convert("RGBA")
    picture.putalpha(alpha)
    picture.save(tmp_path / "a.png")
    opened = open_image(tmp_path / "a.png")
    assert torch.equal(opened.transparent[0], torch.from_numpy(checks() == 0))
    assert torch.equal(opened.x, TENSOR)


def test_of_a_cameras_two_pictures_the_first_is_read(tmp_path):
    PICTURE.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[PICTURE.rotate(90)], quality=100)
    opened = open_image(tmp_path / "a.jpg")
    assert (opened.x - TENSOR).abs().mean() < 0.75 * (opened.x - TENSOR.rot90(1, (1, 2))).abs().mean()
    assert opened.notes == ("several pictures in the file: the first is used",)


def test_noise_may_leave_the_range_but_another_scale_may_not(tmp_path):
    noisy = TENSOR * 0.5 + 0.25 + 0.15 * torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert noisy.min() < 0
    np.save(tmp_path / "a.npy", noisy.numpy())
    assert torch.equal(open_image(tmp_path / "a.npy", noisy=True).x, noisy)
    assert_refused(open_image, tmp_path / "a.npy", "span")
    np.save(tmp_path / "b.npy", (2 * TENSOR - 1).numpy())
    assert_refused(lambda path: open_image(path, noisy=True), tmp_path / "b.npy", "span [-1, 1]")
    np.save(tmp_path / "c.npy", (255 * TENSOR).numpy())
    assert_refused(lambda path: open_image(path, noisy=True), tmp_path / "c.npy", "span [0, 255]")


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
    "larger_bomb.png": (raw_png(30_000, 30_000, 8, 2), "much too large"),
    "transparent.png": (encoded(Image.new("RGBA", (64, 64), (9, 9, 9, 200))), "transparent"),
    "transparent_color.png": (encoded(Image.new("RGB", (64, 64), (1, 2, 3)), transparency=(1, 2, 3)), "transparent"),
    "float.tif": (encoded(Image.new("F", (64, 64)), "TIFF"), "floating-point"),
    "huge.png": (raw_png(7_100, 7_100, 8, 2), "7100x7100"),
    "cmyk.jpg": (encoded(PICTURE.convert("CMYK"), "JPEG"), "CMYK"),
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
    "small.npy": (npy(LEVELS[:32]), "64x32 pixels (width x height), expected 64x64"),
    "four.npy": (npy(np.zeros((64, 64, 4))), "shape (64, 64, 4)"),
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
        (Image.new("RGBA", (64, 64), (255, 255, 255, 9)), "transparent"),
    ],
)
def test_an_unusable_mask_is_refused_in_one_line(tmp_path, picture, reason):
    picture.save(tmp_path / "mask.png")
    assert_refused(lambda path: read_mask(path, (64, 64)), tmp_path / "mask.png", reason)


MAGENTA = torch.tensor([1.0, 0.0, 1.0])[:, None, None]


def test_a_painted_color_is_missing_with_its_soft_rim():
    x = torch.full((3, 16, 16), 0.4)
    x[:, 4:8, 4:8] = MAGENTA - 0.02 * MAGENTA
    x[:, 3, 4:8] = (MAGENTA[:, 0] * 2 + 0.4) / 3  # the brush's rim
    x[:, 12, 12] = (MAGENTA[:, 0, 0] * 2 + 0.4) / 3  # the same color elsewhere is part of the picture
    expected = torch.ones(1, 16, 16)
    expected[:, 3:8, 4:8] = 0
    for color in ("ff00ff", "#FF00FF", "magenta"):
        assert torch.equal(color_mask(x, color), expected)


@pytest.mark.parametrize(
    ("color", "reason"), [("mauve-ish", "not a color"), ("00ff00", "no pixel"), ("666666", "every pixel")]
)
def test_an_unusable_mask_color(color, reason):
    with pytest.raises(InputError, match=reason):
        color_mask(torch.full((3, 8, 8), 0.4), color)


# --- numbers in ---


def test_kernels_and_vectors(tmp_path):
    kernel = np.outer([1, 2, 1], [1, 4, 1]) / 24
    np.save(tmp_path / "k.npy", kernel)
    assert torch.equal(read_kernel(tmp_path / "k.npy"), torch.from_numpy(kernel))
    Image.fromarray((kernel * 255 * 3).astype(np.uint8)).save(tmp_path / "k.png")
    assert torch.equal(
        read_kernel(tmp_path / "k.png"), torch.from_numpy((kernel * 255 * 3).astype(np.uint8) / 255).float()
    )
    np.save(tmp_path / "y.npy", np.arange(5))
    assert read_numbers(tmp_path / "y.npy", 1).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (npy(np.zeros(3)), "shape (3,)"),
        (npy(np.zeros((3, 3))), "add up"),
        (npy(np.full((3, 3), np.nan)), "NaN"),
        (npy(np.full((3, 3), "a")), "real numbers"),
        (npy(np.zeros((0, 3))), "real numbers"),
        (b"nothing", "not a readable .npy"),
    ],
)
def test_unusable_numbers_are_refused_in_one_line(tmp_path, content, reason):
    (tmp_path / "k.npy").write_bytes(content)
    assert_refused(read_kernel, tmp_path / "k.npy", reason)


def test_a_colored_kernel_is_refused(tmp_path):
    PICTURE.save(tmp_path / "k.png")
    assert_refused(read_kernel, tmp_path / "k.png", "gray")
    assert_refused(lambda path: read_numbers(path, 1), tmp_path / "k.png", ".npy")


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
    with pytest.raises(ValueError, match="expected an image"):
        png_bytes(torch.zeros(shape))


def test_tile_places_pictures_row_by_row_on_white():
    images = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 1, 2) / 10
    sheet = tile(list(images), columns=2, gap=1)
    assert torch.equal(
        sheet,
        torch.tensor([[[0, 0, 1, 0.1, 0.1], [1, 1, 1, 1, 1], [0.2, 0.2, 1, 1, 1]]]),
    )
