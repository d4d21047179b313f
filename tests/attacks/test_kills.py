"""Killed for good, at any moment, and started again: the same pictures and rows come out as if nothing had happened.

A process that has imported everything forks one for each run, so that a run starts at once and many can be killed.
"""

import json
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from mutations import SHAPE

from aipo.evaluation.store import Store
from aipo.images import write_image

FORKER = """
import json, os, signal, sys, tempfile, time
import torch
torch.set_num_threads(1)
import aipo.cli, aipo.evaluation.runner, aipo.restore.run, pyarrow.parquet
aipo.load_prior(sys.argv[1])  # which imports more of torch
def written(folder, since):
    found = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.stat(os.path.join(path, name)).st_mtime_ns >= since
            except FileNotFoundError:
                pass
    return found
for line in sys.stdin:
    command, seconds, folder, files = json.loads(line)
    errors = tempfile.TemporaryFile()
    now, start, child = time.time_ns(), time.monotonic(), os.fork()
    if child == 0:
        os.dup2(errors.fileno(), 2)
        sys.argv = ["aipo", *command]
        aipo.cli.main()
    if files is not None:
        while written(folder, now) < files and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.0005)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    seconds = time.monotonic() - start
    errors.seek(0)
    print(json.dumps([os.waitstatus_to_exitcode(status), seconds, errors.read().decode()]), flush=True)
    errors.close()
"""


class Forker:
    """Runs commands of `aipo`, each in a process of its own."""

    def __init__(self, process):
        self.process = process

    def run(self, command, kill_after=None, folder=None, files=None):
        """The exit code, the seconds it took and what it complained.

        Killed after so many seconds if it still runs then; counted, if asked for, from when so many files were written.
        """
        words = list(map(str, command))
        self.process.stdin.write(json.dumps([words, kill_after, folder and str(folder), files]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def forker(prior):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FORKER, prior], **pipes) as process:
        yield Forker(process)


def kill_and_finish(forker, command, folder, seconds, files, kills, seed):
    """Kill a command at random moments, then let it finish; how many kills came in time.

    Half of the moments are any of the `seconds` that it needs, half are between the `files` that it writes, or in one.
    """
    clock, codes = random.Random(seed), []
    for i in range(kills):
        if i % 2:
            codes.append(forker.run(command, clock.uniform(0, seconds))[0])
        else:
            codes.append(forker.run(command, clock.uniform(0, 0.003), folder, clock.randint(1, files))[0])
    assert set(codes) <= {0, -signal.SIGKILL}
    assert forker.run(command)[0] == 0
    return codes.count(-signal.SIGKILL)


