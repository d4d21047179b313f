"""A flow for noisy images: the exact density of x + s n, for every noise level s and images of any size.

It is a RealNVP in the bands of a Haar transform. At each level the image is split into its half-size average and nine
details, and every band is brought to about unit variance, `1 / sqrt(v + s^2)`. Couplings between groups of bands
follow. Then the details leave as latents, and the average goes on to the next level. Three things differ from
`RealNVP`:

- **The noise level.** What enters and leaves a network is scaled and shifted, channel by channel, depending on s.
- **Any size.** All networks are convolutions.
- **Coefficients that do not exist.** An odd side leaves a last row or column without a partner, hence without details;
  a gray image has a brightness and no colors. Such coefficients are zero, no coupling moves them and they do not count:
  the density of an odd or a gray image is as exact as that of any other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aipo.errors import InputError
from aipo.flows.any_size import BANDS, CENTER, COLORS, colors, count, even, existence
from aipo.flows.base import Net
from aipo.flows.layers import soft_clamp
from aipo.transforms.color import opponent, opponent_inverse
from aipo.transforms.haar import haar, haar_inverse

__all__ = ["Coupling", "Level", "NoiseFlow", "NoiseLevel", "NoiseNet"]

# Which bands condition which: in each pair of couplings these channels first change the others, then are changed by
# them. Channel 3 b + c is color c of band b.
GROUPS = (
    (0, 1, 2, 9, 10, 11),  # LL and HH
    (0, 3, 6, 9, 1, 2),  # brightness, and the average colors
    (0, 1, 2, 3, 4, 5),  # LL and LH
    (0, 1, 2, 6, 7, 8),  # LL and HL
)
LOG_SCALE_LIMIT = 1.5  # of one coupling
FREQUENCIES = 4  # with which the embedding of s is written


class Parts(NamedTuple):
    """The latents of a batch: what left at each level (B, 9, h, w), finest first, and the average that was left."""

    details: list[Tensor]
    average: Tensor


class NoiseNet(Net):
    """A residual network of 3x3 convolutions. Its first features and its outputs are scaled and shifted by s.

    Arguments:
        inputs, outputs, hidden: channels.
        blocks: residual blocks of two convolutions.
        width: of the embedding of s.
    """

    def __init__(self, inputs: int, outputs: int, hidden: int, blocks: int, width: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, hidden, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(hidden, hidden, 3, padding=1, bias=False) for _ in range(2)) for _ in range(blocks)
        )
        self.last = nn.Conv2d(hidden, outputs, 3, padding=1, bias=False)
        self.enter, self.leave = nn.Linear(width, 2 * hidden), nn.Linear(width, 2 * outputs)
        # A new coupling is the identity, whatever s.
        for layer in (self.last, self.enter, self.leave):
            nn.init.zeros_(layer.weight)
        for layer in (self.enter, self.leave):
            nn.init.zeros_(layer.bias)

    def scales_and_shifts(self, embedding: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of the first features, and of the outputs: scale and shift (B, channels, 1, 1)."""
        both = [layer(embedding)[..., None, None].chunk(2, dim=1) for layer in (self.enter, self.leave)]
        return [(1 + scale, shift) for scale, shift in both]

    def compute(self, a: Tensor, embedding: Tensor) -> Tensor:  # type: ignore[override]
        (scale, shift), (last_scale, last_shift) = self.scales_and_shifts(embedding)
        h = scale * self.first(a) + shift
        for block in self.blocks:
            first, second = block.children()
            h = h + second(F.silu(first(F.silu(h))))
        return last_scale * self.last(F.silu(h)) + last_shift


