"""Normalizing flows with exact per-image density.

RealNVP, Glow and TarFlow for images of one size, two toys with closed forms, and NoiseFlow for images of any size with
noise of any level.
"""

from aipo.flows.base import Flow
from aipo.flows.closed_form import GaussianFlow, MixtureFlow
from aipo.flows.glow import Glow
from aipo.flows.noise_flow import NoiseFlow, NoiseLevel
from aipo.flows.realnvp import RealNVP
from aipo.flows.tarflow import TarFlow

ARCHITECTURES = {flow.architecture: flow for flow in (RealNVP, Glow, TarFlow, GaussianFlow, MixtureFlow, NoiseFlow)}

__all__ = [
    "ARCHITECTURES",
    "Flow",
    "GaussianFlow",
    "Glow",
    "MixtureFlow",
    "NoiseFlow",
    "NoiseLevel",
    "RealNVP",
    "TarFlow",
]
