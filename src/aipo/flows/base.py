"""What every flow offers: an exact change of variables between images and standard-normal noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from aipo.errors import InputError

__all__ = ["Flow", "Initialized", "Net"]


class Net(nn.Module):
    """A network that conditions a flow layer: free-form inside, so it alone may run in half precision.

    The flow's own arithmetic (scales, log-determinants, sums) always stays in the precision of its input, because
    there rounding errors add up over thousands of dimensions.
    """

    compute_dtype: torch.dtype | None = None

    def forward(self, *inputs: Tensor) -> Tensor:
        dtype = self.compute_dtype
        with torch.autocast(inputs[0].device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            out = self.compute(*inputs)
        return out.to(inputs[0].dtype)

    def compute(self, *inputs: Tensor) -> Tensor:
        raise NotImplementedError


class Initialized(nn.Module):
    """A layer that takes its first values from a batch of data, whenever it runs with `initializing` set."""

    initializing = False


class Flow(nn.Module):
    """An invertible map G from z ~ N(0, I) to images x = G(z), with exact density.

    Images are (B, C, H, W) in [0, 1]; any real value has a density, so a solver may leave the box. Latents are flat
    (B, n) with n = C*H*W. Everything is per image: no layer looks across the batch.

    A subclass implements `forward` (x -> z and log |det dz/dx|) and `decode` (z -> x), and keeps in `config` the
    keyword arguments that rebuild it.
    """

    architecture: str
    config: dict[str, Any]

    def __init__(self, image_shape: tuple[int, int, int]):
        super().__init__()
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise InputError(f"image_shape must be (channels, height, width), got {tuple(image_shape)}")
        channels, height, width = image_shape
        self.image_shape = (channels, height, width)

    @property
    def num_dims(self) -> int:
        return math.prod(self.image_shape)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W) -> latents (B, n) and log |det dz/dx| (B,) in nats."""
        raise NotImplementedError

    def decode(self, z: Tensor) -> Tensor:
        """Latents (B, n) -> images (B, C, H, W): the generator G."""
        raise NotImplementedError

    def encode(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> latents (B, n): the inverse of G."""
        return self(x)[0]

    def log_prob(self, x: Tensor) -> Tensor:
        """Exact log-density of each image, in nats, for x on the [0, 1] scale: (B, C, H, W) -> (B,)."""
        self.check_shape(x)
        z, log_det = self(x)
        log_normal = -0.5 * z.square().sum(1) - 0.5 * self.num_dims * math.log(2 * math.pi)
        return log_normal + log_det

    def check_shape(self, x: Tensor) -> None:
        if x.shape[1:] != self.image_shape:
            raise InputError(f"this prior takes images of shape {self.image_shape}, got {tuple(x.shape[1:])}")

    @torch.no_grad()
    def sample(self, num: int, temperature: float = 1.0, seed: int | torch.Generator = 0) -> Tensor:
        """Draw images G(temperature * z), z ~ N(0, I). Latents are drawn on the CPU: same seed, same z everywhere."""
        if not math.isfinite(temperature) or temperature < 0:
            raise InputError(f"temperature must be a finite number >= 0, got {temperature}")
        generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
        parameter = next(self.parameters())
        z = torch.randn(num, self.num_dims, generator=generator, dtype=parameter.dtype)
        return self.decode(temperature * z.to(parameter.device))

    def set_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """Run the conditioning networks in `dtype` (bfloat16, float16), or None for full precision."""
        for module in self.modules():
            if isinstance(module, Net):
                module.compute_dtype = dtype

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Data-dependent initialization: every ActNorm takes mean and scale from this batch (B, C, H, W)."""
        layers = [m for m in self.modules() if isinstance(m, Initialized)]
        for layer in layers:
            layer.initializing = True
        self(x)
        for layer in layers:
            layer.initializing = False
