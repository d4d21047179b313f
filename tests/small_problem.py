"""Small flows and problems with them: the common ground of the tests."""

import torch

import aipo
from aipo import operators
from aipo.flows import Flow, NoiseFlow, RealNVP

SHAPE = (3, 8, 8)


def build_flow():
    torch.manual_seed(0)
    flow = RealNVP(SHAPE, couplings=[2, 2], hidden=[8, 8]).requires_grad_(False)
    flow.initialize(torch.rand(16, *SHAPE))
    for p in flow.parameters():
        p += 0.05 * torch.randn_like(p)
    return flow


def make_problem(flow, batch=3, operator=None):
    x = torch.rand(batch, *SHAPE, generator=torch.Generator().manual_seed(1))
    operator = operator or operators.Inpainting.random_blocks(SHAPE, fraction=0.25, block=4, seed=0)
    noise = aipo.Gaussian(0.1)
    return aipo.MapProblem(flow, operator, noise, operator.measure(x, noise, seed=2))


def restricted(problem, index):
    return aipo.MapProblem(problem.prior, problem.operator, problem.noise, problem.y[index])


class Cliff(Flow):
    """A Gaussian that has no density (NaN) for images brighter than a limit: a prior that breaks on the way."""

    def __init__(self, flow, limit):
        super().__init__(flow.image_shape)
        self.inside, self.limit, self.config = flow, limit, {}

    def forward(self, x):
        z, log_det = self.inside(x)
        broken = x.flatten(1).mean(1) > self.limit
        return z, torch.where(broken, torch.nan, log_det)

    def decode(self, z):
        return self.inside.decode(z)


def build_noise_flow(levels=3, dtype=torch.float64, scale=0.05):
    flow = NoiseFlow([4, *[2] * (levels - 1)], [8] * levels, [2, *[1] * (levels - 1)], embedding=16)
    flow = flow.to(dtype).requires_grad_(False)
    flow.initialize(smooth_images(8, 32).to(dtype))
    generator = torch.Generator().manual_seed(0)
    for p in flow.parameters():
        p += scale * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype)
    return flow


def smooth_images(count, side, seed=0):
    """Smooth random color images in [0, 1]: neighbors agree, so there is something to know about them."""
    coarse = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, size=side, mode="bilinear")
