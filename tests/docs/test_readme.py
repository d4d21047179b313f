"""The example in the README runs as printed and does what it says."""

import re
from pathlib import Path

from aipo.images import read_image
from aipo.images.metrics import psnr
from aipo.images.samples import load

README = Path(__file__).parents[2] / "README.md"


def test_the_ten_line_example(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(README), "exec"), {})
    assert "done" in capsys.readouterr().out
    restored = read_image(tmp_path / "restored.png")
    assert psnr(restored[None], load("astronaut")[None]).item() > 28


def test_every_local_link_exists():
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert targets
    for target in targets:
        assert (README.parent / target).exists(), target
