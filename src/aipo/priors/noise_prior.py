"""A prior for images of any size, at every noise level: the density of y = x + s n, with white Gaussian noise n.

Three things follow from an exact density of noisy images:

    x_hat = y + s^2 grad log p(y | s)     the mean of all x that y may come from (Tweedie): a denoiser in one gradient
    s_hat = argmax over s of log p(y | s) the noise level of an image
    P(y)  = -log p(y | s)                 a prior at one level, as smooth as s is large, for any solver

Reference: B. Efron, "Tweedie's formula and selection bias", 2011, https://doi.org/10.1198/jasa.2011.tm11181
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aipo.engine import Engine, Precision, exact_float32
from aipo.errors import InputError
from aipo.flows import NoiseFlow, NoiseLevel
from aipo.flows.any_size import COLORS
from aipo.images.tiles import by_tiles
from aipo.priors.estimate_errors import EstimateErrors, measure_errors
from aipo.priors.most_likely import most_likely_level
from aipo.priors.prior import SURROGATE_SAMPLES, fingerprint, move
from aipo.priors.surrogate import Surrogate, measure_surrogate

__all__ = ["LevelPrior", "NoisePrior"]

SURROGATE_SIDE = 64  # of the samples with which a surrogate is measured
KEPT_ENGINES = 4  # of the levels that were used last
# Of the tiles of a large image on a CPU and on a GPU, and the margin around them. What is farther away than the margin
# changes an estimate by less than it can be seen (docs/priors.md).
TILE, GPU_TILE, MARGIN = 320, 1536, 48
SHIFTS = [(i, j) for d in range(4) for i in range(d + 1) for j in range(d + 1) if max(i, j) == d]
# What an estimate takes away is noise: in a window of this side its mean square is about s^2 or less. Twice that means
# that the image is unlike any that the flow has seen.
WINDOW, MOST_TAKEN = 15, 2.0


@dataclass(frozen=True)
class NoisePrior:
    """The density of images with noise of standard deviation s, for any s in `levels` and any size.

    Images are color (B, 3, H, W) or gray (B, 1, H, W), before the noise in [0, 1]. All is per image.

    Examples:
        Before it is trained a noise flow is a Gaussian, which is no bad prior.

        >>> import aipo, torch
        >>> x = aipo.samples.load("astronaut")[None]
        >>> flow = aipo.flows.NoiseFlow(couplings=[2, 2, 2], hidden=[8, 8, 8], blocks=[1, 1, 1])
        >>> flow.initialize(x)
        >>> prior = aipo.NoisePrior(flow.requires_grad_(False))
        >>> y = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        >>> x_hat = prior.denoise(y)
        >>> bool(aipo.metrics.psnr(x_hat, x) > aipo.metrics.psnr(y, x) + 6)
        True
        >>> round(prior.estimate_sigma(y).item(), 2)
        0.1
    """

    flow: NoiseFlow
    card: dict[str, Any] = field(default_factory=dict)
    _engines: dict[tuple[float, str], tuple[object, Engine]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def name(self) -> str:
        return self.card.get("name", self.flow.architecture)

    @property
    def levels(self) -> tuple[float, float]:
        """The smallest and the largest noise level it was trained for."""
        return self.flow.levels_of_noise

    @property
    def weights(self) -> Tensor:
        """One of its tensors: images must be of this dtype and on this device."""
        return next(self.flow.parameters())

    def at(self, s: float) -> LevelPrior:
        """The prior at one noise level: it goes wherever a prior goes."""
        return LevelPrior(self, float(self.check_level(torch.tensor(float(s), dtype=torch.float64), 1)))

    def for_images(self, image_shape: tuple[int, int, int]) -> LevelPrior:
        """The prior of images of this shape (C, H, W) that have hardly any noise: at the smallest level."""
        return self.at(self.levels[0]).for_images(image_shape)

    def log_prob(self, y: Tensor, s: float | Tensor) -> Tensor:
        """log p(y | s) in nats, per image (B,); s is a number or one per image (B,)."""
        self.check_images(y)
        with exact_float32(y):
            return self.flow.log_prob(y, self.check_level(s, len(y)).to(y))

    def gradient(self, y: Tensor, s: float | Tensor, precision: Precision = "exact") -> tuple[Tensor, Tensor]:
        """P = -log p(y | s) (B,) and its gradient in y (B, C, H, W): one gradient evaluation per image."""
        self.check_images(y)
        s = self.check_level(s, len(y))
        values, gradients = torch.empty(len(y), dtype=y.dtype, device=y.device), torch.empty_like(y)
        for level in s.unique().tolist():
            rows = (s == level).nonzero()[:, 0].to(y.device)
            values[rows], gradients[rows] = self.engine(level, precision)(y[rows])
        return values, gradients

    @torch.no_grad()
    def denoise(
        self, y: Tensor, sigma: float | Tensor | None = None, spin: int = 1, precision: Precision = "fast"
    ) -> Tensor:
        """The least-squares estimate of the images under the noise: E[x | y] = y + sigma^2 grad log p(y | sigma).

        Arguments:
            y: images (B, C, H, W) with white Gaussian noise, not clipped; large ones go through in tiles.
            sigma: the noise's standard deviation, a number or one per image (B,); by default `estimate_sigma` finds it.
            spin: average so many estimates of images shifted by a pixel or so, 1 to 16: each costs an evaluation, and
                four gain about 0.1 dB.
            precision: "fast" uses half precision on a GPU.

        Where an estimate would take away much more than noise of that level, it takes away less.
        """
        self.check_images(y)
        if not 1 <= spin <= len(SHIFTS):
            raise InputError(f"spin must be 1 to {len(SHIFTS)}, got {spin}")
        s = self.estimate_sigma(y) if sigma is None else self.check_level(sigma, len(y))
        estimate = torch.zeros_like(y)
        for level in s.unique().tolist():
            rows = (s == level).nonzero()[:, 0].to(y.device)
            engine = self.engine(level, precision)
            for shift in SHIFTS[:spin]:
                estimate[rows] += _shifted_estimate(engine, y[rows], level, *shift, self.flow.stride) / spin
            estimate[rows] = _kept_near(estimate[rows], y[rows], level)
        return estimate

    def denoise_smooth(self, y: Tensor, sigma: float, draws: int = 4, seed: int = 0) -> Tensor:
        """An estimate of images whose noise is not white but smooth from pixel to pixel, as a camera's is.

        The flow would take such noise for detail, and knows nothing of images with less white noise than it is told. So
        white noise of level sigma is added, in which the other drowns; the mean of several such estimates is returned.

        Arguments:
            y: images (B, C, H, W).
            sigma: of the white noise, some times that of the noise that is there.
            draws: estimates, one evaluation each.
        """
        generator, estimate = torch.Generator().manual_seed(seed), torch.zeros_like(y)
        for _ in range(draws):
            white = torch.randn(y.shape[1:], generator=generator).to(y)  # the same for all images, whatever the batch
            estimate += self.denoise(y + sigma * white, sigma) / draws
        return estimate

    @torch.no_grad()
    def estimate_sigma(self, y: Tensor) -> Tensor:
        """The noise level of each image (B,) by maximum likelihood, in at most 8 evaluations of the density.

        The noise is taken as white and Gaussian; noise that a camera or a JPEG encoder has smoothed looks weaker than
        it is. Of a large image some tiles are enough.
        """
        self.check_images(y)
        found = [most_likely_level(self.log_prob, image, self.levels) for image in y.split(1)]
        return y.new_tensor(found)

    def sample(
        self,
        shape: tuple[int, int, int, int],
        s: float | Tensor | None = None,
        temperature: float = 1.0,
        seed: int | torch.Generator = 0,
    ) -> Tensor:
        """Draw images (B, C, H, W) with noise s, by default the smallest level."""
        levels = self.check_level(self.levels[0] if s is None else s, shape[0]).to(self.weights)
        return self.flow.sample(shape, levels, temperature, seed)

    def surrogate(self, image_shape: tuple[int, int, int], s: float) -> Surrogate:
        """The Gaussian that stands in for it at a level, for images of one shape.

        It is that of the smallest level, from the card or measured on the prior's own samples, with more noise.
        """
        smallest = self.levels[0]
        noise = smallest**2
        entry = self.card.get("surrogate")
        if entry is None:
            samples = self.sample((SURROGATE_SAMPLES, COLORS, SURROGATE_SIDE, SURROGATE_SIDE))
            entry = measure_surrogate(self.at(smallest).gradient, samples)
        surrogate = Surrogate.from_card(entry, (COLORS, *image_shape[1:]))
        if image_shape[0] == 1:
            surrogate, noise = surrogate.gray(), noise / COLORS
        return surrogate.noisier(s**2 - noise).to(self.weights)

    @cached_property
    def errors(self) -> EstimateErrors:
        """How far its estimates are from the truth: from the card, or measured on the prior's own samples."""
        entry = self.card.get("errors")
        if entry is None:
            samples = self.sample((SURROGATE_SAMPLES, COLORS, SURROGATE_SIDE, SURROGATE_SIDE))
            entry = measure_errors(self.denoise, samples, self.levels)
        return EstimateErrors.from_card(entry)

    def engine(self, s: float, precision: Precision = "exact") -> Engine:
        """What evaluates P at a level and its gradient; the last few are kept, until the weights change."""
        weights = [(t.data_ptr(), t._version) for t in self.flow.state_dict().values()]
        key = (s, precision)
        kept = self._engines.pop(key, None)
        if kept is None or kept[0] != weights:
            kept = (weights, Engine(NoiseLevel(self.flow, s), 0.0, precision))
        while len(self._engines) >= KEPT_ENGINES:
            del self._engines[next(iter(self._engines))]
        self._engines[key] = kept
        return kept[1]

    def to(self, *args: Any, **kwargs: Any) -> NoisePrior:
        """Move the flow (in place, as torch modules do) to a device or dtype."""
        move(self.flow, *args, **kwargs)
        self._engines.clear()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # What was made for the weights is made again where they arrive; it cannot travel.
        return {**self.__dict__, "_engines": {}}

    def check_images(self, y: Tensor) -> None:
        """Raise `InputError` unless y is a batch of images for this prior."""
        if not isinstance(y, Tensor):
            raise InputError(f"{self.name} takes torch tensors, got {type(y).__name__}; use torch.from_numpy")
        if y.ndim != 4 or y.shape[1] not in (1, 3) or not y.numel():
            raise InputError(f"{self.name} takes images (B, 3, H, W) or (B, 1, H, W), got {tuple(y.shape)}")
        weights = self.weights
        if (y.dtype, y.device) != (weights.dtype, weights.device):
            raise InputError(
                f"{self.name} is {weights.dtype} on {weights.device}, the images are {y.dtype} on {y.device}"
            )

    def check_level(self, s: float | Tensor, batch: int) -> Tensor:
        """s as one float64 per image (B,) on the CPU, checked."""
        low, high = self.levels
        levels = torch.as_tensor(s).detach().cpu().double()
        if levels.ndim > 1 or (levels.ndim == 1 and len(levels) != batch):
            raise InputError(f"sigma must be a number or one per image, got {tuple(levels.shape)} for {batch} images")
        levels = levels.expand(batch)
        # A little beyond the ends is what rounding to float32 makes of them.
        if not ((levels >= low * (1 - 1e-6)) & (levels <= high * (1 + 1e-6))).all():
            given = ", ".join(f"{v:g}" for v in levels.unique().tolist())
            raise InputError(f"{self.name} knows noise of sigma {low:g} to {high:g}, where white is 1; got {given}")
        return levels