def contents(folder):
    """Every file, without the clocks in the records and without the page that shows them."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found.pop("report.html").endswith(b"</html>\n")
    for name in found:
        if name.endswith(".json"):
            found[name] = json.loads(found[name]) | {"seconds": 0}
    return found


def test_restored_pictures(forker, prior, tmp_path):
    """In an empty folder, and then over results of other settings, where old and new files lie side by side.

    Twelve pictures are two batches, of eight and of four.
    """
    pictures = tmp_path / "in"
    pictures.mkdir()
    for i in range(12):
        write_image(pictures / f"{i:02}.png", torch.rand(SHAPE, generator=torch.Generator().manual_seed(i)))

    def restore(lam, out):
        options = ["--task=denoise", "--sigma=0.1", f"--lam={lam}", f"--prior={prior}", f"--out={out}", "--quiet"]
        return ["restore", pictures, *options]

    killed = 0
    for lam in (0.5, 0.7):
        code, seconds, _ = forker.run(restore(lam, tmp_path / f"unbroken-{lam}"))
        assert code == 0
        folder = tmp_path / "broken"
        killed += kill_and_finish(forker, restore(lam, folder), folder, seconds, 6, kills=6, seed=round(10 * lam))
        broken, unbroken = contents(folder), contents(tmp_path / f"unbroken-{lam}")
        for record in (*broken.values(), *unbroken.values()):
            if isinstance(record, dict):  # the folders have different names
                record.update(restored=None, strip=None)
        assert broken == unbroken
        assert len(broken) == 3 * 12
    assert killed >= 6


def test_measured_rows(forker, prior, images, tmp_path):
    def measure(out):
        options = ["--task=denoise", "--task=inpaint", "--method=path", "--method=path_long", "--lam=0.5", "--keep=1"]
        places = ["--out", out, "--prior", prior, "--test", images, "--split=test", "--device=cpu", "--quiet"]
        return ["bench", "run", *places, *options, "--chunk=2"]

    code, seconds, _ = forker.run(measure(tmp_path / "unbroken"))
    assert code == 0
    broken = tmp_path / "broken"
    assert kill_and_finish(forker, measure(broken), broken, seconds, 2, kills=8, seed=1) >= 4
    rows = {}
    for name in ("unbroken", "broken"):
        rows[name] = [{**row, "seconds": 0} for row in Store(tmp_path / name).read_all()]
    assert rows["broken"] == rows["unbroken"]
    assert len(rows["broken"]) == 2 * 2 * 4
    kept, names = [], []
    for name in ("unbroken", "broken"):
        kept.append({file.name: file.read_bytes() for file in (tmp_path / name / "pictures").iterdir()})
        names.append(sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*")))
    assert kept[0] == kept[1]
    assert names[0] == names[1]  # nothing is left behind


def test_trained_weights(forker, tmp_path):
    """Checkpoints are taken by the clock, once a second: the weights must not depend on when."""
    pictures = tmp_path / "in"
    pictures.mkdir()
    for i in range(4):
        write_image(pictures / f"{i}.png", torch.rand(SHAPE, generator=torch.Generator().manual_seed(i)))

    def train(out):
        options = ["--model=photo-small", "--crop=16", "--batch=1", "--steps=32", "--every=1", "--quiet"]
        return ["train", pictures, "--out", out / "p.safetensors", *options]

    code, seconds, _ = forker.run(train(tmp_path / "unbroken"))
    assert code == 0
    broken, clock = tmp_path / "broken", random.Random(2)
    codes = [forker.run(train(broken), clock.uniform(0.5, 0.9) * seconds)[0] for _ in range(2)]
    assert -signal.SIGKILL in codes
    assert (broken / "p.checkpoint.safetensors").exists(), "killed before there was anything to go on with"
    assert forker.run(train(broken))[0] == 0
    weights = [(tmp_path / name / "p.safetensors").read_bytes() for name in ("unbroken", "broken")]
    assert weights[0] == weights[1]


def test_what_a_killed_process_leaves_is_cleared_away(forker, prior, good, tmp_path):
    """Killed between two writes and in the middle of one; the next run needs no help."""
    (tmp_path / ".aipo-lock").write_text("4000000")
    (tmp_path / ".aipo-0123456789abcdef.tmp").write_bytes(b"half a pict")
    options = ["--task=denoise", "--sigma=0.1", "--lam=0.5", f"--prior={prior}", f"--out={tmp_path}", "--quiet"]
    assert forker.run(["restore", good, *options])[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "good.json",
        "good.restored.png",
        "good.strip.png",
        "report.html",
    ]


def test_two_runs_do_not_share_a_folder(forker, prior, tmp_path):
    """The second is told which process has the folder, and writes nothing; once that is killed its turn comes."""
    pictures, out = tmp_path / "in", tmp_path / "out"
    pictures.mkdir()
    for i in range(9):
        write_image(pictures / f"{i}.png", torch.rand(SHAPE, generator=torch.Generator().manual_seed(i)))

    def restore(lam, solver):
        options = ["--task=denoise", "--sigma=0.1", f"--lam={lam}", f"--solver={solver}", f"--prior={prior}"]
        return ["restore", pictures, *options, f"--out={out}", "--quiet"]

    with subprocess.Popen([sys.executable, "-m", "aipo", *restore(1, "paper")]) as first:
        while not (out / ".aipo-lock").exists() or not (out / ".aipo-lock").read_text():
            assert first.poll() is None
            time.sleep(0.01)
        code, _, complaint = forker.run(restore(0.5, "path"))
        assert first.poll() is None, "it should be slower than the second"
        first.kill()
    refusal = (
        f"process {first.pid} is writing to the folder {out}; wait until it has finished, or choose another folder"
    )
    assert (code, complaint) == (2, f"aipo: {refusal}\n")
    assert not list(out.glob("*.json"))
    assert forker.run(restore(0.5, "path"))[0] == 0
    assert {json.loads(path.read_text())["settings"]["lam"] for path in out.glob("*.json")} == {0.5}
    assert not list(out.glob(".*"))
