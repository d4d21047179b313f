"""A solver file for deepinv's benchmarks (https://github.com/deepinv/benchmarks): put it into a task's `solvers/`.

benchopt run cbsd68_gaussian_denoising -s AIPO
"""

import torch
from benchopt import BaseSolver

from aipo.integrations.deepinv import AnnealReconstructor


class Solver(BaseSolver):
    """`aipo.anneal`, which denoises in one evaluation, and solves other tasks in twenty."""

    name = "AIPO"
    requirements = ("pip::aipo[deepinv]",)
    parameters = {"prior": ["photo-small"]}  # noqa: RUF012
    sampling_strategy = "run_once"

    def set_objective(self, train_dataset=None, physics=None):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = AnnealReconstructor(self.prior).to(device)
        self.model.device = device

    def run(self, _):
        pass

    def get_result(self):
        return {"model": self.model}
