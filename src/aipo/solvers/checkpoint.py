"""A solve on disk: its last state, and what it belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from aipo.errors import InputError
from aipo.files import write_atomically
from aipo.solvers.base import S

__all__ = ["Checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A .safetensors file that holds a state.

    Arguments:
        path: the file.
        identity: what a saved state has to agree in, such as the solver and the problem.
    """

    path: Path
    identity: dict[str, str]

    def save(self, state: S, phase: str) -> None:
        """Write a state. A solve in fast precision ends in exact precision: `phase` is the one that this is from."""
        tensors = {f.name: getattr(state, f.name).detach().cpu().clone() for f in fields(state)}
        # One metadata entry: several would be written in random order, and equal states must give equal bytes.
        identity = json.dumps(self.identity | {"phase": phase})
        write_atomically(self.path, save(tensors, {"identity": identity}))

    def load(self, kind: type[S], device: torch.device) -> tuple[S, str] | None:
        """The state of this kind and its phase, or None if there is no file."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, "pt") as file:
                found = json.loads((file.metadata() or {}).get("identity", "{}"))
                tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118 (no dict)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{self.path}: not a readable checkpoint ({error}); delete it to start anew") from None
        for key, value in self.identity.items():
            if found.get(key) != value:
                raise InputError(
                    f"{self.path}: this checkpoint belongs to another {key}; choose another file or delete it"
                )
        if tensors.keys() != {f.name for f in fields(kind)}:
            raise InputError(f"{self.path}: this checkpoint is from another version of aipo; delete it to start anew")
        return kind(**tensors), found.get("phase", self.identity["precision"])
