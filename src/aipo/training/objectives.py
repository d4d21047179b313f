"""What training minimizes. An objective draws what is random about a batch, and is a function of that alone.

`Likelihood` is for flows of one size: the exact negative log-likelihood of uniformly dequantized images, in bits per
dimension. `Denoising` is for noise flows: the negative log-likelihood of noisy images, plus the squared error of the
least-squares estimate that Tweedie's formula makes of the flow's gradient,

    x_hat = y + s^2 grad log p(y | s).

For the true density both terms are as small as they can be. The second one is what makes a good denoiser: the
likelihood alone hardly notices an error of the gradient.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from aipo.engine.score import Score, log_prob_and_score, score_function
from aipo.flows import Flow
from aipo.flows.any_size import COLORS
from aipo.flows.noise_flow import NoiseFlow
from aipo.priors.likelihood import bits_per_dim, dequantize

__all__ = ["Denoising", "Likelihood", "Objective"]

GRAY_SHARE = 0.1
# What a good denoiser leaves of the noise's energy at noise level s is about 1 / (1 + s / KNEE): between 0.01 and 0.2
# that fits published results within 15%. Errors are counted in units of it, so that every level counts alike.
KNEE = 0.0085
# An image unlike any before can cost a million times what others do. Beyond this a cost grows as its logarithm, so that
# one image does not decide about a step alone.
LARGE_COST = 10.0
VALIDATION_LEVELS = (15, 25, 50)  # of 255


class Objective(Protocol):
    """The loss of a batch, as a module, so that it can be captured as a CUDA graph."""

    parts: tuple[str, ...]  # what `forward` returns besides the loss, for the log

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """What `forward` takes, for a batch of images (B, 3, H, W) of uint8."""
        ...

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The loss, and its parts: (1 + parts,)."""
        ...

    def validate(self, flow: Any, images: Tensor) -> dict[str, float]:
        """What to know about a flow, measured on images (B, 3, H, W) of uint8."""
        ...


class Likelihood(nn.Module):
    """Bits per dimension of images of one size.

    Arguments:
        flow: in training.
        bits: of the images.
        noise: standard deviation of Gaussian noise on them, for a smoother prior.
    """

    parts = ()

    def __init__(self, flow: Flow, bits: int, noise: float = 0.0):
        super().__init__()
        self.flow, self.bits, self.noise = flow, bits, noise

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """A batch in [0, 1): flipped at random, dequantized."""
        shape, device = images.shape, images.device
        flip = torch.rand(len(images), 1, 1, 1, generator=generator, device=device) < 0.5
        images = torch.where(flip, images.flip(-1), images)
        if self.noise:
            grain = torch.randn(shape, generator=generator, device=device)
            images = (images + 255 * self.noise * grain).round().clamp(0, 255)
        uniform = torch.rand(shape, generator=generator, device=device)
        return (_channels_last(dequantize(images, self.bits, uniform)),)

    def forward(self, x: Tensor) -> Tensor:
        loss = -self.flow.log_prob(x).mean() / (self.flow.num_dims * math.log(2)) + self.bits
        return loss[None]

    def validate(self, flow: Flow, images: Tensor) -> dict[str, float]:
        return {"val": bits_per_dim(flow, images, self.bits).mean().item()}


class Denoising(nn.Module):
    """Nats per dimension of noisy images, and the error of the estimate.

    Arguments:
        flow: in training.
        weight: of the error, beside the likelihood.
        turn: whether images may be transposed and flipped upside down; faces may not.
    """

    parts = ("nats", "error")

    def __init__(self, flow: NoiseFlow, weight: float = 1.0, turn: bool = True):
        super().__init__()
        self.flow, self.weight, self.turn = flow, weight, turn
        self._score: Score | None = None

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Clean images, noisy ones, noise levels (log-uniform), and which are gray."""
        device, batch = images.device, len(images)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, device=device)

        choice = uniform(3, batch, 1, 1, 1) < 0.5
        images = torch.where(choice[0], images.flip(-1), images)
        if self.turn:
            images = torch.where(choice[1], images.flip(-2), images)
            images = torch.where(choice[2], images.transpose(2, 3), images)
        x = (images + uniform(*images.shape) - 0.5) / 255
        low, high = (math.log(v) for v in self.flow.levels_of_noise)
        s = torch.exp(low + (high - low) * uniform(batch))
        gray = uniform(batch) < GRAY_SHARE
        # The brightness of a gray image has sqrt(3) times its noise.
        s = torch.where(gray, math.sqrt(COLORS) * s, s)
        noise = torch.randn(images.shape, generator=generator, device=device)
        y = x + s[:, None, None, None] * noise
        return _channels_last(x), _channels_last(y), s, gray

    def forward(self, x: Tensor, y: Tensor, s: Tensor, gray: Tensor) -> Tensor:
        if self._score is None:
            self._score = score_function(self.flow)  # not before the flow is on its device
        return self.losses(x, y, s, gray, *self._score(y, s, gray))

    def losses(self, x: Tensor, y: Tensor, s: Tensor, gray: Tensor, log_prob: Tensor, score: Tensor) -> Tensor:
        """The loss, nats and error, from the flow's values at y."""
        # Where only the brightness counts there is a third of the values.
        count = x[0].numel() * torch.where(gray, 1 / COLORS, 1.0)
        estimate = y + s[:, None, None, None].square() * score
        difference = torch.where(gray[:, None, None, None], (estimate - x).mean(1, keepdim=True), estimate - x)
        error = difference.square().flatten(1).mean(1) * torch.where(gray, COLORS, 1.0) / s.square()
        nats, error = _tamed(-log_prob / count).mean(), _tamed(error * (1 + s / KNEE)).mean()
        return torch.stack([nats + self.weight * error, nats, error])

    @torch.no_grad()
    def validate(self, flow: NoiseFlow, images: Tensor) -> dict[str, float]:
        """Nats per dimension at 25/255, and PSNR in dB at the levels that the literature reports."""
        x = images.to(next(flow.parameters()).device).float() / 255
        metrics = {}
        for level in VALIDATION_LEVELS:
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(level)).to(x)
            s = x.new_full((len(x),), level / 255)
            y, gray = x + s[0] * noise, torch.zeros(len(x), dtype=torch.bool, device=x.device)
            parts = [log_prob_and_score(flow, *p) for p in zip(*(v.split(8) for v in (y, s, gray)), strict=True)]
            log_prob, score = (torch.cat(v) for v in zip(*parts, strict=True))
            mse = ((y + s[0] ** 2 * score).clamp(0, 1) - x).square().flatten(1).mean(1)
            metrics[f"psnr_{level}"] = (-10 * mse.log10()).mean().item()
            if level == 25:
                metrics["val"] = (-log_prob.mean() / x[0].numel()).item()
        return metrics


def _tamed(cost: Tensor) -> Tensor:
    return torch.where(cost > LARGE_COST, LARGE_COST * (1 + (cost.clamp(min=LARGE_COST) / LARGE_COST).log()), cost)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x
