"""What a photograph costs when there are many: one process and two, a Ray cluster, and a million on many machines.

    python benchmarks/scaling.py [--prior photo-small] [--pictures 8] [--cores 2] [--page]

Pictures of 481x321 with noise of sigma 25/255 are restored as `aipo restore --task denoise` does it, their noise level
estimated. They are crops of the embedded photograph, laid side by side. Every process restores one more before the
clock begins, as the first one loads everything. Ray needs its extra; `--ways` chooses what is measured. Results go to
results/scaling.json; `--page` prints the tables of docs/scaling.md from there.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch
from results import RESULTS, load_runs, save_run

from aipo.images import samples, write_image
from aipo.integrations.spread import Machines, Processes, spread
from aipo.integrations.spread_ray import Cluster
from aipo.restore.run import restore_piece
from aipo.restore.settings import Settings

FILE = RESULTS / "scaling.json"
HEIGHT, WIDTH, SIGMA = 321, 481, 25 / 255
MILLION = 10**6
# Cores, processes that share them, and whether Ray starts these.
WAYS = {"one core": (1, 1, False), "all cores, one process": (0, 1, False), "a process for each core": (0, 0, False)}
WAYS |= {"one core, Ray": (1, 1, True)}


def write_pictures(folder: Path, count: int) -> list[Path]:
    """So many crops of the photograph, laid side by side, each with its own noise."""
    photograph = samples.photograph().repeat(1, 2, 2)
    files = []
    for i in range(count):
        generator = torch.Generator().manual_seed(i)
        top = 7 * i % (photograph.shape[1] - HEIGHT)
        left = 11 * i % (photograph.shape[2] - WIDTH)
        crop = photograph[:, top : top + HEIGHT, left : left + WIDTH]
        files.append(folder / f"{i}.png")
        write_image(files[-1], crop + SIGMA * torch.randn(crop.shape, generator=generator))
    return files


def timed(settings: Settings, out: Path, picture: Path) -> tuple[float, float]:
    """Restore a picture, and return the seconds on the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    _, failed = restore_piece(settings, out, [picture], [picture])
    assert not failed, failed
    return time.perf_counter() - clock, time.process_time() - processor


def measure(
    machines: Machines, processes: int, pictures: list[Path], settings: Settings, out: Path
) -> dict[str, float]:
    """Seconds for each picture, after the first one of each process.

    `outside` is what passes between two restorations of one process; with several it cannot be told.
    """
    finished, inside, processor = [], [], []
    for outcome in spread(timed, [(settings, out, picture) for picture in pictures], machines):
        assert outcome.failure is None, outcome.failure
        finished.append(time.perf_counter())
        inside.append(outcome.value[0])
        processor.append(outcome.value[1])
    count, passed = len(pictures) - processes, finished[-1] - finished[processes - 1]
    found = {"seconds": passed / count, "processor": statistics.mean(processor[processes:])}
    return found | ({"outside": passed / count - statistics.mean(inside[1:])} if processes == 1 else {})


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """What is started here has the last so many of our cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def ray_node() -> Iterator[Cluster]:
    """A Ray cluster of one node with one core."""
    from ray.cluster_utils import Cluster as Nodes

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    nodes = Nodes(initialize_head=True, head_node_args=head)
    try:
        yield Cluster(nodes.address)
    finally:
        nodes.shutdown()


def run(way: str, settings: Settings, count: int, all_cores: int) -> dict[str, float]:
    cores, processes, ray = WAYS[way]
    cores, processes = cores or all_cores, processes or all_cores
    with tempfile.TemporaryDirectory() as folder, on_cores(cores):
        pictures, out = write_pictures(Path(folder), count + processes), Path(folder) / "out"
        out.mkdir()
        if not ray:
            return measure(Processes(processes), processes, pictures, settings, out)
        with ray_node() as cluster:
            return measure(cluster, processes, pictures, settings, out)


def page(runs: dict[str, dict[str, Any]]) -> None:
    """What docs/scaling.md says, from the results that are there."""
    print("| | pictures timed | seconds per picture | of a processor |\n|---|---|---|---|")
    for way in (way for way in WAYS if way in runs):
        found = runs[way]
        print(f"| {way} | {found['pictures']} | {found['seconds']:.2f} | {found['processor']:.2f} |")
    plain, ray = runs["one core"], runs["one core, Ray"]
    more = ray["outside"] - plain["outside"]
    print(f"\nBetween two pictures: {1000 * plain['outside']:.0f} ms, with Ray {1000 * ray['outside']:.0f} ms.")
    print(f"Ray: {1000 * more:.0f} ms more for each picture, {more / plain['processor']:.1%} of a restoration.")
    hours = MILLION * plain["processor"] / 3600
    print(f"A million on cores like these: {hours:,.0f} core hours; on 100 cores {hours / 100:.1f} hours.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prior", default="photo-small")
    parser.add_argument("--pictures", type=int, default=8, help="timed in each way; a multiple of --cores")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--note", default="", help="kept with the results, e.g. what else the machine was doing")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        return page(load_runs(FILE))
    settings = Settings("denoise", options.prior)
    about = {"date": str(date.today()), "torch": torch.__version__, "machine": platform.machine(), "note": options.note}
    for way in options.ways:
        found = run(way, settings, options.pictures, options.cores)
        print(way, {name: round(value, 3) for name, value in found.items()}, flush=True)
        save_run(FILE, way, found | about | {"pictures": options.pictures, "cores": options.cores})
    return None


if __name__ == "__main__":
    main()
