"""One HTML page that shows what a run did: figures, tables, curves, settings, and how to run it again.

The page is a single file that loads nothing: its style (page.css) and images are inside it, and its content security
policy forbids everything else. All text is escaped, so a file name or caption cannot break the page.

Two images of the same thing can be compared with a slider. Only the slider needs a script, and the policy allows that
script alone, by its hash. Without scripts half of each image is shown.
"""

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from PIL import Image
from torch import Tensor

from aipo.files import write_atomically
from aipo.images import png_bytes, to_uint8
from aipo.report.curves import Curve, draw

__all__ = ["Figure", "Marked", "Section", "is_report", "write_report"]

GENERATOR = '<meta name="generator" content="aipo">'
SLIDER = """for (const input of document.querySelectorAll(".slider input"))
  input.addEventListener("input", () => input.parentElement.style.setProperty("--at", input.value + "%"));
"""
FIGURE_WIDTH = 192  # CSS pixels: three times the priors' 64, so that every pixel is shown equally large


@dataclass(frozen=True)
class Figure:
    """An image with the words below it.

    Attributes:
        caption: What it shows; also its alternative text.
        image: (3, H, W) or (1, H, W) in [0,1]; clamped for display.
        note: A second, quieter line, such as a PSNR.
        marked: Shown as the one that counts.
    """

    caption: str
    image: Tensor
    note: str = ""
    marked: bool = False


class Marked(str):
    """A cell of a table that is shown as the one that counts."""


@dataclass(frozen=True)
class Section:
    """A part of the page: text, points, sliders with curves, rows of figures, strips, a table, a chart; all optional.

    Attributes:
        heading: The section's title.
        text: Plain text; an empty line starts a new paragraph.
        points: Plain texts, shown as a list.
        sliders: Pairs of figures of the same size, before and after, one over the other with a slider between them.
        rows: Figures shown side by side, row by row.
        strips: Small figures in a line that scrolls sideways, such as restorations over lam.
        curves: Drawn beside the first slider.
        table: The header cells and the rows of cells; the first cell of a row is its name.
        chart: A caption and a drawing as PNG, shown as it is, but no wider than the page.
    """

    heading: str
    text: str = ""
    points: Sequence[str] = ()
    sliders: Sequence[tuple[Figure, Figure]] = ()
    rows: Sequence[Sequence[Figure]] = ()
    strips: Sequence[Sequence[Figure]] = ()
    curves: Sequence[Curve] = ()
    table: tuple[Sequence[str], Sequence[Sequence[object]]] | None = None
    chart: tuple[str, bytes] | None = None


def write_report(
    path: str | Path,
    title: str,
    intro: str,
    sections: Sequence[Section],
    settings: Mapping[str, object],
    command: str = "",
) -> None:
    """Write the page to `path`, atomically.

    Args:
        path: The HTML file to write; its folder must exist.
        title: The page's title and main heading.
        intro: Plain text below it; an empty line starts a new paragraph.
        sections: The parts of the page, in order.
        settings: Names and values that a reader needs to understand the numbers.
        command: The exact command line that makes the same page again; not shown if empty.
    """
    body = "\n".join(_section(f"section-{i}", section) for i, section in enumerate(sections, start=1))
    policy, script = "default-src 'none'; img-src data:; style-src 'unsafe-inline'", ""
    if any(section.sliders for section in sections):
        digest = base64.b64encode(hashlib.sha256(SLIDER.encode()).digest()).decode("ascii")
        policy, script = f"{policy}; script-src 'sha256-{digest}'", f"<script>{SLIDER}</script>\n"
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<style>{_style()}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{_paragraphs(intro)}
</header>
<main>
{body}
{_settings(settings, command)}
</main>
{script}</body>
</html>
"""
    # A file name that is not valid Unicode must not cost the whole report.
    write_atomically(path, page.encode("utf-8", errors="replace"))


def is_report(path: str | Path) -> bool:
    """Whether a file is a page of `write_report`, so that another one may take its place."""
    try:
        with open(path, "rb") as file:
            return GENERATOR.encode() in file.read(1000)
    except OSError:
        return False


@cache
def _style() -> str:
    return (files("aipo.report") / "page.css").read_text(encoding="utf-8")


def _section(name: str, section: Section) -> str:
    curves = "\n".join(f'<figure class="curve">{draw(curve)}</figure>' for curve in section.curves)
    curves = f'<div class="curves">\n{curves}\n</div>' if curves else ""
    # The curves stand beside the first slider, where there is room.
    compared = "\n".join([_slider(*pair) for pair in section.sliders[:1]] + [curves])
    compared += "\n".join(_slider(*pair) for pair in section.sliders[1:])
    compared = f'<div class="compared">\n{compared}\n</div>' if compared.strip() else ""
    rows = "\n".join(
        f'<div class="pictures">\n{"".join(_figure(figure) for figure in row)}</div>' for row in section.rows
    )
    strips = "\n".join(
        f'<div class="strip" tabindex="0" role="region" aria-labelledby="{name}">\n'
        f"{''.join(_figure(figure) for figure in strip)}</div>"
        for strip in section.strips
    )
    table = _table(name, *section.table) if section.table else ""
    chart = _chart(*section.chart) if section.chart else ""
    return f"""<section aria-labelledby="{name}">
