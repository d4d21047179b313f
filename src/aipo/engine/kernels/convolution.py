"""A frozen convolution of channels-last images, and its transpose: the two things a gradient in x needs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GROUP", "Convolution"]

# Tensor cores read channels in groups of eight; other counts would be padded by a copy at every call.
GROUP = 8


class Convolution:
    """x (B, H, W, I) -> (B, H, W, O), with zero padding that keeps H and W.

    Arguments:
        weight, bias: of the layer, (O, I, 1, 1) or (O, I, 3, 3), and (O,) or None; they are copied, so later changes
            are not seen.
        dtype: of the weights and of the computation.
        row_scale: (O,) factors for the outputs, folded into the weights and the bias.

    In half precision the inputs and outputs of a layer are padded to full groups of channels: `inputs` and `outputs`
    say how many there are, and what is beyond those of the layer is zero.

    `bias` is None where the convolution adds it itself, at no cost. On a GPU that would be a pass over the memory of
    its own, so there the bias is left to whatever reads the output next.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, row_scale: Tensor | None = None):
        weight = weight.detach()
        bias = None if bias is None else bias.detach()
        if row_scale is not None:
            weight = weight * row_scale.view(-1, 1, 1, 1)
            bias = None if bias is None else bias * row_scale
        if dtype.itemsize < 4:
            more = [-size % GROUP for size in weight.shape[:2]]
            weight = F.pad(weight, (0, 0, 0, 0, 0, more[1], 0, more[0]))
            bias = None if bias is None else F.pad(bias, (0, more[0]))
        self.outputs, self.inputs, side, _ = weight.shape
        self.padding = side // 2
        self.weight = weight.to(dtype, memory_format=torch.channels_last)
        # The transpose of a convolution is a convolution with the mirrored kernel, and runs faster as one.
        mirrored = weight.transpose(0, 1).flip(2, 3)
        self.mirrored = mirrored.to(dtype, memory_format=torch.channels_last)
        self.bias = bias.float() if bias is not None and weight.is_cuda else None
        self._own_bias = None if bias is None or weight.is_cuda else bias.to(dtype)
        # What oneDNN made of both kernels, and for which size of images: kept until another size comes.
        self._packed: tuple[torch.Size, Tensor, Tensor] | None = None

    @classmethod
    def of(cls, conv: nn.Conv2d, dtype: torch.dtype, row_scale: Tensor | None = None) -> Convolution:
        """The layer of a network."""
        return cls(conv.weight, conv.bias, dtype, row_scale)

    def __call__(self, x: Tensor) -> Tensor:
        return self._convolve(x, 0, self._own_bias)

    def transpose(self, g: Tensor) -> Tensor:
        """(B, H, W, O) -> (B, H, W, I)."""
        return self._convolve(g, 1, None)

    def _convolve(self, x: Tensor, which: int, bias: Tensor | None) -> Tensor:
        image = x.permute(0, 3, 1, 2)
        if PACKING and x.device.type == "cpu" and x.dtype == torch.float32:
            place, ones = [self.padding] * 2, [1, 1]
            weight = self._pack(x.shape[:3])[which]
            out = torch.ops.mkldnn._convolution_pointwise(image, weight, bias, place, ones, ones, 1, "none", [], "")
        else:
            out = F.conv2d(image, (self.weight, self.mirrored)[which], bias, padding=self.padding)
        return out.permute(0, 2, 3, 1)

    def _pack(self, size: torch.Size) -> tuple[Tensor, Tensor]:
        """Both kernels in the order in which oneDNN reads them: 10% faster than reordering them at every call."""
        if self._packed is None or self._packed[0] != size:
            batch, height, width = size

            def reorder(weight: Tensor) -> Tensor:
                shape, place = [batch, weight.shape[1], height, width], [self.padding] * 2
                return torch.ops.mkldnn._reorder_convolution_weight(weight, place, [1, 1], [1, 1], 1, shape)

            self._packed = (size, reorder(self.weight), reorder(self.mirrored))
        return self._packed[1:]


def _can_pack() -> bool:
    """Whether this torch has the packed convolutions of oneDNN: they are there for torch.compile, not documented."""
    wanted = ("_reorder_convolution_weight", "_convolution_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in wanted)


PACKING = _can_pack()
