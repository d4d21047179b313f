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
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import aipo
from aipo import initial, operators
from aipo.engine import Engine
from aipo.errors import InputError
from aipo.flows import GaussianFlow
from aipo.priors import NoisePrior
from aipo.solvers import LBFGS, Amortized, Anneal, Certified, FixedLambda, FollowPath, driver
from aipo.solvers.adam import Adam, AdamState
from aipo.solvers.initial import MaximumLikelihood
from aipo.solvers.solve import AtLambda
from small_problem import SHAPE, Cliff, build_flow, build_noise_flow, make_problem, restricted

SOLVERS = {
    "fixed": FixedLambda(30),
    "fixed, cosine": FixedLambda.decayed(30),
    "amortized": Amortized(K=4, delta_min_share=0.25),
    "amortized, kept moments": Amortized(K=4, delta_min_share=0.25, moments="keep", last_K=10),
    "certified": Certified(L=2000.0, sigma=0.01, delta=1e-3, C=1e-6, max_evals=40),
    "amortized, no round at zero": Amortized(K=4, delta_min_share=0.25, first_round="at delta_min"),
    "L-BFGS": LBFGS(30),
    "L-BFGS, plain": LBFGS(30, tolerance=0.0, model="none"),
    "path": FollowPath((0.3, 1.0, 2.0), 40),
    "path, own lam": FollowPath((0.1, 0.2, 0.3, 0.5, 1.0, 2.0), 40, stride=0.02, tolerance=0.0),
    "maximum likelihood": MaximumLikelihood(30),
    "anneal": Anneal(30),
}


def problem_for(solver, flow):
    """The small problem, with a prior that the solver can use."""
    return make_problem(NOISE_PRIOR if isinstance(solver, Anneal) else flow)


NOISE_PRIOR = NoisePrior(build_noise_flow(levels=2, dtype=torch.float32, scale=0.02))


def solve(solver, problem, lam, x0=None, **options):
    """At lam, if the solver takes one."""
    goal = (lam,) if isinstance(solver, AtLambda) else ()
    return solver.solve(problem, *goal, x0=x0, **options)


def states(solver, problem, lam, x0=None, **options):
    goal = (lam,) if isinstance(solver, AtLambda) else ()
    return solver.states(problem, *goal, x0=x0, **options)


def each_lam(result, name, i):
    """What a result says of an image, at each lam that this was solved at: one, or those of its path."""
    values = getattr(result, name)[i]
    return values[result.lam[i].isfinite()] if result.lam.ndim == 2 else values[None]


def identical(a, b):
    """NaN, where a path has no value, is itself."""
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def spent(result):
    """Evaluations in all (B,); along a path they add up, and an image that failed has none."""
    return result.evals if result.evals.ndim == 1 else result.evals.nan_to_num().amax(1).to(torch.int64)


@pytest.fixture(scope="module")
def flow():
    return build_flow()


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_an_image_alone_gives_what_it_gives_in_a_batch(flow, solver):
    problem = problem_for(solver, flow)
    lam = torch.tensor([0.2, 0.5, 1.0])
    x0 = initial.random(problem, seed=3)
    together = solve(solver, problem, lam, x0)
    for i in range(3):
        alone = solve(solver, restricted(problem, [i]), lam[[i]], x0[[i]])
        torch.testing.assert_close(alone.x[0], each_lam(together, "x", i).view_as(alone.x[0]), atol=1e-4, rtol=0)
        assert alone.evals[0].tolist() == each_lam(together, "evals", i).view_as(alone.evals[0]).tolist()
        assert alone.status == [together.status[i]]


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_killed_and_resumed_ends_with_the_same_bytes(flow, solver, tmp_path):
    problem = problem_for(solver, flow)
    x0 = initial.zero(problem)
    unbroken = solve(solver, problem, 0.5, x0, checkpoint=tmp_path / "unbroken.safetensors")

    class Killed(Exception):
        pass

    def kill_at(state, limit):
        if state.evals.max() >= limit and state.running.any():
            raise Killed

    path = tmp_path / "broken.safetensors"
    for limit in (8, 15, 22):
        try:
            kill = partial(kill_at, limit=limit)
            solve(solver, problem, 0.5, x0, checkpoint=path, checkpoint_every=5, callback=kill)
        except Killed:
            assert path.exists()
    resumed = solve(solver, problem, 0.5, x0, checkpoint=path, checkpoint_every=5)
    assert path.read_bytes() == (tmp_path / "unbroken.safetensors").read_bytes()
    for name in ("x", "loss", "D", "P", "evals"):
        assert identical(getattr(resumed, name), getattr(unbroken, name)), name


