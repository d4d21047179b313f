"""What following lam gives: the reconstruction and its certificates at every lam of a grid, for each image."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path as FilePath

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from aipo.errors import InputError
from aipo.files import write_atomically
from aipo.iterate import Result

__all__ = ["Path"]


@dataclass(frozen=True)
class Path:
    """Reconstructions along lam. Image first, then lam: x is (B, L, C, H, W), everything else (B, L).

    Attributes:
        lam: the grid (L,).
        x: reconstructions; NaN where an image failed before it got there.
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
        """The result at a lam of the grid: one for all images, or one per image (B,)."""
        wanted = self._per_image(lam)
        distance = (self.lam[None] - wanted[:, None]).abs()
        if (distance.amin(1) > 1e-6 * wanted).any():
            grid = ", ".join(f"{v:g}" for v in self.lam.tolist())
            raise InputError(f"the path was not solved at lam {lam}, only at {grid}; see `Path.interpolate`")
        index, rows = distance.argmin(1), torch.arange(len(self.x), device=self.x.device)
        return Result(
            x=self.x[rows, index],
            lam=self.lam[index],
            loss=self.loss[rows, index],
            D=self.D[rows, index],
            P=self.P[rows, index],
            evals=self.evals[rows, index].to(torch.int64),
            status=self.status,
        )

    def interpolate(self, lam: float | Tensor) -> Tensor:
        """x (B, C, H, W) between the lam of the grid, linear in log lam; the ends beyond it."""
        wanted = self._per_image(lam).clamp(self.lam[0], self.lam[-1])
        if len(self.lam) == 1:
            return self.x[:, 0]
        upper = torch.searchsorted(self.lam, wanted).clamp(1, len(self.lam) - 1)
        low, high = self.lam[upper - 1].log(), self.lam[upper].log()
        share = ((wanted.log() - low) / (high - low)).view(-1, 1, 1, 1)
        rows = torch.arange(len(self.x), device=self.x.device)
        return torch.lerp(self.x[rows, upper - 1], self.x[rows, upper], share)

    def P_rises(self) -> Tensor:
        """By how many nats P grows from one lam to the next (B, L-1), beyond what the gaps excuse.

        On a path of true minimisers P never grows with lam (the envelope theorem). Where it does, one of the two
        solutions lies in another minimum, or was left too early.
        """
        slack = (self.gap[:, 1:] + self.gap[:, :-1]) / self.lam.diff()
        return (self.P.diff(dim=1) - slack).clamp(min=0)

    def concavity_violated(self) -> Tensor:
        """By how many nats V lies below the chord of its neighbours (B, L-2), beyond what the gaps excuse.

        V is concave in lam if all solutions are global minimisers.
        """
        left, right = self.lam[1:-1] - self.lam[:-2], self.lam[2:] - self.lam[1:-1]
        V = self.loss
        chord = (right * V[:, :-2] + left * V[:, 2:]) / (left + right)
        return (chord - V[:, 1:-1] - self.gap[:, :-2] - self.gap[:, 2:]).clamp(min=0)

    def jumps(self) -> Tensor:
        """How fast x moves, |dx| per unit of log lam, in root mean square per pixel (B, L-1).

        A continuous path has no interval that stands far out; one that does hints at a jump between minima.
        """
        moved = self.x.diff(dim=1).flatten(2).square().mean(2).sqrt()
        return moved / self.lam.log().diff()

    def save(self, path: str | FilePath) -> None:
        """Write it to one .safetensors file."""
        tensors = {
            f.name: getattr(self, f.name).detach().cpu().contiguous() for f in fields(self) if f.name != "status"
        }
        write_atomically(FilePath(path), save(tensors, {"status": json.dumps(self.status)}))

    @classmethod
    def load(cls, path: str | FilePath) -> Path:
        """Read what `save` wrote."""
        try:
            with safe_open(path, "pt") as file:
                status = json.loads((file.metadata() or {})["status"])
                return cls(**{name: file.get_tensor(name) for name in file.keys()}, status=status)  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: not a saved path ({error})") from None

    def _per_image(self, lam: float | Tensor) -> Tensor:
        wanted = torch.as_tensor(lam, dtype=self.lam.dtype, device=self.lam.device)
        return wanted.expand(len(self.x)).contiguous()
