"""Files that went wrong, and files that someone made wrong: the same seed gives the same damage.

`mutated_bytes` knows nothing of formats. The functions in `STRUCTURED` know one, and repair checksums and lengths, so
that what they change reaches the decoder. `mutated_json` changes a document and leaves it valid JSON.
"""

import copy
import io
import random
import struct
import zlib

import numpy as np
from PIL import Image

SIDE = 16  # of all pictures here, and of the prior that restores them
SHAPE = (3, SIDE, SIDE)
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
DTYPES = ("|u1", "<f4", ">f8", "<f2", "<f16", "<c8", "<i8", "|b1", "|O", "|S9", "<U2", "<M8[s]", "|V3", "?!")
SHAPES = ((16, 16, 3), (3, 16, 16), (16, 48), (768,), (), (0,), (-1, 3), (10**9, 10**9, 3), (2**62,), "x")
ODD_VALUES = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "nan", "../../etc/passwd", "\x00", "\x1b[31m", "\u202e", "\udcff", "é" * 300, [], {}, [[]], [None], {"": None},
    [[[[[[[[1]]]]]]]], list(range(300)),
)  # fmt: skip


def mutated_bytes(content: bytes, seed: int, other: bytes = b"") -> bytes:
    """The content with one to three changes; `other` is a second file of which parts may be spliced in."""
    rng = random.Random(seed)
    changes = [flip_bits, overwrite, set_number, truncate, cut_out, repeat, insert, append, swap]
    for _ in range(rng.randint(1, 3)):
        content = rng.choice(changes)(content, rng)
    return splice(content, other, rng) if other and rng.random() < 0.2 else content


