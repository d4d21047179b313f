"""The report is well-formed, self-contained HTML that shows what it was given and nothing else."""

import base64
import hashlib
import io
import itertools
import math
import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from aipo.images import to_uint8
from aipo.report.curves import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Curve, draw
from aipo.report.html import Figure, Section, is_report, write_report

NASTY = """<script>alert("1")</script> & 'quoted' > </title> </table>"""
VOID = {"img", "meta", "input"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and insists that tags are closed in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] != "style" and text.strip():
            self.text.append(text.strip())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def random_image(channels=3, seed=0):
    return torch.rand(channels, 64, 64, generator=torch.Generator().manual_seed(seed))


def make(path, text="plain", command="aipo demo --seed 0"):
    rows = [[Figure(text, random_image(), note=text), Figure("second", random_image(seed=1))]]
    rows.append([Figure("mask", random_image(channels=1))])
    sections = [
        Section(text, text=f"{text}\n\nanother paragraph", points=[text, "another point"], rows=rows),
        Section("numbers", table=(["image", text], [[text, 12.5], ["b", text]])),
    ]
    write_report(path, text, text, sections, {text: text, "seed": 0}, command)
    html = path.read_text(encoding="utf-8")
    return html, Page(html)


def test_everything_given_is_shown(tmp_path):
    _, page = make(tmp_path / "report.html")
    for words in (
        "plain",
        "another paragraph",
        "another point",
        "second",
        "numbers",
        "12.5",
        "seed",
        "0",
        "aipo demo --seed 0",
    ):
        assert words in page.text


def test_pictures_are_embedded_and_described(tmp_path):
    _, page = make(tmp_path / "report.html")
    images = page.all("img")
    assert [image["alt"] for image in images] == ["plain", "second", "mask"]
    for image, x in zip(images, (random_image(), random_image(seed=1), random_image(channels=1)), strict=True):
        kind, data = image["src"].split(",", 1)
        assert kind == "data:image/png;base64"
        decoded = np.asarray(Image.open(io.BytesIO(base64.b64decode(data, validate=True))))
        assert decoded.shape[:2] == (192, 192)
        assert np.array_equal(decoded[1::3, 1::3].reshape(64, 64, -1), to_uint8(x).permute(1, 2, 0).numpy())


def test_all_text_is_escaped(tmp_path):
    html, page = make(tmp_path / "report.html", text=NASTY, command=NASTY)
    assert page.all("script") == []
    assert "<script" not in html
    # title, heading, intro; section heading, text, point, caption, note; header, 2 cells; 2 of the settings; command
    assert page.text.count(NASTY) == 14
    assert page.all("img")[0]["alt"] == NASTY


def test_nothing_is_loaded_from_elsewhere(tmp_path):
    html, page = make(tmp_path / "report.html", text="see https://example.org")
    sources = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert len(sources) == 3
    assert all(source.startswith("data:") for source in sources)
    assert page.all("link") == page.all("script") == page.all("iframe") == []
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_the_page_is_accessible(tmp_path):
    _, page = make(tmp_path / "report.html")
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("main")) == 1
    assert [cell["scope"] for cell in page.all("th")] == ["col", "col", "row", "row"]
    names = [heading["id"] for heading in page.all("h2")]
    assert len(set(names)) == len(names)
    assert [section["aria-labelledby"] for section in page.all("section")] == names


def test_an_empty_command_leaves_no_heading_behind(tmp_path):
    _, page = make(tmp_path / "report.html", command="")
    assert "Run it again" not in page.text


def test_a_name_that_is_not_unicode_does_not_cost_the_report(tmp_path):
    html, _ = make(tmp_path / "report.html", text=os.fsdecode(b"caf\xe9.png"))
    assert "caf?.png" in html


