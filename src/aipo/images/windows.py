"""Cut the part of a larger image that a prior can restore, and put the restoration back.

A `Window` is a square of the prior's size placed on an image, rotated and scaled. There are three ways to place it:

    crop    the middle of the image, pixel by pixel. Nothing is resampled, noise stays as it was.
    resize  the largest square in the middle, scaled.
    align   the largest face, rotated and scaled to where the face priors expect it.

Positions are (x, y) in pixels, x to the right and y down. (0, 0) is the middle of the first pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from aipo.errors import InputError
from aipo.images.faces.detector import Face, find_faces

__all__ = ["FACE", "FITS", "Window", "face_window", "place_window", "similarity"]

# Where a face lies in the 64x64 images of the embedded priors: the mean over validation faces of the five points that
# `find_faces` gives, as shares of the side: eyes, tip of the nose, corners of the mouth.
FACE = torch.tensor([(18.9, 19.2), (45.1, 19.2), (31.7, 35.6), (20.0, 46.7), (43.9, 46.7)], dtype=torch.float64) / 64

FITS = ("crop", "resize", "align")
FEATHER = 1 / 12  # of the window's side: how wide the seam of a restoration is blended into its surroundings
FINEST = 64  # most samples along one side of a pixel; beyond that nothing new is seen


@dataclass(frozen=True)
class Window:
    """A window of `size` (height, width) whose pixel q lies at `matrix @ q + shift` of the image.

    Attributes:
        matrix: (2, 2), a rotation times the scale.
        shift: (2,).
        size: (H, W) of what is cut.
        notes: what a person should know about it.
    """

    matrix: Tensor
    shift: Tensor
    size: tuple[int, int]
    notes: tuple[str, ...] = ()

    @property
    def scale(self) -> float:
        """How many pixels of the image make one of the window, along a side."""
        return self.matrix.det().abs().sqrt().item()

    @property
    def resampled(self) -> bool:
        """Whether pixels are mixed, which changes the noise."""
        return not (torch.equal(self.matrix, torch.eye(2).double()) and torch.equal(self.shift, self.shift.round()))

    def on_image(self, points: Tensor) -> Tensor:
        """Where points (N, 2) of the window lie on the image (N, 2)."""
        return points @ self.matrix.T + self.shift

    def cut(self, image: Tensor) -> Tensor:
        """What the window shows of an image (C, H, W): (C, *size). Beyond its border the last pixels are repeated."""
        if not self.resampled:
            x, y = (int(v) for v in self.shift.tolist())
            return image[:, y : y + self.size[0], x : x + self.size[1]].clone()
        return _sample(image, self.matrix, self.shift, self.size)

    def inside(self, image: Tensor) -> Tensor:
        """Which pixels of the window show only the image, nothing beyond its border: (1, *size) of bool."""
        return _sample(torch.ones_like(image[:1]), self.matrix, self.shift, self.size, beyond="zeros") > 0.999

    def noise_gain(self, image: Tensor) -> float:
        """By what factor `cut` multiplies the standard deviation of independent noise on the image."""
        if not self.resampled:
            return 1.0
        noise = torch.randn(image[:1].shape, generator=torch.Generator().manual_seed(0))
        return self.cut(noise)[self.inside(image)].square().mean().sqrt().item()

    def paste(self, image: Tensor, x: Tensor) -> Tensor:
        """The image (C, H, W) with x (C, *size) put where it was cut, its edges blended in."""
        height, width = self.size
        corners = torch.tensor([(-1, -1), (width, -1), (-1, height), (width, height)], dtype=torch.float64)
        spots = self.on_image(corners)
        limits = torch.tensor([image.shape[2], image.shape[1]])
        # Only the rectangle around the window changes.
        low = torch.minimum(spots.amin(0).floor().long().clamp(min=0), limits - 1)
        high = torch.maximum(torch.minimum(spots.amax(0).ceil().long() + 1, limits), low + 1)
        part = image[:, low[1] : high[1], low[0] : high[0]]
        back = torch.linalg.inv(self.matrix)
        shift, size = back @ (low - self.shift), (part.shape[1], part.shape[2])
        weight = _sample(_feather(self.size).to(image), back, shift, size, beyond="zeros").clamp(0, 1)
        result = image.clone()
        result[:, low[1] : high[1], low[0] : high[0]] = torch.lerp(
            part, _sample(x.to(image), back, shift, size), weight
        )
        return result


def place_window(image: Tensor, size: tuple[int, int], fit: str) -> Window:
    """The window of `size` (height, width) on an image (3, H, W) in [0,1], placed as `fit`, one of `FITS`, says.

    Raises:
        InputError: there is none: the image is too small to be cropped, or has no face to align.
    """
    if fit == "crop":
        return _middle_crop(image, size)
    if fit == "resize":
        return _middle_square(image, size)
    if fit == "align":
        return _largest_face(image, size)
    raise InputError(f"unknown fit {fit}; choose from {', '.join(FITS)}")


def face_window(face: Face, size: tuple[int, int]) -> Window:
    """The window of `size` (height, width) in which a face lies as the face priors expect it."""
    expected = FACE * torch.tensor([size[1], size[0]], dtype=torch.float64) - 0.5
    return Window(*similarity(expected, face.points.double()), size)


def similarity(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The rotation with scale (2, 2) and the shift (2,) that bring points (N, 2) closest to others, in least squares.

    Closed form of Umeyama (1991), which in the plane is a division of complex numbers.
    """
    p, q = source - source.mean(0), target - target.mean(0)
    # As complex numbers: sum of conj(p) q over sum of |p|^2.
    cosine = (p * q).sum() / p.square().sum()
    sine = (p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0]).sum() / p.square().sum()
    matrix = torch.stack([torch.stack([cosine, -sine]), torch.stack([sine, cosine])])
    return matrix, target.mean(0) - matrix @ source.mean(0)


