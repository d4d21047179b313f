"""What the attacks share: a tiny prior, a good picture, commands that run in this process, and a clock."""

import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from mutations import SHAPE
from typer.testing import CliRunner

from aipo.cli import app
from aipo.flows import RealNVP
from aipo.images import write_image
from aipo.priors.files import save_prior_files


@pytest.fixture(scope="session")
def prior(tmp_path_factory):
    """A prior of 16x16 noise: no good for pictures, but a gradient takes a millisecond."""
    path = tmp_path_factory.mktemp("prior") / "tiny.safetensors"
    flow = RealNVP(SHAPE, couplings=[1], hidden=[4])
    flow.initialize(torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0)))
    save_prior_files(flow, {"name": "tiny", "bits": 5, "data": "noise", "license": "none", "metrics": {}}, path)
    return path


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """A picture with which nothing is wrong."""
    path = tmp_path_factory.mktemp("good") / "good.png"
    write_image(path, torch.rand(SHAPE, generator=torch.Generator().manual_seed(1)))
    return path


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """An array of images for `aipo bench`."""
    path = tmp_path_factory.mktemp("images") / "images.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (4, *SHAPE), dtype=np.uint8))
    return path


@pytest.fixture(scope="session")
def within():
    """A context in which a hang becomes a failure after so many seconds."""

    @contextmanager
    def limit(seconds):
        def ring(*_):
            pytest.fail(f"not done after {seconds} s")  # nobody catches this by mistake, as a TimeoutError would be

        before = signal.signal(signal.SIGALRM, ring)
        signal.alarm(seconds)
        try:
            yield
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    return limit


@pytest.fixture(scope="session")
def run(within):
    """Runs a command and holds it to what every command promises; returns how it ended."""

    def invoke(*arguments, seconds=60, lines=1):
        """`lines`: the most that may be complained about."""
        with within(seconds):
            outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
            raise outcome.exception  # a traceback
        assert outcome.exit_code in (0, 1, 2), outcome.output
        complaints = [line for line in outcome.stderr.splitlines() if line.startswith("aipo: ")]
        assert len(complaints) == outcome.stderr.count("\n"), outcome.stderr
        assert len(complaints) <= lines, outcome.stderr
        assert bool(complaints) == (outcome.exit_code != 0), outcome.output
        for printed in (outcome.stdout, outcome.stderr):
            assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 for c in printed), repr(printed)
        return outcome

    return invoke
