"""Loss above the best known minimum along lam: `FollowPath` against Adam, plain L-BFGS and the paper's Algorithm 2.

    python benchmarks/path.py PRIOR TASK --data FOLDER [--images test] [--count 50] [--paper-count 50]
        [--single-count 12] [--precision fast] [--parts paths paper single] [--json FILE] [--name NAME]

The run is kept under NAME in FILE, by default PRIOR-TASK in results/path.json. It has three parts; those that are not
measured now stay as they are:

paths   all five lam. `FollowPath` with 70, 120 and 300 evaluations and with its three models of the Hessian, and five
        independent cosine-decayed Adam solves of 250 evaluations from the same start.
paper   Algorithm 2 with the paper's settings, once per lam, and `FollowPath` with 70 evaluations, on the same images.
single  one lam (0.3 and 2), every method at 30, 60, 120 and 400 evaluations, on the first few images.

The reference of each image and lam is the lowest loss that any of them finds, or that 1000 steps of decayed Adam find
from the best of all paths. All losses are evaluated in exact float32 at the end, whatever the solvers used.
benchmarks/path_report.py prints the tables and draws the figure.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from results import RESULTS, load_run, save_run, short_name
from torch import Tensor

import aipo
from aipo.evaluation.protocol import EXPERIMENTS
from aipo.images.metrics import psnr
from aipo.solvers.follow_path import LAMBDAS
from aipo.training.dataset import load_images
from priors import SETS, SHAPE

SINGLE = (0.3, 2.0)
BUDGETS = (30, 60, 120, 400)


class Bench:
    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.prior = aipo.load_prior(args.prior).to(self.device)
        images = load_images(args.data / SETS[args.images], limit=args.count, mosaics=True)
        self.truth = images.to(self.device).float() / 255
        self.operator, self.noise = EXPERIMENTS[args.task].make_operator(SHAPE), EXPERIMENTS[args.task].noise
        self.y = self.operator.measure(self.truth, self.noise, seed=1)
        self.best = torch.full((len(images), len(LAMBDAS)), torch.inf, device=self.device)
        self.report: dict[str, Any] = {
            "prior": self.prior.name,
            "sha256": self.prior.card["sha256"],
            "task": args.task,
            "images": args.images,
            "count": args.count,
            "lambdas": LAMBDAS,
            "date": time.strftime("%Y-%m-%d"),
            "hardware": torch.cuda.get_device_name() if self.device == "cuda" else "CPU",
            "torch": torch.__version__,
            "precision": args.precision,
        }
        self.name = args.name or f"{short_name(self.prior.name)}-{args.task}"
        before = load_run(args.json, self.name)
        if before and any(before.get(key) != self.report[key] for key in ("sha256", "task", "images", "count")):
            raise SystemExit(f"{self.name} in {args.json} is of another prior, task or set of images")
        self.report = {**before, **self.report}
        self._losses: dict[tuple[str, str], Tensor] = {}

    def problem(self, count: int | None = None, copies: int = 1, precision: str | None = None) -> aipo.MapProblem:
        y = self.y[:count].repeat(copies, *[1] * (self.y.ndim - 1))
        return aipo.MapProblem(self.prior, self.operator, self.noise, y, precision or self.args.precision)

    @torch.no_grad()
    def exact(self, x: Tensor, lambdas: tuple[float, ...]) -> Tensor:
        """Losses (B, L) of images (B, L, ...)."""
        problem = self.problem(len(x))
        return torch.stack([problem.loss(x[:, i], lam) for i, lam in enumerate(lambdas)], dim=1)

    def record(self, part: str, name: str, x: Tensor, evals: float, seconds: float) -> None:
        losses = self.exact(x, LAMBDAS)
        self.best[: len(x)] = torch.minimum(self.best[: len(x)], losses)
        self._losses[part, name] = losses
        quality = [psnr(u.clamp(0, 1), self.truth[: len(x)]).mean().item() for u in x.unbind(1)]
        entry = {"evaluations": evals, "seconds": seconds, "psnr": quality, "count": len(x)}
        self.report.setdefault(part, {})[name] = entry
        print(
            f"{self.prior.name} {self.args.task} {part}: {name}, {evals:.0f} evaluations, {seconds:.0f} s", flush=True
        )

    def write(self) -> None:
        """All gaps against the reference as it is known now."""
        for (part, name), losses in self._losses.items():
            gaps = losses - self.best[: len(losses)]
            self.report[part][name]["gap"] = gaps.mean(0).tolist()
            self.report[part][name]["gap_se"] = (gaps.std(0) / len(gaps) ** 0.5).tolist()
            self.report[part][name]["loss"] = losses.mean(0).tolist()
        save_run(self.args.json, self.name, self.report)

    def all_lambdas(self, solver: Any, x0: Tensor) -> tuple[Tensor, float]:
        """One independent solve for each lam, all in one batch; x0 is (B, C, H, W) or (B, L, C, H, W)."""
        count = len(x0)
        start = x0.transpose(0, 1).flatten(0, 1) if x0.ndim == 5 else x0.repeat(len(LAMBDAS), 1, 1, 1)
        lam = torch.tensor(LAMBDAS, device=self.device).repeat_interleave(count)
        result = solver.solve(self.problem(count, len(LAMBDAS)), lam, start)
        x = result.x.unflatten(0, (len(LAMBDAS), count)).transpose(0, 1)
        return x, result.evals.double().mean().item() * len(LAMBDAS)

    def paths(self) -> None:
        found = {}
        for name, options in {
            "path, 70": {"evals": 70},
            "path, 120": {"evals": 120},
            "path, 120, W = 1": {"evals": 120, "model": "global"},
            "path, 120, plain L-BFGS": {"evals": 120, "model": "none"},
            "path, 300": {"evals": 300, "tolerance": 0.01},
        }.items():
            start = time.monotonic()
            path = aipo.FollowPath(LAMBDAS, **options).solve(self.problem())
            found[name] = path.x
            self.record("paths", name, path.x, path.evals[:, -1].mean().item(), time.monotonic() - start)
        self.write()
        start = time.monotonic()
        x, evals = self.all_lambdas(aipo.FixedLambda.decayed(249), aipo.initial.gaussian(self.problem()))
        self.record("paths", "Adam, 5 x 250", x, evals, time.monotonic() - start)
        self.write()
        start = time.monotonic()
        best = torch.stack([self._losses["paths", name] for name in found]).argmin(0)
        rows, columns = torch.meshgrid(*map(torch.arange, best.shape), indexing="ij")
        x0 = torch.stack(list(found.values()))[best.cpu(), rows, columns]
        x, evals = self.all_lambdas(aipo.FixedLambda.decayed(1000, 0.01), x0)
        self.record("paths", "Adam, 5 x 1000 from the best path", x, evals, time.monotonic() - start)
        self.write()

    def paper(self, count: int) -> None:
        start = time.monotonic()
        path = aipo.FollowPath(LAMBDAS, 70).solve(self.problem(count))
        self.record("paper", "path, 70", path.x, path.evals[:, -1].mean().item(), time.monotonic() - start)
        start = time.monotonic()
        begin = aipo.initial.mle(self.problem(count))
        x, evals = self.all_lambdas(aipo.Amortized(decay="round"), begin.x)
        evals += len(LAMBDAS) * begin.evals.double().mean().item()
        self.record("paper", "Algorithm 2, once per lam", x, evals, time.monotonic() - start)
        self.write()

    def single(self, count: int) -> None:
        """The quasi-Newton methods along one run each; Adam, whose schedule must know its length, at each budget."""
        # Exact, because the values along the way are read off the solver's state.
        problem = self.problem(count, precision="exact")
        x0 = aipo.initial.gaussian(problem)
        part: dict[str, Any] = {}
        for lam in SINGLE:
            traces: dict[str, dict[int, Tensor]] = {}
            for name, model in (("follow_path", "local"), ("preconditioned", "global"), ("plain L-BFGS", "none")):
                trace: dict[int, Tensor] = {}

                def keep(state: Any, trace: dict[int, Tensor] = trace, lam: float = lam) -> None:
                    trace[int(state.evals.max())] = state.D + lam * state.P

                solver = aipo.FollowPath((lam,), max(BUDGETS), tolerance=0.001, model=model)
                path = solver.solve(problem, x0=x0, callback=keep)
                # An image that is done keeps its loss.
                trace.update({budget: path.loss[:, 0] for budget in BUDGETS if budget > max(trace)})
                traces[name] = trace
            traces["Adam"] = {
                budget: aipo.FixedLambda.decayed(budget - 1).solve(problem, lam, x0).loss for budget in BUDGETS
            }
            best = torch.minimum(self.best[:count, LAMBDAS.index(lam)], _lowest(traces))
            part[str(lam)] = {
                name: {str(n): (losses - best).mean().item() for n, losses in sorted(trace.items()) if n}
                for name, trace in traces.items()
            }
            self.report["single"] = {"count": count, "gaps": part}
            self.write()
            print(f"{self.prior.name} {self.args.task} single: lam {lam}", flush=True)


def _lowest(traces: dict[str, dict[int, Tensor]]) -> Tensor:
    every = [losses.nan_to_num(torch.inf) for trace in traces.values() for losses in trace.values()]
    return torch.stack(every).amin(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prior")
    parser.add_argument("task", choices=list(EXPERIMENTS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, default=RESULTS / "path.json")
    parser.add_argument("--name", help="of the run; by default PRIOR-TASK")
    parser.add_argument("--images", default="test", choices=["val", "test", "fairface"])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--paper-count", type=int, default=50)
    parser.add_argument("--single-count", type=int, default=12)
    parser.add_argument("--parts", nargs="+", default=["paths", "paper", "single"])
    parser.add_argument("--precision", default="exact", choices=["exact", "fast"])
    args = parser.parse_args()
    bench = Bench(args)
    parts: dict[str, Callable[[], None]] = {
        "paths": bench.paths,
        "paper": lambda: bench.paper(min(args.paper_count, args.count)),
        "single": lambda: bench.single(min(args.single_count, args.count)),
    }
    for part in args.parts:
        parts[part]()


if __name__ == "__main__":
    main()
