"""The noise of a measurement: the density p(y | f(x)) with all constants, and drawing from it.

The data term of the MAP loss is `D = -noise.log_prob(y, f(x))`.
"""

import math
from copy import copy

import torch
from torch import Generator, Tensor

from aipo.errors import InputError

__all__ = ["AdditiveNoise", "Gaussian", "Laplace", "Noise", "Poisson", "PoissonGaussian", "as_generator"]

SMALLEST, LARGEST = 1e-9, 1e9  # a scale whose square float32 can still hold, with room for sums
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


class _ScaledNoise(AdditiveNoise):
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
        scale = self._checked_scale(e)
        if scale.device != e.device:
            # Moved once and kept: a copy from the CPU at every evaluation would stall the GPU.
            with torch.inference_mode(False):
                self._scale = scale = scale.to(e.device)
        return scale.to(e.dtype).reshape(-1, *[1] * (e.ndim - 1))

    def _checked_scale(self, e: Tensor) -> Tensor:
        scale = torch.as_tensor(self._scale)
        if e.shape[0] != len(scale):
            raise InputError(
                f"{self._name} holds {len(scale)} values for a batch of {e.shape[0]} images; "
                "give one number, or one value per image"
            )
        return scale

    def take(self, rows: Tensor) -> Noise:
        if isinstance(self._scale, float):
            return self
        part = copy(self)
        part._scale = self._scale[rows.to(self._scale.device)]
        return part

    def _unit_draw(self, shape: torch.Size, generator: Generator | None) -> Tensor:
        raise NotImplementedError

    def variance(self, y: Tensor) -> Tensor:
        scale = self._scale_for(y)
        if isinstance(scale, float):
            return y.new_full((len(y),), self._unit_variance * scale**2)
        return self._unit_variance * scale.flatten().square()

    def draw(self, shape: torch.Size, generator: Generator | None = None) -> Tensor:
        # In float64 on the CPU, so that a seed means the same noise for every dtype and device.
        e = self._unit_draw(shape, generator)
        if isinstance(self._scale, float):
            return self._scale * e
        return self._checked_scale(e).cpu().to(e.dtype).reshape(-1, *[1] * (e.ndim - 1)) * e

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
        >>> Gaussian(0.1).log_density(torch.zeros(2, 3))  # three times -log(0.1 sqrt(2 pi))
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

    def log_density(self, e: Tensor) -> Tensor:
        sigma = self._scale_for(e)
        return _sum(-(e / sigma).square() / 2) - _numel(e) * (_log(sigma) + math.log(2 * math.pi) / 2)

    def _unit_draw(self, shape: torch.Size, generator: Generator | None) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


class Laplace(_ScaledNoise):
    """Laplace noise, p(e) = exp(-|e| / scale) / (2 scale) for each entry.

    Arguments:
        scale: > 0, on the [0,1] scale of the images (the standard deviation is sqrt(2) scale); one number or
            a tensor (B,), one per image.

    Examples:
        >>> import torch
        >>> Laplace(0.1).log_density(torch.zeros(1, 3))  # three times -log(0.2)
        tensor([4.8283])
    """

    _unit_variance = 2.0

    def __init__(self, scale: float | Tensor):
        super().__init__("scale", scale)

    @property
    def scale(self) -> float | Tensor:
        return self._scale

    def log_density(self, e: Tensor) -> Tensor:
        scale = self._scale_for(e)
        return _sum(-(e / scale).abs()) - _numel(e) * (_log(scale) + math.log(2))

    def _unit_draw(self, shape: torch.Size, generator: Generator | None) -> Tensor:
        # The difference of two exponentials is Laplace; unlike the inverse CDF it can never be infinite.
        a, b = torch.empty(2, *shape, dtype=torch.float64).exponential_(generator=generator)
        return a - b


class Poisson(Noise):
    """Photon noise: y is gain times a Poisson number of mean f(x) / gain.

    Arguments:
        gain: the brightness of one photon, > 0, on the [0,1] scale of the images.

    For f(x) below a hundredth of a photon, where there is no such density, -log p goes on as a straight line.

    Examples:
        >>> import torch
        >>> noise = Poisson(0.01)  # white is 100 photons
        >>> noise.log_prob(torch.full((1, 1), 0.5), torch.full((1, 1), 0.5))  # 50 photons of 50 expected
        tensor([-2.8766])
    """

    capturable = True
    DARKEST = 0.01  # photons

    def __init__(self, gain: float):
        self.gain = float(_positive("gain", gain))

    def log_prob(self, y: Tensor, fx: Tensor) -> Tensor:
        count, mean = y / self.gain, fx / self.gain
        seen = mean.clamp(min=self.DARKEST)
        line = (count / self.DARKEST - 1) * (mean - seen)  # zero where there is a density
        terms = torch.xlogy(count, seen) - seen - torch.lgamma(count.clamp(min=0) + 1) + line
        return _sum(terms)

    def sample(self, fx: Tensor, generator: Generator | None = None) -> Tensor:
        means = (fx.detach().cpu().double() / self.gain).clamp(min=0)
        return (self.gain * torch.poisson(means, generator)).to(fx)

    def variance(self, y: Tensor) -> Tensor:
        return (self.gain * _mean_of_seen(y)).clamp(min=self.gain**2)

    def weights(self, y: Tensor, fx: Tensor) -> Tensor:
        """The Fisher information of the mean."""
        return 1 / (self.gain * fx.clamp(min=self.gain / 2))

    def __repr__(self) -> str:
        return f"Poisson(gain={self.gain:g})"


