"""Gradients of P per second: normflows, our flows by autograd, and the engine in each precision, side by side.

    python benchmarks/engine.py [--priors NAME...] [--batches 1 16 64 200] [--seconds 2]
        [--parts speed memory sensing solve profile] [--json results/engine.json] [--name h200]

speed    each method at each batch: gradients per second, TFLOP/s and their share of the matrix-multiply ceiling
         measured in the same run, and the error against float64. The FLOP of a gradient are those of two forward
         passes of the flow as it is written: convolutions, matrix products and attention, nothing else.
memory   peak bytes per image, also for a Glow of the same size at 256x256.
sensing  how much of an evaluation goes into D with a dense matrix, m = 4000.
solve    the same solves in exact and in fast precision: how far apart the losses end (GPU only).
profile  the kernels that take most of a gradient in fast precision at batch 200 (GPU only).

With --json the run is kept in that file under its name, by default the machine's; rows of other priors from an earlier
run stay. The images are drawn from the priors, so nothing is needed but this repository. docs/performance.md shows the
results.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from results import load_run, save_run
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import aipo
from aipo.engine.engine import Engine, differentiate, exact_float32
from aipo.flows.multiscale import MultiScale
from aipo.flows.presets import make_flow

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Gradient = Callable[[Tensor], tuple[Tensor, Tensor]]


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds_each(functions: dict[str, Callable[[], Any]], at_least: float) -> dict[str, float]:
    """The median seconds of a call of each. They take turns, so that all meet the same state of the machine.

    On a GPU a turn is a group of calls, which need not wait for each other.
    """
    groups, times = {}, {name: [] for name in functions}
    for name, f in functions.items():
        for _ in range(3):
            f()
        synchronize()
        start = time.perf_counter()
        f()
        synchronize()
        groups[name] = max(1, round(0.1 * at_least / (time.perf_counter() - start))) if DEVICE == "cuda" else 1
    begin = time.perf_counter()
    while time.perf_counter() - begin < at_least * len(functions) or min(map(len, times.values())) < 5:
        for name, f in functions.items():
            start = time.perf_counter()
            for _ in range(groups[name]):
                f()
            synchronize()
            times[name].append((time.perf_counter() - start) / groups[name])
    return {name: statistics.median(found) for name, found in times.items()}


def ceiling(dtype: torch.dtype, tf32: bool = False) -> float:
    """FLOP/s of a large matrix product."""
    size = 8192 if DEVICE == "cuda" else 2048
    a, b = (torch.randn(size, size, device=DEVICE).to(dtype) for _ in range(2))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    seconds = seconds_each({"product": lambda: a @ b}, 1.0)["product"]
    torch.backends.cuda.matmul.allow_tf32 = before
    return 2 * size**3 / seconds


def gradient_flop(prior: aipo.Prior) -> int:
    x = torch.zeros(1, *prior.image_shape, device=DEVICE)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        prior.flow.log_prob(x)
    return 2 * counter.get_total_flops()


def by_autograd(log_prob: Callable[[Tensor], Tensor]) -> Gradient:
    def gradient(x: Tensor) -> tuple[Tensor, Tensor]:
        with exact_float32(x):
            return differentiate(log_prob, x)

    return gradient


def methods(prior: aipo.Prior) -> dict[str, Gradient]:
    found: dict[str, Gradient] = {}
    if isinstance(prior.flow, MultiScale):
        from normflows_twin import NormflowsTwin

        found["normflows"] = by_autograd(NormflowsTwin(prior.flow.cpu()).to(DEVICE).log_prob)
        prior.to(DEVICE)
    found["our flow, autograd"] = by_autograd(prior.flow.log_prob)
    for precision in ("exact", "fast") if DEVICE == "cuda" else ("exact",):
        engine = Engine(prior.flow, precision=precision)
        found[f"engine, {precision}"] = lambda x, engine=engine: [-v for v in engine(x)]
    return found


def error(gradient: Gradient, x: Tensor, truth: tuple[Tensor, Tensor]) -> dict[str, float]:
    """The largest difference of a value in nats, and of a gradient relative to its norm."""
    value, g = gradient(x)
    apart = (g.double() - truth[1]).flatten(1).norm(dim=1) / truth[1].flatten(1).norm(dim=1)
    return {"nats": (value.double() - truth[0]).abs().max().item(), "gradient": apart.max().item()}


def speed(name: str, batches: list[int], at_least: float, ceilings: dict[str, float]) -> list[dict[str, Any]]:
    prior = aipo.load_prior(name).to(DEVICE)
    noisy = prior.sample(16, 0.8, seed=1).cpu()
    noisy = (noisy + 0.05 * torch.randn(noisy.shape, generator=torch.Generator().manual_seed(2))).to(DEVICE)
    double = aipo.load_prior(name).to(DEVICE, torch.float64)
    truth = differentiate(double.flow.log_prob, noisy.double())
    flop = gradient_flop(prior)
    rows = []
    everything = methods(prior)
    errors = {method: error(gradient, noisy, truth) for method, gradient in everything.items()}
    for batch in batches:
        x = noisy.repeat(-(-batch // 16), 1, 1, 1)[:batch].clone()
        calls = {method: (lambda x=x, f=f: f(x)) for method, f in everything.items()}
        for method, seconds in seconds_each(calls, at_least).items():
            per_second = batch / seconds
            row = {
                "prior": name,
                "method": method,
                "batch": batch,
                "milliseconds": 1000 * seconds,
                "gradients_per_second": per_second,
                "gflop": flop / 1e9,
                "tflops": flop * per_second / 1e12,
                "share_of_ceiling": flop * per_second / ceilings["fp16" if method == "engine, fast" else "fp32"],
                "error": errors[method],
            }
            rows.append(row)
            print(
                f"{name:24} {method:20} batch {batch:3}  {1000 * seconds:8.2f} ms  {per_second:8.0f} grad/s  "
                f"{row['tflops']:6.2f} TFLOP/s  {row['share_of_ceiling']:5.1%}  "
                f"error {row['error']['nats']:.1e} nats, gradient {row['error']['gradient']:.0e}",
                flush=True,
            )
    return rows


def peak_bytes(f: Callable[[], Any]) -> int:
    """Peak of what f allocates."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        f()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        f()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def memory(names: list[str]) -> list[dict[str, Any]]:
    flows = {name: aipo.load_prior(name).flow.to(DEVICE) for name in names}
    flows["glow, 256x256"] = make_flow("glow", (3, 256, 256)).requires_grad_(False).eval().to(DEVICE)
    rows = []
    for name, flow in flows.items():
        x = torch.rand(5, *flow.image_shape, device=DEVICE)
        one_by_one: dict[str, Gradient] = {"autograd": by_autograd(flow.log_prob)}
        for precision in ("exact", "fast") if DEVICE == "cuda" else ("exact",):
            for recompute in (False, True):
                if recompute and not isinstance(flow, MultiScale):
                    continue
                engine = Engine(flow, precision=precision, recompute=recompute)
                one_by_one[f"{precision}{', recompute' if recompute else ''}"] = engine._compute
        for method, gradient in one_by_one.items():
            gradient(x[:1])
            peak = peak_bytes(lambda x=x, gradient=gradient: gradient(x[:1]))
            rows.append({"prior": name, "method": method, "batch": 1, "peak_bytes": peak})
            print(f"{name:24} {method:20} peak {peak / 2**20:8.1f} MiB for one image", flush=True)
    return rows


