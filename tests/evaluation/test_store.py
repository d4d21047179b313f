"""The store: whatever is packed reads as before, alone or beside files of single cells; bad files are named."""

import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from aipo.cli import app
from aipo.errors import InputError
from aipo.evaluation import store as store_module
from aipo.evaluation.store import Cell, Packed, Setup, Store

COLUMNS = {
    "loss": st.none() | st.floats(),
    "evals": st.integers(-1, 2**40),
    "status": st.none() | st.text(max_size=5),
    "added_later": st.none() | st.booleans(),
    "never_known": st.none(),
}
setups = st.builds(Setup, st.sampled_from([(0.3,), (0.3, 2.0)]), st.sampled_from(["exact", "fast"]), st.integers(0, 2))
cells = st.builds(
    Cell,
    prior=st.sampled_from(["celeba64-glow", "own.prior"]),
    prior_sha256=st.sampled_from(["", "abc"]),
    task=st.sampled_from(["denoise", "inpaint"]),
    split=st.just("test"),
    fingerprint=st.sampled_from(["these", "those"]),
    method=st.sampled_from(["aipo", "path"]),
    settings=st.text(max_size=3),
    start=st.integers(0, 99),
    stop=st.integers(100, 199),
)
traces = st.lists(st.lists(st.floats() | st.integers(), max_size=3), max_size=3)


@st.composite
def measured(draw):
    """A cell with its setup, its rows and perhaps its trace."""
    names = draw(st.lists(st.sampled_from(list(COLUMNS)), unique=True))
    row = st.fixed_dictionaries({"lam": st.floats(0, 2), "image": st.integers(0, 9), **{n: COLUMNS[n] for n in names}})
    rows = draw(st.lists(row, min_size=1, max_size=4))
    return draw(cells), draw(setups), rows, draw(st.none() | traces)


def write(store, found):
    for cell, setup, rows, trace in found:
        store.write(cell, setup, rows)
        if trace is not None:
            store.write_trace(cell, setup, trace)


def everything(store, found):
    """All that can be read of a store, as text: NaN is not equal to itself."""
    by_cell = [(store.has(cell, setup), store.read(cell, setup)) for cell, setup, *_ in found]
    return repr((store.read_all(), by_cell, [store.read_traces(setup.key) for _, setup, *_ in found]))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(first=st.lists(measured(), min_size=1, max_size=4), then=st.lists(measured(), max_size=3), remove=st.booleans())
def test_pack_then_read_equals_read(first, then, remove):
    with tempfile.TemporaryDirectory() as folder:
        loose, packed = Store(Path(folder) / "loose"), Store(Path(folder) / "packed")
        for found in (first, then):
            write(loose, found)
            write(packed, found)  # the second time beside what is packed already
            known = first if found is first else [*first, *then]
            before = everything(loose, known)
            assert everything(packed, known) == before
            files = set(packed.folder.iterdir()) if found else set()
            packed.pack(remove)
            assert everything(packed, known) == before
            assert packed.folder.exists() != remove
            assert remove or files <= set(packed.folder.iterdir())
        bytes_before = packed.packed_rows.read_bytes()
        packed.pack(remove)
        assert packed.packed_rows.read_bytes() == bytes_before
        absent = Cell("other", "", "denoise", "test", "", "aipo", "", 0, 1)
        assert not packed.has(absent, first[0][1])


def cell_of(method="aipo", image=0):
    return Cell("celeba64-glow", "", "denoise", "test", "", method, "", image, image + 1)


SETUP = Setup((0.3,), "exact", 0)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    for method in ("aipo", "path"):
        write(store, [(cell_of(method), SETUP, [{"lam": 0.3, "image": 0, "loss": 7.0}], [[1, 2.0]])])
    return store