class PoissonGaussian(Noise):
    """Photon noise and, on top of it, Gaussian noise: y = gain k + sigma n, k a Poisson number of mean f(x) / gain.

    The density is the sum over k of both; where its terms change slowly with k, only some of them are added up.

    Arguments:
        gain: the brightness of one photon, > 0, on the [0,1] scale of the images.
        sigma: standard deviation of the Gaussian part, > 0.

    Examples:
        >>> import torch
        >>> noise = PoissonGaussian(0.01, 0.02)  # white is 100 photons
        >>> noise.variance(torch.full((1, 1), 0.5)).sqrt()  # sqrt(0.01 * 0.5 + 0.02^2)
        tensor([0.0735])
        >>> y = torch.full((1, 1), 0.5)
        >>> bool(noise.log_prob(y, y) > noise.log_prob(y, y - 0.1))
        True
    """

    capturable = True
    NODES, PER_DEVIATION = 40, 5  # on each side of the largest term, and in one standard deviation

    def __init__(self, gain: float, sigma: float):
        self.gain, self.sigma = float(_positive("gain", gain)), float(_positive("sigma", sigma))

    def log_prob(self, y: Tensor, fx: Tensor) -> Tensor:
        mean = (fx / self.gain).clamp(min=Poisson.DARKEST)
        with torch.no_grad():
            # What is known of k: the Poisson number's mean and variance, and y with its own.
            spread = (self.sigma / self.gain) ** 2
            variance = mean * spread / (mean + spread)
            middle = (variance * (1 + y / self.gain / spread)).clamp(min=0).round()
            step = (variance.sqrt() / self.PER_DEVIATION).clamp(min=1)

        def term(k: Tensor) -> Tensor:
            poisson = torch.xlogy(k, mean) - mean - torch.lgamma(k.clamp(min=0) + 1)
            return torch.where(k < 0, -torch.inf, poisson - ((y - self.gain * k) / self.sigma).square() / 2)

        total = term(middle)  # the largest one first: it is never zero
        for i in range(1, self.NODES + 1):
            total = torch.logaddexp(torch.logaddexp(total, term(middle - i * step)), term(middle + i * step))
        return _sum(total + step.log()) - _numel(y) * (math.log(self.sigma) + math.log(2 * math.pi) / 2)

    def sample(self, fx: Tensor, generator: Generator | None = None) -> Tensor:
        photons = Poisson(self.gain).sample(fx.detach().cpu().double(), generator)
        return (photons + self.sigma * torch.randn(fx.shape, generator=generator, dtype=torch.float64)).to(fx)

    def variance(self, y: Tensor) -> Tensor:
        return self.gain * _mean_of_seen(y).clamp(min=0) + self.sigma**2

    def weights(self, y: Tensor, fx: Tensor) -> Tensor:
        """About the Fisher information of the mean."""
        return 1 / (self.gain * fx.clamp(min=0) + self.sigma**2)

    def __repr__(self) -> str:
        return f"PoissonGaussian(gain={self.gain:g}, sigma={self.sigma:g})"


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
        if not ((value >= SMALLEST) & (value <= LARGEST)).all():
            raise InputError(f"{name} is {value.tolist()}; every value must be from {SMALLEST:g} to {LARGEST:g}")
        return value.detach().clone()
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; give one number, or a tensor (B,)") from None
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name} is {number}; it must be finite and greater than 0")
    if not SMALLEST <= number <= LARGEST:
        raise InputError(f"{name} is {number:g}; it must be from {SMALLEST:g} to {LARGEST:g}")
    return number


def _mean_of_seen(y: Tensor) -> Tensor:
    """The mean of each measurement (B,), zeros left out: pixels that were not observed have them."""
    return y.flatten(1).sum(1) / (y != 0).flatten(1).sum(1).clamp(min=1)


def _sum(terms: Tensor) -> Tensor:
    return terms.flatten(1).sum(1)


def _numel(e: Tensor) -> int:
    return math.prod(e.shape[1:])


def _log(scale: float | Tensor) -> float | Tensor:
    return scale.flatten().log() if isinstance(scale, Tensor) else math.log(scale)
