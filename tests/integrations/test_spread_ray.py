"""A real Ray cluster of two nodes on this machine: what it computes, and what a node that is killed costs."""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from test_spread import by_index, dies, note, raises, solve, until
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.errors import InputError
from aipo.evaluation.store import Store
from aipo.flows import GaussianFlow, NoiseFlow
from aipo.images import write_image
from aipo.integrations.spread import spread
from aipo.integrations.spread_ray import Cluster
from aipo.priors.files import save_prior_files

PICTURES = 12
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


def waits_for_release(folder, number):
    """The first time, until somebody says that its node may go on."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    if not note(folder, f"begun{number}"):
        note(folder, f"on-{node}")
        until(lambda: (folder / f"released-{node}").exists())
    return number * torch.arange(5)


@pytest.fixture(scope="module")
def nodes():
    """A cluster with a head that has one core."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster as Nodes

    # Workers find this module where we do, and Ray kills none of them for what other programs take.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    head = {"include_dashboard": False, "_system_config": {"memory_monitor_refresh_ms": 0}}
    nodes = Nodes(initialize_head=True, head_node_args=head | SMALL)
    yield nodes
    nodes.shutdown()


@pytest.fixture
def second(nodes):
    """Another node with a core, which may be killed."""
    node = nodes.add_node(**SMALL)
    yield node
    if node in nodes.worker_nodes:
        nodes.remove_node(node)


def test_a_node_that_dies_costs_nothing(nodes, second, tmp_path):
    def kill_when_both_are_busy():
        until(lambda: len(list(tmp_path.glob("on-*"))) == 2)
        nodes.remove_node(second, allow_graceful=False)
        (tmp_path / f"released-{nodes.head_node.node_id}").touch()

    killer = threading.Thread(target=kill_when_both_are_busy)
    killer.start()
    found = by_index(spread(waits_for_release, [(tmp_path, i) for i in range(8)], Cluster(nodes.address)))
    killer.join()
    assert [outcome.failure for outcome in found.values()] == [None] * 8
    assert all(torch.equal(outcome.value, i * torch.arange(5)) for i, outcome in found.items())
    tries = [len(list(tmp_path.glob(f"begun{i}-*"))) for i in range(8)]
    assert sorted(tries) == [1] * 7 + [2], "the piece that was on that node, and no other"
    assert len({path.name.split("-")[1] for path in tmp_path.glob("on-*")}) == 2


def test_ray_reports_what_fails(nodes, tmp_path):
    found = by_index(spread(raises, [(tmp_path, i) for i in range(3)], Cluster(nodes.address)))
    assert (found[1].failure, found[1].details) == ("picture 1 cannot be used", "")
    assert found[2].failure == "RuntimeError: a fault of ours"
    (tmp_path / "deaths").mkdir()
    found = by_index(spread(dies, [(tmp_path / "deaths", i, 99) for i in range(4)], Cluster(nodes.address)))
    assert found[2].failure == "its worker was lost (WorkerCrashedError), in 2 tries"
    assert [found[i].value for i in (0, 1, 3)] == [0, 1, 3]


def test_a_cluster_that_is_not_there():
    pytest.importorskip("ray", reason="the extra ray is not installed")
    for address in ("127.0.0.1:1", "nowhere.invalid:6379"):
        with pytest.raises(InputError, match=f"no Ray cluster at {address} "):
            list(spread(solve, [(0, 2)], Cluster(address)))


# --- aipo restore, aipo bench ---


@pytest.fixture
def pictures(tmp_path):
    """A folder "in" of pictures, and a prior for them that is as good as untrained."""
    folder, x = tmp_path / "in", aipo.samples.load("astronaut").repeat(1, 3, 3)
    folder.mkdir()
    for i in range(PICTURES):
        write_image(folder / f"{i}.png", x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(i)))
    flow = NoiseFlow(couplings=[2, 2], hidden=[8, 8], blocks=[1, 1]).requires_grad_(False)
    flow.initialize(x[None, :, :64, :64].expand(8, -1, -1, -1) + 0.05 * torch.randn(8, 3, 64, 64))
    card = {"name": "tiny", "bits": 0, "data": "-", "license": "-", "metrics": {}}
    save_prior_files(flow, card, tmp_path / "tiny.safetensors")
    return folder


def contents(folder):
    """Files by name; records without their times and places. Hidden files too: none must be left behind."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "report.html"}
    for name in [name for name in found if name.endswith(".json")]:
        found[name] = json.loads(found[name]) | {"seconds": 0, "restored": None}
    return found


def works_on_a_piece(node):
    """Whether a worker of the node computes something right now: Ray writes that into the name of its process."""
    (raylet,) = node.all_processes["raylet"]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((process / "stat").read_text().rsplit(")")[-1].split()[1])
            if parent == raylet.process.pid and (process / "cmdline").read_text().startswith("ray::attempt"):
                return True
    return False


def test_folder_restored_by_a_cluster_that_loses_a_node(nodes, second, pictures, tmp_path, monkeypatch):
    """`aipo restore FOLDER --ray ADDRESS`, with paths that are relative to where the command was given."""
    monkeypatch.chdir(tmp_path)
    command = ["restore", "in", "--task=denoise", "--prior=tiny.safetensors", "--json"]
    assert CliRunner().invoke(app, [*command, "--out=alone", "--jobs=1"], catch_exceptions=False).exit_code == 0
    expected = contents(tmp_path / "alone")
    assert len(expected) == 2 * PICTURES
    there_when_killed = []

    def kill_in_the_middle():
        until(lambda: len(list(Path("out").glob("*.json"))) >= 2 and works_on_a_piece(second))
        nodes.remove_node(second, allow_graceful=False)
        there_when_killed.extend(Path("out").glob("*.json"))

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    result = CliRunner().invoke(app, [*command, "--out=out", f"--ray={nodes.address}"], catch_exceptions=False)
    killer.join()
    assert result.exit_code == 0, result.output
    assert 2 <= len(there_when_killed) < PICTURES
    names = [Path(record["picture"]).name for record in json.loads(result.stdout)["pictures"]]
    assert sorted(names) == sorted(f"{i}.png" for i in range(PICTURES)), "all are there, none twice"
    assert contents(tmp_path / "out") == expected
    before = {path: path.stat().st_mtime_ns for path in Path("out").glob("[0-9]*")}
    again = CliRunner().invoke(app, [*command, "--out=out", f"--ray={nodes.address}"], catch_exceptions=False)
    assert again.exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in Path("out").glob("[0-9]*")} == before, "it was done already"


def test_bench_on_a_cluster_has_the_rows_of_one_process(nodes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flow = GaussianFlow((3, 16, 16), factor=0.2 * torch.eye(3 * 16 * 16))
    card = {"name": "tiny", "bits": 5, "data": "-", "license": "-", "metrics": {}}
    save_prior_files(flow, card, tmp_path / "tiny.safetensors")
    command = ["bench", "run", "--prior=tiny.safetensors", "--split=test", "--task=denoise", "--method=path"]
    command += ["--lam=0.5", "--subset=3", "--chunk=1", "--device=cpu", "--json"]
    rows = []
    for out, more in (("alone", []), ("shared", [f"--ray={nodes.address}"])):
        result = CliRunner().invoke(app, [*command, f"--out={out}", *more], catch_exceptions=False)
        assert json.loads(result.stdout)["written"] == 3
        rows.append([{**row, "seconds": 0} for row in Store(Path(out)).read_all()])
    assert len(rows[0]) == 3
    assert rows[0] == rows[1]
