"""What all solvers promise: per-image independence, failure of one alone, resume to the same bytes, honest counts."""

import copy
import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import aipo
from aipo import initial, operators
from aipo.adam import Adam, AdamState
from aipo.errors import InputError
from aipo.flows import GaussianFlow
from aipo.flows.base import Flow
from aipo.initial import MaximumLikelihood
from aipo.solvers import Amortized, Certified, FixedLambda
from small_problem import SHAPE, build_flow, make_problem, restricted

SOLVERS = {
    "fixed": FixedLambda(30),
    "fixed, cosine": FixedLambda.decayed(30),
    "amortized": Amortized(K=4, delta_min_share=0.25),
    "amortized, kept moments": Amortized(K=4, delta_min_share=0.25, moments="keep", last_K=10),
    "certified": Certified(L=2000.0, sigma=0.01, delta=1e-3, C=1e-6, max_evals=40),
    "maximum likelihood": MaximumLikelihood(30),
}


@pytest.fixture(scope="module")
def flow():
    return build_flow()


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_an_image_alone_gives_what_it_gives_in_a_batch(flow, solver):
    problem = make_problem(flow)
    lam = torch.tensor([0.2, 0.5, 1.0])
    x0 = initial.random(problem, seed=3)
    together = solver.solve(problem, lam, x0)
    for i in range(3):
        alone = solver.solve(restricted(problem, [i]), lam[[i]], x0[[i]])
        torch.testing.assert_close(alone.x, together.x[[i]], atol=1e-4, rtol=0)
        assert alone.evals.item() == together.evals[i].item()
        assert alone.status == [together.status[i]]


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_killed_and_resumed_ends_with_the_same_bytes(flow, solver, tmp_path):
    problem = make_problem(flow)
    x0 = initial.zero(problem)
    unbroken = solver.solve(problem, 0.5, x0, checkpoint=tmp_path / "unbroken.safetensors")

    class Killed(Exception):
        pass

    def kill_at(state, limit):
        if state.evals.max() >= limit and state.running.any():
            raise Killed

    path = tmp_path / "broken.safetensors"
    for limit in (8, 15, 22):
        try:
            solver.solve(problem, 0.5, x0, checkpoint=path, checkpoint_every=5, callback=partial(kill_at, limit=limit))
        except Killed:
            assert path.exists()
    resumed = solver.solve(problem, 0.5, x0, checkpoint=path, checkpoint_every=5)
    assert path.read_bytes() == (tmp_path / "unbroken.safetensors").read_bytes()
    for name in ("x", "loss", "D", "P", "evals"):
        assert torch.equal(getattr(resumed, name), getattr(unbroken, name)), name


