"""A prior: a flow, its card, and the offset that makes its density comparable."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from aipo.engine.engine import Engine, Precision, exact_float32
from aipo.errors import InputError
from aipo.flows import Flow
from aipo.priors.surrogate import Surrogate, measure_surrogate

__all__ = ["SURROGATE_SAMPLES", "Prior", "chosen_device", "discretization_offset", "fingerprint", "move"]

SURROGATE_SAMPLES = 64


@dataclass(frozen=True)
class Prior:
    """A flow prior p_G with P(x) = -log p_G(x) + offset.

    The offset n * ln(2^bits) turns a density on [0, 1]^n into the likelihood of `bits`-bit data, as the paper
    reports it; it does not move any minimizer.

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
    def weights(self) -> Tensor:
        """One of its tensors: images must be of this dtype and on this device."""
        return next(self.flow.parameters())

    @property
    def offset(self) -> float:
        return discretization_offset(self.flow.num_dims, self.bits)

    def P(self, x: Tensor) -> Tensor:
        """-log p_G(x) + offset in nats, per image: (B, C, H, W) -> (B,)."""
        with exact_float32(x):
            return self.offset - self.flow.log_prob(x)

    def bits_per_dim(self, x: Tensor) -> Tensor:
        """P(x) in bits per dimension, per image (B,). `x` must be dequantized to be comparable with the literature."""
        return self.P(x) / (self.flow.num_dims * math.log(2))

    def sample(self, num: int, temperature: float = 1.0, seed: int | torch.Generator = 0) -> Tensor:
        """Images G(temperature * z): (num, C, H, W)."""
        return self.flow.sample(num, temperature, seed)

    @torch.no_grad()
    def center(self) -> Tensor:
        """G(0), the image in the middle of the latent space: (1, C, H, W)."""
        return self.flow.decode(self.weights.new_zeros(1, self.flow.num_dims))

    def for_images(self, image_shape: tuple[int, int, int]) -> Prior:
        """Itself, if it is for images of this shape (C, H, W); `InputError` otherwise."""
        if image_shape != self.image_shape:
            raise InputError(f"the prior {self.name} is for images {self.image_shape}, the operator for {image_shape}")
        return self

    def fingerprint(self) -> str:
        """A hash of all that decides its values."""
        return fingerprint(self.flow, self.bits)

    def denoise(self, y: Tensor, sigma: float | Tensor | None = None, spin: int = 1) -> Tensor:
        """Only a prior of every noise level can (`aipo.priors.NoisePrior`)."""
        raise self._knows_no_noise("denoise")

    def estimate_sigma(self, y: Tensor) -> Tensor:
        """Only a prior of every noise level can (`aipo.priors.NoisePrior`)."""
        raise self._knows_no_noise("estimate_sigma")

    def at(self, s: float) -> Prior:
        """Only a prior of every noise level can (`aipo.priors.NoisePrior`)."""
        raise self._knows_no_noise("at")

    def _knows_no_noise(self, what: str) -> InputError:
        return InputError(f"{what} needs a prior that knows every noise level, such as photo; {self.name} knows none")

    @cached_property
    def surrogate(self) -> Surrogate:
        """The Gaussian that stands in for it: from the card, or measured on the prior's own samples."""
        entry = self.card.get("surrogate")
        if entry is None:
            entry = measure_surrogate(self.gradient, self.sample(SURROGATE_SAMPLES))
        return Surrogate.from_card(entry, self.image_shape).to(self.weights)

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
        move(self.flow, *args, **kwargs)
        if _places(self.flow) == before:
            return self  # nothing moved: what was made for these weights stays
        self._engines.clear()
        self.__dict__.pop("surrogate", None)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # What was made for the weights is made again where they arrive; it cannot travel.
        return {**{k: v for k, v in self.__dict__.items() if k != "surrogate"}, "_engines": {}}


def chosen_device(name: str) -> str:
    """What `--device` stands for: auto is a GPU if there is one. `InputError` if it is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d{1,4})?", name):
        raise InputError(f"--device is {name}; it must be auto, cpu, cuda, or one GPU of several such as cuda:1")
    if name != "cpu" and int(name.partition(":")[2] or 0) >= torch.cuda.device_count():
        raise InputError(f"there is no GPU here for --device {name}; leave it out, or use --device cpu")
    return name


def move(flow: nn.Module, *args: Any, **kwargs: Any) -> None:
    """`flow.to(...)`; `InputError` if there is no such device."""
    try:
        flow.to(*args, **kwargs)
    except (RuntimeError, AssertionError) as error:  # torch's ways to say that there is no GPU
        reason = (str(error).splitlines() or ["not possible"])[0]
        raise InputError(f"cannot move the prior to {', '.join(map(str, args))}: {reason}") from None


def _places(flow: Flow) -> list[tuple[torch.device, torch.dtype, int]]:
    return [(t.device, t.dtype, t.data_ptr()) for t in (*flow.parameters(), *flow.buffers())]


def fingerprint(flow: nn.Module, *more: object) -> str:
    """A hash of a flow's weights and sizes, and of what else there is to say."""
    content = hashlib.sha256(repr((type(flow).__name__, flow.config, *more)).encode())
    for tensor in (*flow.parameters(), *flow.buffers()):
        content.update(tensor.detach().cpu().numpy().tobytes())
    return content.hexdigest()


def discretization_offset(num_dims: int, bits: int) -> float:
    return num_dims * bits * math.log(2)
