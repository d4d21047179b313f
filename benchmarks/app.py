"""How fast the web app answers, measured in a real browser: `python benchmarks/app.py`.

Needs the extra `browser-tests` and Chromium (on the PATH, or named by $CHROMIUM). Prints, for docs/app.md: the time
from pressing Restore to the first picture on the screen, from moving the lambda slider to the new picture, and what
five people at once wait.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date

from playwright.sync_api import Page, sync_playwright

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


def main() -> None:
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    command = [sys.executable, "-m", "aipo", "app", "--port", "0", "--no-browser"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1]
        print(f"{date.today()}, {_processor()}, {os.cpu_count()} cores")
        print(f"start of the server: {time.perf_counter() - start:.1f} s")
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)

        def visit() -> Page:
            page = browser.new_context().new_page()
            page.set_default_timeout(300_000)
            page.goto(address)
            page.wait_for_function("document.querySelector('.painter .picture')?.width === 64")
            return page

        try:
            _alone(visit)
            _together([visit() for _ in range(5)])
        finally:
            browser.close()
            server.terminate()


def _alone(visit: Callable[[], Page]) -> None:
    worst = dict.fromkeys(BARS, 0.0)
    for task in TASKS:
        page = visit()
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
