"""The engine computes what autograd does, in every precision within its stated error, however the work is cut."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import aipo
from aipo.engine import engine as engine_module
from aipo.engine.engine import Engine, differentiate, exact_float32
from aipo.engine.kernels import elementwise
from aipo.errors import InputError
from aipo.flows import GaussianFlow, Glow, RealNVP, TarFlow
from small_problem import build_flow, make_problem

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def perturbed(flow, scale=0.1):
    """A flow that is neither new nor trivial: every layer does something."""
    flow = flow.requires_grad_(False)
    flow.initialize(torch.rand(16, *flow.image_shape))
    generator = torch.Generator().manual_seed(5)
    for p in flow.parameters():
        p += scale * torch.randn(p.shape, generator=generator)
    return flow.eval()


def assert_same(engine, flow, x, nats, gradient):
    """Against autograd in float64."""
    value, g = differentiate(flow.double().log_prob, x.double())
    P, grad_P = engine(x)
    assert P.dtype == grad_P.dtype == x.dtype
    assert grad_P.is_contiguous()
    # Of random flows far from their data the values are huge, and only as exact as their digits.
    assert ((engine.offset - P - value).abs() / (value.abs() / 1e5).clamp(min=1)).max() < nats
    assert (grad_P + g).flatten(1).norm(dim=1).div(g.flatten(1).norm(dim=1)).max() < gradient


@settings(max_examples=25, deadline=None)
@given(
    glow=st.booleans(),
    channels=st.sampled_from([1, 2, 3, 4]),
    levels=st.integers(1, 3),
    depth=st.integers(1, 3),
    hidden=st.sampled_from([1, 4, 7]),
    batch=st.sampled_from([1, 3]),
    recompute=st.booleans(),
)
def test_any_multiscale_flow_agrees_with_autograd_in_float64(glow, channels, levels, depth, hidden, batch, recompute):
    shape, sizes = (channels, 2**levels, 3 * 2**levels), ([depth] * levels, [hidden] * levels)
    torch.manual_seed(0)
    flow = Glow(shape, *sizes) if glow else RealNVP(shape, *sizes, blocks=depth)
    flow = perturbed(flow).double()
    x = torch.rand(batch, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2 - 0.5
    assert_same(Engine(flow, 3.0, recompute=recompute), flow, x, 1e-8, 1e-10)


@pytest.mark.parametrize("name", ["celeba64-realnvp-small", "celeba64-glow"])
def test_embedded_priors_in_float32(name):
    prior = aipo.load_prior(name)
    x = aipo.samples.load("astronaut")[None]
    assert_same(prior.engine(), prior.flow, x, 0.02, 2e-5)


@pytest.mark.parametrize("flow", ["tarflow", "gaussian"])
def test_flows_without_a_reverse_pass_of_their_own(flow):
    torch.manual_seed(0)
    if flow == "tarflow":
        flow = perturbed(TarFlow((3, 16, 16), 4, 16, 8, 2, 1, [2], [4]), 0.05).double()
    else:
        flow = GaussianFlow((3, 16, 16)).double().requires_grad_(False)
    x = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    assert_same(Engine(flow), flow, x, 1e-8, 1e-12)


def test_fast_is_exact_where_there_is_no_gpu():
    flow, x = build_flow(), torch.rand(3, 3, 8, 8)
    for exact, fast in zip(Engine(flow)(x), Engine(flow, precision="fast")(x), strict=True):
        assert torch.equal(exact, fast)


def test_chunks_change_nothing(monkeypatch):
    flow, x = build_flow(), torch.rand(7, 3, 8, 8)
    whole = Engine(flow)(x)
    monkeypatch.setattr(engine_module, "CPU_PIXELS", 3 * 8 * 8)
    for a, b in zip(whole, Engine(flow)(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


def test_an_unknown_precision_is_refused():
    with pytest.raises(InputError, match="exact or fast"):
        Engine(build_flow(), precision="double")


def test_a_prior_notices_that_its_weights_changed():
    prior, x = aipo.Prior(build_flow()), torch.rand(1, 3, 8, 8)
    before = prior.engine()
    assert prior.engine() is before
    next(prior.flow.parameters()).add_(0.3)
    after = prior.engine()
    assert after is not before
    torch.testing.assert_close(after(x)[0], prior.P(x))
    assert (before(x)[0] - after(x)[0]).abs() > 0.1


def test_moving_a_prior_makes_a_new_engine():
    prior, x = aipo.Prior(build_flow()), torch.rand(1, 3, 8, 8)
    prior.engine()
    prior.to(torch.float64)
    assert prior.engine()(x.double())[0].dtype == torch.float64


class CountOps(TorchDispatchMode):
    """How often each operator of torch runs."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    ("flow", "convolutions", "all_ops"),
    [
        # A coupling has 4 convolutions each way in RealNVP, 3 in Glow, a split has 1; the others are bounds, a little
        # above what is needed, that notice when a layer begins to do more work.
        (lambda: RealNVP((3, 8, 8), [2, 2], [4, 4]), 2 * (4 * 4 + 1), 480),
        (lambda: Glow((3, 8, 8), [2, 2], [4, 4]), 2 * (4 * 3 + 1), 440),
    ],
    ids=["realnvp", "glow"],
)
def test_a_gradient_does_no_more_work_than_it_must(flow, convolutions, all_ops):
    torch.manual_seed(0)
    engine, x = Engine(perturbed(flow())), torch.rand(2, 3, 8, 8)
    engine(x)
    with CountOps() as ops:
        engine(x)
    done = sum(n for name, n in ops.counts.items() if "conv" in name)
    assert done == convolutions
    # One matrix product each way for all that is linear in a step.
    assert ops.counts["addmm"] == ops.counts["mm"] == 4
    assert sum(ops.counts.values()) <= all_ops


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_recomputing_needs_less_memory():
    def peak(recompute):
        engine, x = Engine(flow, recompute=recompute), torch.rand(1, 3, 32, 32)
        engine(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            engine(x)
        now = highest = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                now += event.nbytes()
                highest = max(highest, now)
        return highest

    torch.manual_seed(0)
    flow = perturbed(Glow((3, 32, 32), [8, 8], [32, 32]))
    assert peak(True) < peak(False) / 3


def test_solvers_report_exact_values_whatever_they_used():
    """On a CPU fast is exact, so a stand-in for a coarse engine shows what is reported."""
    problem = make_problem(build_flow())
    coarse = aipo.MapProblem(problem.prior, problem.operator, problem.noise, problem.y, precision="fast")
    exact = coarse.engine

    class Coarse:
        uncertainty = 0.0

        def __call__(self, x):
            P, gradient = exact(x)
            return P + 100.0, gradient

    coarse.engine = Coarse()
    for solver in (aipo.FixedLambda(20), aipo.Amortized.quick(), aipo.LBFGS(20)):
        result = solver.solve(coarse, 0.5)
        torch.testing.assert_close(result.P, problem.P(result.x))
        torch.testing.assert_close(result.loss, problem.loss(result.x, 0.5))
    path = aipo.FollowPath((0.3, 1.0), 20).solve(coarse)
    for i in range(2):
        torch.testing.assert_close(path.P[:, i], problem.P(path.x[:, i]))


SHORT = [aipo.FixedLambda(20), aipo.Amortized.quick(), aipo.FollowPath((0.5,), 20), aipo.LBFGS(20)]


def solved(solver, problem, lam):
    """The result at lam; a path has its own."""
    return solver.solve(problem).at(lam) if isinstance(solver, aipo.FollowPath) else solver.solve(problem, lam)


@pytest.mark.parametrize("solver", SHORT)
def test_what_overflows_in_fast_precision_goes_on_in_exact(solver):
    problem = make_problem(build_flow())
    coarse = aipo.MapProblem(problem.prior, problem.operator, problem.noise, problem.y, precision="fast")
    exact, calls = coarse.engine, []

    class Overflowing:
        uncertainty = 0.0

        def __call__(self, x):
            P, gradient = exact(x)
            calls.append(len(x))
            # The first image fails at once, all others at the sixth evaluation.
            fails = (torch.arange(len(x)) == 0) | (len(calls) > 5)
            return P.masked_fill(fails, torch.inf), gradient

    coarse.engine = Overflowing()
    result = solved(solver, coarse, 0.5)
    assert calls
    assert result.status == ["done"] * problem.batch
    plain = solved(solver, problem, 0.5)
    torch.testing.assert_close(result.loss, plain.loss, rtol=0.02, atol=0)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(3, 5, 7, 12), (2, 4, 4, 6), (1, 32, 32, 24)])
