"""What following lam gives at every lam of a grid, for each image, and the grid that suits a problem."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.files import write_atomically
from aipo.problem.map_problem import MapProblem
from aipo.solvers.result import Result

__all__ = ["SolutionPath", "automatic_grid", "lowest_lam"]

STEPS_PER_DECADE, LAST_STEP = 12, 6  # lam = 10^(step / 12), up to 3.2


def automatic_grid(problem: MapProblem) -> list[float]:
    """Twelve lam per decade, up to 3.2, where detail is lost, and from where a restoration still follows the noise.

    Around the best restoration chi^2 was 0.5 to about 4 lam in our measurements, so its lam is hardly ever below a
    quarter of the expected chi^2. A path that starts much lower spends its evaluations on fitting noise.

    A batch has one grid, which starts with the image that has to start lowest.
    """
    first = int(_first_steps(problem).min())
    return [float(f"{10 ** (i / STEPS_PER_DECADE):.4g}") for i in range(first, LAST_STEP + 1)]


def lowest_lam(problem: MapProblem) -> Tensor:
    """Below the first lam that the automatic grid of each image alone has, and above all smaller ones (B,)."""
    # Half a step lower: the grid is rounded.
    return 10 ** ((_first_steps(problem) - 0.5) / STEPS_PER_DECADE)


def _first_steps(problem: MapProblem) -> Tensor:
    """Where the automatic grid of each image alone starts, in steps from lam = 1 (B,)."""
    return (STEPS_PER_DECADE * (0.25 * problem.expected_chi2.double()).log10()).round()


@dataclass(frozen=True)
class SolutionPath:
    """Reconstructions along lam. Image first, then lam: x is (B, L, C, H, W), everything else (B, L).

    Each image may have its own lam. Where it has fewer than others, or failed before it got there, the row ends in NaN.

    Attributes:
        lam: where it was solved, ascending.
        x: reconstructions.
        D, P: the terms of the loss, in nats.
        gradient_norm: |grad L|.
        gap: estimate of L above its minimum, from the curvature that the solver has seen, in nats. It is the
            decrease that the quasi-Newton model promises for the next step: an order of magnitude, no bound.
        evals: gradient evaluations spent by then.
        concave: steps at this lam along which L curved downwards; the theorem assumes that there are none.
        status: one per image, "done" if the whole path was followed.
    """

    lam: Tensor
    x: Tensor
    D: Tensor
    P: Tensor
    gradient_norm: Tensor
    gap: Tensor
    evals: Tensor
    concave: Tensor
    status: list[str]

    @property
    def loss(self) -> Tensor:
        """V(lam) = D + lam P at the solutions (B, L)."""
        return self.D + self.lam * self.P

    def at(self, lam: float | Tensor) -> Result:
        """The result at a lam that was solved: one for all images, or one per image (B,)."""
        wanted = self._per_image(lam)
        distance = (self.lam - wanted[:, None]).abs().nan_to_num(torch.inf)
        done = torch.tensor([status == "done" for status in self.status], device=self.lam.device)
        if (done & (distance.amin(1) > 1e-6 * wanted)).any():
            grid = ", ".join(f"{v:g}" for v in self.lam[done].unique().tolist() if v == v)
            raise InputError(f"the path was not solved at lam {lam}, only at {grid}; see `SolutionPath.interpolate`")
        index, rows = distance.argmin(1), torch.arange(len(self.x), device=self.x.device)
        return Result(
            x=self.x[rows, index],
            lam=wanted,
            loss=self.loss[rows, index],
            D=self.D[rows, index],
            P=self.P[rows, index],
            evals=self.evals[rows, index].nan_to_num().to(torch.int64),
            status=self.status,
        )

    def interpolate(self, lam: float | Tensor) -> Tensor:
        """x (B, C, H, W) between the lam that were solved, linear in log lam; the ends beyond them."""
        rows = torch.arange(len(self.x), device=self.x.device)
        lower, upper, share = self._between(self._per_image(lam))
        return torch.lerp(self.x[rows, lower], self.x[rows, upper], per_image(share, self.x[:, 0]))

    def _between(self, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For lam (B,): the indices of the neighbors that were solved, and how far it lies between them in log lam."""
        solved = self.lam.isfinite()
        logs, wanted = self.lam.log().nan_to_num(torch.inf), lam.log()
        upper = torch.searchsorted(logs, wanted[:, None])[:, 0]
        upper = torch.minimum(upper, solved.sum(1) - 1).clamp(min=0)
        lower = (upper - 1).clamp(min=0)
        rows = torch.arange(len(lam), device=lam.device)
        width = logs[rows, upper] - logs[rows, lower]
        share = ((wanted - logs[rows, lower]) / width).nan_to_num(0.0).clamp(0, 1)
        return lower, upper, share

    @torch.no_grad()
    def chi2(self, problem: MapProblem) -> Tensor:
        """chi^2 of every restoration (B, L), see `MapProblem.chi2`."""
        return torch.stack([problem.chi2(x) for x in self.x.unbind(1)], dim=1)

    def P_rises(self) -> Tensor:
        """By how many nats P grows from one lam to the next (B, L-1), beyond what the gaps excuse.

        On a path of true minimizers P never grows with lam (the envelope theorem). Where it does, one of the two
        solutions lies in another minimum, or was left too early.
        """
        slack = (self.gap[:, 1:] + self.gap[:, :-1]) / self.lam.diff(dim=1)
        return (self.P.diff(dim=1) - slack).clamp(min=0)

    def concavity_violated(self) -> Tensor:
        """By how many nats V lies below the chord of its neighbors (B, L-2), beyond what the gaps excuse.

        V is concave in lam if all solutions are global minimizers.
        """
        step = self.lam.diff(dim=1)
        left, right = step[:, :-1], step[:, 1:]
        V = self.loss
        chord = (right * V[:, :-2] + left * V[:, 2:]) / (left + right)
        return (chord - V[:, 1:-1] - self.gap[:, :-2] - self.gap[:, 2:]).clamp(min=0)

    def jumps(self) -> Tensor:
        """How fast x moves, |dx| per unit of log lam, in root mean square per pixel (B, L-1).

        A continuous path has no interval that stands far out; one that does hints at a jump between minima.
        """
        moved = self.x.diff(dim=1).flatten(2).square().mean(2).sqrt()
        return moved / self.lam.log().diff(dim=1)

    def save(self, path: str | Path) -> None:
        """Write it to one .safetensors file."""
        tensors = {
            f.name: getattr(self, f.name).detach().cpu().contiguous() for f in fields(self) if f.name != "status"
        }
        write_atomically(Path(path), save(tensors, {"status": json.dumps(self.status)}))

    @classmethod
    def load(cls, path: str | Path) -> SolutionPath:
        """Read what `save` wrote."""
        try:
            with safe_open(path, "pt") as file:
                status = json.loads((file.metadata() or {})["status"])
                return cls(**{name: file.get_tensor(name) for name in file.keys()}, status=status)  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: not a saved path ({error})") from None

    def _per_image(self, lam: float | Tensor) -> Tensor:
        wanted = torch.as_tensor(lam, dtype=self.lam.dtype, device=self.lam.device)
        if wanted.ndim > 1 or (wanted.ndim == 1 and len(wanted) != len(self.x)):
            raise InputError(f"lam has shape {tuple(wanted.shape)}; give one number, or {len(self.x)}")
        return wanted.expand(len(self.x)).contiguous()