def sensing(name: str, batches: list[int], at_least: float) -> list[dict[str, Any]]:
    prior = aipo.load_prior(name).to(DEVICE)
    operator, noise = aipo.operators.CompressedSensing(prior.image_shape, 4000), aipo.Gaussian(0.1)
    rows = []
    for batch in batches:
        x = prior.sample(batch, 0.8)
        problem = aipo.MapProblem(prior, operator, noise, operator.measure(x, noise, seed=1), precision="fast")
        calls = {"both": lambda p=problem, x=x: p.evaluate(x), "P": lambda p=problem, x=x: p.engine(x)}
        seconds = seconds_each(calls, at_least)
        share = 1 - seconds["P"] / seconds["both"]
        rows.append({"prior": name, "batch": batch, "milliseconds": 1000 * seconds["both"], "share_of_D": share})
        print(f"{name:24} m = 4000, batch {batch:3}: {1000 * seconds['both']:.2f} ms, D {share:.0%}", flush=True)
    return rows


def solve(name: str, count: int = 16) -> list[dict[str, Any]]:
    prior = aipo.load_prior(name).to(DEVICE)
    truth = prior.sample(count, 0.8, seed=3)
    shape = prior.image_shape
    inpainting = aipo.operators.Inpainting.random_blocks(shape, fraction=0.25, block=4, seed=0)
    tasks = {
        "denoise": (aipo.operators.Denoising(shape), aipo.Gaussian(0.1)),
        "inpaint": (inpainting, aipo.Gaussian(0.02)),
    }
    solvers: dict[str, Any] = {
        "Adam, 400": aipo.FixedLambda.decayed(400),
        "path to one lam, 300": aipo.LBFGS(300, tolerance=0.01),
    }
    rows = []
    for task, (operator, noise) in tasks.items():
        y = operator.measure(truth, noise, seed=1)
        for solver_name, solver in solvers.items():
            losses, seconds = {}, {}
            for precision in ("exact", "fast"):
                problem = aipo.MapProblem(prior, operator, noise, y, precision=precision)
                start = time.perf_counter()
                losses[precision] = solver.solve(problem, 0.5, aipo.initial.gaussian(problem)).loss
                synchronize()
                seconds[precision] = time.perf_counter() - start
            apart = losses["fast"] - losses["exact"]
            rows.append(
                {
                    "prior": name,
                    "task": task,
                    "solver": solver_name,
                    "mean_difference": apart.mean().item(),
                    "largest_difference": apart.abs().max().item(),
                    "mean_loss": losses["exact"].mean().item(),
                    "seconds": seconds,
                }
            )
            print(
                f"{name:24} {task:8} {solver_name:22} fast - exact: mean {apart.mean():+.3f}, at most "
                f"{apart.abs().max():.3f} nats; {seconds['exact']:.1f} and {seconds['fast']:.1f} s",
                flush=True,
            )
    return rows


