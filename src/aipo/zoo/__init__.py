"""The priors that ship with the package, and the loader for one's own."""

from __future__ import annotations

from pathlib import Path

from aipo.errors import InputError
from aipo.prior import Prior, load_prior_files

__all__ = ["load_prior", "prior_names"]

_FOLDER = Path(__file__).parent


def prior_names() -> list[str]:
    """Names of the embedded priors.

    Examples:
        >>> prior_names()
        ['celeba64-glow', 'celeba64-realnvp', 'celeba64-realnvp-small', 'celeba64-tarflow']
    """
    return sorted(path.stem for path in _FOLDER.glob("*.safetensors"))


def load_prior(name: str | Path) -> Prior:
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
    if path.suffix or path.exists():
        return load_prior_files(path)
    known = ", ".join(prior_names()) or "none"
    raise InputError(f"unknown prior {name}; give a .safetensors file, or the name of an embedded one: {known}")