KILL_ME = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
from small_problem import build_flow, make_problem
from test_solvers import SOLVERS
torch.set_num_threads(1)
slowly = lambda state: time.sleep(0.05)
SOLVERS["fixed"].solve(make_problem(build_flow()), 0.5, checkpoint=sys.argv[2], checkpoint_every=1, callback=slowly)
"""


def test_a_process_killed_without_warning_can_be_resumed(flow, tmp_path):
    path = tmp_path / "c.safetensors"
    process = subprocess.Popen([sys.executable, "-c", KILL_ME, str(Path(__file__).parent), str(path)])
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    # It was killed while it still had work to do, after it had saved some.
    assert process.wait() == -signal.SIGKILL
    assert path.exists()
    resumed = SOLVERS["fixed"].solve(make_problem(flow), 0.5, checkpoint=path)
    assert torch.equal(resumed.x, SOLVERS["fixed"].solve(make_problem(flow), 0.5).x)


def test_a_finished_checkpoint_costs_nothing(flow, tmp_path):
    problem, path = make_problem(flow), tmp_path / "c.safetensors"
    solver = FixedLambda(20)
    first = solver.solve(problem, 0.5, checkpoint=path)
    seen = []
    again = solver.solve(problem, 0.5, checkpoint=path, callback=lambda s: seen.append(s.running.any().item()))
    assert seen == [False]
    assert torch.equal(first.x, again.x)


def fast(problem):
    return aipo.MapProblem(problem.prior, problem.operator, problem.noise, problem.y, precision="fast")


def identity(path):
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["identity"])


class TestResumingInFastPrecision:
    """On a CPU fast computes what exact does, but a solve has the same two phases, coarse and exact, as on a GPU."""

    @pytest.mark.parametrize(("limit", "phase"), [(3, "fast"), (12, "exact"), (29, "exact")])
    def test_killed_and_resumed_ends_with_the_same_bytes(self, flow, limit, phase, tmp_path, monkeypatch):
        """All images are soon too bright for the coarse phase. What is exact from there must not turn coarse again."""
        make, solver = aipo.Prior.engine, FixedLambda.decayed(30, alpha=0.02)

        def engine(prior, precision="exact"):
            exact = make(prior)

            def overflowing(x):
                P, gradient = exact(x)
                return P.masked_fill(x.flatten(1).mean(1) > 0.1, torch.inf), gradient

            overflowing.uncertainty = 0.0
            return exact if precision == "exact" else overflowing

        monkeypatch.setattr(aipo.Prior, "engine", engine)
        problem = fast(make_problem(flow))
        black = torch.zeros_like(problem.y)
        unbroken = solver.solve(problem, 0.5, black, checkpoint=tmp_path / "unbroken.safetensors")
        assert unbroken.x.flatten(1).mean(1).min() > 0.1

        class Killed(Exception):
            pass

        def kill(state):
            if state.evals.max() >= limit:
                raise Killed

        path = tmp_path / "broken.safetensors"
        with pytest.raises(Killed):
            solver.solve(problem, 0.5, black, checkpoint=path, checkpoint_every=1, callback=kill)
        assert identity(path)["phase"] == phase
        resumed = solver.solve(problem, 0.5, black, checkpoint=path)
        assert torch.equal(resumed.x, unbroken.x)
        assert torch.equal(resumed.evals, unbroken.evals)
        assert path.read_bytes() == (tmp_path / "unbroken.safetensors").read_bytes()

    def test_an_image_that_failed_stays_as_it_is(self, flow, tmp_path):
        problem, path = fast(make_problem(flow)), tmp_path / "c.safetensors"
        x0 = initial.zero(problem)
        x0[1] = math.nan
        first = FixedLambda(10).solve(problem, 0.5, x0, checkpoint=path)
        before = path.read_bytes()
        again = FixedLambda(10).solve(problem, 0.5, x0, checkpoint=path)
        assert first.status == ["done", "non finite", "done"]
        assert torch.equal(again.evals, first.evals)
        assert path.read_bytes() == before

    def test_a_checkpoint_that_does_not_tell_its_phase(self, flow, tmp_path):
        problem, path = fast(make_problem(flow)), tmp_path / "c.safetensors"
        first = FixedLambda(10).solve(problem, 0.5, checkpoint=path)
        old = {key: value for key, value in identity(path).items() if key != "phase"}
        save_file(load_file(path), path, {"identity": json.dumps(old)})
        assert torch.equal(FixedLambda(10).solve(problem, 0.5, checkpoint=path).x, first.x)


@pytest.mark.parametrize(
    "change", ["solver", "problem", "lam", "lam of one image", "weights", "precision", "sigma", "file"]
)
def test_a_checkpoint_meets_only_its_own_problem(flow, tmp_path, change):
    problem, path, solver, lam = make_problem(flow), tmp_path / "c.safetensors", FixedLambda(5), 0.5
    if change == "lam of one image":
        lam = torch.tensor([0.5, 0.5, 0.50001])
    solver.solve(problem, lam, checkpoint=path)
    if change == "solver":
        solver = FixedLambda(6)
    elif change == "problem":
        problem = aipo.MapProblem(flow, problem.operator, aipo.Gaussian(0.2), problem.y)
    elif change == "sigma":
        problem = aipo.MapProblem(flow, problem.operator, aipo.Gaussian(0.1000001), problem.y)
    elif change == "lam":
        lam = 0.6
    elif change == "lam of one image":
        lam = torch.tensor([0.5, 0.5, 0.50002])
    elif change == "precision":
        problem = fast(problem)
    elif change == "weights":
        other = copy.deepcopy(flow)
        next(other.parameters()).view(-1)[0] += 1e-3
        problem = aipo.MapProblem(other, problem.operator, problem.noise, problem.y)
    else:
        path.write_bytes(path.read_bytes()[:100])
    before = path.read_bytes()
    with pytest.raises(InputError, match="checkpoint") as caught:
        solver.solve(problem, lam, checkpoint=path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


class Cliff(Flow):
    """A Gaussian that has no density (NaN) for images brighter than a limit: a prior that breaks on the way."""

    def __init__(self, flow, limit):
        super().__init__(flow.image_shape)
        self.inside, self.limit, self.config = flow, limit, {}

    def forward(self, x):
        z, log_det = self.inside(x)
        broken = x.flatten(1).mean(1) > self.limit
        return z, torch.where(broken, torch.nan, log_det)

    def decode(self, z):
        return self.inside.decode(z)


@pytest.mark.parametrize(
    "solver",
    [
        FixedLambda(60, alpha=0.02),
        Amortized(K=10, alpha=0.02),
        Amortized(K=10, alpha=1e-3, direction="gradient"),
        Certified(L=400.0, sigma=0.01, delta=0.3, C=0.1),
    ],
    ids=["fixed", "amortized", "amortized, gradient", "certified"],
)
def test_one_image_failing_alone(solver):
    gaussian = GaussianFlow(SHAPE, mean=torch.full(SHAPE, 0.5)).requires_grad_(False)
    flow = Cliff(gaussian, limit=0.7)
    operator, noise = operators.Denoising(SHAPE), aipo.Gaussian(0.1)
    y = torch.stack([torch.full(SHAPE, v) for v in (0.5, 0.95, 0.4)])  # the second is pulled over the cliff
    problem = aipo.MapProblem(flow, operator, noise, y)
    x0 = torch.full_like(y, 0.5)
    states = []
    result = solver.solve(problem, 0.1, x0, callback=states.append)
    assert result.status == ["done", "non finite", "done"]
    assert result.x.isfinite().all()
    assert torch.equal(states[-1].x[1], result.x[1])
    assert result.loss.isfinite().all()
    assert 0.55 < result.x[1].mean() <= 0.7  # frozen at its last finite point, on the way
    torch.testing.assert_close(
        result.loss[1:2], restricted(problem, [1]).loss(result.x[1:2], 0.1), rtol=1e-5, atol=1e-3
    )
    assert result.evals[1] < result.evals[0]
    healthy = solver.solve(restricted(problem, [0, 2]), 0.1, x0[[0, 2]])
    torch.testing.assert_close(result.x[[0, 2]], healthy.x, atol=1e-6, rtol=0)


def test_a_start_that_is_not_finite(flow):
    problem = make_problem(flow)
    x0 = initial.zero(problem)
    x0[1] = math.nan
    result = FixedLambda(5).solve(problem, 0.5, x0)
    assert result.status == ["done", "non finite", "done"]
    assert result.evals.tolist() == [6, 1, 6]


class TestFixedLambda:
    @pytest.mark.parametrize("schedule", ["constant", "cosine"])
    def test_is_adam(self, flow, schedule):
        """The same trajectory as torch's Adam on the sum of the losses, whose images do not interact."""
        problem = make_problem(flow)
        x0 = initial.zero(problem)
        ours = FixedLambda(25, 0.02, schedule).solve(problem, 0.5, x0)
        x = x0.clone().requires_grad_()
        adam = torch.optim.Adam([x], lr=0.02)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=25)
        for _ in range(25):
            adam.zero_grad()
            problem.loss(x, 0.5).sum().backward()
            adam.step()
            if schedule == "cosine":
                decay.step()
        torch.testing.assert_close(ours.x, x.detach(), atol=1e-5, rtol=0)
        assert ours.evals.tolist() == [26] * 3

    def test_the_result_is_evaluated_at_its_point(self, flow):
        problem = make_problem(flow)
        result = FixedLambda(10).solve(problem, 0.5)
        torch.testing.assert_close(result.loss, problem.loss(result.x, 0.5), rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(result.loss, result.D + 0.5 * result.P)

    @pytest.mark.parametrize("bad", [{"steps": 0}, {"alpha": 0.0}, {"alpha": -1.0}, {"schedule": "linear"}])
    def test_bad_options(self, bad):
        with pytest.raises(InputError):
            FixedLambda(**bad)


def test_a_nonlinear_problem_end_to_end(flow):
    operator, noise = operators.Saturation(SHAPE, gain=1.5), aipo.Gaussian(0.05)
    x = flow.sample(2, 0.5, seed=1).clamp(0.1, 0.9)
    problem = aipo.MapProblem(flow, operator, noise, operator.measure(x, noise, seed=2))
    result = Amortized.quick().solve(problem, 0.3)
    assert result.status == ["done"] * 2
    start = initial.mle(problem, 20)
    assert (result.loss < start.D + 0.3 * start.P).all()


def test_state_fields_are_per_image(flow):
    problem = make_problem(flow)
    for name, solver in SOLVERS.items():
        state = solver.init(problem, 0.5, initial.zero(problem))
        for f in fields(state):
            assert len(getattr(state, f.name)) == 3, (name, f.name)


def test_progress_bar_and_callback(flow, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich: as on a terminal
    monkeypatch.setenv("COLUMNS", "200")
    seen = []
    FixedLambda(25).solve(make_problem(flow), 0.5, progress=True, callback=lambda s: seen.append(s.evals.max().item()))
    assert seen == list(range(27))
    shown = capsys.readouterr()
    assert "26/26" in shown.err
    assert "0 running" in shown.err
    assert shown.out == ""
    FixedLambda(25).solve(make_problem(flow), 0.5)
    assert capsys.readouterr().err == ""


def test_adam_counts_steps_per_image():
    """An image in its first step is corrected for the bias of the moments, one in its tenth hardly."""
    x = torch.zeros(2, 1, 1, 1)
    state = replace(AdamState.fresh(x), t=torch.tensor([0, 9]))
    moved = Adam().descend(state, torch.ones_like(x), torch.tensor([0.1, 0.1]))
    assert moved.x[0].item() == pytest.approx(-0.1, rel=1e-4)
    assert moved.x[1].item() != pytest.approx(-0.1, rel=1e-2)
    assert moved.t.tolist() == [1, 10]
