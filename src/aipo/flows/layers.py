"""Invertible layers. Each maps `x -> (y, log_det)` with log_det per image, (B,) or a scalar, and has `inverse`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aipo.flows.base import Initialized, Net

__all__ = [
    "ActNorm",
    "AffineCoupling",
    "GaussianSplit",
    "Invertible1x1",
    "Permute",
    "soft_clamp",
]


def soft_clamp(s: Tensor, limit: float) -> Tensor:
    """Smoothly bound log-scales to (-limit, limit), so that an image far off the data cannot blow up a layer."""
    return limit * torch.tanh(s / limit)


class ActNorm(Initialized):
    """y = (x + shift) * exp(log_scale) per channel; the first batch sets it to zero mean and unit variance."""

    def __init__(self, channels: int):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))
        self.log_scale = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.initializing:
            self.shift.copy_(-x.mean(dim=(0, 2, 3)).view_as(self.shift))
            std = x.std(dim=(0, 2, 3), correction=0).view_as(self.log_scale)
            self.log_scale.copy_(-torch.log(std + 1e-6))
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum() * (x.shape[2] * x.shape[3])

    def inverse(self, y: Tensor) -> Tensor:
        return y * torch.exp(-self.log_scale) - self.shift


class Permute(nn.Module):
    """A fixed permutation of the channels."""

    order: Tensor

    def __init__(self, order: Tensor):
        super().__init__()
        self.register_buffer("order", order, persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, self.order], x.new_zeros(())

    def inverse(self, y: Tensor) -> Tensor:
        return y[:, self.order.argsort()]


class Invertible1x1(nn.Module):
    """Glow's invertible 1x1 convolution, W = P L (U + diag(s)): triangular factors make the log-det a sum.

    P is a fixed permutation, L unit lower and U strictly upper triangular, s = sign * exp(log_s). It starts at a
    random rotation, or without a generator at the identity.
    """

    order: Tensor
    sign: Tensor

    def __init__(self, channels: int, generator: torch.Generator | None = None):
        super().__init__()
        rotation = torch.eye(channels, dtype=torch.float64)
        if generator is not None:
            rotation, _ = torch.linalg.qr(torch.randn(channels, channels, generator=generator, dtype=torch.float64))
        p, lower, upper = torch.linalg.lu(rotation)
        s = upper.diagonal()
        # Row i of P @ M is row order[i] of M: an index is smaller and faster than a permutation matrix.
        self.register_buffer("order", p.argmax(dim=1))
        self.register_buffer("sign", s.sign().float())
        self.lower = nn.Parameter(lower.tril(-1).float())
        self.upper = nn.Parameter(upper.triu(1).float())
        self.log_s = nn.Parameter(s.abs().log().float())

    def weight(self) -> Tensor:
        """The (C, C) matrix W."""
        eye = torch.eye(len(self.log_s), dtype=self.lower.dtype, device=self.lower.device)
        upper = self.upper.triu(1) + torch.diag(self.sign.to(self.log_s.dtype) * self.log_s.exp())
        return ((self.lower.tril(-1) + eye) @ upper)[self.order]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.weight()
        return F.conv2d(x, weight[:, :, None, None]), self.log_s.sum() * (x.shape[2] * x.shape[3])

    def inverse(self, y: Tensor) -> Tensor:
        # Solved in float64: the triangular factors of a trained layer can be ill-conditioned.
        weight = torch.linalg.inv(self.weight().double()).to(y.dtype)
        return F.conv2d(y, weight[:, :, None, None])


class AffineCoupling(nn.Module):
    """(a, b) -> (a, b * exp(s) + t) with (s, t) = net(a), on two halves of the channels."""

    def __init__(self, net: Net, limit: float):
        super().__init__()
        self.net = net
        self.limit = limit

    def _scale_and_shift(self, a: Tensor) -> tuple[Tensor, Tensor]:
        s, t = self.net(a).chunk(2, dim=1)
        return soft_clamp(s, self.limit), t

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, dim=1)
        s, t = self._scale_and_shift(a)
        return torch.cat([a, b * s.exp() + t], dim=1), s.sum(dim=(1, 2, 3))

    def inverse(self, y: Tensor) -> Tensor:
        a, b = y.chunk(2, dim=1)
        s, t = self._scale_and_shift(a)
        return torch.cat([a, (b - t) * torch.exp(-s)], dim=1)


class GaussianSplit(nn.Module):
    """Half of the channels leave as latents, standardized by a mean and scale predicted from the half that stays.

    z = (b - mean(a)) * exp(-log_std(a)): with the standardization inside, every latent is N(0, 1) and G(0) is the
    mode of each conditional.
    """

    def __init__(self, net: Net, limit: float):
        super().__init__()
        self.net = net
        self.limit = limit

    def _moments(self, a: Tensor) -> tuple[Tensor, Tensor]:
        log_std, mean = self.net(a).chunk(2, dim=1)
        return soft_clamp(log_std, self.limit), mean

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, C, H, W) -> what stays (B, C/2, H, W), latents (B, C/2, H, W), log_det (B,)."""
        a, b = x.chunk(2, dim=1)
        log_std, mean = self._moments(a)
        return a, (b - mean) * torch.exp(-log_std), -log_std.sum(dim=(1, 2, 3))

    def inverse(self, a: Tensor, z: Tensor) -> Tensor:
        log_std, mean = self._moments(a)
        return torch.cat([a, mean + z * log_std.exp()], dim=1)