class Coupling(nn.Module):
    """(a, b) -> (a, b exp(log_scale) + shift), where a network sees a and s.

    Arguments:
        first: channels of a; the others are b.
    """

    order: Tensor
    back_order: Tensor

    def __init__(self, first: tuple[int, ...], hidden: int, blocks: int, width: int):
        super().__init__()
        second = [c for c in range(BANDS) if c not in first]
        self.register_buffer("order", torch.tensor([*first, *second]), persistent=False)
        self.register_buffer("back_order", self.order.argsort(), persistent=False)
        self.seen = len(first)
        self.net = NoiseNet(self.seen, 2 * len(second), hidden, blocks, width)

    def _scale_and_shift(self, a: Tensor, embedding: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
        n = self.net(a, embedding)
        if exists is not None:
            n = n * exists[:, self.order[self.seen :]].repeat(1, 2, 1, 1)
        log_scale, shift = n.chunk(2, dim=1)
        return soft_clamp(log_scale, LOG_SCALE_LIMIT), shift

    def forward(self, x: Tensor, embedding: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
        a, b = x[:, self.order].split([self.seen, BANDS - self.seen], dim=1)
        log_scale, shift = self._scale_and_shift(a, embedding, exists)
        y = torch.cat([a, b * log_scale.exp() + shift], dim=1)
        return y[:, self.back_order], log_scale.sum(dim=(1, 2, 3))

    def inverse(self, y: Tensor, embedding: Tensor, exists: Tensor | None) -> Tensor:
        a, b = y[:, self.order].split([self.seen, BANDS - self.seen], dim=1)
        log_scale, shift = self._scale_and_shift(a, embedding, exists)
        x = torch.cat([a, (b - shift) * torch.exp(-log_scale)], dim=1)
        return x[:, self.back_order]


class Level(nn.Module):
    """The couplings at one resolution, between bands (B, 12, h, w)."""

    def __init__(self, couplings: int, hidden: int, blocks: int, width: int):
        super().__init__()
        groups = [GROUPS[i // 2 % len(GROUPS)] for i in range(couplings)]
        others = [tuple(c for c in range(BANDS) if c not in group) for group in groups]
        self.couplings = nn.ModuleList(
            Coupling(others[i] if i % 2 else groups[i], hidden, blocks, width) for i in range(couplings)
        )

    def forward(self, h: Tensor, embedding: Tensor, exists: Tensor | None) -> tuple[Tensor, Tensor]:
        log_det = h.new_zeros(len(h))
        for coupling in self.couplings:
            h, change = coupling(h, embedding, exists)
            log_det = log_det + change
        return h, log_det

    def inverse(self, h: Tensor, embedding: Tensor, exists: Tensor | None) -> Tensor:
        for coupling in reversed(list(self.couplings)):
            h = coupling.inverse(h, embedding, exists)  # type: ignore[operator]
        return h


class NoiseFlow(nn.Module):
    """log p(y | s), the density of images with white Gaussian noise of standard deviation s, for any size.

    Arguments:
        couplings, hidden, blocks: for each level, finest first: number of couplings, width of their networks, residual
            blocks in each.
        embedding: width of the embedding of s.
        levels_of_noise: the smallest and largest s it is trained for, on the [0, 1] scale.
        seed: for the initial weights.

    Images are (B, 3, H, W) or gray (B, 1, H, W) in [0, 1] before the noise; s is (B,).
    """

    architecture = "noise-flow"
    variances: Tensor

    def __init__(
        self,
        couplings: list[int],
        hidden: list[int],
        blocks: list[int],
        embedding: int = 64,
        levels_of_noise: tuple[float, float] = (0.005, 0.3),
        seed: int = 0,
    ):
        super().__init__()
        if not len(couplings) == len(hidden) == len(blocks) or not couplings:
            raise InputError("couplings, hidden and blocks need one number for each level")
        if min(*couplings, *hidden, *blocks, embedding) < 1:
            raise InputError("couplings, hidden, blocks and embedding must be at least 1")
        if len(levels_of_noise) != 2 or not 0 < levels_of_noise[0] < levels_of_noise[1] < math.inf:
            raise InputError(f"levels_of_noise must be two rising numbers greater than 0, got {levels_of_noise}")
        self.config = {
            "couplings": list(couplings),
            "hidden": list(hidden),
            "blocks": list(blocks),
            "embedding": embedding,
            "levels_of_noise": list(levels_of_noise),
            "seed": seed,
        }
        self.levels_of_noise = (float(levels_of_noise[0]), float(levels_of_noise[1]))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Sequential(
                nn.Linear(2 + 2 * FREQUENCIES, embedding), nn.SiLU(), nn.Linear(embedding, embedding), nn.SiLU()
            )
            self.levels = nn.ModuleList(
                Level(*sizes, embedding) for sizes in zip(couplings, hidden, blocks, strict=True)
            )
        # Of the bands of noiseless images, on each level. `initialize` measures them.
        self.register_buffer("variances", torch.full((len(couplings), BANDS), 0.05))

    @property
    def stride(self) -> int:
        """Sides that are multiples of this leave no row or column without a partner."""
        return 2 ** len(self.levels)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Take the variances of the bands from noiseless color images (B, 3, H, W), sides divisible by `stride`."""
        h = opponent(x - CENTER)
        for variances in self.variances:
            h = haar(h)
            variances.copy_(h.square().mean((0, 2, 3)))
            h = h[:, :COLORS]

    def embedding(self, s: Tensor, gray: Tensor) -> Tensor:
        """What the networks learn of s (B,) and of whether an image is gray (B,): (B, width)."""
        low, high = (math.log(v) for v in self.levels_of_noise)
        t = (2 * s.log() - low - high) / (high - low)
        waves = [f(math.pi * k * t / 2) for k in range(1, FREQUENCIES + 1) for f in (torch.sin, torch.cos)]
        return self.embed(torch.stack([t, gray.to(t.dtype), *waves], dim=1))

    def band_scales(self, s: Tensor) -> list[Tensor]:
        """What brings the bands of each level to unit variance, after the level before: (B, 12, 1, 1)."""
        scales, before = [], None
        for variances in self.variances:
            deviation = (variances + s[:, None].square()).sqrt()
            scale = 1 / deviation if before is None else before / deviation
            scales.append(scale[..., None, None])
            before = deviation[:, :COLORS].repeat(1, BANDS // COLORS)
        return scales

    def forward(self, y: Tensor, s: Tensor) -> tuple[Parts, Tensor]:
        """Images (B, C, H, W) with noise s (B,) -> latents, and log |det| of the map (B,) in nats."""
        h, s, gray = colors(y, s)
        log_det = y.new_zeros(len(y))
        if y.shape[1] == 1:
            log_det = log_det + 0.5 * math.log(COLORS) * y[0].numel()
        embedding = self.embedding(s, gray)
        details = []
        for level, scale in zip(self.levels, self.band_scales(s), strict=True):
            exists, spread = existence(h.shape[2], h.shape[3], y.shape[1] == 1, y.dtype, y.device)
            h = haar(even(h)) * (scale if exists is None else scale * exists)
            log_det = log_det + spread + count(exists, h, scale.log())
            h, change = level(h, embedding, exists)
            log_det = log_det + change
            h, detail = h.split([COLORS, BANDS - COLORS], dim=1)
            details.append(detail)
        return Parts(details, h), log_det

    def decode(self, latents: Parts, s: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """The inverse of `forward`: images (B, *shape) with noise s (B,) of latents as it returns them."""
        channels, height, width = shape
        _, s, gray = colors(latents.average.new_zeros(len(s), channels, 1, 1), s)
        embedding = self.embedding(s, gray)
        h = latents.average
        sizes = [(height, width)]
        for _ in self.levels:
            sizes.append(tuple(-(-side // 2) for side in sizes[-1]))  # type: ignore[arg-type]
        levels = list(zip(self.levels, self.band_scales(s), latents.details, sizes, strict=False))
        for level, scale, detail, (rows, columns) in reversed(levels):
            exists, _ = existence(rows, columns, channels == 1, h.dtype, h.device)
            h = level.inverse(torch.cat([h, detail], dim=1), embedding, exists)  # type: ignore[operator]
            h = haar_inverse(h / scale)[..., :rows, :columns]
        return CENTER + (h[:, :1] / math.sqrt(COLORS) if channels == 1 else opponent_inverse(h))

    def log_prob(self, y: Tensor, s: Tensor) -> Tensor:
        """Exact log-density of each image, in nats, for y on the [0, 1] scale: (B,)."""
        parts, log_det = self(y, s)
        squares = sum(z.square().sum((1, 2, 3)) for z in (*parts.details, parts.average))
        return log_det - 0.5 * squares - 0.5 * y[0].numel() * math.log(2 * math.pi)

    @torch.no_grad()
    def sample(
        self,
        shape: tuple[int, int, int, int],
        s: Tensor,
        temperature: float = 1.0,
        seed: int | torch.Generator = 0,
    ) -> Tensor:
        """Draw images (B, C, H, W) with noise s (B,). Drawn on the CPU: same seed, same latents everywhere."""
        if not math.isfinite(temperature) or temperature < 0:
            raise InputError(f"temperature must be a finite number >= 0, got {temperature}")
        generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
        batch, channels, height, width = shape
        details, rows, columns = [], height, width
        for _ in self.levels:
            exists, _ = existence(rows, columns, channels == 1, s.dtype, torch.device("cpu"))
            rows, columns = -(-rows // 2), -(-columns // 2)
            z = torch.randn(batch, BANDS, rows, columns, generator=generator, dtype=s.dtype)
            z = temperature * (z if exists is None else z * exists)
            details.append(z[:, COLORS:].to(s.device))
        return self.decode(Parts(details, z[:, :COLORS].to(s.device)), s, (channels, height, width))

    def set_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """Run the networks in `dtype` (bfloat16, float16), or None for full precision."""
        for module in self.modules():
            if isinstance(module, Net):
                module.compute_dtype = dtype


class NoiseLevel(nn.Module):
    """A noise flow at one noise level: the density of images (B, C, H, W) of any size."""

    def __init__(self, flow: NoiseFlow, s: float):
        super().__init__()
        self.flow, self.s = flow, s

    def log_prob(self, y: Tensor) -> Tensor:
        """Exact log-density of each image, in nats: (B,)."""
        return self.flow.log_prob(y, y.new_full((len(y),), self.s))
