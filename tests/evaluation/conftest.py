import pytest
import torch

from aipo.evaluation.image_set import ImageSet
from aipo.evaluation.plan import Plan
from aipo.evaluation.protocol import PROTOCOLS
from aipo.flows import GaussianFlow
from aipo.priors.files import save_prior_files

SHAPE = (3, 16, 16)


@pytest.fixture(scope="session")
def prior_file(tmp_path_factory):
    """A small prior on disk, as a user's own would be: a Gaussian, whose gradients take no time."""
    n = 3 * 16 * 16
    noise = torch.randn(n, n, generator=torch.Generator().manual_seed(0)).tril(-1)
    flow = GaussianFlow(SHAPE, factor=0.2 * torch.eye(n) + 0.004 * noise)
    path = tmp_path_factory.mktemp("prior") / "tiny.safetensors"
    card = {"name": "tiny", "bits": 5, "data": "none", "license": "none", "metrics": {}}
    save_prior_files(flow, card, path)
    return path


@pytest.fixture(scope="session")
def image_set():
    return ImageSet(torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(3)), "random")


@pytest.fixture(scope="session")
def make_plan(prior_file, image_set):
    """A function that makes a small plan, with some options changed."""

    def make(**changes):
        options = {
            "image_sets": {"test": image_set},
            "priors": (str(prior_file),),
            "tasks": ("denoise", "inpaint"),
            "methods": PROTOCOLS["paper"].methods,
            "splits": ("test",),
            "lambdas": (0.5,),
            "subset": 2,
            "chunk": 2,
        }
        return Plan(**{**options, **changes})

    return make
