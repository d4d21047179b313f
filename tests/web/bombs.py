"""Picture files that are small on disk and large in memory."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def flat_tiff(width, height, samples=1, bits=8, tile=None):
    """A black TIFF in one deflated strip, or in one tile of the size (width, height)."""
    area = width * height if tile is None else tile[0] * tile[1]
    content = deflated_zeros(area * samples * bits // 8)
    tags = {256: (width,), 257: (height,), 258: (bits,) * samples, 259: (8,), 262: (2 if samples > 2 else 1,)}
    tags |= {277: (samples,), 278: (height,)} if tile is None else {277: (samples,), 322: tile[:1], 323: tile[1:]}
    tags |= {338: (2,)} if samples == 4 else {}
    where, how_much = (273, 279) if tile is None else (324, 325)
    tags |= {where: (8,), how_much: (len(content),)}
    start = 8 + len(content)
    beyond, directory = start + 2 + 12 * len(tags) + 4, struct.pack("<H", len(tags))
    more = b""
    for tag in sorted(tags):
        values = struct.pack(f"<{len(tags[tag])}I", *tags[tag])
        if len(values) > 4:
            values, more = struct.pack("<I", beyond + len(more)), more + values
        directory += struct.pack("<HHI", tag, 4, len(tags[tag])) + values
    return b"II*\0" + struct.pack("<I", start) + content + directory + bytes(4) + more


def deflated_zeros(count):
    packer, block = zlib.compressobj(1), bytes(1 << 20)
    return (
        b"".join(packer.compress(block[: min(1 << 20, count - i)]) for i in range(0, count, 1 << 20)) + packer.flush()
    )


def blocks(width, height, mode="RGBA"):
    """A picture of 40x40 colored blocks, which every format stores in little space."""
    colors = np.random.default_rng(0).integers(0, 256, (40, 40, 4), dtype=np.uint8)
    return Image.fromarray(colors).convert(mode).resize((width, height), Image.Resampling.NEAREST)


def saved(image, format, **options):
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()
