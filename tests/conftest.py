import pytest
import torch

# Tests work on small tensors, and often several at once: one thread each is fastest.
torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
