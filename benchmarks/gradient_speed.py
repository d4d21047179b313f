"""Milliseconds for one gradient of P at batch 1 on this machine, median of 15, for every embedded prior.

python benchmarks/gradient_speed.py
"""

from __future__ import annotations

import statistics
import time

import torch

import aipo


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name in aipo.prior_names():
        prior, x = aipo.load_prior(name), aipo.samples.load("astronaut")[None]
        seconds = []
        for _ in range(18):
            start = time.perf_counter()
            prior.gradient(x)
            seconds.append(time.perf_counter() - start)
        print(f"{name:24} {1000 * statistics.median(seconds[3:]):6.1f} ms")


if __name__ == "__main__":
    main()
