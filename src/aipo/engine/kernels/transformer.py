"""Log-density and gradient of a TarFlow, with everything folded that does not depend on the image.

The gains and shifts of the layer norms go into the matrices that follow them, the heads of all cells become one
hidden and one output product (with zeros where a head must not look), and the thumbnail's RealNVP and the context
network have their hand-written reverse passes. Only the transformers themselves use autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aipo.engine.kernels.convolution import GROUP
from aipo.engine.kernels.elementwise import padded, shrinking
from aipo.engine.kernels.frozen import FrozenMultiScale
from aipo.engine.kernels.nets import freeze_net
from aipo.flows.multiscale import CENTER, SCALE
from aipo.flows.tarflow import TarFlow, split_details
from aipo.transforms.color import opponent, opponent_inverse

__all__ = ["FrozenTarFlow"]


class FrozenTarFlow:
    """x (B, C, H, W) -> log p(x) (B,) and its gradient (B, C, H, W).

    Arguments:
        flow: its weights are copied; later changes of it are not seen.
        dtype: of the transformers, heads and convolutional networks; all else is in the flow's own.
        ops: the elementwise work, `aipo.kernels.elementwise` or `aipo.kernels.fused`.
        compiled: compile the transformers: half a minute at the first call, once for all of them.
    """

    def __init__(self, flow: TarFlow, dtype: torch.dtype, ops: ModuleType, compiled: bool = False):
        like = next(flow.parameters())
        self.scales, self.dtype = flow.scales, dtype
        self.thumbnail = FrozenMultiScale(flow.thumbnail, dtype, ops)
        blocks: list[Any] = list(flow.blocks)
        first = blocks[0].transformer
        self.context_net = freeze_net(flow.context_net, dtype, like.new_ones(first.norm.weight.numel()), ops)
        self.norm_shift = flow.norm.shift.detach().clone()
        self.norm_scale = flow.norm.log_scale.detach().exp()
        self.blocks = [fold_block(block, dtype) for block in blocks]
        self.flips = [block.flip for block in blocks]
        self.layers, self.limit = len(first.layers), blocks[0].limit
        self.head = first.layers[0].attention.head
        tokens, dims = math.prod(flow.grid), blocks[0].mix.log_s.numel()
        self.run_block: Callable[..., tuple[Tensor, Tensor]] = _compiled_for_any_batch if compiled else run_block
        self.constant = (
            -flow.thumbnail.num_dims * self.scales * math.log(2)
            + tokens * dims * (math.log(SCALE) - 0.5 * math.log(2 * math.pi))
            + tokens * (flow.norm.log_scale.double().sum() + sum(b.mix.log_s.double().sum() for b in blocks)).item()
        )

    @torch.no_grad()
    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            thumbnail, details = split_details(opponent(x), self.scales)
            thumbnail = opponent_inverse(thumbnail)
            h = ((details * SCALE + self.norm_shift) * self.norm_scale).flatten(2).transpose(1, 2)
        value, g_thumbnail = self.thumbnail(thumbnail.detach())
        grid = thumbnail.shape[2:]
        seen = ((thumbnail.detach() - CENTER) * SCALE).permute(0, 2, 3, 1)
        context, saved = self.context_net.forward(padded(seen.contiguous().to(self.dtype), self.context_net.inputs))
        if self.context_net.bias is not None:
            context = (context + self.context_net.bias).to(self.dtype)
        shrink = shrinking(self.dtype)
        with torch.enable_grad():
            tokens = h.detach().contiguous().requires_grad_()
            context = context.flatten(1, 2).requires_grad_()
            z, log_det = self._transform(tokens, context)
            of_tokens = log_det - 0.5 * z.square().sum((1, 2))
            g_tokens, g_context = torch.autograd.grad(of_tokens.sum() / shrink, (tokens, context))
        g_seen = self.context_net.backward(g_context.unflatten(1, grid).contiguous(), saved)[..., : seen.shape[-1]]
        g_thumbnail = g_thumbnail + SCALE * shrink * g_seen.permute(0, 3, 1, 2)
        (g,) = torch.autograd.grad((thumbnail, h), x, (g_thumbnail, g_tokens * shrink))
        return value + of_tokens.detach() + self.constant, g

    def _transform(self, h: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        log_det = h.new_zeros(len(h))
        backwards = context.flip(1)
        for weights, flip in zip(self.blocks, self.flips, strict=True):
            h = h.flip(1, 2) if flip else h
            seen = backwards if flip else context
            h, change = self.run_block(h, seen, weights, self.layers, self.head, self.limit)
            h = h.flip(1) if flip else h
            log_det = log_det + change
        return h, log_det


def run_block(
    x: Tensor, context: Tensor, weights: dict[str, Tensor], layers: int, head: int, limit: float
) -> tuple[Tensor, Tensor]:
    """Tokens (B, T, D), in the order of the block, to those after it, and minus the sum of the log-scales per image."""
    w, width = weights, context.shape[-1]
    # Tensor cores want rows of a multiple of eight numbers.
    x_low = F.pad(x, (0, w["embed"].shape[0] - x.shape[-1])).to(context.dtype)
    # Position t sees the embeddings of the tokens before it.
    h = F.pad(x_low[:, :-1] @ w["embed"], (0, 0, 1, 0)) + w["base"] + context
    for i in range(layers):
        normed = F.layer_norm(h, (width,))
        qkv = F.linear(normed, w[f"qkv{i}"], w[f"qkv_bias{i}"]).unflatten(-1, (3, -1, head)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        h = h + F.linear(attended.transpose(1, 2).flatten(2), w[f"out{i}"], w[f"out_bias{i}"])
        normed = F.layer_norm(h, (width,))
        h = h + F.linear(F.gelu(F.linear(normed, w[f"up{i}"], w[f"up_bias{i}"])), w[f"down{i}"], w[f"down_bias{i}"])
    hidden = F.linear(F.layer_norm(h, (width,)), w["hidden"], w["hidden_bias"]) + x_low @ w["hidden_seen"]
    s, t = F.linear(F.gelu(hidden), w["heads"], w["heads_bias"]).to(x.dtype).chunk(2, dim=-1)
    s, t = limit * torch.tanh(s[..., : x.shape[-1]]), t[..., : x.shape[-1]]
    return ((x - t) * torch.exp(-s)) @ w["mix"], -s.sum((1, 2))


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(run_block)


def _compiled_for_any_batch(x: Tensor, context: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """`run_block`, compiled once for all blocks and for batches of any size."""
    for tensor in (x, context):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return _compiled()(x, context, *rest)


@torch.no_grad()
def fold_block(block: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of `run_block`, from a `Block` of the flow."""
    net = block.transformer
    folded: dict[str, Tensor] = {"embed": net.embed.weight.T}
    start = torch.cat([net.start, net.embed.bias.expand(1, net.position.shape[1] - 1, -1)], dim=1)
    folded["base"] = start + net.position

    def after_norm(norm: nn.LayerNorm, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return weight * norm.weight, bias + weight @ norm.bias

    for i, layer in enumerate(net.layers):
        attention, feedforward = layer.attention, layer.feedforward
        qkv, up = attention.qkv, feedforward.up
        folded[f"qkv{i}"], folded[f"qkv_bias{i}"] = after_norm(attention.norm, qkv.weight, qkv.bias)
        folded[f"up{i}"], folded[f"up_bias{i}"] = after_norm(feedforward.norm, up.weight, up.bias)
        for name, linear in (("out", attention.out), ("down", feedforward.down)):
            folded[f"{name}{i}"], folded[f"{name}_bias{i}"] = linear.weight, linear.bias
    width, dims = net.norm.weight.numel(), net.embed.in_features
    hidden = [head.hidden for head in block.heads]
    summary, bias = torch.cat([m.weight[:, :width] for m in hidden]), torch.cat([m.bias for m in hidden])
    folded["hidden"], folded["hidden_bias"] = after_norm(net.norm, summary, bias)
    # A head sees only the cells before its own: the columns of all others are zero.
    seen = [F.pad(m.weight[:, width:], (0, dims - (m.in_features - width))) for m in hidden]
    folded["hidden_seen"] = torch.cat(seen).T
    # All log-scales first, then all shifts, as one matrix with a block for each head.
    parts = [head.out.weight.chunk(2) for head in block.heads]
    biases = [head.out.bias.chunk(2) for head in block.heads]
    scale, shift = (torch.block_diag(*(part[i] for part in parts)) for i in range(2))
    scale_bias, shift_bias = (torch.cat([part[i] for part in biases]) for i in range(2))
    more = -dims % GROUP if dtype.itemsize < 4 else 0
    folded["heads"] = torch.cat([F.pad(scale / block.limit, (0, 0, 0, more)), F.pad(shift, (0, 0, 0, more))])
    folded["heads_bias"] = torch.cat([F.pad(scale_bias / block.limit, (0, more)), F.pad(shift_bias, (0, more))])
    for name in ("embed", "hidden_seen"):
        folded[name] = F.pad(folded[name], (0, 0, 0, more))
    folded = {name: tensor.detach().to(dtype).contiguous() for name, tensor in folded.items()}
    mix = block.mix.weight()
    # The tokens are turned back before they are mixed: a flipped block mixes its entries in reverse order.
    mix = mix.flip(1) if block.flip else mix
    folded["mix"] = mix.T.contiguous()
    return folded
