"""A prior: a flow, its card, and the offset that makes its density comparable.

On disk a prior is two files: `NAME.safetensors` (float16 weights, nothing executable) and `NAME.json` (the card:
architecture, data, bits, offset, licence, metrics, SHA-256 of the weights).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as dump_safetensors
from torch import Tensor

from aipo.engine import Engine, Precision, exact_float32
from aipo.errors import InputError
from aipo.files import write_atomically
from aipo.flows import ARCHITECTURES, Flow
from aipo.surrogate import Surrogate, measure_surrogate

__all__ = ["Prior", "load_prior_files", "save_prior_files"]

CARD_FORMAT = 1
SURROGATE_SAMPLES = 64
REQUIRED = (
    "format",
    "name",
    "architecture",
    "config",
    "bits",
    "offset",
    "data",
    "licence",
    "metrics",
    "sha256",
)


@dataclass(frozen=True)
class Prior:
    """A flow prior p_G with P(x) = -log p_G(x) + offset.

    The offset n * ln(2^bits) turns a density on [0, 1]^n into the likelihood of `bits`-bit data, as the paper
    reports it; it does not move any minimiser.

    Examples:
        >>> import aipo
        >>> prior = aipo.load_prior("celeba64-realnvp-small")
        >>> faces = prior.sample(1, temperature=0.7, seed=0)
        >>> bool(prior.P(faces) < prior.P(faces.flip(2)))  # upside down is less probable
        True
    """

    flow: Flow
    bits: int = 5
    card: dict[str, Any] = field(default_factory=dict)
    _engines: dict[str, tuple[object, Engine]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.card.get("name", self.flow.architecture)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.flow.image_shape

    @property
    def offset(self) -> float:
        return discretisation_offset(self.flow.num_dims, self.bits)

    def P(self, x: Tensor) -> Tensor:
        """-log p_G(x) + offset in nats, per image: (B, C, H, W) -> (B,)."""
        with exact_float32(x):
            return self.offset - self.flow.log_prob(x)

    def bits_per_dim(self, x: Tensor) -> Tensor:
        """P(x) in bits per dimension, per image (B,). `x` must be dequantised to be comparable with the literature."""
        return self.P(x) / (self.flow.num_dims * math.log(2))

    def sample(self, num: int, temperature: float = 1.0, seed: int | torch.Generator = 0) -> Tensor:
        """Images G(temperature * z): (num, C, H, W)."""
        return self.flow.sample(num, temperature, seed)

    @cached_property
    def surrogate(self) -> Surrogate:
        """The Gaussian that stands in for it: from the card, or measured on the prior's own samples."""
        weights = next(self.flow.parameters())
        entry = self.card.get("surrogate")
        if entry is None:
            entry = measure_surrogate(self.gradient, self.sample(SURROGATE_SAMPLES))
        return Surrogate.from_card(entry, self.image_shape).to(weights)

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of P at images x: (B, C, H, W)."""
        return self.engine()(x)[1]

    def engine(self, precision: Precision = "exact") -> Engine:
        """What evaluates P and its gradient for the solvers; made once, and again if the weights have changed."""
        # A parameter counts its changes in place; one that moved or was replaced is another tensor.
        weights = [(t.data_ptr(), t._version) for t in self.flow.state_dict().values()]
        kept = self._engines.get(precision)
        if kept is None or kept[0] != weights:
            kept = self._engines[precision] = (weights, Engine(self.flow, self.offset, precision))
        return kept[1]

    def to(self, *args: Any, **kwargs: Any) -> Prior:
        """Move the flow (in place, as torch modules do) to a device or dtype."""
        before = _places(self.flow)
        self.flow.to(*args, **kwargs)
        if _places(self.flow) == before:
            return self  # nothing moved: what was made for these weights stays
        self._engines.clear()
        self.__dict__.pop("surrogate", None)
        return self


def _places(flow: Flow) -> list[tuple[torch.device, torch.dtype, int]]:
    return [(t.device, t.dtype, t.data_ptr()) for t in (*flow.parameters(), *flow.buffers())]


def discretisation_offset(num_dims: int, bits: int) -> float:
    return num_dims * bits * math.log(2)


def save_prior_files(flow: Flow, card: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """Write weights (float16) to `path` (.safetensors) and the completed card beside it; returns the card.

    `card` gives name, bits, data, licence and metrics; architecture, config, offset and hash are filled in here.
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
        "offset": discretisation_offset(flow.num_dims, card["bits"]),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    missing = [key for key in REQUIRED if key not in card]
    if missing:
        raise InputError(f"the card of {path.name} lacks {', '.join(missing)}")
    write_atomically(path, weights)
    write_atomically(path.with_suffix(".json"), (json.dumps(card, indent=2) + "\n").encode())
    return card


def load_prior_files(path: str | Path) -> Prior:
    """Read a prior from its .safetensors file and the card beside it, and refuse anything that does not fit."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"{path}: a prior is a .safetensors file with its .json card; pickled weights are refused")
    card = _read_card(path.with_suffix(".json"))
    weights = _read_bytes(path)
    found = hashlib.sha256(weights).hexdigest()
    if found != card["sha256"]:
        kind = "" if _is_complete(weights) else "truncated or not safetensors; "
        raise InputError(f"{path}: {kind}SHA-256 is {found[:12]}..., its card says {card['sha256'][:12]}...")
    try:
        tensors = parse_safetensors(weights)
    except SafetensorError as error:
        raise InputError(f"{path}: not a safetensors file ({error})") from None
    try:
        flow = ARCHITECTURES[card["architecture"]](**card["config"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: its card describes no flow we know ({error})") from None
    _fill(flow, tensors, path)
    expected = discretisation_offset(flow.num_dims, card["bits"])
    if not math.isclose(card["offset"], expected, rel_tol=1e-9):
        raise InputError(f"{path}: offset {card['offset']} does not belong to {card['bits']} bits ({expected})")
    return Prior(flow.eval().requires_grad_(False), bits=card["bits"], card=card)


def _storable(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.half() if tensor.is_floating_point() else tensor


def _fill(flow: Flow, tensors: dict[str, Tensor], path: Path) -> None:
    wanted = {name: tuple(t.shape) for name, t in flow.state_dict().items()}
    given = {name: tuple(t.shape) for name, t in tensors.items()}
    if wanted != given:
        name = min(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        raise InputError(
            f"{path}: the card does not fit its weights: {name} should be {wanted.get(name)}, is {given.get(name)}"
        )
    if not all(t.isfinite().all() for t in tensors.values() if t.is_floating_point()):
        raise InputError(f"{path}: the weights contain NaN or infinity")
    flow.load_state_dict(tensors)


def _read_card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(_read_bytes(path))
    except ValueError as error:
        raise InputError(f"{path}: the card is not JSON ({error})") from None
    missing = [key for key in REQUIRED if key not in card] if isinstance(card, dict) else list(REQUIRED)
    if missing:
        raise InputError(f"{path}: the card lacks {', '.join(missing)}")
    if card["format"] != CARD_FORMAT:
        raise InputError(f"{path}: card format {card['format']} is not {CARD_FORMAT}; update aipo")
    return card


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def _is_complete(data: bytes) -> bool:
    """Whether the length that a safetensors header promises is there."""
    try:
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    except (struct.error, ValueError, TypeError, KeyError, OverflowError):
        return False
    return len(data) == 8 + size + end
