"""The documentation does what it says: the README's example and the tutorials run, examples hold, the site is whole."""

import doctest
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import aipo
from aipo.images import open_image
from aipo.images.metrics import psnr
from aipo.images.samples import photograph

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


tutorials = script("run_tutorials")


class TestTutorials:
    @pytest.mark.parametrize("page", tutorials.pages(), ids=lambda page: page.stem)
    def test_runs_and_prints_what_the_page_says(self, page, tmp_path, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the other tests: several run at once
        text = page.read_text()
        notebook = tutorials.Notebook(tmp_path)
        count = 0
        for language, code, printed in tutorials.blocks(text):
            now = notebook.run(language, code)
            assert tutorials.same_output(printed, now), f"{code}\nthe page says:\n{printed}\nnow it prints:\n{now}"
            count += 1
        assert count == len(re.findall(r"^```(?:sh|python)$", text, re.MULTILINE)) > 0
        assert tutorials.pictures(text)
        for name in tutorials.pictures(text):
            with Image.open(page.parent / "pictures" / name) as shown:
                before = np.asarray(shown.convert("RGB"), dtype=float)
            after = np.asarray(tutorials.enlarged(tmp_path / name), dtype=float)
            assert before.shape == after.shape
            assert np.abs(before - after).mean() < 4, f"{name} looks different: run scripts/run_tutorials.py {page}"

    def test_every_task_has_one(self):
        from aipo.restore.tasks import TASKS

        # A page is made by running it, so it needs an embedded prior that can do the task.
        assert {page.stem for page in tutorials.pages()} == {*(t.name for t in TASKS.values() if t.faces), "python"}

    def test_no_picture_is_left_over(self):
        shown = {name for page in tutorials.pages() for name in tutorials.pictures(page.read_text())}
        assert shown == {path.name for path in (DOCS / "tutorials" / "pictures").iterdir()}

    @pytest.mark.parametrize(
        ("page", "now", "same"),
        [
            ("lam 0.31, done", "lam 0.32, done", True),
            ("lam 0.31, done", "lam 0.36, done", False),
            ("lam 0.31, done", "lam 0.31, failed", False),
            ("lam 0.31, done", "lam 0.31, done 2", False),
            ("Restored in 3.0 s", "Restored in 70 s", True),
            ("a   b seconds\n──\n1.0   5.0", "a b  seconds\n────\n1.0  99", True),
            ("a   b seconds\n──\n1.0   5.0", "a b  seconds\n────\n2.0  5.0", False),
            ("", "something", False),
        ],
    )
    def test_outputs_are_compared_but_for_seconds(self, page, now, same):
        assert tutorials.same_output(page, now) is same

    def test_a_block_that_fails_is_an_error(self, tmp_path):
        notebook = tutorials.Notebook(tmp_path)
        with pytest.raises(RuntimeError, match="no such file"):
            notebook.run("sh", "aipo restore nowhere.png --task denoise --out out\necho unreachable")
        with pytest.raises(ZeroDivisionError):
            notebook.run("python", "1 / 0")


def modules_with_examples():
    source = ROOT / "src"
    files = [path for path in sorted(source.rglob("*.py")) if ">>>" in path.read_text()]
    return [".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for file in files]


class TestExamples:
    @pytest.mark.parametrize("name", modules_with_examples())
    def test_docstrings_of(self, name):
        try:
            module = importlib.import_module(name)
        except aipo.InputError as error:
            if "is not installed" not in str(error):
                raise
            pytest.skip(str(error))
        failures, tried = doctest.testmod(module)
        assert tried
        assert not failures

    # Not those that only functions make; and an honest example of Certified would take minutes.
    @pytest.mark.parametrize("name", sorted(set(aipo.__all__) - {"Choice", "SolutionPath", "Result", "Certified"}))
    def test_of_every_public_name(self, name):
        if not inspect.ismodule(getattr(aipo, name)):
            assert ">>>" in getattr(aipo, name).__doc__


class Links(HTMLParser):
    """Collects what a page loads by itself, and what it links to."""

    def __init__(self):
        super().__init__()
        self.loads, self.targets, self.ids = [], [], set()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.update(filter(None, [given.get("id"), given.get("name")]))
        if tag == "a":
            self.targets.append(given.get("href") or "")
        elif tag == "link" and given.get("rel") in ("canonical", "next", "prev"):
            pass
        else:
            self.loads += [given[key] for key in ("src", "href", "srcset", "data") if given.get(key)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it."""
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class TestSite:
    def pages(self, site):
        for path in sorted(site.rglob("*.html")):
            links = Links()
            links.feed(path.read_text())
            yield path, links

    def test_loads_nothing_from_other_hosts(self, site):
        for path, links in self.pages(site):
            foreign = [url for url in links.loads if re.match(r"(https?:)?//", url)]
            assert not foreign, f"{path}: {foreign}"
        for path in site.rglob("*.css"):
            assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text()), path

    def test_every_link_and_picture_is_there(self, site):
        ids = {path: links.ids for path, links in self.pages(site)}
        assert len(ids) > 20
        for path, links in self.pages(site):
            for url in [*links.targets, *links.loads]:
                if re.match(r"\w+:", url) or path.name == "404.html":
                    continue
                target, _, anchor = url.partition("#")
                file = (path.parent / target).resolve() if target else path
                assert file.exists(), f"{path.name} -> {url}"
                if anchor and file.suffix == ".html" and not anchor.startswith("__"):
                    assert anchor in ids[file], f"{path.name} -> {url}"

    def test_reference_names_every_public_name(self, site):
        text = "".join(path.read_text() for path in (site / "api").glob("*.html"))
        for name in aipo.__all__:
            if not inspect.ismodule(getattr(aipo, name)):
                assert f'id="aipo.{name}"' in text, name

    def test_commands_are_described(self, site):
        text = (site / "api" / "commands.html").read_text()
        for command in (
            "restore",
            "corrupt",
            "demo",
            "app",
            "priors",
            "train",
            "bench run",
            "bench report",
            "bench pack",
        ):
            assert f"aipo {command}" in text
        assert "--mask-color" in text
        assert "help:" not in text  # every marker was replaced


def test_every_test_that_keeps_a_promise_is_there():
    """In docs/reliability.md a test is named with its file; those that follow in the same row are from that file."""
    page, found = (DOCS / "reliability.md").read_text(), 0
    for row in page.splitlines():
        source = ""
        for file, name in re.findall(r"`(?:(tests/[\w/]+\.py)(?:::)?)?(test_\w+)?`", row):
            source = (ROOT / file).read_text() if file else source
            if name:
                assert f"def {name}(" in source, name
                found += 1
    assert found > 25


README = Path(__file__).parents[2] / "README.md"


def test_the_ten_line_example(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(README), "exec"), {})
    assert "done" in capsys.readouterr().out
    restored = open_image(tmp_path / "restored.png").x
    assert psnr(restored[None], photograph()[None]).item() > 29


def test_every_local_link_exists():
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert targets
    for target in targets:
        assert (README.parent / target).exists(), target