KILL_ME = """
import sys, time, torch
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/solvers"]
from small_problem import build_noise_flow
from small_problem import build_flow, make_problem
from test_solvers import SOLVERS
torch.set_num_threads(1)
slowly = lambda state: time.sleep(0.05)
SOLVERS["fixed"].solve(make_problem(build_flow()), 0.5, checkpoint=sys.argv[2], checkpoint_every=1, callback=slowly)
"""


def test_a_process_killed_without_warning_can_be_resumed(flow, tmp_path):
    path = tmp_path / "c.safetensors"
    process = subprocess.Popen([sys.executable, "-c", KILL_ME, str(Path(__file__).parents[1]), str(path)])
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


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_a_start_that_is_not_finite_fails_alone(flow, solver):
    problem, lam = problem_for(solver, flow), torch.tensor([0.2, 0.5, 1.0])
    x0 = initial.random(problem, seed=3)
    x0[1] = math.nan
    result = solve(solver, problem, lam, x0)
    healthy = solve(solver, restricted(problem, [0, 2]), lam[[0, 2]], x0[[0, 2]])
    assert result.status == [healthy.status[0], "non finite", healthy.status[1]]
    torch.testing.assert_close(result.x[[0, 2]], healthy.x, atol=1e-4, rtol=0, equal_nan=True)
    assert torch.equal(spent(result)[[0, 2]], spent(healthy))
    assert spent(result)[1] <= 1


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_evaluations_are_counted(flow, solver, monkeypatch):
    """Every gradient that was evaluated, of every image, and no other."""
    problem, evaluated = problem_for(solver, flow), []
    _ = problem.prior.surrogate  # measured once for a prior, and no part of a solve
    evaluate = Engine.__call__
    monkeypatch.setattr(Engine, "__call__", lambda engine, x: evaluated.append(len(x)) or evaluate(engine, x))
    result = solve(solver, problem, torch.tensor([0.2, 0.5, 1.0]), initial.random(problem, seed=3))
    assert spent(result).sum() == sum(evaluated)


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_the_values_belong_to_the_images(flow, solver):
    problem, lam = problem_for(solver, flow), torch.tensor([0.2, 0.5, 1.0])
    result = solve(solver, problem, lam, initial.random(problem, seed=3))
    if isinstance(solver, AtLambda):
        assert torch.equal(result.lam, lam)
    for i in range(3):
        alone = restricted(problem, [i])
        columns = (each_lam(result, name, i) for name in ("x", "lam", "D", "P", "loss"))
        for x, at, D, P, loss in zip(*columns, strict=True):
            torch.testing.assert_close(D, alone.D(x[None])[0], atol=1e-2, rtol=1e-5)
            torch.testing.assert_close(P, alone.P(x[None])[0], atol=1e-2, rtol=1e-5)
            torch.testing.assert_close(loss, D + at * P)


class TestStates:
    """A solve as a stream: `solve` is the loop over it that keeps the last state."""

    @pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
    def test_the_last_one_is_the_result(self, flow, solver):
        problem, x0 = problem_for(solver, flow), initial.zero(problem_for(solver, flow))
        seen = list(states(solver, problem, 0.5, x0))
        called = []
        result = solve(solver, problem, 0.5, x0, callback=called.append)
        last = solver.result(problem, seen[-1])
        assert identical(last.x, result.x)
        assert identical(last.evals, result.evals)
        assert [s.evals.tolist() for s in seen] == [s.evals.tolist() for s in called]
        # Each one is a step further than the one before, from a first one that has taken none.
        assert [int(s.evals.max()) for s in seen] == list(range(len(seen)))
        assert not seen[-1].running.any()
        assert all(s.running.any() for s in seen[:-1])

    def test_nothing_is_computed_that_is_not_asked_for(self, flow, monkeypatch):
        problem, evaluated = make_problem(flow), []
        evaluate = aipo.MapProblem.evaluate
        monkeypatch.setattr(aipo.MapProblem, "evaluate", lambda p, x: evaluated.append(len(x)) or evaluate(p, x))
        stream = FollowPath().states(problem)
        assert not next(stream).evals.any()
        assert evaluated == []
        next(stream)
        assert evaluated == [3]

    def test_left_and_taken_up_again(self, flow, tmp_path):
        problem, solver, file = (
            make_problem(flow),
            FollowPath((0.3, 1.0), 30, tolerance=0.0),
            tmp_path / "c.safetensors",
        )
        unbroken = solver.solve(problem)
        for state in solver.states(problem, checkpoint=file, checkpoint_every=4):
            if state.evals.max() >= 10:
                break
        first = next(solver.states(problem, checkpoint=file))
        assert first.evals.max() == 8
        assert torch.equal(solver.solve(problem, checkpoint=file).x, unbroken.x)

    @pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
    def test_looking_less_often_changes_nothing(self, flow, solver, monkeypatch, tmp_path):
        """As on a GPU: images that are done stay in the batch for a while, and must not move or be counted there."""
        problem, x0 = problem_for(solver, flow), initial.zero(problem_for(solver, flow))
        always = solve(solver, problem, 0.5, x0)
        monkeypatch.setattr(driver, "_stride", lambda problem: 10)
        seldom = solve(solver, problem, 0.5, x0, checkpoint=tmp_path / "unbroken.safetensors")
        torch.testing.assert_close(seldom.x, always.x, atol=1e-4, rtol=0, equal_nan=True)
        assert identical(seldom.evals, always.evals)
        assert seldom.status == always.status
        broken = tmp_path / "broken.safetensors"
        next(islice(states(solver, problem, 0.5, x0, checkpoint=broken, checkpoint_every=5), 2, None), None)
        solve(solver, problem, 0.5, x0, checkpoint=broken)
        assert broken.read_bytes() == (tmp_path / "unbroken.safetensors").read_bytes()

    def test_a_bad_lam_is_refused_at_once(self, flow):
        with pytest.raises(InputError, match="lam"):
            LBFGS().states(make_problem(flow), -1.0)


