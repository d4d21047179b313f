"""Damaged and foreign files in a folder of `aipo bench`: named in one line, or measured again, never a traceback."""

import gzip
import io
import json
import random
import shutil

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from mutations import mutated_bytes, mutated_json

from aipo.errors import InputError
from aipo.evaluation.analysis.figures import draw_traces, png
from aipo.evaluation.store import Cell, Setup, Store
from aipo.files import FolderLock

SEEDS = range(40)


def measure(run, prior, images, out, *options):
    return run("bench", "run", "--out", out, "--prior", prior, "--test", images, "--split=test", "--task=denoise",
               "--method=path", "--method=path_long", "--lam=0.5", "--subset=2", "--chunk=1", "--keep=1",
               "--device=cpu", "--quiet", *options)  # fmt: skip


@pytest.fixture(scope="module")
def measured(run, prior, images, tmp_path_factory):
    """Two images by two methods: four files of rows, a trace and two files of kept pictures."""
    out = tmp_path_factory.mktemp("bench")
    measure(run, prior, images, out)
    metadata = pyarrow.parquet.read_table(one_file(out, "rows/*")).schema.metadata
    cell, setup = Cell(**json.loads(metadata[b"cell"])), Setup(**json.loads(metadata[b"setup"]))
    Store(out).write_trace(cell, setup, [[1.0, 900.0], [10.0, 800.0], [60.0, 750.0]])
    return out


@pytest.fixture
def folder(measured, tmp_path):
    shutil.copytree(measured, tmp_path / "bench")
    return tmp_path / "bench"


@pytest.fixture
def packed(folder):
    Store(folder).pack(remove=True)
    return folder


def one_file(folder, pattern):
    return sorted(folder.glob(pattern))[0]


def read_everything(folder):
    store = Store(folder)
    rows = store.read_all(for_report=True)
    return rows, store.read_traces(rows[0]["setup"], for_report=True), list(store.read_images(rows[0]["setup"]))


