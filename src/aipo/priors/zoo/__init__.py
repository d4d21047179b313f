"""The priors that ship with the package, and the loader for one's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

from aipo.errors import InputError
from aipo.flows import NoiseFlow
from aipo.priors.files import load_prior_files
from aipo.priors.noise_prior import NoisePrior
from aipo.priors.prior import Prior

__all__ = ["flow_prior_names", "load_flow_prior", "load_noise_prior", "load_prior", "prior_names"]

_FOLDER = Path(__file__).parent


def prior_names() -> list[str]:
    """Names of the embedded priors.

    Examples:
        >>> prior_names()
        ['celeba64-glow', 'celeba64-realnvp', 'celeba64-realnvp-small', 'celeba64-tarflow', 'photo-small']
    """
    return sorted(path.stem for path in _FOLDER.glob("*.safetensors"))


def load_prior(name: str | Path) -> Prior | NoisePrior:
    """Load an embedded prior by name, or one's own from a .safetensors file with its .json card beside it.

    The weights' SHA-256 must be the card's; nothing is unpickled and nothing is downloaded. The prior is in float32 on
    the CPU; `prior.to("cuda")` moves it.

    Examples:
        >>> prior = load_prior("celeba64-realnvp-small")
        >>> prior.name, prior.image_shape
        ('celeba64-realnvp-small', (3, 64, 64))
        >>> prior.sample(2, temperature=0.7, seed=0).shape
        torch.Size([2, 3, 64, 64])
    """
    if str(name) in prior_names():
        return load_prior_files(_FOLDER / f"{name}.safetensors")
    path = Path(name)
    if path.suffix or os.path.exists(path):
        return load_prior_files(path)
    known = ", ".join(prior_names()) or "none"
    raise InputError(f"unknown prior {name}; give a .safetensors file, or the name of an embedded one: {known}")


def flow_prior_names() -> list[str]:
    """Names of the embedded priors for noiseless images of one size."""
    cards = {name: json.loads((_FOLDER / f"{name}.json").read_text()) for name in prior_names()}
    return [name for name, card in cards.items() if card["architecture"] != NoiseFlow.architecture]


def load_flow_prior(name: str | Path) -> Prior:
    """Load a prior for noiseless images of one size, and refuse any other."""
    prior = load_prior(name)
    if isinstance(prior, NoisePrior):
        raise InputError(f"{prior.name} is a prior for noisy images of any size; this needs one for images of one size")
    return prior


def load_noise_prior(name: str | Path) -> NoisePrior:
    """Load a prior for images of any size at every noise level, and refuse any other."""
    prior = load_prior(name)
    if not isinstance(prior, NoisePrior):
        raise InputError(f"{prior.name} knows no noise levels; this needs a noise prior such as photo-small")
    return prior