def test_a_failure_leaves_the_old_report(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(ValueError, match="NaN"):
        write_report(path, "t", "", [Section("s", rows=[[Figure("p", torch.full((3, 8, 8), torch.nan))]])], {})
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


# --- sliders and curves ---


def compared(path, text="plain"):
    pair = (Figure(f"{text} before", random_image()), Figure(f"{text} after", random_image(seed=1), note=text))
    curve = Curve(text, [0.1, 1, 10], [3.0, 1.0, 2.0], chosen=(1, 1.0), level=(1.5, text))
    write_report(path, "t", "", [Section("s", sliders=[pair], curves=[curve])], {})
    html = path.read_text(encoding="utf-8")
    return html, Page(html)


def test_a_slider_shows_both_pictures(tmp_path):
    _, page = compared(tmp_path / "report.html")
    assert {image["alt"] for image in page.all("img")} == {"plain before", "plain after"}
    (control,) = page.all("input")
    assert (control["type"], control["aria-label"]) == ("range", "plain before or plain after")
    assert "plain" in page.text


def test_the_policy_allows_the_sliders_script_and_no_other(tmp_path):
    html, page = compared(tmp_path / "report.html", text=NASTY)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(
        meta["content"] for meta in page.all("meta") if "content" in meta and "default-src" in meta["content"]
    )
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1]
    assert "default-src 'none'" in policy
    # The text of the section: both captions at once, the note, the names of the curve and its level.
    assert sum(NASTY in text for text in page.text) == 4


def test_a_report_is_told_from_other_pages(tmp_path):
    make(tmp_path / "report.html")
    assert is_report(tmp_path / "report.html")
    (tmp_path / "other.html").write_text("<html>aipo</html>")
    assert not is_report(tmp_path / "other.html")
    assert not is_report(tmp_path / "missing.html")


def points(svg):
    text = re.search(r'points="([^"]*)"', svg).group(1)
    return [tuple(map(float, point.split(","))) for point in text.split()]


finite = st.floats(-1e6, 1e6)


@settings(deadline=None)
@given(
    values=st.lists(st.tuples(st.floats(1e-4, 1e3), finite), min_size=1, max_size=12),
    chosen=st.none() | st.tuples(st.floats(1e-4, 1e3), finite),
    level=st.none() | st.tuples(finite, st.just("level")),
)
def test_every_curve_fits_its_frame(values, chosen, level):
    values.sort()
    lam, heights = zip(*values, strict=True)
    svg = draw(Curve("name", lam, heights, chosen, level))
    Page(svg)
    numbers = [float(v) for v in re.findall(r' [cxy][xy12]?="([^"]*)"', svg)]
    assert all(math.isfinite(number) for number in numbers)
    drawn = points(svg)
    assert len(drawn) == len(values)
    for x, y in drawn:
        assert LEFT <= x <= WIDTH - RIGHT
        assert TOP <= y <= HEIGHT - BOTTOM
    assert [x for x, _ in drawn] == sorted(x for x, _ in drawn)
    # Higher values are drawn further up, up to rounding.
    order = sorted(range(len(drawn)), key=lambda i: heights[i])
    drops = [drawn[b][1] - drawn[a][1] for a, b in itertools.pairwise(order)]
    assert all(drop <= 0.11 for drop in drops)


def test_lam_is_on_a_logarithmic_axis_with_round_numbers():
    svg = draw(Curve("name", [0.1, 1, 10], [0.0, 1.0, 2.0], chosen=(1, 1.0)))
    (x0, _), (x1, y1), (x2, _) = points(svg)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert f'<circle cx="{x1:.1f}" cy="{y1:.1f}" r="5"/>' in svg
    for tick in ("0.1", "0.2", "0.5", "1", "2", "5", "10"):
        assert f">{tick}</text>" in svg
    assert "chosen λ 1" in svg


def test_what_is_not_finite_is_left_out():
    assert len(points(draw(Curve("name", [0.1, 1, 10], [1.0, math.nan, math.inf])))) == 1


def test_another_number_has_a_linear_axis():
    svg = draw(Curve("sigma", [0.0, 0.5, 1.0], [1.0, 2.0, 3.0], axis="brightness", logarithmic=False))
    across = [x for x, _ in points(svg)]
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.2)
    assert ">brightness</text>" in svg
    assert "λ" not in svg


def test_photographs_are_embedded_as_jpeg_and_small_pictures_exactly(tmp_path):
    ramp = torch.linspace(0, 1, 300).expand(3, 100, 300)
    section = Section("-", rows=[[Figure("large", ramp), Figure("small", ramp[..., :64])]])
    write_report(tmp_path / "r.html", "-", "-", [section], {})
    kinds = re.findall(r"data:image/(\w+);base64,([^\"]+)", (tmp_path / "r.html").read_text())
    assert [kind for kind, _ in kinds] == ["jpeg", "png"]
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(kinds[0][1])))) / 255
    assert np.abs(shown - ramp.permute(1, 2, 0).numpy()).max() < 0.02
