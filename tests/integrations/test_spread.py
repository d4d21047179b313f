"""Work spread over processes and machines: the same outcomes however many there are, and whoever dies in the middle."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from aipo.errors import InputError
from aipo.integrations.spread import Processes, spread
from aipo.integrations.spread_ray import Cluster

PATIENCE = 120  # seconds until what never happens counts as such


# --- pieces of work ---


def solve(seed, size):
    a = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.solve(a @ a.T + torch.eye(size), a)


def note(folder, name):
    """Leave a file with a name of its own; how many of that name there were before."""
    before = len(list(folder.glob(f"{name}-*")))
    (folder / f"{name}-{os.getpid()}-{time.monotonic_ns()}").touch()
    return before


def dies(folder, number, how_often):
    """Its process is killed when it tries piece 2, so often."""
    if note(folder, f"try{number}") < how_often and number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def raises(folder, number):
    note(folder, f"try{number}")
    if number == 1:
        raise InputError("picture 1 cannot be used")
    if number == 2:
        raise RuntimeError("a fault\nof ours")
    return (lambda: None) if number == 3 else number  # a function without a name cannot be sent back


def threads(_):
    time.sleep(0.5)
    return os.getpid(), torch.get_num_threads()


def waits(folder, number):
    note(folder, "waits")
    time.sleep(PATIENCE)


def until(happens):
    end = time.monotonic() + PATIENCE
    while not (found := happens()):
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.02)
    return found


def by_index(outcomes):
    outcomes = list(outcomes)
    assert len({outcome.index for outcome in outcomes}) == len(outcomes), "twice the same"
    return {outcome.index: outcome for outcome in outcomes}


# --- processes ---


@pytest.mark.parametrize("count", [1, 3])
def test_the_outcomes_are_those_of_one_process(count):
    pieces = [(seed, 20) for seed in range(7)]
    found = by_index(spread(solve, pieces, Processes(count)))
    assert sorted(found) == list(range(7))
    for index, piece in enumerate(pieces):
        assert found[index].failure is None
        assert torch.equal(found[index].value, solve(*piece))


def test_a_process_that_dies_costs_nothing(tmp_path):
    found = by_index(spread(dies, [(tmp_path, i, 1) for i in range(6)], Processes(2)))
    assert {index: outcome.value for index, outcome in found.items()} == {i: i for i in range(6)}
    assert len(list(tmp_path.glob("try2-*"))) == 2
    assert len(list(tmp_path.iterdir())) == 7, "only that piece was tried again"


def test_a_piece_that_kills_every_process_is_reported(tmp_path):
    found = by_index(spread(dies, [(tmp_path, i, 99) for i in range(6)], Processes(2)))
    assert found[2].failure == "its process was killed, perhaps because memory ran out, in 2 tries"
    assert len(list(tmp_path.glob("try2-*"))) == 2
    assert [found[i].value for i in (0, 1, 3, 4, 5)] == [0, 1, 3, 4, 5]


def test_an_exception_is_reported_at_once(tmp_path):
    found = by_index(spread(raises, [(tmp_path, i) for i in range(5)], Processes(1)))
    assert (found[1].failure, found[1].details) == ("picture 1 cannot be used", "")
    assert found[2].failure == "RuntimeError: a fault of ours"
    assert "in raises" in found[2].details
    assert "pickle" in found[3].failure
    assert [found[0].value, found[4].value] == [0, 4]
    assert len({path.name.split("-")[1] for path in tmp_path.iterdir()}) == 1, "the process was worn out"
    assert len(list(tmp_path.iterdir())) == 5, "none was tried again"


def test_threads_are_divided():
    cores = len(os.sched_getaffinity(0))
    found = [outcome.value for outcome in spread(threads, [(i,) for i in range(4)], Processes(2))]
    assert len({process for process, _ in found}) == 2
    assert {count for _, count in found} == {max(1, cores // 2)}


def test_pieces_are_taken_as_they_are_needed():
    taken = []

    def endless():
        for seed in range(10**9):
            taken.append(seed)
            yield seed, 2

    with closing(spread(solve, endless(), Processes(2))) as outcomes:
        for _ in range(3):
            next(outcomes)
    assert len(taken) <= 5


def test_no_pieces_are_no_work():
    assert list(spread(solve, [], Processes(2))) == []


@pytest.mark.parametrize("make", [lambda: Processes(0), lambda: Cluster(cpus=0), lambda: Cluster(gpus=float("nan"))])
def test_numbers_that_make_no_sense(make):
    with pytest.raises(InputError, match="the number of"):
        make()


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_spread import Processes, spread, waits
if __name__ == "__main__":
    list(spread(waits, [(Path({folder!r}), i) for i in range(9)], Processes(2)))
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_one_who_asked(tmp_path, sent):
    """Ctrl-C reaches the whole group, as in a terminal; kill -9 the first process only."""
    script, folder = tmp_path / "script.py", tmp_path / "notes"
    folder.mkdir()
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), folder=str(folder)))
    with subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True, start_new_session=True) as asked:
        until(lambda: len(list(folder.iterdir())) == 2)
        workers = [int(path.name.split("-")[1]) for path in folder.iterdir()]
        os.killpg(asked.pid, sent) if sent == signal.SIGINT else os.kill(asked.pid, sent)
        said = asked.communicate(timeout=PATIENCE)[1]
        until(lambda: not any(is_alive(worker) for worker in workers))
    assert len(list(folder.iterdir())) == 2, "nothing more was begun"
    if sent == signal.SIGINT:
        assert said.count("Traceback") == said.count("KeyboardInterrupt") == 1, said


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
