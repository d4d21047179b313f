"""Samples from p(x | y): all images that a measurement may come from, in their right proportion.

The chain goes down the noise levels of the prior. At each level s it holds v, a possible image with noise s on it:

    x_hat = v + s^2 grad log p_s(v)        the mean of the images that v may come from
    x     ~ N(x_hat, C_s), given y         one of them that also explains the measurement
    v     = x + s' n                       the same with less noise, s' < s

The second line takes those images as Gaussian around x_hat. C_s, how far they are spread, is measured once for a prior
(`priors.estimate_errors`). If that were exact, v would be an exact sample at every level; for a Gaussian prior it is.
The level falls so slowly that what is wrong about it at one level is forgotten at the next ones.

Reference for drawing anew at every level: B. Zhang et al., "Improving diffusion inverse problem solving with decoupled
noise annealing", 2024, https://arxiv.org/abs/2407.01521
"""

from __future__ import annotations

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.noise import Gaussian, as_generator
from aipo.posterior.posterior import Posterior
from aipo.problem.map_problem import MapProblem
from aipo.solvers.anneal import noise_prior
from aipo.transforms.spectrum import Spectrum, synthesize

__all__ = ["sample_posterior"]

EVALS = 20


@torch.no_grad()
def sample_posterior(
    problem: MapProblem, n: int = 16, *, evals: int = EVALS, x0: Tensor | None = None, seed: int | torch.Generator = 0
) -> Posterior:
    """Draw n images from p(x | y), for every image of the problem.

    Arguments:
        problem: with a noise prior and Gaussian noise.
        n: samples of each image.
        evals: gradient evaluations for each of them.
        x0: a restoration (B, C, H, W) to begin near; by default draws from a Gaussian with the prior's spectrum.
        seed: of all that is drawn; drawn on the CPU, image by image, so that neighbors do not matter.

    Examples:
        Before it is trained a noise flow is a Gaussian, which is enough to show how it is used.

        >>> import aipo
        >>> x = aipo.samples.load("astronaut")[None]
        >>> flow = aipo.flows.NoiseFlow(couplings=[2, 2], hidden=[4, 4], blocks=[1, 1])
        >>> flow.initialize(x)
        >>> prior = aipo.NoisePrior(flow.requires_grad_(False))
        >>> operator = aipo.operators.Inpainting.random_blocks((3, 64, 64), fraction=0.25, block=4, seed=0)
        >>> noise = aipo.Gaussian(0.05)
        >>> problem = aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=1))
        >>> post = aipo.sample_posterior(problem, n=4)
        >>> tuple(post.samples.shape), post.evals.tolist()
        ((1, 4, 3, 64, 64), [80])
        >>> seen = operator.mask.expand_as(x).bool()
        >>> bool(post.std[~seen].mean() > 3 * post.std[seen].mean())  # less is known where nothing was seen
        True
    """
    if not isinstance(problem.noise, Gaussian):
        raise InputError(f"sampling needs Gaussian noise, not {problem.noise!r}; anneal takes any noise")
    if n < 1 or evals < 1:
        raise InputError(f"n and evals must be at least 1, got {n} and {evals}")
    draw, prior = _Draws(seed, problem.batch, n), noise_prior(problem)
    many = problem.take(torch.arange(problem.batch, device=problem.y.device).repeat_interleave(n))
    if x0 is None:
        # Where nothing is known but y and the spectrum of images, those that it may come from are Gaussian too.
        surrogate = problem.prior.surrogate
        x = _possible(many, surrogate.mean.repeat(many.batch, 1, 1, 1), surrogate.marginal, draw)
    else:
        problem.check_start(x0)
        x = x0.repeat_interleave(n, 0)
    for s in _levels(*prior.levels, evals):
        v = x + s * draw(x.shape[1:]).to(x)
        estimate = prior.denoise(v, s, precision=problem.precision)
        x = _possible(many, estimate, prior.errors.precision(s, problem.image_shape), draw)
    samples = x.unflatten(0, (problem.batch, n))
    finite = samples.flatten(1).isfinite().all(1)
    spent = torch.full((problem.batch,), n * evals, dtype=torch.int64, device=x.device)
    return Posterior(samples, spent, ["done" if ok else "non finite" for ok in finite.tolist()])


def _levels(low: float, high: float, count: int) -> list[float]:
    """From high to low, each the same factor below the one before."""
    return [high * (low / high) ** (i / max(1, count - 1)) for i in range(count)]


def _possible(problem: MapProblem, estimate: Tensor, precision: Spectrum, draw: _Draws) -> Tensor:
    """A draw from N(estimate, C), given y, for each image: C is the inverse of `precision`.

    Solving with randomly disturbed right-hand sides gives just that covariance.
    """
    operator, y = problem.operator, problem.y
    spread = problem.noise.variance(y)
    residual = y + per_image(spread.sqrt(), y) * operator.restrict(draw(y.shape[1:]).to(y)) - operator.A(estimate)
    pull = operator.adjoint_at(estimate, residual) / per_image(spread, estimate)
    spectrum = Spectrum(precision.values.to(estimate))
    pull = pull + synthesize(spectrum.values.sqrt() * draw(estimate.shape[1:]).to(estimate))
    return estimate + operator.solve_regularized(pull, 1 / spread, torch.ones_like(spread), spectrum, estimate)


class _Draws:
    """Standard normal numbers for n samples of each image: one stream for each image, whatever its neighbors."""

    def __init__(self, seed: int | torch.Generator, batch: int, n: int):
        generator = as_generator(seed)
        seeds = [int(torch.randint(2**62, (), generator=generator)) for _ in range(batch)]
        self.generators, self.n = [torch.Generator().manual_seed(s) for s in seeds], n

    def __call__(self, shape: torch.Size) -> Tensor:
        return torch.cat([torch.randn(self.n, *shape, generator=generator) for generator in self.generators])