@pytest.mark.parametrize("biased", [True, False])
def test_fused_kernels_agree_with_plain_torch(dtype, shape, biased):
    from aipo.engine.kernels import fused

    torch.manual_seed(0)
    half = shape[-1] // 2
    padded = -(-shape[-1] // 8) * 8

    def random(channels, dtype=torch.float32):
        return torch.randn(*shape[:3], channels, device="cuda").to(dtype)

    u, w, g, h = random(padded, dtype), random(padded, dtype), random(padded, dtype), random(shape[-1])
    n, incoming = random(padded, dtype), random(shape[-1])
    bias = torch.randn(padded, device="cuda") if biased else None
    n[..., 2 * half :] = 0

    def run(ops):
        yield ops.silu(u, bias)
        yield ops.silu_backward(g.clone(), u, bias)
        yield ops.silu_backward(g.clone(), u, bias, plus=w)
        yield from ops.residual(u, bias, w, bias)
        yield ops.first_half(h, padded, dtype)
        total = incoming.clone()
        ops.add_to_first(total, random(padded, dtype) * 0 + u)
        yield total
        out, sums, saved = ops.couple(h, n, bias, 0.4)
        yield from (out, sums.sum(1))
        back = incoming.clone()
        yield ops.couple_backward(back, saved, 0.4)
        yield back
        stays, sums, g_h, g_n = ops.split(h, n, bias, 0.4)
        yield from (stays, sums.sum(1), g_h, g_n)

    close = {"rtol": 4e-3, "atol": 4e-3} if dtype == torch.float16 else {"rtol": 1e-4, "atol": 1e-4}
    for plain, ours in zip(run(elementwise), run(fused), strict=True):
        torch.testing.assert_close(ours, plain, **close)


@needs_gpu
@pytest.mark.parametrize(("precision", "nats", "gradient"), [("exact", 0.02, 2e-5), ("fast", 1.0, 1e-2)])
@pytest.mark.parametrize("name", ["celeba64-realnvp-small", "celeba64-glow"])
def test_embedded_priors_on_a_gpu(name, precision, nats, gradient):
    prior = aipo.load_prior(name).to("cuda")
    x = torch.stack([aipo.samples.load("astronaut")] * 3).cuda()
    engine = prior.engine(precision)
    for _ in range(3):  # directly, recorded, replayed
        assert_same(engine, aipo.load_prior(name).to("cuda").flow, x, nats, gradient)


@needs_gpu
def test_tf32_outside_changes_nothing_inside():
    prior, x = aipo.load_prior("celeba64-realnvp-small").to("cuda"), aipo.samples.load("astronaut")[None].cuda()
    before = prior.P(x)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert torch.equal(prior.P(x), before)
        with exact_float32(x):
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@needs_gpu
@pytest.mark.parametrize("operator", ["denoise", "inpaint", "sense"])
@pytest.mark.parametrize(
    "solver",
    [
        *(aipo.FixedLambda(40), aipo.Amortized.quick(), aipo.FollowPath((0.3, 1.0), 40)),
        aipo.LBFGS(30, tolerance=0.0, model="none"),
    ],
    ids=lambda s: type(s).__name__,
)
def test_a_recorded_solve_ends_where_a_plain_one_does(operator, solver, monkeypatch):
    shape = (3, 8, 8)
    operator = {
        "denoise": aipo.operators.Denoising(shape),
        "inpaint": aipo.operators.Inpainting.random_blocks(shape, fraction=0.25, block=4, seed=0),
        "sense": aipo.operators.CompressedSensing(shape, 60),
    }[operator]
    problem = make_problem(build_flow(), batch=5, operator=operator)
    prior = aipo.Prior(build_flow().cuda())
    noise = aipo.Gaussian(0.1)
    on_gpu = aipo.MapProblem(prior, operator, noise, problem.y.cuda())
    recorded = solved(solver, on_gpu, 1.0)
    monkeypatch.setattr(type(solver), "capturable", False)
    plain = solved(solver, on_gpu, 1.0)
    torch.testing.assert_close(recorded.loss, plain.loss, rtol=1e-4, atol=1e-2)
    assert recorded.status == plain.status
    on_cpu = solved(solver, problem, 1.0)
    torch.testing.assert_close(recorded.loss.cpu(), on_cpu.loss, rtol=1e-3, atol=0.5)
