"""PNG with 16 bits per color, which Pillow reduces to 8: read and written here.

A PNG is a list of chunks. Its pixels are compressed by zlib, after each row was replaced by differences to the pixels
at its left, above it, or both ("filters"). Every sum is modulo 256, byte by byte.

Reference: https://www.w3.org/TR/png-3/
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

from aipo.errors import InputError

__all__ = ["decode_png16", "encode_png16", "is_png16"]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # of gray, color, gray with alpha, color with alpha
COLOR_TYPES = {channels: color_type for color_type, channels in CHANNELS.items()}


def is_png16(data: bytes) -> bool:
    """Whether these bytes begin a PNG of 16 bits per color that is stored row by row (not interlaced)."""
    return data[:8] == SIGNATURE and data[12:16] == b"IHDR" and data[24] == 16 and data[28] == 0


def decode_png16(data: bytes) -> np.ndarray:
    """The pixels (H, W, channels) of a PNG for which `is_png16` holds, uint16, alpha last.

    Raises:
        InputError: the file is damaged.
    """
    width, height, _, color_type = struct.unpack(">IIBB", data[16:26])
    if color_type not in CHANNELS:
        raise InputError("is a PNG of an unknown kind; open it in an image editor and save it again")
    step = 2 * CHANNELS[color_type]
    size = height * (1 + step * width)
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(b"".join(content for kind, content in _chunks(data) if kind == b"IDAT"), size)
    except zlib.error as error:
        raise InputError(f"is a damaged PNG ({error})") from None
    if len(raw) < size:
        raise InputError("is a damaged PNG: some rows are missing")
    rows = np.frombuffer(raw, np.uint8).reshape(height, 1 + step * width)
    pixels = _unfiltered(rows[:, 0], rows[:, 1:].reshape(height, width, step))
    return pixels.view(">u2").astype(np.uint16)


def encode_png16(pixels: np.ndarray, icc: bytes | None = None, exif: bytes | None = None) -> bytes:
    """Pixels (H, W, channels) of uint16, alpha last, as a PNG; with a color profile and EXIF if there are any."""
    height, width, channels = pixels.shape
    rows = pixels.astype(">u2").view(np.uint8).reshape(height, -1)
    up = np.diff(rows, axis=0, prepend=np.zeros((1, rows.shape[1]), np.uint8))  # filter 2: minus the row above
    filtered = np.concatenate([np.full((height, 1), 2, np.uint8), up], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 16, COLOR_TYPES[channels], 0, 0, 0)
    chunks = [(b"IHDR", header)]
    if icc:
        chunks.append((b"iCCP", b"profile\0\0" + zlib.compress(icc)))
    if exif:
        chunks.append((b"eXIf", exif.removeprefix(b"Exif\0\0")))
    chunks += [(b"IDAT", zlib.compress(filtered.tobytes(), 6)), (b"IEND", b"")]
    return SIGNATURE + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = len(SIGNATURE)
    while position + 8 <= len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        yield data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        position += 12 + length


def _unfiltered(filters: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Undo the filters (H,) of rows (H, W, bytes of a pixel).

    A pixel needs those at its left, above, and above left. So all pixels of a diagonal are found at once, for all rows.
    """
    height, width, step = rows.shape
    out = np.zeros((height + 1, width + 1, step), np.uint8)  # with a row and a column of zeros before the first
    kinds = filters[:, None]
    for diagonal in range(height + width - 1):
        y = np.arange(max(0, diagonal - width + 1), min(height, diagonal + 1))
        x = diagonal - y
        left, above, corner = (out[y + 1, x], out[y, x + 1], out[y, x])
        a, b, c = (v.astype(np.int16) for v in (left, above, corner))
        pa, pb, pc = np.abs(b - c), np.abs(a - c), np.abs(a + b - 2 * c)
        nearest = np.where((pa <= pb) & (pa <= pc), a, np.where(pb <= pc, b, c))
        kind = kinds[y]
        predicted = np.select([kind == 1, kind == 2, kind == 3, kind == 4], [a, b, (a + b) // 2, nearest], 0)
        out[y + 1, x + 1] = rows[y, x] + predicted.astype(np.uint8)
    return np.ascontiguousarray(out[1:, 1:])
