"""Run the code of the tutorials, and put what it printed and drew into them.

python scripts/run_tutorials.py [PAGE.md ...]

A page is run from top to bottom in an empty folder, like a notebook: its `sh` blocks by a shell, its `python` blocks in
one interpreter. A `text` block right below a block is its output. A picture `pictures/NAME.png` of the page is the file
NAME.png that its code has left, enlarged by a whole number. `tests/docs/test_docs.py` runs the same code and compares.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"\]\(pictures/([\w.-]+\.png)\)")
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
WIDTH = 800  # pixels, at most, of an enlarged picture
RELATIVE, ABSOLUTE = 0.05, 0.02  # by which a number may differ between machines


@dataclass
class Notebook:
    """Runs blocks in a folder, and remembers the names that its Python blocks have defined."""

    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, language: str, code: str) -> str:
        """What a block prints, lines stripped on the right; an error stops everything."""
        output = self._shell(code) if language == "sh" else self._python(code)
        return "\n".join(line.rstrip() for line in output.splitlines()).strip("\n")

    def _shell(self, code: str) -> str:
        # As wide as a page, and the `aipo` and `python` that run this.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["sh", "-e", "-c", code],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{code}\nended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def _python(self, code: str) -> str:
        printed = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(printed):
            exec(compile(code, "<tutorial>", "exec"), self.names)
        return printed.getvalue()


def pages() -> list[Path]:
    """All but the one that needs deepinv, which has an environment of its own."""
    return sorted(page for page in TUTORIALS.glob("*.md") if page.stem != "deepinv")


def blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """Language, code and printed output of each block of a page."""
    for match in BLOCK.finditer(text):
        yield match[1], match[2], (match[3] or "").strip("\n")


def pictures(text: str) -> list[str]:
    return PICTURE.findall(text)


def enlarged(path: Path) -> Image.Image:
    """A picture as the page shows it."""
    with Image.open(path) as image:
        scale = max(1, WIDTH // image.width) if image.width < WIDTH // 2 else 1
        return image.convert("RGB").resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)


def same_output(page: str, now: str) -> bool:
    """Whether two outputs agree: in every word, and in every number but for seconds up to what machines differ by."""
    words, numbers = _parsed(page)
    words_now, numbers_now = _parsed(now)
    close = (abs(a - b) <= RELATIVE * abs(a) + ABSOLUTE for a, b in zip(numbers, numbers_now, strict=False))
    return words == words_now and len(numbers) == len(numbers_now) and all(close)


def _parsed(output: str) -> tuple[str, list[float]]:
    lines, timed = [], False
    for line in output.splitlines():
        line = re.sub(r"\d+(\.\d+)? s\b", "TIME s", line)
        if timed and re.search(r"\d$", line):  # the last column of a table with a heading that ends so
            line = re.sub(r"[\d.]+$", "TIME", line)
        timed = (timed or line.endswith("seconds")) and bool(line.strip())
        lines.append(line)
    text = "\n".join(lines)
    return " ".join(NUMBER.sub("#", text).replace("─", "").split()), [float(n) for n in NUMBER.findall(text)]


def run_page(page: Path) -> None:
    """Run a page, and write its outputs and pictures anew."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = Notebook(Path(folder))

        def with_output(match: re.Match[str]) -> str:
            output = notebook.run(match[1], match[2])
            return f"```{match[1]}\n{match[2]}```\n" + (f"\n```text\n{output}\n```\n" if output else "")

        text = BLOCK.sub(with_output, page.read_text())
        for name in pictures(text):
            image = enlarged(Path(folder) / name)
            image.save(page.parent / "pictures" / name, optimize=True)
        page.write_text(text)


def main() -> None:
    for page in [Path(name) for name in sys.argv[1:]] or pages():
        run_page(page)
        print(f"{page}: {len(list(blocks(page.read_text())))} blocks, {len(pictures(page.read_text()))} pictures")


if __name__ == "__main__":
    main()
