"""Denoisers, both ways: a noise prior as `deepinv.models.Denoiser`, and theirs where ours go."""

from __future__ import annotations

from typing import Any

import torch
from deepinv.models import Denoiser
from torch import Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.priors import LevelPrior, NoisePrior, load_prior
from aipo.priors.any_prior import natural_images
from aipo.priors.surrogate import Surrogate

__all__ = ["DenoisedLevel", "DenoiserPrior", "FlowDenoiser"]


class FlowDenoiser(Denoiser):
    """A noise prior as a denoiser, E[x | y] by Tweedie's formula, at any sigma.

    Below the prior's levels it goes on with the slope of the smallest. Above them, where only diffusion samplers go, it
    is the Wiener filter of the Gaussian that stands in for the prior.

    Arguments:
        prior: a name for `aipo.load_prior`, such as photo-small, or a `NoisePrior`.
        spin: estimates to average, see `NoisePrior.denoise`.
    """

    def __init__(self, prior: NoisePrior | str, spin: int = 1):
        super().__init__()
        loaded = load_prior(prior) if isinstance(prior, str) else prior
        if not isinstance(loaded, NoisePrior):
            raise InputError(f"{loaded.name} knows no noise levels, so it is no denoiser; use one such as photo-small")
        self.prior, self.spin = loaded, spin
        self.flow = loaded.flow  # so that `to` moves it
        self._gaussians: dict[tuple[int, ...], Surrogate] = {}

    def forward(self, x: Tensor, sigma: float | Tensor, **kwargs: Any) -> Tensor:
        """x (B, 1 or 3, H, W) with noise sigma, one number or one per image, to the estimate. Differentiable in x."""
        s = torch.as_tensor(self._handle_sigma(sigma, reference_tensor=x)).flatten().expand(len(x)).detach()
        low, high = self.prior.levels
        if torch.is_grad_enabled() and x.requires_grad:
            within = self._by_autograd(x, s.clamp(low, high))
        else:
            within = self.prior.denoise(x, s.clamp(low, high), self.spin)
        share = per_image((s / low).clamp(max=1).square(), x)
        estimate = x + share * (within - x)
        beyond = s > high * (1 + 1e-6)
        if not beyond.any():
            return estimate
        gaussian = self._gaussian((x.shape[1], x.shape[2], x.shape[3])).to(x)
        wiener = gaussian.mean + gaussian.marginal.solve(x - gaussian.mean, per_image(s.square(), x), 1.0)
        return torch.where(per_image(beyond, x), wiener, estimate)

    def _gaussian(self, image_shape: tuple[int, int, int]) -> Surrogate:
        if image_shape not in self._gaussians:
            self._gaussians[image_shape] = self.prior.surrogate(image_shape, self.prior.levels[0])
        return self._gaussians[image_shape]

    def _by_autograd(self, x: Tensor, s: Tensor) -> Tensor:
        """The plain formula, of which autograd knows every step."""
        density = self.prior.flow.log_prob(x, s).sum()
        (score,) = torch.autograd.grad(density, x, create_graph=True)
        return x + per_image(s.square(), x) * score


class DenoiserPrior:
    """A denoiser of deepinv in the place of a noise prior, for `anneal`.

    It has no density: P is NaN, so `follow_path` has nothing to follow. For that give a denoiser that is the gradient
    of something to `ExplicitPrior`.

    Arguments:
        denoiser: called with images (B, C, H, W) and noise levels (B,), see `deepinv.models.Denoiser`.
        levels: the smallest and the largest noise level it was trained for, on the [0, 1] scale.
    """

    def __init__(self, denoiser: Any, levels: tuple[float, float] = (0.005, 0.2)):
        if not 0 < levels[0] < levels[1]:
            raise InputError(f"levels must be two rising numbers greater than 0, got {levels}")
        self.denoiser, self.levels = denoiser, levels

    @property
    def name(self) -> str:
        return type(self.denoiser).__name__

    @property
    def weights(self) -> Tensor:
        """One of its tensors: images must be of this dtype and on this device."""
        tensors = [*self.denoiser.parameters(), *self.denoiser.buffers()] if hasattr(self.denoiser, "buffers") else []
        return next((t.detach() for t in tensors if t.is_floating_point()), torch.zeros(()))

    def for_images(self, image_shape: tuple[int, int, int]) -> LevelPrior:
        """At the smallest level, for images of a shape."""
        return DenoisedLevel(self, self.levels[0], image_shape)  # type: ignore[arg-type]

    @torch.no_grad()
    def denoise(self, y: Tensor, sigma: float | Tensor, spin: int = 1, precision: str = "exact") -> Tensor:
        """The estimate of images y (B, C, H, W) with noise sigma, a number or one per image (B,)."""
        return self.denoiser(y, torch.as_tensor(sigma, dtype=y.dtype, device=y.device).expand(len(y)))

    def log_prob(self, y: Tensor, s: float | Tensor) -> Tensor:
        """NaN (B,): a denoiser has no density."""
        return y.new_full((len(y),), torch.nan)

    def engine(self, s: float, precision: str = "exact") -> Score:
        """NaN for P, and its gradient by Tweedie's formula."""
        return Score(self, s)

    def surrogate(self, image_shape: tuple[int, int, int], s: float) -> Surrogate:
        """That of photographs."""
        return natural_images(image_shape).to(self.weights)


class DenoisedLevel(LevelPrior):
    """A denoiser's prior at one level."""

    def fingerprint(self) -> str:
        """What it makes of one picture; of its insides nothing is known."""
        channels, height, width = self._shape
        ramp = torch.linspace(0, 1, channels * height * width).to(self.weights).view(1, *self._shape)
        return f"{self.name} {self.prior.denoise(ramp, self.s).double().sum().item():.12g}"


class Score:
    """The gradient of -log p at one level, (x - D(x, s)) / s^2."""

    uncertainty = 0.0
    capturable = False

    def __init__(self, prior: DenoiserPrior, s: float):
        self.prior, self.s = prior, s

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """NaN (B,), the gradient (B, C, H, W)."""
        return self.prior.log_prob(x, self.s), (x - self.prior.denoise(x, self.s)) / self.s**2
