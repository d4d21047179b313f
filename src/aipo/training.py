"""Fit a flow to images by maximum likelihood: `Trainer.run` goes on until the steps or minutes are spent.

The loss is the exact negative log-likelihood of uniformly dequantised `bits`-bit images, in bits per dimension. State
is explicit and checkpointed (safetensors + JSON, no pickle), so a killed run continues where it stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from aipo.errors import InputError
from aipo.files import write_atomically
from aipo.flows import Flow
from aipo.flows.multiscale import Step
from aipo.flows.tarflow import Block
from aipo.likelihood import bits_per_dim, dequantise

__all__ = ["Settings", "Trainer", "start_distributed", "stop_distributed"]


@dataclass(frozen=True)
class Settings:
    """How to train. Exactly one of `steps` and `minutes` ends the run; the schedule always finishes.

    With `minutes`, progress through the learning-rate schedule is the share of the time spent, so the last step is
    taken at the lowest rate whatever the speed of the machine.
    """

    bits: int = 5
    batch: int = 256
    steps: int | None = None
    minutes: float | None = None
    lr: float = 1e-3
    final_lr: float = 0.01
    warmup: int = 500
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.999
    noise: float = 0.0
    seed: int = 0
    half: bool = True
    compile: bool = True

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise InputError("give either steps or minutes")
        if not 1 <= self.bits <= 8 or self.batch < 1 or self.lr <= 0 or (self.steps or self.minutes or 0) <= 0:
            raise InputError("bits must be 1 to 8, and batch, lr, steps and minutes positive")


@dataclass
class Progress:
    """Where a run is: enough to continue it, and what a person wants to see."""

    step: int = 0
    seconds: float = 0.0
    skipped: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


class Objective(nn.Module):
    """The loss of a batch in bits per dimension, as a module, so that it can be captured as a CUDA graph."""

    def __init__(self, flow: Flow, bits: int):
        super().__init__()
        self.flow = flow
        self.bits = bits

    def forward(self, x: Tensor) -> Tensor:
        return -self.flow.log_prob(x).mean() / (self.flow.num_dims * math.log(2)) + self.bits


class Trainer:
    """One run: flow, averaged weights, optimiser and progress, with `step`, `validate`, `save` and `resume`.

    Under torchrun every process holds the same weights and its own share of each batch; gradients are averaged.
    """

    def __init__(
        self,
        flow: Flow,
        images: Tensor,
        settings: Settings,
        device: torch.device | str = "cpu",
        fast: bool = True,
    ):
        self.device = torch.device(device)
        self.settings = settings
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        if settings.batch % self.world:
            raise InputError(f"batch {settings.batch} does not divide among {self.world} processes")
        self.flow = flow.to(self.device).train()
        # The whole set lives on the device: 60,000 faces are 0.7 GB, and a step never waits for the host.
        self.images = images.to(self.device)
        self.progress = Progress()
        self._skipped = torch.zeros((), device=self.device)
        self.generator = torch.Generator(self.device)
        self._initialise()
        if fast and self.device.type == "cuda":
            self._prepare_for_tensor_cores()
        self.ema = {k: v.detach().clone() for k, v in flow.named_parameters()}
        self.optimiser = torch.optim.AdamW(self._parameter_groups(), lr=settings.lr, betas=(0.9, 0.95), fused=True)
        self.objective: Callable[[Tensor], Tensor] = Objective(flow, settings.bits)
        if settings.compile:
            self._compile()
        if fast and settings.compile and self.device.type == "cuda":
            # A step is thousands of short kernels, and launching them one by one takes three times as long as
            # running them. A captured graph replays them all at once.
            batch = self._batch(settings.batch // self.world)
            self.objective = torch.cuda.make_graphed_callables(self.objective, (batch,))  # type: ignore[assignment]

    def _prepare_for_tensor_cores(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        self.flow.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.settings.half:
            self.flow.set_compute_dtype(torch.bfloat16)

    def _initialise(self) -> None:
        count = min(len(self.images), 512)
        self.generator.manual_seed(self.settings.seed)
        self.flow.initialise(self._batch(count))
        if self.world > 1:
            for tensor in self.flow.state_dict().values():
                dist.broadcast(tensor, 0)

    def _parameter_groups(self) -> list[dict[str, Any]]:
        # Decay only shapes networks' matrices; scales, shifts and the LU factors are parts of the density itself.
        decayed: list[Tensor] = []
        free: list[Tensor] = []
        for name, p in self.flow.named_parameters():
            network = any(part in name for part in ("net.", "transformer.", "heads."))
            (decayed if p.ndim >= 2 and network else free).append(p)
        return [
            {"params": decayed, "weight_decay": self.settings.weight_decay},
            {"params": free, "weight_decay": 0.0},
        ]

    def _compile(self) -> None:
        # Piece by piece: equal pieces share one compilation, so start-up is seconds, not minutes.
        torch._dynamo.config.recompile_limit = 64
        for module in self.flow.modules():
            if isinstance(module, (Step, Block)):
                module.compile(dynamic=False)

    def _batch(self, count: int) -> Tensor:
        """A random batch: flipped at random, dequantised, in [0, 1)."""
        index = torch.randint(len(self.images), (count,), generator=self.generator, device=self.device)
        flip = torch.rand(count, 1, 1, 1, generator=self.generator, device=self.device) < 0.5
        images = self.images[index]
        images = torch.where(flip, images.flip(-1), images)
        if self.settings.noise:
            grain = torch.randn(images.shape, generator=self.generator, device=self.device)
            images = (images + 255 * self.settings.noise * grain).round().clamp(0, 255)
        noise = torch.rand(images.shape, generator=self.generator, device=self.device)
        x = dequantise(images, self.settings.bits, noise)
        return x.contiguous(memory_format=torch.channels_last) if self.device.type == "cuda" else x

    @property
    def fraction(self) -> float:
        """How much of the budget is spent, in [0, 1]."""
        s, p = self.settings, self.progress
        return p.step / s.steps if s.steps else p.seconds / (60 * (s.minutes or 1))

    @property
    def lr(self) -> float:
        s = self.settings
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.fraction)))
        return s.lr * min(1.0, (self.progress.step + 1) / s.warmup) * (s.final_lr + (1 - s.final_lr) * cosine)

    def step(self) -> Tensor:
        """One update; the batch's loss in bits/dim as a device scalar. A non-finite step is skipped and counted."""
        s, p = self.settings, self.progress
        # The seed is a function of the step, so that a resumed run draws what an unbroken one would have.
        self.generator.manual_seed((s.seed << 40) + (self.rank << 32) + p.step)
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr
        loss = self.objective(self._batch(s.batch // self.world))
        loss.backward()
        if self.world > 1:
            self._average_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self.flow.parameters(), s.clip, foreach=True)
        # The fused optimiser looks at found_inf on the device and skips the update itself: the host need not wait.
        found_inf = norm.isfinite().logical_not().float()
        self.optimiser.found_inf = found_inf  # type: ignore[attr-defined]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self._skipped += found_inf
        decay = min(s.ema, (1 + p.step) / (10 + p.step))
        current = [q.detach() for q in self.flow.parameters()]
        torch._foreach_lerp_(list(self.ema.values()), current, 1 - decay)
        p.step += 1
        # A graph writes every loss to the same place: hand out a copy.
        return loss.detach().clone()

    def _average_gradients(self) -> None:
        gradients = [q.grad for q in self.flow.parameters() if q.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= self.world
        offset = 0
        for g in gradients:
            g.copy_(flat[offset : offset + g.numel()].view_as(g))
            offset += g.numel()

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
            self._synchronise()
        start, shown, images = time.monotonic() - p.seconds, p.seconds, 0
        while True:
            finished = self.fraction >= 1
            if losses and (finished or p.seconds - shown >= every):
                self._synchronise()
                p.skipped += int(self._skipped.item())
                self._skipped.zero_()
                row = {
                    "step": p.step,
                    "seconds": p.seconds,
                    "lr": self.lr,
                    "train": torch.stack(losses).mean().item(),
                    "images_per_second": images / max(p.seconds - shown, 1e-9),
                    "skipped": p.skipped,
                }
                if validation is not None:
                    row["val"] = self.validate(validation)
                p.history.append(row)
                if report and self.rank == 0:
                    report(row)
                if checkpoint and self.rank == 0:
                    self.save(checkpoint)
                losses.clear()
                shown, images = p.seconds, 0
                start = time.monotonic() - p.seconds
            if finished:
                return
            losses.append(self.step())
            images += s.batch
            p.seconds = self._agreed(time.monotonic() - start)
            if tick and self.rank == 0:
                tick(min(1.0, self.fraction))

    def _agreed(self, seconds: float) -> float:
        """All processes must take the same decision about the end: rank 0's clock counts."""
        if self.world == 1:
            return seconds
        clock = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.broadcast(clock, 0)
        return clock.item()

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def averaged(self) -> Flow:
        """A copy of the flow with the averaged weights, in full precision, for validation and export."""
        copy = type(self.flow)(**self.flow.config).to(self.device)
        copy.load_state_dict({**self.flow.state_dict(), **self.ema})
        return copy.eval().requires_grad_(False)

    def validate(self, images: Tensor) -> float:
        return bits_per_dim(self.averaged(), images, self.settings.bits).mean().item()

    def save(self, path: Path) -> None:
        """Checkpoint: tensors as safetensors, the rest as JSON inside its metadata; one file, written atomically."""
        tensors = {f"flow.{k}": v for k, v in self.flow.state_dict().items()}
        tensors |= {f"ema.{k}": v for k, v in self.ema.items()}
        for i, state in enumerate(self._moments()):
            tensors |= {f"adam.{i}.{k}": v for k, v in state.items()}
        meta = {
            "architecture": self.flow.architecture,
            "config": json.dumps(self.flow.config),
            "settings": json.dumps(asdict(self.settings)),
            "progress": json.dumps(asdict(self.progress)),
        }
        write_atomically(path, save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, meta))

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same flow and settings."""
        try:
            with safe_open(path, "pt") as file:
                meta = file.metadata() or {}
            tensors = load_file(path, device=str(self.device))
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a readable checkpoint ({error}); delete it to start anew") from None
        if "config" not in meta:
            raise InputError(f"{path}: not a checkpoint of a training run; choose another output")
        if json.loads(meta["config"]) != self.flow.config or meta["architecture"] != self.flow.architecture:
            raise InputError(f"{path}: this checkpoint is of another model; choose another output or delete it")
        if json.loads(meta["settings"]) != asdict(self.settings):
            raise InputError(f"{path}: this checkpoint has other settings; choose another output or delete it")
        self.flow.load_state_dict({k[5:]: v for k, v in tensors.items() if k.startswith("flow.")})
        for k in self.ema:
            self.ema[k].copy_(tensors[f"ema.{k}"])
        for i, p in enumerate(q for group in self.optimiser.param_groups for q in group["params"]):
            keys = [k for k in tensors if k.startswith(f"adam.{i}.")]
            if keys:
                self.optimiser.state[p] = {k.split(".")[-1]: tensors[k].clone() for k in keys}
        self.progress = Progress(**json.loads(meta["progress"]))

    def _moments(self) -> list[dict[str, Tensor]]:
        params = [q for group in self.optimiser.param_groups for q in group["params"]]
        return [self.optimiser.state.get(q, {}) for q in params]


def start_distributed() -> torch.device:
    """The device of this process; under torchrun, joins the group first (nccl on GPUs, gloo on CPUs)."""
    cuda = torch.cuda.is_available()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if cuda else "gloo")
        rank = int(os.environ["LOCAL_RANK"])
        if cuda:
            torch.cuda.set_device(rank)
            return torch.device("cuda", rank)
    return torch.device("cuda" if cuda else "cpu")


def stop_distributed() -> None:
    """Leave the group, if there is one, together: a process that outlives the first one's store may abort."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