def profile(name: str, batch: int = 200, shown: int = 12) -> list[dict[str, Any]]:
    prior = aipo.load_prior(name).to(DEVICE)
    x = prior.sample(16, 0.8).repeat(-(-batch // 16), 1, 1, 1)[:batch].clone()
    engine = Engine(prior.flow, precision="fast")
    for _ in range(3):
        engine._compute(x)
    synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        engine._compute(x)
        synchronize()
    events = sorted(recorded.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events)
    rows = []
    for event in events[:shown]:
        share = event.self_device_time_total / total
        rows.append({"prior": name, "kernel": event.key[:100], "count": event.count, "share": share})
        print(f"{name:24} {share:5.1%} {event.count:4} x {event.key[:90]}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--priors", nargs="+", default=aipo.prior_names())
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 64, 200])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--parts", nargs="+", default=["speed", "memory", "sensing", "solve", "profile"])
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--name", default=torch.cuda.get_device_name().split()[-1].lower() if DEVICE == "cuda" else "cpu"
    )
    args = parser.parse_args()
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": torch.cuda.get_device_name() if DEVICE == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    ceilings = {"fp32": ceiling(torch.float32)}
    if DEVICE == "cuda":
        ceilings |= {"tf32": ceiling(torch.float32, tf32=True), "fp16": ceiling(torch.float16)}
    report["ceiling_tflops"] = {k: v / 1e12 for k, v in ceilings.items()}
    print(report, flush=True)

    before = load_run(args.json, args.name) if args.json else {}
    if before and any(before[key] != report[key] for key in ("hardware", "threads", "torch")):
        parser.error(f"{args.name} in {args.json} is of another machine")
    report = {**before, **report}

    def keep(part: str, rows: list[dict[str, Any]]) -> None:
        new = {row["prior"] for row in rows}
        report[part] = [row for row in report.get(part, []) if row["prior"] not in new] + rows
        if args.json:
            save_run(args.json, args.name, report)

    for name in args.priors:
        if "speed" in args.parts:
            keep("speed", speed(name, args.batches, args.seconds, ceilings))
        if "sensing" in args.parts:
            keep("sensing", sensing(name, args.batches, args.seconds / 2))
        if "solve" in args.parts and DEVICE == "cuda":
            keep("solve", solve(name))
        if "profile" in args.parts and DEVICE == "cuda":
            keep("profile", profile(name))
    if "memory" in args.parts:
        keep("memory", memory(args.priors))


if __name__ == "__main__":
    main()
