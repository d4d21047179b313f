"""The measurement noise e of y = f(x) + e: its log-density (all constants included) and sampling.

The residual term of the MAP loss is `D = -noise.log_prob(y - f(x))`.
"""

import math
from collections.abc import Sequence
from copy import copy

import torch
from torch import Generator, Tensor

from aipo.errors import InputError

__all__ = ["Gaussian", "Laplace", "Noise", "as_generator"]


class Noise:
    """Interface of a noise model: any log-density that is differentiable in e.

    Subclass it to add your own, here Student's t, which forgives outliers.

    Examples:
        >>> import torch
        >>> class StudentT(Noise):
        ...     def __init__(self, nu, scale):
        ...         self.nu, self.scale = nu, scale
        ...
        ...     def log_prob(self, e):
        ...         return torch.distributions.StudentT(self.nu, 0.0, self.scale).log_prob(e).flatten(1).sum(1)
        ...
        ...     def sample(self, shape, generator=None, dtype=torch.float32, device="cpu"):
        ...         normal = torch.randn(self.nu + 1, *shape, generator=generator)
        ...         t = normal[0] / normal[1:].square().mean(0).sqrt()
        ...         return (self.scale * t).to(device, dtype)
        >>> StudentT(2, 0.1).log_prob(torch.zeros(1, 1))
        tensor([1.2629])
    """

    capturable = False  # whether its methods never look at values on the host, as `aipo.kernels.graphs` needs it

    def log_prob(self, e: Tensor) -> Tensor:
        """Log-density in nats of each residual of e (B, ...), summed over all its other dimensions: (B,)."""
        raise NotImplementedError

    def sample(
        self,
        shape: Sequence[int],
        generator: Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Draw noise of a shape (B, ...). The generator is on the CPU: one seed, one noise on all devices."""
        raise NotImplementedError

    def take(self, rows: Tensor) -> "Noise":
        """The noise of some images alone; only a model with values of its own for each image need override this."""
        return self

    def variance(self, y: Tensor) -> Tensor:
        """About the variance of one entry of the noise on measurements y (B, ...), per image: (B,)."""
        e = self.sample((len(y), 4096), Generator().manual_seed(0)).to(y)
        # Half the range between the 16th and 84th percentile: a heavy tail need not have a variance.
        return ((e.quantile(0.84, dim=1) - e.quantile(0.16, dim=1)) / 2).square()


class _ScaledNoise(Noise):
    """Noise with independent entries and one scale, shared by the batch or per image."""

    capturable = True
    _unit_variance: float

    def __init__(self, name: str, scale: float | Tensor):
        self._name = name
        self._scale = _positive(name, scale)

    def _scale_for(self, e: Tensor) -> float | Tensor:
        """The scale, broadcastable to e (B, ...)."""
        if isinstance(self._scale, float):
            return self._scale
        if e.shape[0] != len(self._scale):
            raise InputError(
                f"{self._name} holds {len(self._scale)} values for a batch of {e.shape[0]} images; "
                "give one number, or one value per image"
            )
        if self._scale.device != e.device:
            # Moved once and kept: a copy from the CPU at every evaluation would stall the GPU.
            with torch.inference_mode(False):
                self._scale = self._scale.to(e.device)
        return self._scale.to(e.dtype).reshape(-1, *[1] * (e.ndim - 1))

    def take(self, rows: Tensor) -> Noise:
        if isinstance(self._scale, float):
            return self
        part = copy(self)
        part._scale = self._scale[rows.to(self._scale.device)]
        return part

    def _unit_sample(self, shape: Sequence[int], generator: Generator | None) -> Tensor:
        raise NotImplementedError

    def variance(self, y: Tensor) -> Tensor:
        scale = self._scale_for(y)
        if isinstance(scale, float):
            return y.new_full((len(y),), self._unit_variance * scale**2)
        return self._unit_variance * scale.flatten().square()

    def sample(
        self,
        shape: Sequence[int],
        generator: Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        # Drawn in float64 on the CPU, so that a seed means the same noise for every dtype and device.
        e = self._unit_sample(shape, generator).to(device)
        return (self._scale_for(e) * e).to(dtype)

    def __repr__(self) -> str:
        if isinstance(self._scale, float):
            value = f"{self._scale:g}"
        else:
            value = f"[{', '.join(f'{number:g}' for number in self._scale.tolist())}]"
        return f"{type(self).__name__}({self._name}={value})"


class Gaussian(_ScaledNoise):
    """Gaussian noise, e ~ N(0, sigma^2 I).

    Arguments:
        sigma: standard deviation, > 0, on the [0,1] scale of the images; one number or a tensor (B,), one per
            image.

    Examples:
        >>> import torch
        >>> Gaussian(0.1).log_prob(torch.zeros(2, 3))  # three times -log(0.1 sqrt(2 pi))
        tensor([4.1509, 4.1509])
        >>> Gaussian(torch.tensor([0.1, 0.2]))  # one for each image
        Gaussian(sigma=[0.1, 0.2])
    """

    _unit_variance = 1.0

    def __init__(self, sigma: float | Tensor):
        super().__init__("sigma", sigma)

    @property
    def sigma(self) -> float | Tensor:
        return self._scale

    def log_prob(self, e: Tensor) -> Tensor:
        sigma = self._scale_for(e)
        return _sum(-(e / sigma).square() / 2) - _numel(e) * (_log(sigma) + math.log(2 * math.pi) / 2)

    def _unit_sample(self, shape: Sequence[int], generator: Generator | None) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


class Laplace(_ScaledNoise):
    """Laplace noise, p(e) = exp(-|e| / scale) / (2 scale) for each entry.

    Arguments:
        scale: > 0, on the [0,1] scale of the images (the standard deviation is sqrt(2) scale); one number or
            a tensor (B,), one per image.

    Examples:
        >>> import torch
        >>> Laplace(0.1).log_prob(torch.zeros(1, 3))  # three times -log(0.2)
        tensor([4.8283])
    """

    _unit_variance = 2.0

    def __init__(self, scale: float | Tensor):
        super().__init__("scale", scale)

    @property
    def scale(self) -> float | Tensor:
        return self._scale

    def log_prob(self, e: Tensor) -> Tensor:
        scale = self._scale_for(e)
        return _sum(-(e / scale).abs()) - _numel(e) * (_log(scale) + math.log(2))

    def _unit_sample(self, shape: Sequence[int], generator: Generator | None) -> Tensor:
        # The difference of two exponentials is Laplace; unlike the inverse CDF it can never be infinite.
        a, b = torch.empty(2, *shape, dtype=torch.float64).exponential_(generator=generator)
        return a - b


def as_generator(seed: int | Generator) -> Generator:
    """A CPU generator from a seed; a generator is passed through, so that successive draws differ."""
    if isinstance(seed, int):
        return Generator().manual_seed(seed)
    if isinstance(seed, Generator) and seed.device.type == "cpu":
        return seed
    raise InputError(f"seed is {seed!r}; give an integer or a torch.Generator on the CPU")


def _positive(name: str, value: float | Tensor) -> float | Tensor:
    if isinstance(value, Tensor) and value.ndim > 0:
        if value.ndim > 1:
            raise InputError(f"{name} has shape {tuple(value.shape)}; give one number, or a tensor (B,)")
        if not (value.isfinite() & (value > 0)).all():
            raise InputError(f"{name} is {value.tolist()}; every value must be finite and greater than 0")
        return value.detach().clone()
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; give one number, or a tensor (B,)") from None
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name} is {number}; it must be finite and greater than 0")
    return number


def _sum(terms: Tensor) -> Tensor:
    return terms.flatten(1).sum(1)


def _numel(e: Tensor) -> int:
    return math.prod(e.shape[1:])


def _log(scale: float | Tensor) -> float | Tensor:
    return scale.flatten().log() if isinstance(scale, Tensor) else math.log(scale)