@dataclass(frozen=True)
class LevelPrior:
    """A noise prior at one noise level: P(x) = -log p(x | s), for images of any size.

    There is no offset: noisy images have a density.
    """

    prior: NoisePrior
    s: float
    image_shape: tuple[int, int, int] | None = None  # (C, H, W); None for any

    @property
    def name(self) -> str:
        return f"{self.prior.name} at {self.s:g}"

    @property
    def weights(self) -> Tensor:
        return self.prior.weights

    def for_images(self, image_shape: tuple[int, int, int]) -> LevelPrior:
        """The prior of images of this shape (C, H, W), which can also be sampled."""
        if image_shape[0] not in (1, COLORS):
            raise InputError(f"{self.name} is for color and gray images, not for {image_shape}")
        return replace(self, image_shape=image_shape)

    def P(self, x: Tensor) -> Tensor:
        """-log p(x | s) in nats, per image: (B, C, H, W) -> (B,)."""
        return -self.prior.log_prob(x, self.s)

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of P at images x: (B, C, H, W)."""
        return self.engine()(x)[1]

    def engine(self, precision: Precision = "exact") -> Engine:
        """What evaluates P and its gradient for the solvers."""
        return self.prior.engine(self.s, precision)

    @cached_property
    def surrogate(self) -> Surrogate:
        """The Gaussian that stands in for it."""
        return self.prior.surrogate(self._shape, self.s)

    def sample(self, num: int, temperature: float = 1.0, seed: int | torch.Generator = 0) -> Tensor:
        """Draw images (num, C, H, W)."""
        return self.prior.sample((num, *self._shape), self.s, temperature, seed)

    def center(self) -> Tensor:
        """The image in the middle of the latent space: (1, C, H, W)."""
        return self.sample(1, temperature=0.0)

    def fingerprint(self) -> str:
        """A hash of all that decides its values."""
        return fingerprint(self.prior.flow, self.s)

    @property
    def _shape(self) -> tuple[int, int, int]:
        if self.image_shape is None:
            raise InputError(f"{self.name} is for images of any size; say which: prior.for_images((3, height, width))")
        return self.image_shape


def _shifted_estimate(engine: Engine, y: Tensor, s: float, down: int, right: int, stride: int) -> Tensor:
    """The estimate of images (B, C, H, W), made of them moved down and right against the grid of the flow."""
    height, width = y.shape[2:]
    # Mirrored to a multiple of the stride: a row without its partner has a density, but is not what was trained on.
    moved = _mirrored(y, (right, -(width + right) % stride, down, -(height + down) % stride))
    side = GPU_TILE if y.is_cuda else TILE
    estimate = by_tiles(lambda part: part - s**2 * engine(part)[1], moved, side, MARGIN, stride)
    return estimate[..., down : down + height, right : right + width]


def _kept_near(estimate: Tensor, y: Tensor, s: float) -> Tensor:
    """The estimate, moved towards y wherever what it takes away cannot be noise of level s."""
    taken = y - estimate
    energy = F.avg_pool2d((taken / s).square().mean(1, keepdim=True), WINDOW, 1, WINDOW // 2, count_include_pad=False)
    return torch.where(energy > MOST_TAKEN, y - taken * (MOST_TAKEN / energy).sqrt(), estimate)


def _mirrored(y: Tensor, more: tuple[int, int, int, int]) -> Tensor:
    """y with columns left and right, and rows above and below, mirrored at its border, as often as it takes."""
    left, right, top, bottom = more
    for dim, before, after in ((3, left, right), (2, top, bottom)):
        size = y.shape[dim]
        index = torch.arange(-before, size + after, device=y.device) % (2 * size)
        y = y.index_select(dim, torch.minimum(index, 2 * size - 1 - index))
    return y
