"""Normalizing flows with exact per-image density: RealNVP, Glow, TarFlow, and a Gaussian in closed form."""

from aipo.flows.base import Flow
from aipo.flows.gaussian import GaussianFlow
from aipo.flows.glow import Glow
from aipo.flows.realnvp import RealNVP
from aipo.flows.tarflow import TarFlow

ARCHITECTURES = {flow.architecture: flow for flow in (RealNVP, Glow, TarFlow, GaussianFlow)}

__all__ = ["ARCHITECTURES", "Flow", "GaussianFlow", "Glow", "RealNVP", "TarFlow"]
