"""Forward operators f of y = f(x) + e. Names follow deepinv: `A`, `A_adjoint`, `A_dagger`."""

from aipo.operators.base import Operator
from aipo.operators.blur import Blur
from aipo.operators.compressed_sensing import CompressedSensing
from aipo.operators.denoising import Denoising
from aipo.operators.fourier_subsampling import FourierSubsampling
from aipo.operators.from_physics import from_physics
from aipo.operators.grayscale import Grayscale
from aipo.operators.inpainting import Inpainting
from aipo.operators.linear import LinearOperator
from aipo.operators.nonlinear import NonlinearOperator
from aipo.operators.saturation import Saturation
from aipo.operators.super_resolution import SuperResolution
from aipo.operators.valid_blur import ValidBlur

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
    "ValidBlur",
    "from_physics",
]