<h2 id="{name}">{escape(section.heading)}</h2>
{_paragraphs(section.text)}
{_list(section.points)}
{compared}
{rows}
{strips}
{table}
{chart}
</section>"""


def _image(content: bytes, caption: str, kind: str = "png") -> str:
    data = base64.b64encode(content).decode("ascii")
    return f'<img src="data:image/{kind};base64,{data}" alt="{escape(caption)}">'


def _enlarged(figure: Figure) -> str:
    if figure.image.shape[-1] > FIGURE_WIDTH:  # a photograph, several times smaller as JPEG
        return _image(_jpeg(figure.image), figure.caption, "jpeg")
    # Enlarged in the file itself, so that an image saved from the page can be looked at too.
    scale = max(1, FIGURE_WIDTH // figure.image.shape[-1])
    return _image(png_bytes(figure.image, scale), figure.caption)


def _jpeg(image: Tensor) -> bytes:
    buffer = io.BytesIO()
    pixels = to_uint8(image.expand(3, -1, -1)).permute(1, 2, 0).contiguous().numpy()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=92, subsampling=0)
    return buffer.getvalue()


def _slider(before: Figure, after: Figure) -> str:
    wide = " large" if before.image.shape[-1] > FIGURE_WIDTH else ""
    label = escape(f"{before.caption} or {after.caption}")
    captions = f"Left: {escape(before.caption)}. Right: {escape(after.caption)}.{_note(after)}"
    return (
        f'<figure class="compare{wide}"><div class="slider">{_enlarged(after)}\n'
        f'<div class="over">{_enlarged(before)}</div>'
        f'<input type="range" min="0" max="100" value="50" aria-label="{label}"></div>'
        f"<figcaption>{captions}</figcaption></figure>"
    )


def _figure(figure: Figure) -> str:
    mark = ' class="marked"' if figure.marked else ""
    caption = f"{escape(figure.caption)}{_note(figure)}"
    return f"<figure{mark}>{_enlarged(figure)}<figcaption>{caption}</figcaption></figure>\n"


def _note(figure: Figure) -> str:
    return f'<span class="note">{escape(figure.note)}</span>' if figure.note else ""


def _chart(caption: str, png: bytes) -> str:
    return f'<figure class="chart">{_image(png, caption)}<figcaption>{escape(caption)}</figcaption></figure>'


def _table(name: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "\n".join(
        f'<tr><th scope="row">{escape(str(first))}</th>'
        + "".join(f"<td{_mark(cell)}>{escape(str(cell))}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    # Focusable, because a wide table scrolls sideways and must do so from the keyboard too.
    return f"""<div class="wide" tabindex="0" role="region" aria-labelledby="{name}">
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>"""


def _mark(cell: object) -> str:
    return ' class="marked"' if isinstance(cell, Marked) else ""


def _settings(settings: Mapping[str, object], command: str) -> str:
    pairs = "\n".join(
        f"<div><dt>{escape(key)}</dt><dd>{escape(str(value))}</dd></div>" for key, value in settings.items()
    )
    again = f'<h3>Run it again</h3>\n<pre tabindex="0"><code>{escape(command)}</code></pre>' if command else ""
    return f"""<section aria-labelledby="settings">
<h2 id="settings">Settings</h2>
<dl>
{pairs}
</dl>
{again}
</section>"""


def _paragraphs(text: str) -> str:
    return "\n".join(f"<p>{escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip())


def _list(points: Sequence[str]) -> str:
    items = "\n".join(f"<li>{escape(point)}</li>" for point in points)
    return f"<ul>\n{items}\n</ul>" if points else ""
