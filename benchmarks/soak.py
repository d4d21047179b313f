"""The web app under load: people who restore pictures, and others who try to take it down, all at the same time.

python benchmarks/soak.py [--minutes 10] [--users 10] [--json results/soak.json]

Everything happens on 127.0.0.1, against a server that the script starts and ends. The attacks have a fixed rate, so
their number is bounded by the time. Needs the extra `app` and Linux, which says how much memory a process had at most.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from results import RESULTS, save

from aipo.web.pictures import UPLOAD_MEMORY
from aipo.web.server import VISITORS

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from app_client import App, Page, running_app  # the page without a browser, which the tests use too

TASKS = ("denoise", "superres", "deblur", "colorize")
SAMPLES = ("astronaut", "drawn-1", "drawn-2", "cat")
PAGE_MEMORY = 1_000_000  # bytes that Gradio keeps for a page at most
OUTRAGE = {"bombs": 20.0, "broken files": 2.0, "abandoned jobs": 30.0, "slow requests": 15.0, "forged events": 1.0}


class Soak:
    """What happened so far."""

    def __init__(self, app: App, end: float):
        self.app, self.end = app, end
        self.seconds: dict[str, list[float]] = {"upload": [], "first answer": [], "restoration": []}
        self.failures: list[str] = []
        self.attacks: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    def over(self) -> bool:
        return time.monotonic() > self.end

    def live_as_user(self, seed: int) -> None:
        """Open the page, pick or upload a picture, restore it, look at it, and begin again."""
        choose = random.Random(seed)
        while not self.over():
            try:
                with Page(self.app) as page:
                    for _ in range(choose.randint(1, 3)):
                        self.restore_once(page, choose)
                        time.sleep(choose.uniform(0, 3))
            except Exception as error:  # whatever it is, a person would have seen it
                self.failures.append(f"{type(error).__name__}: {error}"[:300])

    def restore_once(self, page: Page, choose: random.Random) -> None:
        uploads = choose.random() < 0.5
        if uploads:
            start = time.monotonic()
            page.upload(PHOTO)
            self.seconds["upload"].append(time.monotonic() - start)
        else:
            page.run("take_sample", event_data={"name": choose.choice(SAMPLES)})
        task = choose.choice(TASKS)
        sigma = page.run("usual_sigma", [task])[0]
        start = time.monotonic()
        page.run("begin")
        status, answer = page.join([None, task, not uploads, True, sigma, 4, 1.5])
        assert status == 200, answer
        last: dict[str, Any] = {}
        for message in page.listen():
            if message["msg"] == "process_generating" and not last:
                last = message
                self.seconds["first answer"].append(time.monotonic() - start)
            if message["msg"] == "process_completed":
                last = message
        page.run("end")
        result = last["output"]["data"][0]
        assert result["status"] == "done", result["text"]
        self.seconds["restoration"].append(time.monotonic() - start)

    def attack(self, kind: str, seed: int) -> None:
        """One kind of attack again and again, until time is over."""
        choose = random.Random(seed)
        while not self.over():
            begun = time.monotonic()
            getattr(self, kind.replace(" ", "_"))(choose)
            self.attacks[kind] += 1
            time.sleep(max(0.0, min(begun + OUTRAGE[kind], self.end) - time.monotonic()))

    def bombs(self, _: random.Random) -> None:
        """Eight pages that send a picture of 40 megapixels at once."""

        def send() -> None:
            with Page(self.app) as page:
                self.post(page, "/picture", BOMB)

        together([send] * 8)

    def broken_files(self, choose: random.Random) -> None:
        with Page(self.app) as page:
            self.post(page, "/picture", choose.choice([PHOTO, BOMB])[: choose.randint(0, 50_000)])

    def abandoned_jobs(self, _: random.Random) -> None:
        """Thirty pages that begin a restoration and do not listen; then they leave."""
        pages = [Page(self.app) for _ in range(30)]
        for page in pages:
            page.run("begin")
            self.answers[f"join {page.join()[0]}"] += 1
        time.sleep(10)
        for page in pages:
            page.__exit__()

    def slow_requests(self, _: random.Random) -> None:
        """Ten that announce a large picture and send a byte now and then; five whose headers never end."""
        head = f"POST /picture HTTP/1.1\r\nHost: localhost\r\nCookie: aipo={'s' * 43}\r\nX: y".encode()
        full = head + b"\r\nContent-Length: 19000000\r\n\r\n"
        together([lambda: self.trickle(full)] * 10 + [lambda: self.trickle(head)] * 5)

    def trickle(self, beginning: bytes) -> None:
        host, port = self.app.address.split(":")
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(beginning)
            connection.settimeout(0.5)
            while not self.over():
                try:
                    connection.sendall(b"x")
                    answer = connection.recv(1000)
                    self.answers[f"slow {answer[9:12].decode() or 'closed'}"] += 1
                    return
                except TimeoutError:
                    continue
                except OSError:
                    self.answers["slow closed"] += 1
                    return

    def forged_events(self, choose: random.Random) -> None:
        with Page(self.app) as page:
            value = choose.choice([None, "x", 1e9, [], {"path": "/etc/passwd"}, True])
            event = page.event("refresh", [None, "denoise", True, True, value, 4, 1.5])
            self.answers[f"forged {page.post('run/predict', event)[0]}"] += 1

    def post(self, page: Page, path: str, content: bytes) -> None:
        status, _, _ = self.app.ask(path, "POST", content, {"cookie": page.cookie})
        self.answers[f"{path} {status}"] += 1


def together(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def photo() -> bytes:
    """A photo of 12 megapixels, as phones make them."""
    noise = np.random.default_rng(0).integers(0, 256, (150, 200, 3), dtype=np.uint8)
    return encoded(Image.fromarray(noise).resize((4000, 3000)), "JPEG", quality=85)


PHOTO, BOMB = photo(), encoded(Image.new("RGBA", (6324, 6324), (9, 99, 199, 128)), "PNG")


def summary(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {"count": 0}
    ordered = sorted(seconds)
    worst = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    values = {"median": statistics.median(ordered), "95%": worst, "slowest": ordered[-1]}
    return {"count": len(ordered), **{name: round(value, 2) for name, value in values.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--json", type=Path, default=RESULTS / "soak.json", help="where to keep the numbers")
    args = parser.parse_args()
    with running_app(checked=False) as app:
        before, load = app.memory(), os.getloadavg()
        soak = Soak(app, time.monotonic() + 60 * args.minutes)
        users = [lambda seed=seed: soak.live_as_user(seed) for seed in range(args.users)]
        together(users + [lambda kind=kind: soak.attack(kind, 0) for kind in OUTRAGE])
        about = {"date": date.today().isoformat(), "hardware": f"{processor()}, {os.cpu_count()} cores"}
        document = {
            **about,
            "torch": torch.__version__,
            "minutes": args.minutes,
            "users": args.users,
            "load_average_before_and_after": [round(load[0], 1), round(os.getloadavg()[0], 1)],
            "honest_failures": soak.failures,
            "honest_seconds": {name: summary(values) for name, values in soak.seconds.items()},
            "attacks": dict(soak.attacks),
            "answers_to_attacks": dict(sorted(soak.answers.items())),
            "memory_bytes": {
                "at_start": before,
                "peak_above": app.memory("VmHWM") - before,
                "budget_above": UPLOAD_MEMORY + VISITORS * PAGE_MEMORY,
                "at_end_above": app.memory() - before,
            },
            "tracebacks_in_the_log": app.log().count("Traceback"),
        }
    print(json.dumps(document, indent=1))
    save(args.json, document)


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
