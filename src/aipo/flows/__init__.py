"""Normalizing flows with exact per-image density: RealNVP, Glow, TarFlow, and two toys with closed forms."""

from aipo.flows.base import Flow
from aipo.flows.gaussian import GaussianFlow
from aipo.flows.glow import Glow
from aipo.flows.mixture import MixtureFlow
from aipo.flows.realnvp import RealNVP
from aipo.flows.tarflow import TarFlow

ARCHITECTURES = {flow.architecture: flow for flow in (RealNVP, Glow, TarFlow, GaussianFlow, MixtureFlow)}

__all__ = ["ARCHITECTURES", "Flow", "GaussianFlow", "Glow", "MixtureFlow", "RealNVP", "TarFlow"]
