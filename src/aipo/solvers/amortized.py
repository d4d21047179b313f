"""AIPO as the paper runs it (Algorithm 2): rounds of Adam while lam grows from 0 to Lambda in adaptive steps.

A round solves at one lam for K steps. Then, with D and P at its end,

    delta     = max(r * |D / P + lam|, delta_min)   so that L changes by about a share r when lam grows    (step 8)
    delta_min = clip(delta_min ** (change / last change), low, high)                             (steps 9 and 10)
    K, alpha  = 1.1 K, 0.99 alpha                                                                      (step 12)
    lam       = lam + delta                                                                            (step 13)

where change = |L(x_0) - L(x_K)| / |L(x_0)| over the round. Every image has its own lam, K and alpha.

Where we do not do what is printed:

- alpha shrinks at every gradient step, not once per round. This is our reading, an option (`decay`).
- The change of a round is always computed. As printed it is computed only once there is a last one, so there would
  never be any, and delta_min would never move.
- There is a last round at Lambda itself (`last_round`), and delta_min follows the paper's remark (`delta_min_rule`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from aipo.batch import per_image
from aipo.errors import InputError
from aipo.problem.map_problem import MapProblem
from aipo.solvers import initial
from aipo.solvers.adam import Adam, AdamState
from aipo.solvers.base import Status, exact_share
from aipo.solvers.result import Result, make_result
from aipo.solvers.solve import AtLambda

__all__ = ["Amortized"]

COLUMNS = ("lam", "delta", "K", "D", "P", "L")


@dataclass(frozen=True)
class AmortizedState(AdamState):
    """One row per image. `change` is NaN until a round has ended (the paper's NULL)."""

    lam: Tensor
    lam_max: Tensor
    k: Tensor
    round: Tensor
    alpha: Tensor
    L_start: Tensor
    delta_min: Tensor
    change: Tensor
    trajectory: Tensor


@dataclass(frozen=True)
class Amortized(AtLambda[AmortizedState]):
    """Algorithm 2 of the paper, in our reading: the step size shrinks at every gradient step.

    The numbers are those of the paper's table of hyper-parameters. What it leaves open, or prints in two ways, is an
    option; `Amortized(decay="round")` is closest to what is printed (docs/method.md has all readings, and how they do).

    Arguments:
        alpha, K, r: step size, steps in the first round, target relative change of the loss.
        delta_min_share: delta_min starts at this share of Lambda (the paper's 1/20); its bounds are a quarter and
            four times that, the upper one at most 1.
        K_growth, alpha_decay: factors of K from round to round, and of alpha (see decay).
        mle_iterations: projected-gradient iterations for the start at lam = 0, when x0 is not given.
        last_K: steps of the round at Lambda, if not K, decayed to zero along a cosine. Ours, not the paper's: its
            constant step ends every round well above its minimum; for the intermediate ones that does not matter.
            Meant for decay="round", which leaves it a step worth decaying.
        max_evals, max_rounds: limits per image; reaching one gives the status "max evaluations".

    Readings of the paper:
        moments: "reset" Adam's moments at each new lam, or "keep" them.
        delta_min_rule: "power" (the paper's remark: delta_min ** ratio) or "ratio" (step 10 as printed).
        last_round: "at Lambda" solves a last round at exactly Lambda; "as printed" stops as soon as lam >= Lambda,
            so that the last solve happened at a smaller lam.
        first_round: "at zero" solves a first round at lam = 0, as printed; "at delta_min" leaves it out. When sensing,
            the start has f(x) = y and hardly any gradient there. Adam makes a step of alpha of it all the same, in
            every pixel, and the start is spoiled (docs/method.md).
        decay: alpha shrinks from "step" to step, which is not what is printed, or from "round" to round (step 12 as
            printed, with which the paper's order of methods does not come out, see docs/benchmark.md).
        direction: "adam" (the paper's experiments) or "gradient" (step 5 as printed).

    x0 is the solution at lam = 0, by default `initial.mle`, whose evaluations are then counted too.

    Examples:
        >>> import aipo, torch
        >>> prior = aipo.flows.GaussianFlow((3, 8, 8))  # N(0.5, 0.25^2) in each pixel
        >>> operator = aipo.operators.Denoising((3, 8, 8))
        >>> problem = aipo.MapProblem(prior, operator, aipo.Gaussian(0.25), y=torch.ones(1, 3, 8, 8))
        >>> result = aipo.Amortized.quick().solve(problem, lam=1.0)
        >>> round(result.x.mean().item(), 2), result.status
        (0.75, ['done'])
    """

    state_type = AmortizedState
    capturable = True

    alpha: float = 0.05
    K: int = 40
    r: float = 0.05
    delta_min_share: float = 1 / 20
    K_growth: float = 1.1
    alpha_decay: float = 0.99
    mle_iterations: int = 500
    last_K: int | None = None
    moments: Literal["reset", "keep"] = "reset"
    delta_min_rule: Literal["power", "ratio"] = "power"
    last_round: Literal["at Lambda", "as printed"] = "at Lambda"
    first_round: Literal["at zero", "at delta_min"] = "at zero"
    decay: Literal["round", "step"] = "step"
    direction: Literal["adam", "gradient"] = "adam"
    max_evals: int = 20_000
    max_rounds: int = 200
    adam: Adam = Adam()

    @classmethod
    def quick(cls) -> Amortized:
        """Our own variant, not the paper's algorithm: short rounds, then a longer, decayed one at Lambda.

        It takes a quarter of the evaluations of the default and ends at a lower loss.
        """
        return cls(
            K=6,
            K_growth=1.2,
            delta_min_share=1 / 4,
            mle_iterations=20,
            last_K=110,
            moments="keep",
            decay="round",
            adam=Adam(beta2=0.95),
        )

    def __post_init__(self) -> None:
        if self.K < 1 or not (self.alpha > 0 and 0 < self.r < 1 and 0 < self.delta_min_share <= 1):
            raise InputError(
                f"need K >= 1, alpha > 0, 0 < r < 1 and 0 < delta_min_share <= 1, got K={self.K}, "
                f"alpha={self.alpha}, r={self.r}, delta_min_share={self.delta_min_share}"
            )
        for name, value, allowed in (
            ("moments", self.moments, ("reset", "keep")),
            ("delta_min_rule", self.delta_min_rule, ("power", "ratio")),
            ("last_round", self.last_round, ("at Lambda", "as printed")),
            ("first_round", self.first_round, ("at zero", "at delta_min")),
            ("decay", self.decay, ("round", "step")),
            ("direction", self.direction, ("adam", "gradient")),
        ):
            if value not in allowed:
                raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value}")

    def start(self, problem: MapProblem, progress: bool) -> tuple[Tensor, Tensor | int]:
        mle = initial.mle(problem, self.mle_iterations, progress)
        return mle.x, mle.evals

    def init(self, problem: MapProblem, lam: float | Tensor, x0: Tensor) -> AmortizedState:
        problem.check_start(x0)
        lam_max = problem.lam_tensor(lam)
        delta_min, count = self.delta_min_share * lam_max, torch.zeros(len(x0), dtype=torch.int64, device=x0.device)
        return AmortizedState.fresh(
            x0,
            lam=delta_min if self.first_round == "at delta_min" else torch.zeros_like(lam_max),
            lam_max=lam_max,
            k=count,
            round=count,
            alpha=torch.full_like(lam_max, self.alpha),
            L_start=torch.full_like(lam_max, torch.nan),
            delta_min=delta_min,
            change=torch.full_like(lam_max, torch.nan),
            trajectory=x0.new_full((len(x0), self.max_rounds, len(COLUMNS)), torch.nan),
        )

    def step(self, problem: MapProblem, state: AmortizedState) -> AmortizedState:
        """One evaluation at x. If it ends a round, lam grows first, and the same evaluation starts the next one."""
        state, evaluation = state.observe(problem)
        state = self._end_rounds(state)
        first = (state.k == 0) & state.running
        state = replace(state, L_start=torch.where(first, evaluation.loss(state.lam), state.L_start))
        state = state.stop(state.evals >= self.max_evals, Status.MAX_EVALUATIONS)
        return self._descend(state, evaluation.gradient(state.lam))

    def _rounds_K(self, state: AmortizedState) -> Tensor:
        """Steps of the round each image is in (B,)."""
        K = (self.K * self.K_growth ** state.round.to(torch.float64)).floor().to(torch.int64)
        return K if self.last_K is None else K.masked_fill(state.lam >= state.lam_max, self.last_K)

    def _end_rounds(self, state: AmortizedState) -> AmortizedState:
        """Steps 7 to 15 for the images whose K steps are done."""
        over = state.running & (state.k >= self._rounds_K(state))
        finished = over & (state.lam >= state.lam_max)
        L = state.D + state.lam * state.P
        remaining = state.lam_max - state.lam
        delta = (self.r * (state.D / state.P + state.lam).abs()).nan_to_num()
        delta = torch.minimum(torch.maximum(delta, state.delta_min), remaining)
        state = self._record(state, over, delta, L)
        state = state.stop(finished, Status.DONE)

        growing = over & ~finished
        change = ((state.L_start - L) / state.L_start).abs()
        delta_min = torch.where(state.change.isnan(), state.delta_min, self._new_delta_min(state, change))
        # lam + (lam_max - lam) may round to just below lam_max; the last round must be at lam_max itself.
        lam = torch.where(delta < remaining, state.lam + delta, state.lam_max)
        lam = torch.where(growing, lam, state.lam)
        if self.last_round == "as printed":
            state = state.stop(growing & (lam >= state.lam_max), Status.DONE)
        rounds = state.round + growing
        state = replace(
            state,
            lam=lam,
            change=torch.where(growing, change, state.change),
            delta_min=torch.where(growing, delta_min, state.delta_min),
            k=state.k.masked_fill(growing, 0),
            round=rounds,
            alpha=self._decayed(state.alpha, growing, "round"),
        )
        if self.moments == "reset":
            fresh = per_image(growing, state.x)
            state = replace(
                state,
                m=state.m.masked_fill(fresh, 0),
                v=state.v.masked_fill(fresh, 0),
                t=state.t.masked_fill(growing, 0),
            )
        return state.stop(rounds >= self.max_rounds, Status.MAX_EVALUATIONS)

    def _new_delta_min(self, state: AmortizedState, change: Tensor) -> Tensor:
        # 0/0 (two rounds without any change) says nothing about the step size: a ratio of 1 keeps it.
        ratio = (change / state.change).nan_to_num(nan=1.0)
        start = self.delta_min_share * state.lam_max
        new = state.delta_min**ratio if self.delta_min_rule == "power" else ratio
        return torch.clamp(new, start / 4, torch.clamp(4 * start, max=1.0))

    def _record(self, state: AmortizedState, over: Tensor, delta: Tensor, L: Tensor) -> AmortizedState:
        K = self._rounds_K(state).to(L.dtype)
        row = torch.stack([state.lam, delta, K, state.D, state.P, L], dim=1)
        rounds = state.round.clamp(max=self.max_rounds - 1)
        index = rounds.view(-1, 1, 1).expand(-1, 1, len(COLUMNS))
        old = state.trajectory.gather(1, index)[:, 0]
        new = torch.where(over[:, None], row, old)
        return replace(state, trajectory=state.trajectory.scatter(1, index, new[:, None]))

    def _descend(self, state: AmortizedState, gradient: Tensor) -> AmortizedState:
        alpha = state.alpha
        if self.last_K is not None:
            cosine = 0.5 * (1 + torch.cos(math.pi * state.k.to(alpha.dtype) / self.last_K))
            alpha = torch.where(state.lam >= state.lam_max, alpha * cosine, alpha)
        state = replace(state, alpha=self._decayed(state.alpha, state.running, "step"))
        k = state.k + state.running
        if self.direction == "adam":
            return replace(self.adam.descend(state, gradient, alpha), k=k)
        x = state.x - per_image(alpha, gradient) * gradient
        return replace(state, x=torch.where(per_image(state.running, x), x, state.x), k=k)

    def _decayed(self, alpha: Tensor, which: Tensor, now: str) -> Tensor:
        return torch.where(which, self.alpha_decay * alpha, alpha) if self.decay == now else alpha

    def finishing(self, state: AmortizedState) -> Tensor:
        K = self._rounds_K(state)
        # As in `FixedLambda`: a round with a constant step gains nothing from exact steps.
        return (state.lam >= state.lam_max) & (K - state.k <= (exact_share(K) if self.last_K is not None else 0))

    def result(self, problem: MapProblem, state: AmortizedState) -> Result:
        """`trajectory` has one (B, rounds) tensor per column: lam, delta, K, D, P, L; NaN after an image's last."""
        rounds = max(1, int((~state.trajectory[..., 0].isnan()).sum(1).max()))
        trajectory = {name: state.trajectory[:, :rounds, i] for i, name in enumerate(COLUMNS)}
        return make_result(state, state.lam_max, trajectory=trajectory)

    def budget(self, state: AmortizedState) -> int:
        """As if every increment of lam were the first delta_min; larger ones end sooner."""
        total = self.last_K or 0
        rounds = math.ceil(1 / self.delta_min_share) + (self.first_round == "at zero")
        for j in range(min(self.max_rounds, rounds)):
            total += int(self.K * self.K_growth**j)
            if total >= self.max_evals:
                return self.max_evals
        return total
