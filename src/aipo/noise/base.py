"""What a noise model promises: the density p(y | f(x)) with all constants, and drawing from it.

The data term of the MAP loss is `D = -noise.log_prob(y, f(x))`.
"""

import torch
from torch import Generator, Tensor

from aipo.errors import InputError

__all__ = ["AdditiveNoise", "Noise", "as_generator"]

VARIANCE_DRAWS = 4096


class Noise:
    """Interface of a noise model: any density of y that is differentiable in f(x).

    For noise that is added, y = f(x) + e, subclass `AdditiveNoise` instead.

    Examples:
        Speckle, as in radar and ultrasound: y is f(x) times an exponential number of mean 1.

        >>> import torch
        >>> class Speckle(Noise):
        ...     def log_prob(self, y, fx):
        ...         return (-y / fx - fx.log()).flatten(1).sum(1)
        ...
        ...     def sample(self, fx, generator=None):
        ...         return fx * torch.empty(fx.shape).exponential_(generator=generator)
        >>> Speckle().log_prob(torch.full((1, 1), 0.5), torch.full((1, 1), 0.5))  # -1 + log 2
        tensor([-0.3069])
    """

    capturable = False  # whether its methods never look at values on the host, as `aipo.engine.kernels.graphs` needs it

    def log_prob(self, y: Tensor, fx: Tensor) -> Tensor:
        """log p(y | f(x)) in nats of each measurement (B, ...), summed over all its other dimensions: (B,)."""
        raise NotImplementedError

    def sample(self, fx: Tensor, generator: Generator | None = None) -> Tensor:
        """Draw a measurement of noiseless values (B, ...). The generator is on the CPU: one seed, the same anywhere."""
        raise InputError(f"{type(self).__name__} cannot be drawn from; give it a method `sample`, or one `variance`")

    def take(self, rows: Tensor) -> "Noise":
        """The noise of some images alone; only a model with values of its own for each image need override this."""
        return self

    def variance(self, y: Tensor) -> Tensor:
        """About the variance of one entry of the noise on measurements y (B, ...), per image: (B,)."""
        values = y.flatten(1)
        fx = values[:, torch.arange(VARIANCE_DRAWS, device=y.device) % values.shape[1]]
        e = self.sample(fx, Generator().manual_seed(0)) - fx
        # Half the range between the 16th and 84th percentile: a heavy tail need not have a variance.
        return ((e.quantile(0.84, dim=1) - e.quantile(0.16, dim=1)) / 2).square()

    def weights(self, y: Tensor, fx: Tensor) -> Tensor:
        """The curvature of the parabola that stands in for -log p(y | f(x)) at f(x), for each entry of y (B, ...).

        By default the parabola has its minimum at y, and the slope of -log p at f(x).
        """
        with torch.enable_grad():
            values = fx.detach().requires_grad_()
            (slope,) = torch.autograd.grad(-self.log_prob(y, values).sum(), values)
        residual = fx - y
        tiny = torch.finfo(y.dtype).eps
        weights = slope / torch.where(residual.abs() < tiny, tiny, residual)
        return weights.clamp(min=0)


class AdditiveNoise(Noise):
    """y = f(x) + e, where e does not depend on f(x).

    Subclass it to add your own, here Student's t, which forgives outliers.

    Examples:
        >>> import torch
        >>> class StudentT(AdditiveNoise):
        ...     def __init__(self, nu, scale):
        ...         self.nu, self.scale = nu, scale
        ...
        ...     def log_density(self, e):
        ...         return torch.distributions.StudentT(self.nu, 0.0, self.scale).log_prob(e).flatten(1).sum(1)
        ...
        ...     def draw(self, shape, generator=None):
        ...         normal = torch.randn(self.nu + 1, *shape, generator=generator)
        ...         return self.scale * normal[0] / normal[1:].square().mean(0).sqrt()
        >>> StudentT(2, 0.1).log_prob(torch.zeros(1, 1), torch.zeros(1, 1))
        tensor([1.2629])
    """

    def log_density(self, e: Tensor) -> Tensor:
        """Log-density in nats of each residual of e (B, ...), summed over all its other dimensions: (B,)."""
        raise NotImplementedError

    def draw(self, shape: torch.Size, generator: Generator | None = None) -> Tensor:
        """Noise of a shape (B, ...), on the CPU."""
        raise InputError(f"{type(self).__name__} cannot be drawn from; give it a method `draw`, or one `variance`")

    def log_prob(self, y: Tensor, fx: Tensor) -> Tensor:
        return self.log_density(y - fx)

    def sample(self, fx: Tensor, generator: Generator | None = None) -> Tensor:
        return fx + self.draw(fx.shape, generator).to(fx.device, fx.dtype)


def as_generator(seed: int | Generator) -> Generator:
    """A CPU generator from a seed; a generator is passed through, so that successive draws differ."""
    if isinstance(seed, int):
        return Generator().manual_seed(seed)
    if isinstance(seed, Generator) and seed.device.type == "cpu":
        return seed
    raise InputError(f"seed is {seed!r}; give an integer or a torch.Generator on the CPU")
