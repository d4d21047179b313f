"""Fit a flow to images: `Trainer.run` goes on until the steps or minutes are spent.

What is minimized is an `objectives.Objective`, where images come from is a `Source`. State is explicit and checkpointed
(safetensors + JSON, no pickle), so a killed run continues where it stopped, on the same data only.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from aipo.engine.kernels.graphs import Graph
from aipo.errors import InputError
from aipo.files import write_atomically
from aipo.flows import Flow
from aipo.flows.multiscale import Step
from aipo.flows.noise_flow import NoiseFlow
from aipo.flows.tarflow import Block
from aipo.priors.prior import fingerprint
from aipo.training.dataset import Source, Stack, mixed_seed
from aipo.training.distributed import agreed, average, rank, world
from aipo.training.objectives import Likelihood, Objective
from aipo.training.optimizers import make_optimizers
from aipo.training.settings import Progress, Settings

__all__ = ["Trainer"]

INITIAL_IMAGES = 512
CHECKPOINT_STEPS = 8  # checkpoints are of steps that are multiples of this
# What two runs may differ in, so that neither may go on with the other's checkpoint.
OTHERS = {
    "architecture": "another model",
    "config": "another model",
    "settings": "other settings",
    "data": "other data",
    "start": "another prior to begin with",
}


class Trainer:
    """One run: flow, averaged weights, optimizers and progress, with `step`, `validate`, `save` and `resume`.

    Arguments:
        flow: to be trained, in place.
        source: where images come from; a tensor (N, C, H, W) of uint8 is a `Stack`.
        objective: what to minimize, by default the likelihood in bits per dimension.
        fast: with half precision where the hardware has it, on a GPU with captured graphs.

    Under torchrun every process holds the same weights and its own share of each batch; gradients are averaged.
    """

    def __init__(
        self,
        flow: Flow | NoiseFlow,
        source: Source | Tensor,
        settings: Settings,
        device: torch.device | str = "cpu",
        fast: bool = True,
        objective: Any = None,
    ):
        self.device = torch.device(device)
        self.settings = settings
        self.world, self.rank = world(), rank()
        if settings.batch % self.world:
            raise InputError(f"batch {settings.batch} does not divide among {self.world} processes")
        self.flow: Any = flow.to(self.device).train()
        self.source = Stack(source, self.device) if isinstance(source, Tensor) else source
        self.progress = Progress()
        self._skipped = torch.zeros((), device=self.device)
        self._start = ""
        self.generator = torch.Generator(self.device)
        if objective is None:
            assert isinstance(flow, Flow)
            objective = Likelihood(flow, settings.bits, settings.noise)
        self.objective: Callable[..., Tensor] = objective
        self._described: Objective = objective  # what draws, names and validates; `objective` may become a graph of it
        self._initialize()
        if fast and self.device.type == "cuda":
            self._prepare_for_tensor_cores()
        elif fast and settings.half and isinstance(flow, NoiseFlow) and _cpu_has_bfloat16():
            flow.set_compute_dtype(torch.bfloat16)  # twice as fast as float32 there
        self.ema = {k: v.detach().clone() for k, v in flow.named_parameters()}
        self.optimizers = make_optimizers(flow, settings.optimizer, settings.lr, settings.weight_decay)
        self._rates = [[float(group["lr"]) for group in o.param_groups] for o in self.optimizers]
        self._average_weight = torch.zeros((), device=self.device)
        self._graph: Graph | None = None
        if settings.compile:
            self._compile()
        if fast and settings.compile and self.device.type == "cuda":
            self._capture(self._draw(settings.batch // self.world))

    def _prepare_for_tensor_cores(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        if isinstance(self.flow, Flow):
            # A noise flow packs its weights itself.
            self.flow.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.settings.half:
            self.flow.set_compute_dtype(torch.bfloat16)

    def _initialize(self) -> None:
        self.generator.manual_seed(self.settings.seed)
        self.flow.initialize(self._draw(INITIAL_IMAGES)[0])
        if self.world > 1:
            for tensor in self.flow.state_dict().values():
                dist.broadcast(tensor, 0)

    def begin_with(self, flow: nn.Module) -> None:
        """Start from the weights of another flow of the same shape."""
        try:
            self.flow.load_state_dict(flow.state_dict())
        except RuntimeError:
            raise InputError("the prior to start from is another model; choose one with the same sizes") from None
        for k, v in self.flow.named_parameters():
            self.ema[k].copy_(v.detach())
        self._start = fingerprint(flow)

    def _compile(self) -> None:
        # Piece by piece: equal pieces share one compilation, so start-up is seconds, not minutes.
        torch._dynamo.config.recompile_limit = 64
        for module in self.flow.modules():
            if isinstance(module, (Step, Block)):
                module.compile(dynamic=False)

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        """Record a step as a CUDA graph.

        A step is thousands of short kernels, and launching them one by one takes longer than running them.
        """
        if self.world > 1:
            # The exchange of gradients is not recorded.
            self.objective = torch.cuda.make_graphed_callables(self.objective, inputs)  # type: ignore[assignment]
            return
        before = {k: v.clone() for k, v in self.flow.state_dict().items()}
        self._graph = Graph(self._update, inputs)
        # Recording takes some steps to warm up: they are undone.
        self.flow.load_state_dict(before)
        for k, v in self.flow.named_parameters():
            self.ema[k].copy_(v.detach())
        for _, _, _, state in self._moments():
            for moment in state.values():
                moment.zero_()
        self._skipped.zero_()

    def _draw(self, count: int) -> tuple[Tensor, ...]:
        """The inputs of the objective for a random batch."""
        images = self.source.batch(self.progress.step, count, self.generator)
        return self._described.draw(images, self.generator)

    @property
    def fraction(self) -> float:
        """How much of the budget is spent, in [0, 1]."""
        s, p = self.settings, self.progress
        return p.step / s.steps if s.steps else p.seconds / (60 * (s.minutes or 1))

    @property
    def schedule(self) -> float:
        """The learning rate, relative to the highest: a warm-up, then a cosine down to `final_lr`."""
        s = self.settings
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.fraction)))
        return min(1.0, (self.progress.step + 1) / s.warmup) * (s.final_lr + (1 - s.final_lr) * cosine)

    @property
    def lr(self) -> float:
        return self.settings.lr * self.schedule

    def step(self) -> Tensor:
        """One update; loss and parts of the batch, on the device. A non-finite step is skipped and counted."""
        s, p = self.settings, self.progress
        # The seed is a function of the step, so that a resumed run draws what an unbroken one would have.
        self.generator.manual_seed(mixed_seed(s.seed, self.rank, p.step))
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"].fill_(rate * self.schedule)
        self._average_weight.fill_(1 - min(s.ema, (1 + p.step) / (10 + p.step)))
        inputs = self._draw(s.batch // self.world)
        (losses,) = self._graph(*inputs) if self._graph else self._update(*inputs)
        p.step += 1
        return losses

    def _update(self, *inputs: Tensor) -> list[Tensor]:
        """Gradients, weights and their averages, all on the device: the host decides nothing."""
        losses = self.objective(*inputs)
        losses[0].backward()
        parameters = list(self.flow.parameters())
        average([q.grad for q in parameters if q.grad is not None])
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.clip, foreach=True)
        # The optimizers look at found_inf on the device and skip the update themselves.
        found_inf = norm.isfinite().logical_not().float()
        for optimizer in self.optimizers:
            optimizer.found_inf = found_inf  # type: ignore[attr-defined]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._skipped += found_inf
        averages = list(self.ema.values())
        changes = torch._foreach_sub([q.detach() for q in parameters], averages)
        torch._foreach_mul_(changes, self._average_weight)
        torch._foreach_add_(averages, changes)
        return [losses.detach().clone()]

    def run(
        self,
        validation: Tensor | None = None,
        every: float = 60.0,
        report: Callable[[dict[str, float]], None] | None = None,
        checkpoint: Path | None = None,
        tick: Callable[[float], None] | None = None,
    ) -> None:
        """Train to the end; every so many seconds validate, report one row of history, and checkpoint.

        `tick` is called after every step with the share of the budget that is spent, for a progress bar.
        """
        p, s = self.progress, self.settings
        losses: list[Tensor] = []
        if p.step == 0:
            # Compilation is not training: the first step is not charged to the budget.
            losses.append(self.step())
            self._synchronize()
        start, shown, images = time.monotonic() - p.seconds, p.seconds, 0
        while True:
            finished = self.fraction >= 1
            if losses and (finished or p.step % CHECKPOINT_STEPS == 0):
                # Rounds, also if no checkpoint is due: that depends on the clock, and what is learned must not.
                state = self.state()
                if finished or p.seconds - shown >= every:
                    self._synchronize()
                    self._record(losses, images / max(p.seconds - shown, 1e-9), validation)
                    if report and self.rank == 0:
                        report(p.history[-1])
                    if checkpoint and self.rank == 0:
                        self.save(checkpoint, state)
                    losses.clear()
                    shown, images = p.seconds, 0
                    start = time.monotonic() - p.seconds
            if finished:
                return
            losses.append(self.step())
            images += s.batch
            p.seconds = agreed(time.monotonic() - start, self.device)
            if tick and self.rank == 0:
                tick(min(1.0, self.fraction))

    def _record(self, losses: list[Tensor], speed: float, validation: Tensor | None) -> None:
        """A row of history, from the losses since the last one."""
        p = self.progress
        p.skipped += int(self._skipped.item())
        self._skipped.zero_()
        means = dict(zip(("train", *self._described.parts), torch.stack(losses).mean(0).tolist(), strict=True))
        row = {"step": p.step, "seconds": p.seconds, "lr": self.lr, "images_per_second": speed, "skipped": p.skipped}
        p.history.append({**row, **means, **({} if validation is None else self.validate(validation))})

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def averaged(self) -> Any:
        """A copy of the flow with the averaged weights, in full precision, for validation and export."""
        copy = type(self.flow)(**self.flow.config).to(self.device)
        copy.load_state_dict({**self.flow.state_dict(), **self.ema})
        return copy.eval().requires_grad_(False)

    def validate(self, images: Tensor) -> dict[str, float]:
        return self._described.validate(self.averaged(), images)

    def save(self, path: Path, state: dict[str, Tensor] | None = None) -> None:
        """Checkpoint: tensors as safetensors, the rest as JSON inside its metadata; one file, written atomically."""
        state = self.state() if state is None else state
        meta = {**self._identity(), "progress": json.dumps(asdict(self.progress))}
        write_atomically(path, save({k: v.detach().cpu().contiguous() for k, v in state.items()}, meta))

    def state(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint.

        A noise flow's averages are kept as half-precision differences from the weights, which they are near: the file
        is a quarter smaller. This run then goes on with them so rounded, as one that resumes it does.
        """
        tensors = {f"flow.{k}": v for k, v in self.flow.state_dict().items()}
        for k, v in self.flow.named_parameters():
            kept = self.ema[k] - v.detach()
            kept = kept.half() if isinstance(self.flow, NoiseFlow) else kept
            self.ema[k].copy_(v.detach() + kept)
            tensors[f"ema.{k}"] = kept
        for prefix, _, _, state in self._moments():
            tensors |= {f"{prefix}{k}": v for k, v in state.items()}
        return tensors

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same flow, settings and data."""
        try:
            with safe_open(path, "pt") as file:
                meta = file.metadata() or {}
            tensors = load_file(path, device=str(self.device))
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a readable checkpoint ({error}); delete it to start anew") from None
        if "config" not in meta:
            raise InputError(f"{path}: not a checkpoint of a training run; choose another output")
        for key, value in self._identity().items():
            if meta.get(key) != value:
                raise InputError(
                    f"{path}: this checkpoint is of another run, with {OTHERS[key]}; choose another output or delete it"
                )
        self.flow.load_state_dict({k[5:]: v for k, v in tensors.items() if k.startswith("flow.")})
        for k, v in self.flow.named_parameters():
            self.ema[k].copy_(v.detach() + tensors[f"ema.{k}"])
        for prefix, optimizer, p, _ in self._moments():
            keys = [k for k in tensors if k.startswith(prefix)]
            for k in keys:
                # In place where it is there: a recorded step goes on with the tensors that it knows.
                old = optimizer.state[p].setdefault(k.removeprefix(prefix), tensors[k].clone())
                old.copy_(tensors[k])
        self.progress = Progress(**json.loads(meta["progress"]))

    def _identity(self) -> dict[str, str]:
        """What a checkpoint and the run that resumes it must have in common."""
        if not hasattr(self, "_data"):
            self._data = self.source.fingerprint()  # hashing it takes a second or two
        return {
            "architecture": self.flow.architecture,
            "config": json.dumps(self.flow.config),
            "settings": json.dumps(asdict(self.settings)),
            "data": self._data,
            "start": self._start,
        }

    def _moments(self) -> list[tuple[str, torch.optim.Optimizer, Tensor, dict[str, Tensor]]]:
        """Of each weight: its name in a checkpoint, its optimizer, itself, and what the optimizer knows of it."""
        return [
            (f"optimizer.{i}.{j}.", optimizer, p, optimizer.state.get(p, {}))
            for i, optimizer in enumerate(self.optimizers)
            for j, p in enumerate(q for group in optimizer.param_groups for q in group["params"])
        ]


def _cpu_has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16 itself; otherwise that is slower than float32."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))