def test_packing_deletes_nothing_unless_told_to(store, tmp_path):
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    kept = tmp_path / "rows" / "notes.txt"
    kept.write_text("mine")
    assert store.pack() == Packed(cells=2, traces=2, removed=0)
    assert all(file.read_bytes() == content for file, content in before.items())
    assert store.pack(remove=True) == Packed(cells=2, traces=2, removed=4)
    assert not any(file.exists() for file in before)
    # Only what was packed goes.
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows", "rows.parquet", "traces.json.gz"]
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("broken", ["rows", "traces"])
def test_nothing_is_written_or_deleted_if_the_packed_file_reads_differently(store, tmp_path, monkeypatch, broken):
    decode = getattr(store_module, f"decode_{broken}")
    monkeypatch.setattr(store_module, f"decode_{broken}", lambda content: dict(list(decode(content).items())[1:]))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(RuntimeError, match="nothing was written"):
        store.pack(remove=True)
    assert all(file.read_bytes() == content for file, content in before.items())
    assert not (tmp_path / ("rows.parquet" if broken == "rows" else "traces.json.gz")).exists()


def test_a_cell_of_its_own_file_comes_before_the_packed_one(store):
    store.pack(remove=True)
    store.write(cell_of(), SETUP, [{"lam": 0.3, "image": 0, "loss": 8.0}])
    assert [row["loss"] for row in store.read_all()] == [8.0, 7.0]
    store.pack(remove=True)
    assert [row["loss"] for row in store.read_all()] == [8.0, 7.0]


def test_what_does_not_fit_into_one_table_stays_as_it_is(store, tmp_path):
    store.write(cell_of(image=1), SETUP, [{"lam": 0.3, "image": 1, "loss": "high"}])
    with pytest.raises(InputError, match=r"do not fit into one table .*loss"):
        store.pack(remove=True)
    assert len(store.read_all()) == 3
    assert not (tmp_path / "rows.parquet").exists()


@pytest.mark.parametrize("name", ["rows.parquet", "traces.json.gz"])
@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1 no", gzip.compress(b"{"), gzip.compress(b"{}")[:-9] + b"123456789"],
    ids=["empty", "text", "half a document", "wrong checksum"],
)
def test_a_damaged_packed_file_is_named(store, tmp_path, name, content):
    store.pack(remove=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: not a readable file of packed results"):
        store.pack()


def test_a_packed_file_that_changes_is_read_again(store, tmp_path):
    store.pack(remove=True)
    assert not store.has(cell_of("lbfgs"), SETUP)
    other = Store(tmp_path / "other")
    other.write(cell_of("lbfgs"), SETUP, [{"lam": 0.3, "image": 0, "loss": 1.0}])
    other.pack()
    shutil.copy(tmp_path / "other" / "rows.parquet", tmp_path / "rows.parquet")
    assert store.has(cell_of("lbfgs"), SETUP)


def test_the_command_packs(store, tmp_path):
    def run(*options):
        result = CliRunner().invoke(app, ["bench", "pack", str(tmp_path), *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert run() == f"{tmp_path}: 2 cells and 2 traces packed\n"
    assert json.loads(run("--json"))["removed"] == 0
    assert run("--remove") == f"{tmp_path}: 2 cells and 2 traces packed; 4 small files deleted\n"
    assert run("--quiet") == ""
    assert len(store.read_all()) == 2


def test_what_a_run_needs_is_asked_for_before_it_solves(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'aipo\[bench\]'"):
        Store(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"broken\.parquet: not a readable result"):
        Store(tmp_path).read_all()


def test_rows_know_their_images(tmp_path):
    store, cell = Store(tmp_path), Cell("p", "", "denoise", "test", "these", "path", "", 0, 1)
    store.write(cell, Setup((0.3,), "exact", 0), [{"lam": 0.3, "image": 0}])
    (row,) = store.read_all()
    assert row["fingerprint"] == "these"


THREADS = """
import os, sys
from pathlib import Path
from aipo.evaluation.store import Store
store = Store(Path(sys.argv[1]))
import pyarrow.parquet
before = set(os.listdir("/proc/self/task"))
store.pack()
print(len(store.read_all()), set(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux to count threads")
def test_no_thread_of_arrow_outlives_the_work(tmp_path):
    """One that still held something of Python's at the end of the program would abort it, now and then."""
    cell = Cell("prior", "", "denoise", "test", "these", "path", "", 0, 1)
    Store(tmp_path).write(cell, Setup((0.3,), "exact", 0), [{"lam": 0.3, "image": 0, "loss": 1.0}])
    outcome = subprocess.run([sys.executable, "-c", THREADS, tmp_path], capture_output=True, text=True)
    assert (outcome.stdout, outcome.stderr) == ("1 set()\n", "")