def flip_bits(content, rng):
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64)) if changed else 0):
        changed[_place(content, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwrite(content, rng):
    start, length = _place(content, rng), rng.choice((1, 4, 16, 100))
    return (
        content[:start]
        + rng.choice((bytes(length), b"\xff" * length, rng.randbytes(length)))
        + content[start + length :]
    )


def set_number(content, rng):
    """A field of 2 or 4 bytes, of either byte order, is set to an extreme: often a size or a count."""
    start, kind = _place(content, rng), rng.choice((">I", "<I", ">H", "<H"))
    number = struct.pack(kind, rng.choice(EXTREMES) % 2 ** (8 * struct.calcsize(kind)))
    return content[:start] + number + content[start + len(number) :]


def truncate(content, rng):
    return content[: rng.choice((0, 1, rng.randrange(len(content) + 1), max(0, len(content) - rng.randint(1, 9))))]


def cut_out(content, rng):
    start = _place(content, rng)
    return content[:start] + content[start + rng.choice((1, 2, 4, 50)) :]


def repeat(content, rng):
    start = _place(content, rng)
    return content[:start] + content[start : start + 64] * rng.choice((2, 3, 40)) + content[start + 64 :]


def insert(content, rng):
    start = _place(content, rng)
    return content[:start] + rng.randbytes(rng.choice((1, 3, 60))) + content[start:]


def append(content, rng):
    return content + rng.randbytes(rng.choice((1, 200, 5000)))


def swap(content, rng):
    a, b = sorted((_place(content, rng), _place(content, rng)))
    return content[:a] + content[b : b + 16] + content[a + 16 : b] + content[a : a + 16] + content[b + 16 :]


def splice(content, other, rng):
    return content[: _place(content, rng)] + other[_place(other, rng) :]


def _place(content, rng):
    """Mostly in the first bytes, where headers are."""
    end = min(len(content), rng.choice((32, 128, len(content))))
    return rng.randrange(end) if end else 0


def mutated_json(document, seed: int):
    """A copy of a document of dictionaries, lists and values, with one to three changes anywhere in it."""
    rng, document = random.Random(seed), copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(document))
        if not places:
            break
        parent, key = rng.choice(places)
        change = rng.choice(("value", "value", "value", "remove", "wrap", "move"))
        if change == "value":
            parent[key] = copy.deepcopy(rng.choice(ODD_VALUES))
        elif change == "remove":
            del parent[key]
        elif change == "wrap":
            parent[key] = rng.choice(([parent[key]], {"": parent[key]}, str(parent[key])))
        else:  # to where another value was
            other, place = rng.choice(places)
            other[place] = copy.deepcopy(parent[key])
    return document


def _places(node):
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from _places(node[key])


# --- small valid files ---


def encoded(picture, kind, **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def saved(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def valid_pictures() -> dict[str, bytes]:
    """One small file of each kind that is read, by a name with its suffix."""
    levels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    picture = Image.fromarray(levels)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    return {
        "rgb.png": encoded(picture, "PNG"),
        "gray16.png": encoded(Image.fromarray(levels[..., 0].astype(np.uint16) * 257), "PNG"),
        "palette.png": encoded(picture.quantize(16), "PNG"),
        "alpha.png": encoded(picture.convert("RGBA"), "PNG"),
        "photo.jpg": encoded(picture, "JPEG", exif=exif),
        "gray.jpg": encoded(picture.convert("L"), "JPEG", progressive=True),
        "lossy.webp": encoded(picture, "WEBP"),
        "lossless.webp": encoded(picture, "WEBP", lossless=True),
        "plain.bmp": encoded(picture, "BMP"),
        "raw.tif": encoded(picture, "TIFF"),
        "deflate.tiff": encoded(picture, "TIFF", compression="tiff_deflate"),
        "photo.avif": encoded(picture, "AVIF", exif=exif),
        "floats.npy": saved(levels.astype(np.float32) / 255),
        "levels.npy": saved(levels),
    }


# --- changes that keep a format's own bookkeeping in order ---


def changed_png(content, rng):
    """One chunk is changed, dropped, doubled or moved, and its checksum made right again."""
    chunks = list(png_chunks(content))
    i = rng.randrange(len(chunks))
    kind, body = chunks[i]
    what = rng.choice(("body", "body", "drop", "double", "move", "kind"))
    if what == "body":
        chunks[i] = (kind, mutated_bytes(body, rng.getrandbits(32)))
    elif what == "drop":
        del chunks[i]
    elif what == "double":
        chunks.insert(i, chunks[i])
    elif what == "move":
        chunks.insert(rng.randrange(len(chunks)), chunks.pop(i))
    else:
        chunks[i] = (rng.choice((b"tRNS", b"PLTE", b"acTL", b"eXIf", b"iCCP", b"zTXt", b"fcTL", b"fdAT")), body)
    return content[:8] + b"".join(png_chunk(*chunk) for chunk in chunks)


def png_chunks(content):
    start = 8
    while start < len(content):
        (length,) = struct.unpack(">I", content[start : start + 4])
        yield content[start + 4 : start + 8], content[start + 8 : start + 8 + length]
        start += 12 + length


def png_chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def changed_boxes(content, rng):
    """The length of an AVIF box, or its kind, is changed."""
    starts = [
        i for i in range(4, len(content) - 4) if content[i : i + 4].isalnum() and content[i - 4 : i - 1] == bytes(3)
    ]
    start = rng.choice(starts)
    if rng.random() < 0.5:
        return content[: start - 4] + struct.pack(">I", rng.choice(EXTREMES)) + content[start:]
    return content[:start] + rng.choice((b"ispe", b"av1C", b"irot", b"mdat", b"free")) + content[start + 4 :]


def changed_riff(content, rng):
    """A chunk of a WebP is changed, and its length and that of the file are kept right."""
    body = mutated_bytes(content[20:], rng.getrandbits(32))
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBP" + content[12:16] + struct.pack("<I", len(body)) + body


def changed_tags(content, rng):
    """A tag of a TIFF gets another number, type, count or value."""
    (directory,) = struct.unpack("<I", content[4:8])
    (count,) = struct.unpack("<H", content[directory : directory + 2])
    start = directory + 2 + 12 * rng.randrange(count)
    entry = list(struct.unpack("<HHII", content[start : start + 12]))
    field = rng.randrange(4)
    entry[field] = rng.choice((*EXTREMES, 2, 3, 4, 6, 16, 256, 257, 258, 259, 262, 277)) % (
        2**16 if field < 2 else 2**32
    )
    return content[:start] + struct.pack("<HHII", *entry) + content[start + 12 :]


def changed_segments(content, rng):
    """A segment of a JPEG, after its first marker, gets another kind or length."""
    starts = [i for i in range(2, len(content) - 4) if content[i] == 0xFF and content[i + 1] >= 0xC0]
    start = rng.choice(starts)
    if rng.random() < 0.5:
        return content[: start + 1] + bytes([rng.randrange(0xC0, 0xFF)]) + content[start + 2 :]
    return content[: start + 2] + struct.pack(">H", rng.choice(EXTREMES) % 2**16) + content[start + 4 :]


def changed_header(content, rng):
    """Another dtype, order or shape in the header of a .npy file; its length stays right."""
    (length,) = struct.unpack("<H", content[8:10])
    header = {
        "descr": rng.choice(DTYPES),
        "fortran_order": rng.choice((True, False, 1, None)),
        "shape": rng.choice(SHAPES),
    }
    text = (repr(header) if rng.random() < 0.8 else "(" * 500).encode()
    return content[:8] + struct.pack("<H", len(text) + 1) + text + b"\n" + content[10 + length :]


STRUCTURED = {
    ".png": changed_png,
    ".avif": changed_boxes,
    ".webp": changed_riff,
    ".tif": changed_tags,
    ".tiff": changed_tags,
    ".jpg": changed_segments,
    ".npy": changed_header,
}


def mutated_file(name: str, content: bytes, seed: int, others: dict[str, bytes] | None = None) -> tuple[str, bytes]:
    """A damaged file and its name: half of them damaged as their format knows it, some with another's suffix."""
    rng, suffix = random.Random(seed), name[name.rindex(".") :]
    if suffix in STRUCTURED and rng.random() < 0.5:
        changed = STRUCTURED[suffix](content, rng)
    else:
        changed = mutated_bytes(content, seed, rng.choice(list((others or {"": b""}).values())))
    if rng.random() < 0.1:
        suffix = rng.choice((".png", ".jpg", ".webp", ".bmp", ".tif", ".avif", ".npy"))
    return f"{name[: name.rindex('.')]}-{seed}{suffix}", changed
