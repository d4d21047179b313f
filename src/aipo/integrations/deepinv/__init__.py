"""AIPO and deepinv, both ways: `pip install '.[deepinv]'`.

Ours in theirs:

    FlowPrior             a prior as `deepinv.optim.Prior`, for GD, PGD, HQS, ADMM, ULA ...
    FlowDenoiser          a noise prior as `deepinv.models.Denoiser`, for DPIR, DiffPIR, samplers ...
    AnnealReconstructor   `anneal` as a model of (y, physics)
    LambdaReconstructor   `choose_lambda` as a model of (y, physics)
    as_physics            an operator as `deepinv.physics.LinearPhysics`, with its closed forms

Theirs in ours:

    aipo.operators.from_physics   a physics as an operator
    noise_of                      a noise model as a noise
    ExplicitPrior                 a prior with a value, such as TV or a gradient-step denoiser, for `follow_path`
    DenoiserPrior                 a denoiser, for `anneal`
    problem_of                    measurements and physics as a `MapProblem`
"""

from aipo.errors import InputError, how_to_install

try:
    import deepinv as _  # noqa: F401
except ImportError:
    raise InputError(f"deepinv is not installed; {how_to_install('deepinv')}") from None

from aipo.integrations.deepinv.denoisers import DenoiserPrior, FlowDenoiser
from aipo.integrations.deepinv.noise import as_noise_model, noise_of
from aipo.integrations.deepinv.physics import OperatorPhysics, as_physics
from aipo.integrations.deepinv.priors import ExplicitPrior, FlowPrior
from aipo.integrations.deepinv.problem import problem_of
from aipo.integrations.deepinv.reconstructors import AnnealReconstructor, LambdaReconstructor

__all__ = [
    "AnnealReconstructor",
    "DenoiserPrior",
    "ExplicitPrior",
    "FlowDenoiser",
    "FlowPrior",
    "LambdaReconstructor",
    "OperatorPhysics",
    "as_noise_model",
    "as_physics",
    "noise_of",
    "problem_of",
]
