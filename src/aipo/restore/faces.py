"""Small faces in a noisy photograph, restored by a prior of faces as far as that is measurably better.

The face prior knows 64x64 pixels. Its estimate is laid over that of the photograph's prior with a weight w that an
unbiased estimate of the risk chooses (Stein): with p and f the two estimates, d = f - p and n the noise,

    E|p + w d - x|^2 = const + 2 w E<p - x, d> + w^2 E|d|^2,   E<p - x, d> = E[<p - y, d> + sigma^2 div d].

The best w is reduced by twice its standard error, so that a face hardly ever gets worse.

References: C. Stein, "Estimation of the mean of a multivariate normal distribution", 1981; S. Ramani, T. Blu, M. Unser,
"Monte-Carlo SURE", 2008, for the divergence by one probe.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aipo.choose.lam import choose_lambda
from aipo.choose.sigma import has_white_noise
from aipo.images.faces import Face, find_faces
from aipo.images.windows import Window, face_window
from aipo.noise import Gaussian
from aipo.operators import Denoising
from aipo.priors.noise_prior import NoisePrior
from aipo.priors.prior import Prior
from aipo.problem.map_problem import MapProblem

__all__ = ["blend_weight", "with_small_faces"]

LARGEST = 2.0  # pixels of the photograph for one of the prior's, along a side; larger faces have more detail
AROUND = 48  # pixels around a face that its estimates are made from
STEP = 0.2  # of the probe, in units of sigma
ERRORS = 2.0  # standard errors by which a weight is reduced


def with_small_faces(
    x: Tensor, y: Tensor, sigma: float, photos: NoisePrior, faces: Prior
) -> tuple[Tensor, tuple[str, ...]]:
    """A denoised photograph with its small faces improved, and what should be known about it.

    Arguments:
        x: the restoration by the prior of photographs (3, H, W).
        y: the noisy photograph, with white noise of this sigma.
    """
    found = find_faces(x) if len(x) == 3 else []
    if not found:
        return x, ()
    if not has_white_noise(y):
        return x, ("the noise is not white, so it cannot be measured whether faces get better",)
    windows = [face_window(face, faces.image_shape[1:]) for face in found]
    small = [(face, window) for face, window in zip(found, windows, strict=True) if window.scale <= LARGEST]
    weights = []
    for face, window in small:
        rows, columns = _around(face, x)
        part, weight = _blended(
            x[:, rows, columns], y[:, rows, columns], sigma, photos, faces, _moved(window, rows, columns)
        )
        weights.append(weight)
        x = x.clone()
        x[:, rows, columns] = part
    better = [f"{weight:.0%}" for weight in weights if weight > 0]
    note = f"faces: {len(found)}, of them small: {len(small)}, improved by {faces.name}: {len(better)}"
    return x, (note + (f" (by the weight {', '.join(better)})" if better else ""),)


def blend_weight(y: Tensor, p: Tensor, d: Tensor, divergence: float, sigma: float) -> float:
    """The weight of d = f - p in the estimate p + w d of an image with white noise, of the least estimated risk.

    Arguments:
        y, p, d: images of one size.
        divergence: of d as a function of y.
    """
    energy = d.double().square().sum().item()
    if energy == 0:
        return 0.0
    slope = ((p - y).double() * d.double()).sum().item() + sigma**2 * divergence
    return min(1.0, max(0.0, -slope / energy - ERRORS * sigma / energy**0.5))


@torch.no_grad()
def _blended(
    x: Tensor, y: Tensor, sigma: float, photos: NoisePrior, faces: Prior, window: Window
) -> tuple[Tensor, float]:
    """A part of a photograph with its face blended in, and the face's weight."""
    probe = torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    lam, both = None, []
    for measured in (y, y + STEP * sigma * probe):
        p = photos.denoise(measured[None].to(photos.weights), sigma)[0].cpu()
        f, lam = _face(measured, sigma * window.noise_gain(y), faces, window, lam)
        both.append((p, window.paste(p, f) - p))
    (p, d), (_, d_moved) = both
    divergence = (probe * (d_moved - d)).double().sum().item() / (STEP * sigma)
    weight = blend_weight(y, p, d, divergence, sigma)
    return (x + weight * d).clamp(0, 1), weight


def _face(y: Tensor, sigma: float, faces: Prior, window: Window, lam: float | None) -> tuple[Tensor, float]:
    """The restoration of a face (3, 64, 64), and its lam, chosen unless given."""
    cut = window.cut(y)[None].to(faces.weights)
    problem = MapProblem(faces, Denoising(faces.image_shape), Gaussian(sigma), cut)
    with torch.enable_grad():
        choice = choose_lambda(problem, trust_sigma=True) if lam is None else choose_lambda(problem, "fixed", lam=lam)
    return choice.x[0].cpu(), choice.lam.item()


def _around(face: Face, x: Tensor) -> tuple[slice, slice]:
    x0, y0, x1, y1 = (round(side) for side in face.box)
    # On the grid of the flow, so that the estimate is the one of the whole photograph.
    top, left = (max(0, start - AROUND) // 48 * 48 for start in (y0, x0))
    return slice(top, min(x.shape[1], y1 + AROUND)), slice(left, min(x.shape[2], x1 + AROUND))


def _moved(window: Window, rows: slice, columns: slice) -> Window:
    """The same window on a part of the image."""
    corner = torch.tensor([columns.start, rows.start], dtype=window.shift.dtype)
    return Window(window.matrix, window.shift - corner, window.size, window.notes)
