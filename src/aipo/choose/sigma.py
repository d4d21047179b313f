"""The noise of a picture from the picture itself, and whether a sigma that was given can be right."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from aipo.errors import InputError
from aipo.noise import Gaussian
from aipo.operators import Denoising, Inpainting
from aipo.priors.noise_prior import NoisePrior
from aipo.problem.evidence import most_likely_sigma
from aipo.problem.map_problem import MapProblem
from aipo.transforms.color import opponent
from aipo.transforms.haar import MEDIAN_OF_NORMAL, diagonal_deviation

__all__ = [
    "SMALLEST",
    "NoiseCurve",
    "automatic_sigma",
    "checked_sigma",
    "estimate_sigma",
    "has_white_noise",
    "noise_curve",
]

AVERAGED = 5.0  # so many times more in the brightness than in the colors: their noise was averaged away
TEXTURE = 0.02  # of a noiseless face of 64 pixels, in its brightness
SMALLEST = 16  # pixels on a side, for the noise to be estimated from the picture's details
# What a camera leaves of its noise is smooth from pixel to pixel, and hides from the likelihood. Below the first level
# noise counts as a camera's. White noise of the second level is added before it is denoised, as that is where real
# pairs of photographs are denoised best (docs/photographs.md).
SMOOTH, CAMERA = 0.012, 0.04
WHITE = 0.1  # correlation of neighbors, below which noise counts as white
# Of the blocks in which a noise curve is measured: the side, the share that counts as flat, and how many of each
# brightness it takes; and of how many pixels, evenly spread.
BLOCK, FLAT, ENOUGH, MOST_PIXELS = 8, 0.25, 40, 2**21


def estimate_sigma(y: Tensor) -> Tensor:
    """The standard deviation of the noise on pictures y (B, C, H, W), C = 1 or 3, as one number per image (B,).

    The median absolute value of the finest diagonal Haar coefficients (Donoho and Johnstone), in color pictures those
    of the two opponent colors: noise that is independent in R, G and B is as strong in them as elsewhere, and the
    picture itself is much weaker.

    Most JPEG files, and the cameras that write them, keep the colors at half the resolution, where no noise is left to
    be seen. Such pictures are told by their brightness, which then has far more of it than the colors. What it has
    beyond the texture of a face, spread over the three channels, is taken. Clipping to [0, 1] makes the estimate too
    small.

    Examples:
        >>> import aipo
        >>> x = aipo.samples.load("astronaut")[None]
        >>> noisy = aipo.operators.Denoising((3, 64, 64)).measure(x, aipo.Gaussian(0.1), seed=0)
        >>> round(estimate_sigma(noisy).item(), 2)
        0.1
    """
    if y.ndim != 4 or y.shape[1] not in (1, 3) or min(y.shape[2:]) < SMALLEST:
        raise InputError(
            f"sigma can be estimated for pictures (B, 1 or 3, H, W) of 16x16 and more, not {tuple(y.shape)}"
        )
    if y.shape[1] == 1:
        return diagonal_deviation(y)
    parts = opponent(y)
    brightness, colors = diagonal_deviation(parts[:, :1]), diagonal_deviation(parts[:, 1:])
    noise = (brightness.square() - TEXTURE**2).clamp(min=0)
    spread = ((noise + 2 * colors.square()) / 3).sqrt()
    return torch.where(brightness > AVERAGED * colors, spread, colors)


def automatic_sigma(prior: NoisePrior, y: Tensor) -> tuple[float, bool, tuple[str, ...]]:
    """The level at which to denoise a photograph y (1, C, H, W), whether its noise is white, and what should be known.

    White noise is measured by the prior's likelihood. Where a file keeps colors at half the resolution, that sees none,
    and the brightness is asked. If there is hardly any noise then either, and flat places show that it is smooth from
    pixel to pixel, it is a camera's: not white, and for `NoisePrior.denoise_smooth`.
    """
    low, high = prior.levels
    curve = noise_curve(y[0])
    smooth = curve.level if curve is not None and curve.correlation > WHITE else None
    notes: tuple[str, ...] = ()
    # Flat places have all of the white noise, so if they show less there is no need to ask the prior.
    sigma = smooth if smooth is not None and smooth < SMOOTH else prior.estimate_sigma(y).item()
    brightness = estimate_sigma(y).item() if min(y.shape[2:]) >= SMALLEST else sigma
    if brightness > 1.5 * sigma:
        notes, sigma = ("the colors have less noise than the brightness, as in most JPEG files",), brightness
    if smooth is not None and sigma < SMOOTH:
        notes = ("no white noise was found, so what flat places show is taken as a camera's; --sigma says otherwise",)
        return max(low, min(CAMERA, high)), False, notes
    # Three digits are more than it is good for, and the same for any number of threads, whose sums differ by rounding.
    return float(f"{max(low, min(sigma, high)):.3g}"), True, notes


def has_white_noise(y: Tensor) -> bool:
    """Whether the noise of a picture (C, H, W) looks white: not smooth from pixel to pixel, and as strong in colors."""
    curve = noise_curve(y)
    if curve is None or curve.correlation > WHITE:
        return False
    parts = opponent(y[None])
    return len(y) == 1 or bool(diagonal_deviation(parts[:, :1]) < 1.5 * diagonal_deviation(parts[:, 1:]))


@dataclass(frozen=True)
class NoiseCurve:
    """What is seen of a picture's noise where the picture is flat.

    Attributes:
        brightness: of such places, from dark to bright.
        sigma: the standard deviation there, as many.
        level: that of all places.
        correlation: of the noise at neighboring pixels: about 0 if it is white, and near 1 if it is smooth.
    """

    brightness: tuple[float, ...]
    sigma: tuple[float, ...]
    level: float
    correlation: float


def noise_curve(y: Tensor) -> NoiseCurve | None:
    """Measure the noise of a picture (C, H, W) in blocks without details; None if it has none that can be used.

    What a linear slope leaves in the flattest quarter of the blocks counts as noise. Texture makes it too large;
    of noise that is smooth the slope takes a part, so that level and correlation are a little too small.
    """
    if min(y.shape[1:]) < BLOCK:
        return None
    height, width = (size // BLOCK * BLOCK for size in y.shape[1:])
    every = math.ceil(math.sqrt(height * width / MOST_PIXELS))
    rows = y[:, :height, :width].unfold(1, BLOCK, BLOCK).unfold(2, BLOCK, BLOCK)[:, ::every, ::every]
    blocks = rows.reshape(len(y), -1, BLOCK, BLOCK).transpose(0, 1)
    # Where pixels are cut off at black or white, so is their noise.
    blocks = blocks[((blocks <= 0) | (blocks >= 1)).float().mean((1, 2, 3)) < 0.1]
    if not len(blocks):
        return None
    brightness, noise = blocks.mean((1, 2, 3)), _without_slope(blocks)
    energy = noise.square().sum((2, 3)).mean(1) / (BLOCK**2 - 3)  # three numbers went into the slope
    gray = noise.mean(1)[energy <= _lowest(energy)]
    along = ((gray[:, 1:] * gray[:, :-1]).mean() + (gray[:, :, 1:] * gray[:, :, :-1]).mean()) / 2
    order, count = brightness.argsort(), max(1, min(8, len(brightness) // ENOUGH))
    parts = order.tensor_split(count)
    return NoiseCurve(
        tuple(brightness[part].mean().item() for part in parts),
        tuple(_lowest(energy[part]).sqrt().item() for part in parts),
        _lowest(energy).sqrt().item(),
        (along / gray.square().mean().clamp(min=1e-12)).item(),
    )


def _without_slope(blocks: Tensor) -> Tensor:
    """Blocks (n, C, side, side) without the part that is linear in the place."""
    noise = blocks - blocks.mean((2, 3), keepdim=True)
    ramp = torch.linspace(-1, 1, blocks.shape[-1]).to(blocks)
    ramp = ramp / (ramp.norm() * len(ramp) ** 0.5)
    for slope in (ramp[:, None].expand(blocks.shape[2:]), ramp[None].expand(blocks.shape[2:])):
        noise = noise - (noise * slope).sum((2, 3), keepdim=True) * slope
    return noise


def _lowest(energy: Tensor) -> Tensor:
    """The largest energy of the blocks that count as flat."""
    return energy.kthvalue(max(1, round(FLAT * len(energy)))).values


@torch.no_grad()
def checked_sigma(problem: MapProblem) -> tuple[Tensor, Tensor]:
    """sigma of every measurement (B,): the one that was given, or what the measurement says where it contradicts that.

    The measurement is asked by maximum likelihood (`problem.evidence`). Where pixels are seen as they are, they are
    asked a second time, by the finest details of their colors: only where both say the same is sigma replaced. Texture
    that the prior does not know looks like noise to the first, but hardly to the second.

    Returns:
        sigma, and which of them were replaced (B,).
    """
    assert isinstance(problem.noise, Gaussian)
    given = problem.noise.variance(problem.y).sqrt()
    if not problem.operator.linear:
        return given, torch.zeros_like(given, dtype=torch.bool)
    evidence = most_likely_sigma(problem)
    wrong = evidence.contradicts(given)
    seen = _of_seen_pixels(problem)
    if seen is not None:
        wrong &= ((seen / given).log() * (evidence.sigma / given).log() > 0) & ~evidence.contradicts(seen)
    return torch.where(wrong, evidence.sigma, given), wrong


def _of_seen_pixels(problem: MapProblem) -> Tensor | None:
    """The noise of a measurement that shows pixels as they are, from whole blocks of 2x2 of them (B,); else None."""
    operator, y = problem.operator, problem.y
    if not isinstance(operator, Denoising | Inpainting) or min(y.shape[2:]) < 2:
        return None
    even = slice(0, y.shape[2] // 2 * 2), slice(0, y.shape[3] // 2 * 2)
    seen = operator.restrict(torch.ones_like(y[:1]))[..., even[0], even[1]].amin(1, keepdim=True)
    whole = (seen[..., ::2, ::2] * seen[..., 1::2, ::2] * seen[..., ::2, 1::2] * seen[..., 1::2, 1::2]).bool()
    if not whole.any():
        return None
    colors = opponent(y[..., even[0], even[1]])
    diagonal = colors[..., ::2, ::2] - colors[..., 1::2, ::2] - colors[..., ::2, 1::2] + colors[..., 1::2, 1::2]
    details = (diagonal / 2)[:, 1 if y.shape[1] == 3 else 0 :]
    values = details[whole.expand_as(details[:1]).expand_as(details)].view(len(y), -1)
    return values.abs().median(1).values / MEDIAN_OF_NORMAL
