"""The floor plan holds: a room imports only from rooms above it, and no two modules import each other in a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
ROOMS = ["errors", "files", "batch", "noise", "images", "transforms", "operators", "flows", "engine", "priors"]
ROOMS += ["training", "problem", "solvers", "choose", "posterior", "report", "restore", "evaluation"]
ROOMS += ["integrations", "web", "cli"]


def modules():
    for path in sorted((SOURCE / "aipo").rglob("*.py")):
        yield ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"), path


NAMES = {name for name, _ in modules()}


def imported(path):
    """The modules of ours that a file imports, anywhere in it; a name taken from a package counts as its module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in NAMES)
        elif isinstance(node, ast.ImportFrom) and node.module in NAMES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in NAMES else node.module


def room(module):
    return module.split(".")[1]


def test_every_module_has_a_room():
    assert {room(name) for name in NAMES - {"aipo", "aipo.__main__"}} == set(ROOMS)


def test_a_room_imports_only_from_rooms_above():
    wrong = [
        (name, other)
        for name, path in modules()
        if name not in ("aipo", "aipo.__main__")
        for other in imported(path)
        if other != "aipo" and ROOMS.index(room(other)) > ROOMS.index(room(name))
    ]
    assert not wrong


def test_no_circle_of_imports():
    graph = {name: set(imported(path)) - {name} for name, path in modules() if name != "aipo"}
    TopologicalSorter(graph).prepare()
