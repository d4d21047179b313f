"""Find faces in a photograph: a box, and five points each (eyes, tip of the nose, corners of the mouth).

The method is MTCNN (Zhang, Zhang, Li, Qiao: "Joint Face Detection and Alignment Using Multi-task Cascaded Convolutional
Networks", 2016): a small network proposes boxes at every size, a second one sorts them, a third one places the points.
The weights, `detector.safetensors`, are those of the package `mtcnn` by Iván de Paz Centeno (MIT license, in
LICENSE-MTCNN.txt; converted by scripts/make_face_detector.py); the networks are written anew for PyTorch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load as parse_safetensors
from torch import Tensor, nn
from torch.nn import functional as F

from aipo.errors import InputError

__all__ = ["Face", "find_faces"]

WEIGHTS = Path(__file__).with_suffix(".safetensors")
WEIGHTS_SHA256 = "43b0dcecc3ac0f33a4709fe48e5947df4a21ce5eb08fe53f8c8811a7bd3bfb43"
LONGEST_SIDE = 640  # the search is made on an image of this size; a face of 24 pixels there is found
SMALLEST_FACE = 24
PYRAMID = 0.709  # from one size to the next: half the area
PROPOSAL = 12  # pixels on the side of what the first network looks at, which moves by 2
THRESHOLDS = (0.6, 0.7, 0.8)  # of the three networks, for a face
MOST_PROPOSALS = 300  # at each size; a noisy image has thousands, and faces are among the best


@dataclass(frozen=True)
class Face:
    """One face, in pixels of the image: x to the right, y down, (0, 0) being the middle of the first pixel.

    Attributes:
        box: (x0, y0, x1, y1).
        points: (5, 2): the eye on the left, the eye on the right, the nose, the left and right corner of the mouth.
        score: how sure the detector is, up to 1.
    """

    box: tuple[float, float, float, float]
    points: Tensor
    score: float


@torch.no_grad()
def find_faces(image: Tensor) -> list[Face]:
    """The faces in an image (3, H, W) in [0,1], largest first."""
    propose, refine, place = _networks()
    scale = min(1.0, LONGEST_SIDE / max(image.shape[1:]))
    # (v - 127.5) / 128 of 8-bit levels, as the networks were trained.
    small = (_resized(image.float().clamp(0, 1)[None], scale)[0] * 255 - 127.5) / 128
    boxes = _proposals(propose, small)
    boxes, _ = _refined(refine, small, boxes, 24, THRESHOLDS[1])
    boxes, places = _refined(place, small, boxes, 48, THRESHOLDS[2])
    kept = _suppress(boxes, 0.7, of_smaller=True)
    boxes, places = boxes[kept], places[kept]
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    # Edges of pixels here, their middles outside; the small image has `scale` of them.
    return [
        Face(tuple((boxes[i, :4] / scale - 0.5).tolist()), places[i] / scale - 0.5, boxes[i, 4].item())
        for i in area.argsort(descending=True).tolist()
    ]


class _Cascade(nn.Module):
    """Convolutions with PReLU and pooling, then a dense layer if there is one, then the heads."""

    def __init__(self, weights: list[Tensor], pools: tuple[int, ...], dense: bool, heads: int):
        super().__init__()
        self.pools, self.dense = pools, dense
        self.weights = nn.ParameterList(nn.Parameter(w, requires_grad=False) for w in weights)
        self.heads = heads

    def forward(self, x: Tensor) -> list[Tensor]:
        weights = iter(self.weights)
        for pool in self.pools:
            # Stored as (height, width, in, out).
            x = F.conv2d(x, next(weights).permute(3, 2, 0, 1), next(weights))
            x = F.prelu(x, next(weights).flatten())
            x = F.max_pool2d(x, pool, 2, ceil_mode=True) if pool else x
        if self.dense:
            x = x.permute(0, 3, 2, 1).flatten(1)  # column by column, channels last: the order of the stored matrix
            x = F.prelu(x @ next(weights) + next(weights), next(weights))
            return [x @ next(weights) + next(weights) for _ in range(self.heads)]
        return [F.conv2d(x, next(weights).permute(3, 2, 0, 1), next(weights)) for _ in range(self.heads)]


@cache
def _networks() -> tuple[_Cascade, _Cascade, _Cascade]:
    stored = parse_safetensors(_checked_weights(WEIGHTS))
    weights = [[stored[key] for key in sorted(stored) if key.startswith(name)] for name in ("pnet", "rnet", "onet")]
    return (
        _Cascade(weights[0], (2, 0, 0), dense=False, heads=2),
        _Cascade(weights[1], (3, 3, 0), dense=True, heads=2),
        _Cascade(weights[2], (3, 3, 2, 0), dense=True, heads=3),
    )


def _checked_weights(path: Path) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != WEIGHTS_SHA256:
        raise InputError(f"{path}: these are not the weights of the face detector; install aipo again")
    return content


def _proposals(network: _Cascade, image: Tensor) -> Tensor:
    """Square boxes (N, 5) with their scores, best first, from all sizes of the image."""
    found = []
    scale = PROPOSAL / SMALLEST_FACE
    while min(image.shape[1:]) * scale >= PROPOSAL:
        offsets, logits = network(_resized(image[None], scale))
        score = logits.softmax(1)[0, 1]
        rows, columns = torch.nonzero(score >= THRESHOLDS[0], as_tuple=True)
        corner = torch.stack([columns, rows], dim=1) * 2.0
        boxes = torch.cat([corner, corner + PROPOSAL], dim=1) / scale
        boxes = torch.cat([boxes + offsets[0, :, rows, columns].T * PROPOSAL / scale, score[rows, columns, None]], 1)
        found.append(boxes[_suppress(boxes, 0.5)])
        scale *= PYRAMID
    boxes = torch.cat([torch.empty(0, 5), *found])
    return _squared(boxes[_suppress(boxes, 0.7)])


def _refined(network: _Cascade, image: Tensor, boxes: Tensor, size: int, threshold: float) -> tuple[Tensor, Tensor]:
    """The boxes that the network takes for faces, moved as it says, and the five points of each (N, 5, 2)."""
    if not len(boxes):
        return boxes, torch.empty(0, 5, 2)
    offsets, *points, logits = network(torch.cat([_cut(image, box, size) for box in boxes]))
    score = logits.softmax(1)[:, 1]
    corner, side = boxes[:, :2], (boxes[:, 2:4] - boxes[:, :2])
    moved = torch.cat([boxes[:, :4] + offsets * side.repeat(1, 2), score[:, None]], dim=1)
    places = torch.zeros(len(boxes), 5, 2)
    if points:
        # Five x, then five y, as shares of the box.
        places = corner[:, None] + points[0].view(-1, 2, 5).transpose(1, 2) * side[:, None]
    kept = torch.nonzero(score >= threshold)[:, 0]
    moved, places = moved[kept], places[kept]
    if points:
        return moved, places
    kept = _suppress(moved, 0.7)
    return _squared(moved[kept]), places[kept]


def _cut(image: Tensor, box: Tensor, size: int) -> Tensor:
    """The part of the image in a box, (1, 3, size, size); 0, which is mid-gray here, where it lies outside."""
    _, height, width = image.shape
    x0, y0, x1, y1 = (round(v) for v in box[:4].tolist())
    x1, y1 = max(x1, x0 + 1), max(y1, y0 + 1)
    inside = image[:, max(y0, 0) : max(y1, 0), max(x0, 0) : max(x1, 0)]
    pad = (max(-x0, 0), max(x1 - width, 0), max(-y0, 0), max(y1 - height, 0))
    part = F.pad(inside, pad) if inside.numel() else image.new_zeros(3, 1, 1)
    return F.interpolate(part[None], (size, size), mode="bilinear", antialias=True)


def _resized(image: Tensor, scale: float) -> Tensor:
    if scale == 1:
        return image
    size = [max(1, round(side * scale)) for side in image.shape[2:]]
    return F.interpolate(image, size, mode="bilinear", antialias=True)


def _squared(boxes: Tensor) -> Tensor:
    """Each box grown to a square around the same middle."""
    middle = (boxes[:, :2] + boxes[:, 2:4]) / 2
    half = (boxes[:, 2:4] - boxes[:, :2]).amax(1, keepdim=True) / 2
    return torch.cat([middle - half, middle + half, boxes[:, 4:]], dim=1)


def _suppress(boxes: Tensor, most: float, of_smaller: bool = False) -> Tensor:
    """Which boxes to keep, best first: none that overlaps a better one by more than `most`.

    The overlap is the common area as a share of that of both together, or of the smaller one.
    """
    order = boxes[:, 4].argsort(descending=True)[:MOST_PROPOSALS]
    kept = []
    while len(order):
        best, rest = order[0], order[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[rest, :2])
        high = torch.minimum(boxes[best, 2:4], boxes[rest, 2:4])
        common = (high - low).clamp(min=0).prod(1)
        areas = [(boxes[i, 2:4] - boxes[i, :2]).prod(-1) for i in (best, rest)]
        whole = torch.minimum(areas[0], areas[1]) if of_smaller else areas[0] + areas[1] - common
        order = rest[common <= most * whole]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.int64)