def _middle_crop(image: Tensor, size: tuple[int, int]) -> Window:
    height, width = image.shape[1:]
    if height < size[0] or width < size[1]:
        raise InputError(
            f"the picture is {width}x{height} pixels (width x height), too small for a crop of {size[1]}x{size[0]};"
            " choose --fit resize"
        )
    corner = torch.tensor([(width - size[1]) // 2, (height - size[0]) // 2], dtype=torch.float64)
    return Window(torch.eye(2).double(), corner, size, (f"the middle {size[1]}x{size[0]} pixels",))


def _middle_square(image: Tensor, size: tuple[int, int]) -> Window:
    height, width = image.shape[1:]
    scale = min(height / size[0], width / size[1])
    middle = torch.tensor([width - 1, height - 1], dtype=torch.float64) / 2
    matrix = scale * torch.eye(2).double()
    shift = middle - matrix @ torch.tensor([size[1] - 1, size[0] - 1], dtype=torch.float64) / 2
    sides = f"{round(scale * size[1])}x{round(scale * size[0])}"
    return Window(matrix, shift, size, (f"the middle {sides} pixels, scaled to {size[1]}x{size[0]}",))


def _largest_face(image: Tensor, size: tuple[int, int]) -> Window:
    faces = find_faces(image)
    if not faces:
        raise InputError("no face was found; crop the picture by hand, or choose --fit crop or resize")
    window = face_window(faces[0], size)
    x0, y0, x1, y1 = faces[0].box
    notes = [f"a face of {x1 - x0:.0f}x{y1 - y0:.0f} pixels"]
    if len(faces) > 1:
        notes.append(f"{len(faces)} faces were found, the largest is restored")
    if window.scale > 1.5:
        notes.append(f"restored at 1/{window.scale:.1f} of its resolution, so finer detail is lost")
    return replace(window, notes=tuple(notes))


def _sample(image: Tensor, matrix: Tensor, shift: Tensor, size: tuple[int, int], beyond: str = "border") -> Tensor:
    """The image at `matrix @ q + shift` for every pixel q of `size`, cubic; averaged over q where q is larger.

    Arguments:
        beyond: "border" repeats the image's last pixels, "zeros" ends it there.
    """
    fine = min(FINEST, max(1, math.ceil(matrix.det().abs().sqrt().item() - 1e-6)))
    across, down = ((torch.arange(n * fine, dtype=torch.float64) + 0.5) / fine - 0.5 for n in (size[1], size[0]))
    sides = torch.tensor([image.shape[2], image.shape[1]], dtype=torch.float64)
    bands = []
    # A band of rows at a time: there may be millions of samples.
    for rows in down.split(max(1, 1_000_000 // (len(across) * fine)) * fine):
        q = torch.stack(torch.meshgrid(across, rows, indexing="xy"), dim=-1)
        grid = (2 * (q @ matrix.T + shift) + 1) / sides - 1
        band = F.grid_sample(image[None], grid.to(image.dtype)[None], "bicubic", beyond, align_corners=False)
        bands.append(F.avg_pool2d(band, fine))
    return torch.cat(bands, dim=2)[0]


def _feather(size: tuple[int, int]) -> Tensor:
    """1 in the middle, falling smoothly to 0 at the edges: (1, *size)."""
    ramps = []
    for side in size:
        t = ((torch.arange(side) + 0.5) / (FEATHER * side)).clamp(max=1)
        t = torch.minimum(t, t.flip(0))
        ramps.append(t * t * (3 - 2 * t))
    return (ramps[0][:, None] * ramps[1])[None]
