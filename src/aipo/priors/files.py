"""A prior on disk: two files, and nothing executable.

NAME.safetensors   float16 weights
NAME.json          the card: architecture, data, bits, offset, license, metrics, SHA-256 of the weights
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as dump_safetensors
from torch import Tensor

from aipo.errors import InputError
from aipo.files import write_atomically
from aipo.flows import ARCHITECTURES, Flow, NoiseFlow
from aipo.priors.card import CARD_FORMAT, MAX_CARD_BYTES, check_card, check_sizes, read_card
from aipo.priors.noise_prior import NoisePrior
from aipo.priors.prior import Prior, discretization_offset

__all__ = ["load_prior_files", "save_prior_files"]

MAX_WEIGHT_BYTES = 2**30


def save_prior_files(flow: Flow | NoiseFlow, card: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """Write weights (float16) to `path` (.safetensors) and the completed card beside it; returns the card.

    `card` gives name, bits, data, license and metrics; architecture, config, offset and hash are filled in here.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"a prior is saved to a .safetensors file, got {path.name}")
    weights = dump_safetensors({name: _storable(t) for name, t in sorted(flow.state_dict().items())})
    card = {
        **card,
        "format": CARD_FORMAT,
        "architecture": flow.architecture,
        "config": flow.config,
        "parameters": sum(p.numel() for p in flow.parameters()),
        "offset": _offset(flow, card["bits"]),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    check_card(card, path.with_suffix(".json"))
    write_atomically(path, weights)
    write_atomically(path.with_suffix(".json"), (json.dumps(card, indent=2) + "\n").encode())
    return card


def load_prior_files(path: str | Path) -> Prior | NoisePrior:
    """Read a prior from its .safetensors file and the card beside it, and refuse anything that does not fit."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: a prior is a .safetensors file with its .json card; pickled weights are refused")
    card_file = path.with_suffix(".json")
    card = read_card(_read_bytes(card_file, MAX_CARD_BYTES), card_file)
    weights = _read_bytes(path, MAX_WEIGHT_BYTES)
    found = hashlib.sha256(weights).hexdigest()
    if found != card["sha256"]:
        kind = "" if _is_complete(weights) else "truncated or not safetensors; "
        raise InputError(f"{path}: {kind}SHA-256 is {found[:12]}..., its card says {card['sha256'][:12]}...")
    try:
        tensors = parse_safetensors(weights)
    except SafetensorError as error:
        raise InputError(f"{path}: not a safetensors file ({error})") from None
    check_sizes(card, {name: tuple(t.shape) for name, t in tensors.items()}, path)
    flow = _filled(ARCHITECTURES[card["architecture"]](**card["config"]), tensors, path)
    expected = _offset(flow, card["bits"])
    if not math.isclose(card["offset"], expected, rel_tol=1e-9):
        raise InputError(f"{path}: offset {card['offset']} does not belong to {card['bits']} bits ({expected})")
    return NoisePrior(flow, card) if isinstance(flow, NoiseFlow) else Prior(flow, bits=card["bits"], card=card)


def _offset(flow: Flow | NoiseFlow, bits: int) -> float:
    # Noisy images have a density, with nothing to discretize.
    return 0.0 if isinstance(flow, NoiseFlow) else discretization_offset(flow.num_dims, bits)


def _storable(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.half() if tensor.is_floating_point() else tensor


def _filled(flow: Any, tensors: dict[str, Tensor], path: Path) -> Any:
    if not all(t.isfinite().all() for t in tensors.values() if t.is_floating_point()):
        raise InputError(f"{path}: the weights contain NaN or infinity")
    flow.load_state_dict(tensors)
    return flow.eval().requires_grad_(False)


def _read_bytes(path: Path, limit: int) -> bytes:
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"cannot read {path}: it is not a file")  # a pipe would never end
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:  # a name with a null character
        raise InputError(f"cannot read {path}: no such file") from None
    if len(content) > limit:
        raise InputError(f"{path}: more than {limit} bytes; this is no file of a prior")
    return content


def _is_complete(data: bytes) -> bool:
    """Whether the length that a safetensors header promises is there."""
    try:
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    except (struct.error, ValueError, TypeError, KeyError, OverflowError):
        return False
    return len(data) == 8 + size + end
