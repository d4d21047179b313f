"""Forward operators f of y = f(x) + e. Names follow deepinv: `A`, `A_adjoint`, `A_dagger`."""

from .base import Operator
from .blur import Blur
from .compressed_sensing import CompressedSensing
from .denoising import Denoising
from .fourier_subsampling import FourierSubsampling
from .grayscale import Grayscale
from .inpainting import Inpainting
from .linear import LinearOperator
from .nonlinear import NonlinearOperator
from .saturation import Saturation
from .super_resolution import SuperResolution

__all__ = [
    "Blur",
    "CompressedSensing",
    "Denoising",
    "FourierSubsampling",
    "Grayscale",
    "Inpainting",
    "LinearOperator",
    "NonlinearOperator",
    "Operator",
    "Saturation",
    "SuperResolution",
]
