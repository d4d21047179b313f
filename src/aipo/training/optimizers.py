"""How weights are updated: AdamW, or Muon for the convolutions of a noise flow and Adam for the rest of it.

Muon replaces the momentum of a matrix by the nearest orthogonal one, so that all its directions move equally far.

Reference: K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon/
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["Muon", "make_optimizers", "orthogonalized"]

# A quintic polynomial that takes every singular value in (0, 1] near 1 when it is applied five times.
COEFFICIENTS, ITERATIONS = (3.4445, -4.7750, 2.0315), 5
MUON_RATE = 10.0  # times Adam's learning rate: an orthogonal matrix has entries of another size than Adam's signs


def make_optimizers(flow: nn.Module, kind: str, lr: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """AdamW for all weights, or Muon for the kernels and AdamW for the rest."""
    decayed: list[Tensor] = []
    free: list[Tensor] = []
    kernels: list[Tensor] = []
    for name, p in flow.named_parameters():
        # Decay only shapes networks' matrices; scales, shifts and LU factors are parts of the density itself.
        network = any(part in name for part in ("net.", "transformer.", "heads."))
        if kind == "muon" and p.ndim == 4:
            kernels.append(p)
        else:
            (decayed if p.ndim >= 2 and network and kind == "adam" else free).append(p)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
    # Rates are tensors, so that a recorded step sees them change.
    device = next(flow.parameters()).device
    adam = torch.optim.AdamW(
        [{**g, "lr": torch.tensor(lr, device=device)} for g in groups if g["params"]],
        lr=lr,
        betas=(0.9, 0.95),
        fused=True,
        capturable=device.type == "cuda",
    )
    return (
        [adam] if kind == "adam" else [adam, Muon(kernels, torch.tensor(MUON_RATE * lr, device=device), weight_decay)]
    )


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized. For kernels (O, I, h, w), taken as matrices (O, I h w).

    The momentum is kept in bfloat16: it loses nothing that matters, and halves a checkpoint. lr is a tensor ().
    """

    def __init__(self, params: Iterable[Tensor], lr: Tensor, weight_decay: float = 0.0, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            # Kernels of one shape are one batch of matrices.
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for params in by_shape.values():
                self._update(params, **{k: v for k, v in group.items() if k != "params"})

    def _update(self, params: list[Tensor], lr: Tensor, momentum: float, weight_decay: float) -> None:
        gradients = torch.stack([p.grad.flatten(1) for p in params if p.grad is not None])
        # The trainer sets found_inf, as it does for Adam, where a gradient is not finite: then nothing moves.
        bad = getattr(self, "found_inf", torch.zeros((), device=gradients.device)).bool()
        gradients = torch.where(bad, 0.0, gradients)
        state = self.state[params[0]]  # one momentum for all kernels of a shape: few large steps, not many small ones
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(gradients, dtype=torch.bfloat16)
        mean = state["momentum"].to(gradients.dtype).lerp_(gradients, 1 - momentum)
        state["momentum"].copy_(mean)
        steps = torch.where(bad, 0.0, orthogonalized(gradients.lerp(mean, momentum)))  # Nesterov's momentum
        tall = max(1.0, steps.shape[1] / steps.shape[2]) ** 0.5
        steps = steps * (lr * tall)
        torch._foreach_mul_(params, 1 - lr * weight_decay)
        torch._foreach_sub_(params, [s.view_as(p) for s, p in zip(steps, params, strict=True)])


def orthogonalized(matrices: Tensor) -> Tensor:
    """Matrices (N, rows, columns) with their singular values brought to about 1, by Newton-Schulz iterations."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.mT
    x = x / x.flatten(1).norm(dim=1).clamp(min=1e-12)[:, None, None]
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).to(matrices.dtype)
