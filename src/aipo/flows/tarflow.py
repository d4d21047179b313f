"""TarFlow: autoregressive affine flows over image patches, each conditioned by a causal transformer.

Reference: Zhai et al., "Normalizing flows are capable generative models", 2024, https://arxiv.org/abs/2412.06329

Encoding (x -> z) is parallel over patches, decoding is sequential. Two departures from the paper:
- a patch is written in Haar coefficients, normalised per coefficient;
- inside a patch the coefficients are again autoregressive, in `groups`: group g is conditioned on the transformer's
  summary of the earlier patches *and* on groups 0..g-1 of its own patch. With groups=1 it is the paper's block, in
  which the entries of a patch never see each other directly.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aipo.errors import InputError
from aipo.flows.base import Flow, Net
from aipo.flows.layers import ActNorm, haar, haar_inverse, soft_clamp
from aipo.flows.multiscale import CENTRE, LOG_SCALE_LIMIT, SCALE

__all__ = ["TarFlow"]


class Attention(nn.Module):
    """Causal multi-head self-attention; with a cache of past keys and values it extends one token at a time."""

    def __init__(self, width: int, head: int):
        super().__init__()
        self.head = head
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, h: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        q, k, v = self.qkv(self.norm(h)).unflatten(-1, (3, -1, self.head)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
            cache[:] = [k, v]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.out(attended.transpose(1, 2).flatten(2))


class Feedforward(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.norm(h))))


class Layer(nn.Module):
    def __init__(self, width: int, head: int):
        super().__init__()
        self.attention = Attention(width, head)
        self.feedforward = Feedforward(width)

    def forward(self, h: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        h = h + self.attention(h, cache)
        return h + self.feedforward(h)


class CausalTransformer(Net):
    """Tokens (B, T, D) -> a summary (B, T, width) of the tokens *before* each position."""

    def __init__(self, tokens: int, dims: int, width: int, head: int, layers: int):
        super().__init__()
        self.embed = nn.Linear(dims, width)
        self.start = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        self.layers = nn.ModuleList(Layer(width, head) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def compute(self, x: Tensor) -> Tensor:  # type: ignore[override]
        # Position t sees the embeddings of tokens < t: the sequence is shifted by a learned start token.
        start = self.start.expand(len(x), -1, -1)
        h = torch.cat([start, self.embed(x[:, :-1]).to(start.dtype)], dim=1) + self.position
        for layer in self.layers:
            h = layer(h)
        return self.norm(h)

    def extend(self, previous: Tensor | None, t: int, batch: int, caches: list[list[Tensor]]) -> Tensor:
        """The summary (B, 1, width) for position t, given the token (B, D) at t-1 and the caches so far."""
        h = self.start.expand(batch, -1, -1) if previous is None else self.embed(previous[:, None])
        h = h + self.position[:, t : t + 1]
        for layer, cache in zip(self.layers, caches, strict=True):
            h = layer(h, cache)
        return self.norm(h)


class Head(Net):
    """Scale and shift of one group from the summary of earlier patches and the earlier groups of this patch."""

    def __init__(self, width: int, seen: int, outputs: int, hidden: int):
        super().__init__()
        self.hidden = nn.Linear(width + seen, hidden)
        self.out = nn.Linear(hidden, 2 * outputs)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def compute(self, summary: Tensor, seen: Tensor) -> Tensor:  # type: ignore[override]
        return self.out(F.gelu(self.hidden(torch.cat([summary, seen], dim=-1))))


class Block(nn.Module):
    """One autoregressive affine flow over tokens (B, T, D); `flip` reverses the order of tokens and of groups."""

    def __init__(self, tokens: int, dims: int, width: int, head: int, layers: int, groups: int, flip: bool):
        super().__init__()
        self.flip = flip
        self.size = dims // groups
        self.transformer = CausalTransformer(tokens, dims, width, head, layers)
        self.heads = nn.ModuleList(Head(width, g * self.size, self.size, width // 2) for g in range(groups))

    def _order(self, x: Tensor) -> Tensor:
        return x.flip(1, 2) if self.flip else x

    def _scale_and_shift(self, group: int, summary: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        s, t = self.heads[group](summary, x[..., : group * self.size]).chunk(2, dim=-1)
        return soft_clamp(s, LOG_SCALE_LIMIT), t

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self._order(x)
        summary = self.transformer(x)
        parameters = [self._scale_and_shift(g, summary, x) for g in range(len(self.heads))]
        s, t = (torch.cat(parts, dim=-1) for parts in zip(*parameters, strict=True))
        return self._order((x - t) * torch.exp(-s)), -s.sum(dim=(1, 2))

    def inverse(self, z: Tensor) -> Tensor:
        z = self._order(z)
        batch, tokens, _ = z.shape
        caches: list[list[Tensor]] = [[] for _ in self.transformer.layers]
        done: list[Tensor] = []
        for t in range(tokens):
            summary = self.transformer.extend(done[-1] if done else None, t, batch, caches)[:, 0]
            token = z.new_empty(batch, 0)
            for g in range(len(self.heads)):
                s, shift = self._scale_and_shift(g, summary, token)
                part = z[:, t, g * self.size : (g + 1) * self.size]
                token = torch.cat([token, part * s.exp() + shift], dim=-1)
            done.append(token)
        return self._order(torch.stack(done, dim=1))


class TarFlow(Flow):
    """Autoregressive transformer flow.

    Arguments:
        image_shape: (C, H, W); H and W divisible by patch.
        patch: side of a patch, a power of two; tokens are the (H/patch) * (W/patch) patches in raster order.
        width, head: transformer width and the size of one attention head.
        blocks, layers: autoregressive blocks, and transformer layers in each.
        groups: autoregressive groups inside a patch (see the module's docstring).
        seed: for the initial weights.
    """

    architecture = "tarflow"

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        patch: int = 4,
        width: int = 256,
        head: int = 64,
        blocks: int = 6,
        layers: int = 3,
        groups: int = 4,
        seed: int = 0,
    ):
        super().__init__(image_shape)
        channels, height, width_px = self.image_shape
        self.squeezes = int(math.log2(patch))
        dims = channels * patch * patch
        if 2**self.squeezes != patch or math.gcd(height, width_px) % patch:
            raise InputError(f"patch must be a power of two that divides {height} and {width_px}, got {patch}")
        if dims % groups or width % head:
            raise InputError(f"groups must divide {dims} and head must divide {width}, got {groups} and {head}")
        self.grid = (dims, height // patch, width_px // patch)
        tokens = self.grid[1] * self.grid[2]
        self.norm = ActNorm(dims)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.blocks = nn.ModuleList(
                Block(tokens, dims, width, head, layers, groups, flip=bool(i % 2)) for i in range(blocks)
            )
        self.config = {
            "image_shape": list(image_shape),
            "patch": patch,
            "width": width,
            "head": head,
            "blocks": blocks,
            "layers": layers,
            "groups": groups,
            "seed": seed,
        }

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = (x - CENTRE) * SCALE
        for _ in range(self.squeezes):
            h = haar(h)
        h, log_det = self.norm(h)
        h = h.flatten(2).transpose(1, 2)
        log_det = log_det + x.new_full((len(x),), self.num_dims * math.log(SCALE))
        for block in self.blocks:
            h, change = block(h)
            log_det = log_det + change
        return h.flatten(1), log_det

    def decode(self, z: Tensor) -> Tensor:
        dims, rows, columns = self.grid
        h = z.view(len(z), rows * columns, dims)
        for block in reversed(self.blocks):
            h = block.inverse(h)  # type: ignore[operator]
        h = self.norm.inverse(h.transpose(1, 2).unflatten(2, (rows, columns)))
        for _ in range(self.squeezes):
            h = haar_inverse(h)
        return h / SCALE + CENTRE
