"""How fast the web app answers, measured in a real browser.

    python benchmarks/app.py photographs --photo-prior FILE
    python benchmarks/app.py faces

Needs the extra `browser-tests` and Chromium (on the PATH, or named by $CHROMIUM). Prints, for docs/app.md:

    photographs     of 12 megapixels: the time from choosing the file to seeing it, from pressing Restore to the first
                    part that is restored on the screen, and to the file; the server's CPU time and memory beside them
    faces           the time from pressing Restore to the first picture on the screen, from moving the lambda slider to
                    the new picture, and what five people at once wait
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from aipo.images import samples

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
TASKS = ("denoise", "inpaint", "superres", "deblur", "colorize")
BARS = {"first picture": 2.0, "slider": 0.1}

# In the browser, so that only what a person would notice is counted: until the frame after the change is drawn.
FIRST_PICTURE = """() => new Promise((done) => {
  const viewer = document.querySelector(".viewer"), start = performance.now();
  viewer.dataset.status = "pressed";
  const look = () => viewer.dataset.status === "running"
    ? requestAnimationFrame(() => done((performance.now() - start) / 1000)) : requestAnimationFrame(look);
  document.querySelector("#restore").click();
  look();
})"""
SLIDER = """(position) => new Promise((done) => {
  const slider = document.querySelector(".viewer .slider"), start = performance.now();
  slider.value = position;
  slider.dispatchEvent(new Event("input"));
  requestAnimationFrame(() => requestAnimationFrame(() => done((performance.now() - start) / 1000)));
})"""


WIDTH, HEIGHT, SIGMA = 4000, 3000, 12  # of the photograph; the noise in levels of 255
FIRST_LOOK = 3.0  # seconds, the bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=("photographs", "faces"))
    parser.add_argument("--photo-prior", help="name or file; the embedded one by default")
    parser.add_argument("--repeat", type=int, default=3, help="first looks to measure")
    arguments = parser.parse_args()
    options = ["--photo-prior", arguments.photo_prior] if arguments.photo_prior else []
    with _running(options) as (visit, server):
        if arguments.page == "photographs":
            _photographs(visit, server, arguments.repeat)
        else:
            _alone(visit)
            _together([visit("faces") for _ in range(5)])


@contextmanager
def _running(options: list[str]) -> Iterator[tuple[Callable[[str], Page], int]]:
    """Opens pages of a server, whose process is told."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    command = [sys.executable, "-m", "aipo", "app", "--port", "0", "--no-browser", *options]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1]
        print(f"{date.today()}, {_processor()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
        print(f"start of the server: {time.perf_counter() - start:.1f} s")
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)

        def visit(path: str) -> Page:
            page = browser.new_context().new_page()
            page.set_default_timeout(1_800_000)
            page.goto(f"{address}/{path}")
            if path == "faces":
                page.wait_for_function("document.querySelector('.painter .picture')?.width === 64")
            return page

        try:
            yield visit, server.pid
        finally:
            browser.close()
            server.terminate()


def _photographs(visit: Callable[[str], Page], server: int, repeat: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "large.jpg"
        _photograph().save(file, quality=92)
        page, looks = visit(""), []
        for i in range(repeat):
            start = time.perf_counter()
            page.set_input_files("#file", file)
            page.wait_for_selector('#outcome[data-status="ready"]')
            shown, start, cpu = time.perf_counter() - start, time.perf_counter(), _cpu(server)
            page.click("#restore")
            page.wait_for_function("document.querySelector('#outcome').dataset.first")
            looks.append(float(page.get_attribute("#outcome", "data-first") or "nan"))
            print(
                f"shown {shown:.2f} s, first look {looks[-1]:.2f} s, CPU time of the server {_cpu(server) - cpu:.2f} s"
            )
            if i < repeat - 1:
                page.click("#stop")
                page.wait_for_selector('#outcome[data-status="stopped"]')
                page.reload()
                time.sleep(10)  # until the server has noticed, and rests
        page.wait_for_selector('#outcome[data-status="done"]')
        seconds, memory = time.perf_counter() - start, _memory(server)
        print(
            f"the whole {seconds:.0f} s, CPU time {_cpu(server) - cpu:.0f} s, memory at its peak {memory / 1e9:.2f} GB"
        )
        verdict = "met" if statistics.median(looks) < FIRST_LOOK else "MISSED"
        print(f"first look: {statistics.median(looks):.2f} s, bar {FIRST_LOOK} s: {verdict}")


def _photograph() -> Image.Image:
    small = Image.fromarray((samples.photograph() * 255).round().byte().permute(1, 2, 0).numpy())
    values = np.asarray(small.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)).astype(np.float32)
    values += np.random.default_rng(0).normal(0, SIGMA, values.shape)
    return Image.fromarray(values.round().clip(0, 255).astype(np.uint8))


def _cpu(process: int) -> float:
    """Seconds that all its threads have computed."""
    parts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def _memory(process: int) -> int:
    """Bytes that it had at most."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _alone(visit: Callable[[str], Page]) -> None:
    worst = dict.fromkeys(BARS, 0.0)
    for task in TASKS:
        page = visit("faces")
        page.check(f"#task input[value={task}]")
        page.wait_for_timeout(1000)
        first = page.evaluate(FIRST_PICTURE)
        begun = time.perf_counter()
        page.wait_for_selector('.viewer[data-status="done"]')
        whole = first + time.perf_counter() - begun
        moves = [page.evaluate(SLIDER, position) for position in range(0, 1001, 20)]
        print(
            f"{task}: first picture {first:.2f} s, done {whole:.1f} s, "
            f"slider {1000 * statistics.median(moves):.0f} ms (slowest {1000 * max(moves):.0f} ms)"
        )
        worst = {"first picture": max(worst["first picture"], first), "slider": max(worst["slider"], *moves)}
        page.context.close()
    for name, bar in BARS.items():
        print(f"{name}: {worst[name]:.3f} s at worst, bar {bar} s: {'met' if worst[name] < bar else 'MISSED'}")


def _together(pages: list[Page]) -> None:
    start = time.perf_counter()
    for page in pages:
        page.click("#restore")
    ends = []
    for page in pages:
        page.wait_for_selector('.viewer[data-status="done"], .viewer[data-status="failed"]')
        ends.append(page.get_attribute(".viewer", "data-status"))
    seconds = time.perf_counter() - start
    print(f"five people at once: {ends.count('done')} of {len(ends)} done, all within {seconds:.1f} s")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
