"""Several processes that train one flow, under torchrun."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["agreed", "average", "rank", "start_distributed", "stop_distributed", "world"]


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Which of them this one is."""
    return dist.get_rank() if dist.is_initialized() else 0


def start_distributed() -> torch.device:
    """The device of this process; under torchrun, joins the group first (nccl on GPUs, gloo on CPUs)."""
    cuda = torch.cuda.is_available()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if cuda else "gloo")
        local = int(os.environ["LOCAL_RANK"])
        if cuda:
            torch.cuda.set_device(local)
            return torch.device("cuda", local)
    return torch.device("cuda" if cuda else "cpu")


def stop_distributed() -> None:
    """Leave the group, if there is one, together: a process that outlives the first one's store may abort."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def average(tensors: list[Tensor]) -> None:
    """Replace tensors by their means over all processes."""
    if world() == 1:
        return
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    flat /= world()
    offset = 0
    for t in tensors:
        t.copy_(flat[offset : offset + t.numel()].view_as(t))
        offset += t.numel()


def agreed(seconds: float, device: torch.device) -> float:
    """The first process's clock: all must take the same decision about the end."""
    if world() == 1:
        return seconds
    clock = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.broadcast(clock, 0)
    return clock.item()
