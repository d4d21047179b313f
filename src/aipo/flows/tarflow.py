"""TarFlow: autoregressive affine flows over image patches, each conditioned by a causal transformer.

Reference: Zhai et al., "Normalizing flows are capable generative models", 2024, https://arxiv.org/abs/2412.06329

Encoding (x -> z) is parallel over patches, decoding is sequential. Three departures from the paper:
- **Coarse to fine.** The image is split into a thumbnail (one pixel a patch) and Haar details. A small RealNVP models
  the thumbnail, the transformers only the details given the whole thumbnail. In a plain TarFlow the brightness of each
  patch is predicted from the patches before it; at low temperature those predictions run away, and G(0) is no face.
- **Cells.** Inside a patch the details are again autoregressive, cell by cell from coarse to fine: a cell is the three
  Haar details of one position at one scale, and its scale and shift see the earlier cells of its own patch.
- **Mixing.** An invertible matrix between the entries of a patch follows each block, as in Glow.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aipo.errors import InputError
from aipo.flows.base import Flow, Net
from aipo.flows.layers import ActNorm, Invertible1x1, soft_clamp
from aipo.flows.multiscale import CENTER, SCALE, scale_limit
from aipo.flows.realnvp import RealNVP, ResidualNet
from aipo.transforms.color import opponent, opponent_inverse
from aipo.transforms.haar import haar, haar_inverse

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
    """Tokens (B, T, D) and context (B, T, width) -> a summary (B, T, width) of the tokens *before* each position."""

    def __init__(self, tokens: int, dims: int, width: int, head: int, layers: int):
        super().__init__()
        self.embed = nn.Linear(dims, width)
        self.start = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        self.layers = nn.ModuleList(Layer(width, head) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def compute(self, x: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
        # Position t sees the embeddings of tokens < t: the sequence is shifted by a learned start token.
        start = self.start.expand(len(x), -1, -1)
        h = torch.cat([start, self.embed(x[:, :-1]).to(start.dtype)], dim=1) + self.position + context
        for layer in self.layers:
            h = layer(h)
        return self.norm(h)

    def extend(self, previous: Tensor | None, t: int, context: Tensor, caches: list[list[Tensor]]) -> Tensor:
        """The summary (B, 1, width) for position t, given the token (B, D) at t-1 and the caches so far."""
        h = self.start.expand(len(context), -1, -1) if previous is None else self.embed(previous[:, None])
        h = h + self.position[:, t : t + 1] + context[:, t : t + 1]
        for layer, cache in zip(self.layers, caches, strict=True):
            h = layer(h, cache)
        return self.norm(h)


class Head(Net):
    """Scale and shift of one cell from the summary of earlier patches and the earlier cells of this patch."""

    def __init__(self, width: int, seen: int, outputs: int, hidden: int):
        super().__init__()
        self.hidden = nn.Linear(width + seen, hidden)
        self.out = nn.Linear(hidden, 2 * outputs)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def compute(self, summary: Tensor, seen: Tensor) -> Tensor:  # type: ignore[override]
        return self.out(F.gelu(self.hidden(torch.cat([summary, seen], dim=-1))))


class Block(nn.Module):
    """One autoregressive affine flow over tokens (B, T, D); `flip` reverses the order of tokens and of cells."""

    def __init__(
        self, tokens: int, dims: int, cells: int, width: int, head: int, layers: int, limit: float, flip: bool
    ):
        super().__init__()
        self.flip = flip
        self.limit = limit
        self.size = dims // cells
        self.transformer = CausalTransformer(tokens, dims, width, head, layers)
        self.heads = nn.ModuleList(Head(width, c * self.size, self.size, width // 2) for c in range(cells))
        self.mix = Invertible1x1(dims)

    def _order(self, x: Tensor) -> Tensor:
        return x.flip(1, 2) if self.flip else x

    def _context(self, context: Tensor) -> Tensor:
        return context.flip(1) if self.flip else context

    def _scale_and_shift(self, cell: int, summary: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        s, t = self.heads[cell](summary, x[..., : cell * self.size]).chunk(2, dim=-1)
        return soft_clamp(s, self.limit), t

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        x = self._order(x)
        summary = self.transformer(x, self._context(context))
        parameters = [self._scale_and_shift(c, summary, x) for c in range(len(self.heads))]
        s, t = (torch.cat(parts, dim=-1) for parts in zip(*parameters, strict=True))
        y = self._order((x - t) * torch.exp(-s))
        return y @ self.mix.weight().T, self.mix.log_s.sum() * x.shape[1] - s.sum(dim=(1, 2))

    def inverse(self, z: Tensor, context: Tensor) -> Tensor:
        z = self._order(torch.linalg.solve(self.mix.weight().double(), z.double().mT).mT.to(z.dtype))
        context = self._context(context)
        caches: list[list[Tensor]] = [[] for _ in self.transformer.layers]
        done: list[Tensor] = []
        for t in range(z.shape[1]):
            summary = self.transformer.extend(done[-1] if done else None, t, context, caches)[:, 0]
            token = z.new_empty(len(z), 0)
            for c in range(len(self.heads)):
                s, shift = self._scale_and_shift(c, summary, token)
                part = z[:, t, c * self.size : (c + 1) * self.size]
                token = torch.cat([token, part * s.exp() + shift], dim=-1)
            done.append(token)
        return self._order(torch.stack(done, dim=1))


def split_details(x: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """(B, C, H, W) -> thumbnail (B, C, H/p, W/p) of patch means and details (B, C(p^2-1), H/p, W/p), p = 2^levels.

    Details come in cells of 3C, coarse to fine. The map is orthonormal but for the thumbnail's factor 1/p.
    """
    low = x
    cells: list[Tensor] = []
    for level in range(levels):
        bands = haar(low)
        low, detail = bands[:, : x.shape[1]], bands[:, x.shape[1] :]
        side = 2 ** (levels - 1 - level)
        detail = F.pixel_unshuffle(detail, side).unflatten(1, (-1, side * side)).transpose(1, 2).flatten(1, 2)
        cells.insert(0, detail)
    return low / 2**levels, torch.cat(cells, dim=1)


def join_details(thumbnail: Tensor, details: Tensor, levels: int) -> Tensor:
    """The inverse of `split_details`."""
    low = thumbnail * 2**levels
    cell = 3 * thumbnail.shape[1]
    parts = details.split([cell * 4**level for level in range(levels)], dim=1)
    for level, part in enumerate(parts):
        detail = F.pixel_shuffle(part.unflatten(1, (4**level, cell)).transpose(1, 2).flatten(1, 2), 2**level)
        low = haar_inverse(torch.cat([low, detail], dim=1))
    return low


class TarFlow(Flow):
    """Autoregressive transformer flow over the details of an image, given its thumbnail.

    Arguments:
        image_shape: (C, H, W); H and W divisible by patch * 2^len(thumbnail_couplings).
        patch: side of a patch, a power of two; tokens are the (H/patch) * (W/patch) patches in raster order.
        width, head: transformer width and the size of one attention head.
        blocks, layers: autoregressive blocks, and transformer layers in each.
        thumbnail_couplings, thumbnail_hidden: the RealNVP over the thumbnail, see there.
        seed: for the initial weights.
    """

    architecture = "tarflow"

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        patch: int,
        width: int,
        head: int,
        blocks: int,
        layers: int,
        thumbnail_couplings: list[int],
        thumbnail_hidden: list[int],
        seed: int = 0,
    ):
        super().__init__(image_shape)
        channels, height, width_px = self.image_shape
        self.scales = int(math.log2(patch))
        if 2**self.scales != patch or patch < 2 or math.gcd(height, width_px) % patch:
            raise InputError(f"patch must be a power of two that divides {height} and {width_px}, got {patch}")
        if width % head:
            raise InputError(f"head must divide the width {width}, got {head}")
        self.grid = (height // patch, width_px // patch)
        cells = (patch * patch - 1) // 3
        dims = 3 * channels * cells
        self.thumbnail = RealNVP((channels, *self.grid), thumbnail_couplings, thumbnail_hidden, seed=seed)
        self.norm = ActNorm(dims)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.context_net = ResidualNet(channels, width, width // 2, blocks=2)
            tokens, limit = math.prod(self.grid), scale_limit(blocks)
            self.blocks = nn.ModuleList(
                Block(tokens, dims, cells, width, head, layers, limit, flip=bool(i % 2)) for i in range(blocks)
            )
        self.config = {
            "image_shape": list(image_shape),
            "patch": patch,
            "width": width,
            "head": head,
            "blocks": blocks,
            "layers": layers,
            "thumbnail_couplings": list(thumbnail_couplings),
            "thumbnail_hidden": list(thumbnail_hidden),
            "seed": seed,
        }

    def _context(self, thumbnail: Tensor) -> Tensor:
        """What each token may know of the thumbnail: (B, T, width)."""
        return self.context_net((thumbnail - CENTER) * SCALE).flatten(2).transpose(1, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        thumbnail, details = split_details(opponent(x), self.scales)
        thumbnail = opponent_inverse(thumbnail)
        z, log_det = self.thumbnail(thumbnail)
        # Shrinking the thumbnail by the patch size, then the scale of the details.
        log_det = log_det - z.shape[1] * self.scales * math.log(2) + details[0].numel() * math.log(SCALE)
        h, change = self.norm(details * SCALE)
        log_det = log_det + change
        h, context = h.flatten(2).transpose(1, 2), self._context(thumbnail)
        for block in self.blocks:
            h, change = block(h, context)
            log_det = log_det + change
        return torch.cat([z, h.flatten(1)], dim=1), log_det

    def decode(self, z: Tensor) -> Tensor:
        of_thumbnail = self.thumbnail.num_dims
        thumbnail = self.thumbnail.decode(z[:, :of_thumbnail])
        h, context = z[:, of_thumbnail:].unflatten(1, (math.prod(self.grid), -1)), self._context(thumbnail)
        for block in reversed(self.blocks):
            h = block.inverse(h, context)  # type: ignore[operator]
        h = self.norm.inverse(h.transpose(1, 2).unflatten(2, self.grid))
        return opponent_inverse(join_details(opponent(thumbnail), h / SCALE, self.scales))