def test_lam_is_only_for_solvers_that_have_one(flow):
    for solver in (FollowPath(), MaximumLikelihood(), Anneal()):
        with pytest.raises(TypeError, match="lam"):
            solver.solve(make_problem(flow), lam=7)
        with pytest.raises(TypeError, match="positional"):
            solver.solve(make_problem(flow), 7)


def test_a_checkpoint_of_another_version_is_refused(flow, tmp_path):
    problem, path = make_problem(flow), tmp_path / "c.safetensors"
    FixedLambda(5).solve(problem, 0.5, checkpoint=path)
    tensors = {name: value for name, value in load_file(path).items() if name != "v"}
    save_file(tensors, path, {"identity": json.dumps(identity(path))})
    with pytest.raises(InputError, match="another version"):
        FixedLambda(5).solve(problem, 0.5, checkpoint=path)


def test_a_start_that_is_not_finite(flow):
    problem = make_problem(flow)
    x0 = initial.zero(problem)
    x0[1] = math.nan
    result = FixedLambda(5).solve(problem, 0.5, x0)
    assert result.status == ["done", "non finite", "done"]
    assert result.evals.tolist() == [6, 1, 6]


class TestLBFGS:
    @pytest.mark.parametrize("model", ["local", "global", "none"])
    def test_is_a_path_of_one_lam(self, flow, model):
        problem = make_problem(flow)
        result = LBFGS(40, 0.01, 10, model).solve(problem, 0.5)
        path = FollowPath((0.5,), 40, tolerance=0.01, memory=10, model=model).solve(problem).at(0.5)
        for name in ("x", "lam", "loss", "D", "P", "evals"):
            assert torch.equal(getattr(result, name), getattr(path, name)), name
        assert result.status == path.status

    def test_each_image_has_its_own_evaluations(self, flow):
        result = LBFGS((7, 12, 9), tolerance=0.0).solve(make_problem(flow), 0.5)
        assert result.evals.tolist() == [7, 12, 9]
        assert result.status == ["done"] * 3

    def test_an_image_at_its_minimum_is_done_before_its_evaluations_are_used_up(self, flow):
        problem = make_problem(flow)
        result = LBFGS(300, tolerance=0.01).solve(problem, 0.5)
        assert (result.evals < 300).all()
        lower = LBFGS(300, tolerance=0.0).solve(problem, 0.5, result.x)
        assert (lower.loss > result.loss - 0.1).all()

    @pytest.mark.parametrize(
        "bad", [{"evals": 0}, {"evals": (5, 0, 5)}, {"tolerance": -1.0}, {"memory": 0}, {"model": "diagonal"}]
    )
    def test_bad_options(self, bad):
        with pytest.raises(InputError):
            LBFGS(**bad)
        if "evals" not in bad:
            with pytest.raises(InputError):
                FollowPath(**bad)

    def test_what_does_not_fit_the_problem(self, flow):
        with pytest.raises(InputError, match="2 numbers of evaluations for 3 images"):
            LBFGS((5, 5)).solve(make_problem(flow), 0.5)
        with pytest.raises(InputError, match="lam > 0"):
            LBFGS().solve(make_problem(flow), torch.tensor([0.5, 0.0, 1.0]))


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
    for name, solver in SOLVERS.items():
        problem = problem_for(solver, flow)
        state = next(states(solver, problem, 0.5, initial.zero(problem)))
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
