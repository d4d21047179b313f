"""A photograph with all that its file says, so that a restored one can be saved as the same kind of file.

`OpenedImage` is what a restoration needs of a picture; `Photograph` is what a person wants back: the format, the bits,
the camera's data (EXIF), the color profile and the transparency.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageCms, ImageOps
from torch import Tensor

from aipo.errors import InputError
from aipo.images.png16 import decode_png16, encode_png16, is_png16
from aipo.images.reading import existing_file, open_image, open_picture
from aipo.images.writing import to_uint8

__all__ = ["ENDINGS", "Photograph", "read_photograph"]

# Formats to write, and their endings; the first ending of a format is its usual one.
ENDINGS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".webp": "WEBP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".avif": "AVIF",
    ".bmp": "BMP",
    ".npy": "NPY",
}
ALPHA = ("PNG", "WEBP", "TIFF", "AVIF")  # formats that keep transparency
DEEP = ("PNG", "TIFF")  # and those that keep 16 bits: TIFF only of gray
QUALITY = 95
ORIENTATION = 0x0112
# What the tags of a TIFF file say of how its pixels are stored. Another image is stored otherwise: with these a picture
# that has lost its alpha channel could not be read any more.
LAYOUT = {*range(254, 260), 262, 263, 266, 273, 277, 278, 279, 284, 292, 293, 317, *range(320, 326), 330, 338, 339, 347}
LAYOUT |= {*range(512, 533), 34675}


@dataclass(frozen=True)
class Photograph:
    """A photograph as it is in its file.

    Attributes:
        x: (3, H, W), or (1, H, W) if it is gray; float32 in [0, 1], floats of a `.npy` a little beyond.
        alpha: how opaque each pixel is (H, W), in [0, 1]; None if all are.
        format: one of the values of `ENDINGS`.
        bits: 8, 16, or 32 for floats.
        kept: EXIF and color profile, as Pillow's `save` takes them.
        notes: what was changed on the way in, for people.
    """

    x: Tensor
    alpha: Tensor | None = None
    format: str = "PNG"
    bits: int = 8
    kept: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def encode(self, x: Tensor, format: str | None = None, quality: int | None = None) -> bytes:
        """Another image as a file of the same kind.

        Arguments:
            x: (C, H, W) in [0, 1]; what lies outside is clamped. If it has another size, transparency is scaled too.
            format: another one of `ENDINGS`.
            quality: of JPEG, WebP and AVIF, 1 to 100; by default 95.
        """
        format = format or self.format
        buffer = io.BytesIO()
        if format == "NPY":
            np.save(buffer, x.detach().cpu().permute(1, 2, 0).numpy())
            return buffer.getvalue()
        if x.isnan().any():
            raise InputError("the restored image has values that are no numbers")
        alpha = self._alpha_of(x.shape[1:]) if format in ALPHA else None
        if self.bits == 16 and format in DEEP and (format == "PNG" or (len(x) == 1 and alpha is None)):
            return self._encode16(x, alpha, format)
        planes = to_uint8(x if alpha is None else torch.cat([x.cpu(), alpha])).permute(1, 2, 0).contiguous().numpy()
        image = Image.fromarray(planes.squeeze(2) if planes.shape[2] == 1 else planes)
        lossy = {"quality": quality or QUALITY} if format in ("JPEG", "WEBP", "AVIF") else {}
        if format == "JPEG":
            lossy["subsampling"] = 0
        image.save(buffer, format=format, **lossy, **(self.kept if format != "BMP" else {}))
        return buffer.getvalue()

    def _alpha_of(self, size: torch.Size) -> Tensor | None:
        if self.alpha is None or tuple(self.alpha.shape) == tuple(size):
            return None if self.alpha is None else self.alpha[None]
        scaled = torch.nn.functional.interpolate(self.alpha[None, None], tuple(size), mode="bilinear")
        return scaled[0]

    def _encode16(self, x: Tensor, alpha: Tensor | None, format: str) -> bytes:
        whole = x.detach().cpu() if alpha is None else torch.cat([x.detach().cpu(), alpha])
        pixels = (whole.clamp(0, 1).double() * 65535).round().numpy().astype(np.uint16).transpose(1, 2, 0)
        if format == "PNG":
            return encode_png16(np.ascontiguousarray(pixels), self.kept.get("icc_profile"), self.kept.get("exif"))
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels[..., 0])).save(buffer, format=format, **self.kept)
        return buffer.getvalue()


def read_photograph(path: str | Path, noisy: bool = True) -> Photograph:
    """Read a photograph of any size. The camera's orientation is applied, and taken out of its data.

    Arguments:
        noisy: whether floats of a `.npy` may lie a little beyond [0, 1].

    Raises:
        InputError: as `open_image`; CMYK pictures are converted.
    """
    path = existing_file(path)
    if path.suffix.lower() == ".npy":
        opened = open_image(path, noisy)
        return Photograph(opened.x, format="NPY", bits=32, notes=opened.notes)
    with open_picture(path) as image:
        format = "JPEG" if image.format == "MPO" else str(image.format)
        exif, profile = image.getexif(), image.info.get("icc_profile")
        turned = exif.get(ORIENTATION, 1)
        for tag in (ORIENTATION, *LAYOUT):
            exif.pop(tag, None)
        kept = {"exif": exif.tobytes()} if len(exif) else {}
        if profile:
            kept["icc_profile"] = profile
        cmyk = _from_cmyk(image, profile) if image.mode == "CMYK" else None
        deep = image.mode.startswith("I;16")
        alpha = _alpha(image) if cmyk is None else None
    if cmyk is not None:
        kept.pop("icc_profile", None)  # that of the inks says nothing of RGB
        return Photograph(cmyk, None, format, 8, kept, ("CMYK: converted to RGB",))
    if (data := path.read_bytes()) and is_png16(data):
        return _read_png16(path, data, kept, turned)
    opened = open_image(path, noisy)
    notes = tuple(note for note in opened.notes if "alpha" not in note)
    return Photograph(opened.x, alpha, format, 16 if deep else 8, kept, notes)


def _alpha(image: Image.Image) -> Tensor | None:
    """The transparency of an image, upright; None if it is opaque everywhere."""
    if not image.has_transparency_data:
        return None
    alpha = np.array(ImageOps.exif_transpose(image).convert("RGBA").getchannel("A"))
    return None if (alpha == 255).all() else torch.from_numpy(alpha).float() / 255


def _read_png16(path: Path, data: bytes, kept: dict[str, Any], turned: int) -> Photograph:
    try:
        pixels = decode_png16(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if turned != 1:
        pixels = _upright(pixels, turned)
    values = torch.from_numpy(pixels.astype(np.float32) / 65535).permute(2, 0, 1).contiguous()
    alpha = values[-1] if len(values) in (2, 4) else None
    x = values if alpha is None else values[:-1].contiguous()
    return Photograph(x, None if alpha is None or (alpha == 1).all() else alpha, "PNG", 16, kept)


def _upright(pixels: np.ndarray, turned: int) -> np.ndarray:
    """What EXIF's orientation asks for, of pixels (H, W, channels)."""
    if turned in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if turned in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if turned in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _from_cmyk(image: Image.Image, profile: bytes | None) -> Tensor:
    """A picture made for print as sRGB (3, H, W): by its own profile, or if it has none by the plain formula."""
    upright = ImageOps.exif_transpose(image)
    rgb = None
    if profile:
        try:
            inks, screen = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
            rgb = ImageCms.profileToProfile(upright, inks, screen, outputMode="RGB")
        except (ImageCms.PyCMSError, OSError):
            rgb = None  # a damaged profile is as good as none
    pixels = np.asarray(rgb or upright.convert("RGB"))
    return (torch.from_numpy(pixels.astype(np.float32)) / 255).permute(2, 0, 1).contiguous()
