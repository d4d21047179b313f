"""Sample images that may be used and passed on freely.

64x64, in the geometry of the face priors:

- `astronaut`: Eileen Collins, photographed by NASA, public domain. A real face.
- `cat`: Chelsea, photographed by Stéfan van der Walt, CC0. Not a face: out of the priors' distribution.

And a photograph of 300x200, a cup of coffee by Rachel Michetti, CC0 (courtesy of Pikolo Espresso Bar).

All come from scikit-image's `skimage.data` by `scripts/make_samples.py`.
"""

from pathlib import Path

from torch import Tensor

from aipo.errors import InputError
from aipo.images import read_image

__all__ = ["load", "names", "photograph"]

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names that `load` knows, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.png"))


def load(name: str) -> Tensor:
    """The sample image `name` as a tensor (3, 64, 64), float32 in [0,1].

    Raises:
        InputError: there is no sample of that name.

    Examples:
        >>> names()
        ['astronaut', 'cat']
        >>> load("cat").shape
        torch.Size([3, 64, 64])
    """
    if name not in names():
        raise InputError(f"there is no sample picture {name!r}; choose from {', '.join(names())}")
    return read_image(FOLDER / f"{name}.png")


def photograph() -> Tensor:
    """The photograph as a tensor (3, 200, 300), float32 in [0,1].

    Examples:
        >>> photograph().shape
        torch.Size([3, 200, 300])
    """
    return read_image(FOLDER / "coffee.webp", (3, 200, 300))
