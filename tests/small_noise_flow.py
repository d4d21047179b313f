"""A small noise flow with weights moved away from their special initial values, as training would."""

import torch

from aipo.flows import NoiseFlow


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