def without_clocks(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_what_was_measured_is_all_there(measured):
    rows, traces, kept = read_everything(measured)
    assert (len(rows), len(traces), len(kept)) == (4, 1, 2)


# --- anything at all in any of the files ---


@pytest.mark.parametrize("form", ["loose", "packed"])
@pytest.mark.parametrize("kind", ["rows", "traces", "pictures"])
def test_a_damaged_file_is_read_or_named(request, form, kind):
    folder = request.getfixturevalue("folder" if form == "loose" else "packed")
    packed_files = {"rows": "rows.parquet", "traces": "traces.json.gz"}
    file = one_file(folder, f"{kind}/*" if form == "loose" else packed_files.get(kind, f"{kind}/*"))
    content, refused = file.read_bytes(), []
    for seed in SEEDS:
        file.write_bytes(damaged(kind, form, content, seed))
        try:
            read_everything(folder)
        except InputError as error:
            refused.append(str(error))
    assert refused
    for message in refused:
        assert message.startswith(f"{file}: not a readable ")
        assert "\n" not in message
        assert len(message) < 700


def damaged(kind, form, content, seed):
    if kind != "traces" or seed % 2:
        return mutated_bytes(content, seed)
    document = json.loads(gzip.decompress(content) if form == "packed" else content)
    changed = json.dumps(mutated_json(document, seed)).encode()
    return gzip.compress(changed) if form == "packed" else changed


@pytest.mark.parametrize("seed", range(8))
def test_every_command_ends_in_one_line(run, prior, images, folder, seed):
    rng = random.Random(seed)
    for file in rng.sample(sorted(path for path in folder.rglob("*") if path.is_file()), 2):
        file.write_bytes(mutated_bytes(file.read_bytes(), rng.getrandbits(32)))
    for command in ("report", "pack"):
        outcome = run("bench", command, folder, "--quiet")
        assert outcome.exit_code in (0, 2)
    assert measure(run, prior, images, folder).exit_code == 0


# --- files that someone might really have ---


def foreign_table(folder):
    return pyarrow.table({"x": [1, 2]})


def table_without_losses(folder):
    return pyarrow.parquet.read_table(one_file(folder, "rows/*")).drop_columns(["loss"])


def table_of_an_unknown_task(folder):
    table = pyarrow.parquet.read_table(one_file(folder, "rows/*"))
    cell = json.loads(table.schema.metadata[b"cell"]) | {"task": "juggle"}
    changed = table.set_column(table.column_names.index("task"), "task", pyarrow.array(["juggle"] * len(table)))
    return changed.replace_schema_metadata({**table.schema.metadata, b"cell": json.dumps(cell)})


def table_with_gaps(folder):
    table = pyarrow.parquet.read_table(one_file(folder, "rows/*"))
    gap = pyarrow.array([None] * len(table), pyarrow.float64())
    return table.set_column(table.column_names.index("psnr"), "psnr", gap)


@pytest.mark.parametrize("make", [foreign_table, table_without_losses, table_of_an_unknown_task, table_with_gaps])
@pytest.mark.parametrize("packed", [False, True])
def test_a_foreign_table_is_named(run, folder, make, packed):
    file = folder / ("rows.parquet" if packed else "rows/my-own.parquet")
    pyarrow.parquet.write_table(make(folder), file)
    for command in ("report", "pack") if make is foreign_table else ("report",):
        outcome = run("bench", command, folder)
        assert outcome.exit_code == 2
        assert outcome.stderr.startswith(f"aipo: {file}: not a readable ")


def archive(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


OTHER_FILES = {
    "traces/a.json": [b"", b"[]", b"{}", b'{"trace": [[1, 2]]}', b"[" * 100_000, b"\xff\xfe", b"null"],
    "pictures/a.npz": [
        b"",
        b"PK\x03\x04",
        archive(truth=np.zeros(3)),
        archive(about=np.array("{}")),
        archive(about=np.array("no JSON")),
        archive(about=np.array({"task": "denoise"}, dtype=object)),
    ],
}


@pytest.mark.parametrize(("name", "content"), [(name, c) for name, contents in OTHER_FILES.items() for c in contents])
def test_a_foreign_trace_or_archive_is_named(run, folder, name, content):
    (folder / name).write_bytes(content)
    outcome = run("bench", "report", folder)
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(f"aipo: {folder / name}: not a readable result (")
    assert outcome.stderr.endswith("); move it elsewhere\n")


@pytest.mark.parametrize(
    "change", [{"lambdas": []}, {"trace": [[1]]}, {"trace": [["a", 1]]}, {"trace": 7}, {"stop": "x"}]
)
def test_a_trace_that_cannot_be_drawn_is_named(run, folder, change):
    file = one_file(folder, "traces/*")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    outcome = run("bench", "report", folder)
    assert outcome.exit_code == 2
    assert f"{file}: not a readable result" in outcome.stderr


def test_kept_pictures_of_other_shapes_are_named(run, folder):
    file = one_file(folder, "pictures/*")
    with np.load(file) as arrays:
        content = dict(arrays)
    file.write_bytes(archive(**content | {"restored": content["restored"][:, :, :-1]}))
    outcome = run("bench", "report", folder)
    assert outcome.exit_code == 2
    assert "restorations have the shape" in outcome.stderr


def test_a_trace_without_finite_losses_is_no_reason_to_fail(folder):
    trace = json.loads(one_file(folder, "traces/*").read_text()) | {"method": "aipo"}
    nowhere = trace | {"trace": [[1, float("nan")], [2, float("nan")]]}
    assert png(draw_traces([nowhere], [])).startswith(b"\x89PNG")


# --- what a run makes of them ---


@pytest.mark.parametrize("damage", ["truncated", "empty", "of another cell", "somebody else's"])
def test_a_damaged_cell_is_measured_again(run, prior, images, measured, folder, damage):
    file, other = sorted(folder.glob("rows/*.parquet"))[:2]
    whole = file.read_bytes()
    if damage == "somebody else's":
        pyarrow.parquet.write_table(foreign_table(folder), file)
    else:
        content = {"truncated": whole[: len(whole) // 2], "empty": b"", "of another cell": other.read_bytes()}
        file.write_bytes(content[damage])
    before = file.read_bytes()
    outcome = measure(run, prior, images, folder)
    assert outcome.exit_code == 0
    assert without_clocks(Store(folder).read_all()) == without_clocks(Store(measured).read_all())
    assert file.with_suffix(".damaged").read_bytes() == before  # it may be all that somebody has
    assert run("bench", "report", folder).exit_code == 0


def test_a_run_leaves_foreign_files_alone(run, prior, images, folder):
    for name in ("rows/my-own.parquet", "rows/notes.txt", "traces/mine.json"):
        (folder / name).write_text("mine")
    assert measure(run, prior, images, folder).exit_code == 0
    for name in ("rows/my-own.parquet", "rows/notes.txt", "traces/mine.json"):
        assert (folder / name).read_text() == "mine"


@pytest.mark.parametrize("command", ["run", "pack"])
def test_two_commands_do_not_write_to_one_folder(run, prior, images, folder, command):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with FolderLock(folder) as lock:
        lock.acquire()
        outcome = measure(run, prior, images, folder, "--seed=1") if command == "run" else run("bench", "pack", folder)
    assert outcome.exit_code == 2
    assert f"is writing to the folder {folder}" in outcome.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["../../outside", "[/bold]", "x" * 300, "\x1b[31mred", "$\\frac{$", "名前"])
def test_a_prior_may_be_called_anything(run, prior, images, tmp_path, name):
    """Its name is part of those of files, and comes from a card that may be anybody's."""
    named = tmp_path / "named.safetensors"
    shutil.copy(prior, named)
    card = json.loads(prior.with_suffix(".json").read_text())
    named.with_suffix(".json").write_text(json.dumps(card | {"name": name}))
    out = tmp_path / "deep" / "bench"
    options = ["--split=test", "--task=denoise", "--method=path", "--lam=0.5", "--subset=1", "--keep=1", "--device=cpu"]
    outcome = run("bench", "run", "--out", out, "--prior", named, "--test", images, *options, "--json")
    assert json.loads(outcome.stdout)["written"] == 1
    assert run("bench", "report", out).exit_code == 0
    files = {path.parent for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {tmp_path, out, out / "rows", out / "pictures"}
