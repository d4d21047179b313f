"""One HTML page that shows what a run did: pictures, tables, curves, settings, and how to run it again.

The page is a single file that loads nothing: style and pictures are inside it, and its content security
policy forbids the rest. All text is escaped, so a file name or caption cannot break the page.

Two pictures of the same thing can be compared with a slider. It is the only thing that needs a script, two lines that
the policy names by their hash; without scripts half of each picture is shown.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from torch import Tensor

from aipo.curves import Curve, draw
from aipo.files import write_atomically
from aipo.images import png_bytes

__all__ = ["Marked", "Picture", "Section", "is_report", "write_report"]

GENERATOR = '<meta name="generator" content="aipo">'
SCRIPT = """
for (const input of document.querySelectorAll(".slider input"))
  input.addEventListener("input", () => input.parentElement.style.setProperty("--at", input.value + "%"));
"""

PICTURE_WIDTH = 192  # CSS pixels: three times the priors' 64, so that every pixel is shown equally large


@dataclass(frozen=True)
class Picture:
    """A picture with the words below it.

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
    """A part of the page: text, points, sliders with curves, rows of pictures, strips, a table, a chart; all optional.

    Attributes:
        heading: The section's title.
        text: Plain text; an empty line starts a new paragraph.
        points: Plain texts, shown as a list.
        sliders: Pairs of pictures of the same size, before and after, one over the other with a slider between them.
        rows: Pictures shown side by side, row by row.
        strips: Small pictures in a line that scrolls sideways, such as restorations over lam.
        curves: Drawn beside the first slider.
        table: The header cells and the rows of cells; the first cell of a row names it.
        chart: A caption and a drawing as PNG, shown as it is, but no wider than the page.
    """

    heading: str
    text: str = ""
    points: Sequence[str] = ()
    sliders: Sequence[tuple[Picture, Picture]] = ()
    rows: Sequence[Sequence[Picture]] = ()
    strips: Sequence[Sequence[Picture]] = ()
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
        settings: Names and values that a reader needs to understand the figures.
        command: The exact command line that makes the same page again; left out when empty.
    """
    body = "\n".join(_section(f"section-{i}", section) for i, section in enumerate(sections, start=1))
    policy, script = "default-src 'none'; img-src data:; style-src 'unsafe-inline'", ""
    if any(section.sliders for section in sections):
        digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode("ascii")
        policy, script = f"{policy}; script-src 'sha256-{digest}'", f"<script>{SCRIPT}</script>\n"
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<style>{STYLE}</style>
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


def _section(name: str, section: Section) -> str:
    curves = "\n".join(f'<figure class="curve">{draw(curve)}</figure>' for curve in section.curves)
    curves = f'<div class="curves">\n{curves}\n</div>' if curves else ""
    # The curves stand beside the first slider, where there is room.
    compared = "\n".join([_slider(*pair) for pair in section.sliders[:1]] + [curves])
    compared += "\n".join(_slider(*pair) for pair in section.sliders[1:])
    compared = f'<div class="compared">\n{compared}\n</div>' if compared.strip() else ""
    rows = "\n".join(
        f'<div class="pictures">\n{"".join(_figure(picture) for picture in row)}</div>' for row in section.rows
    )
    strips = "\n".join(
        f'<div class="strip" tabindex="0" role="region" aria-labelledby="{name}">\n'
        f"{''.join(_figure(picture) for picture in strip)}</div>"
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


def _image(picture: Picture) -> str:
    # Enlarged already in the file, so that a picture saved from the page can be looked at too.
    scale = max(1, PICTURE_WIDTH // picture.image.shape[-1])
    data = base64.b64encode(png_bytes(picture.image, scale)).decode("ascii")
    return f'<img src="data:image/png;base64,{data}" alt="{escape(picture.caption)}">'


def _slider(before: Picture, after: Picture) -> str:
    note = f'<span class="note">{escape(after.note)}</span>' if after.note else ""
    wide = " large" if before.image.shape[-1] > PICTURE_WIDTH else ""
    label = escape(f"{before.caption} or {after.caption}")
    return (
        f'<figure class="compare{wide}"><div class="slider">{_image(after)}\n<div class="over">{_image(before)}</div>'
        f'<input type="range" min="0" max="100" value="50" aria-label="{label}"></div>'
        f"<figcaption>Left: {escape(before.caption)}. Right: {escape(after.caption)}.{note}</figcaption></figure>"
    )


def _figure(picture: Picture) -> str:
    note = f'<span class="note">{escape(picture.note)}</span>' if picture.note else ""
    mark = ' class="marked"' if picture.marked else ""
    return f"<figure{mark}>{_image(picture)}<figcaption>{escape(picture.caption)}{note}</figcaption></figure>\n"


def _chart(caption: str, png: bytes) -> str:
    data = base64.b64encode(png).decode("ascii")
    image = f'<img src="data:image/png;base64,{data}" alt="{escape(caption)}">'
    return f'<figure class="chart">{image}<figcaption>{escape(caption)}</figcaption></figure>'


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


STYLE = f"""
:root {{
  color-scheme: light dark;
  --page: #ffffff; --text: #1c2430; --quiet: #5a6675; --line: #dde2e8; --panel: #f5f7f9; --accent: #1f5fbf;
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --page: #14181d; --text: #e4e8ed; --quiet: #9aa6b4; --line: #2e363f; --panel: #1c2229; --accent: #7fb0f5;
  }}
}}
* {{ box-sizing: border-box; }}
body {{
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 70rem;
  background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}}
h1 {{ margin: 0 0 .75rem; font-size: 1.9rem; line-height: 1.2; letter-spacing: -.01em; }}
h2 {{ margin: 0 0 .75rem; font-size: 1.3rem; line-height: 1.3; }}
h3 {{ margin: 1.75rem 0 .5rem; font-size: 1rem; }}
p {{ margin: 0 0 1rem; max-width: 46rem; overflow-wrap: anywhere; }}
ul {{ margin: 0 0 1rem; padding-left: 1.25rem; max-width: 46rem; overflow-wrap: anywhere; }}
li {{ margin-bottom: .5rem; }}
header {{ padding-bottom: .5rem; border-bottom: 3px solid var(--accent); }}
section {{ margin-top: 2.5rem; }}
section + section {{ padding-top: 2rem; border-top: 1px solid var(--line); }}
.pictures {{ display: flex; flex-wrap: wrap; gap: 1.25rem 1rem; margin: 1.25rem 0; }}
figure {{ margin: 0; width: {PICTURE_WIDTH}px; }}
img {{ display: block; width: 100%; image-rendering: pixelated; box-shadow: 0 0 0 1px var(--line); }}
figcaption {{ margin-top: .45rem; font-size: .9rem; line-height: 1.35; overflow-wrap: anywhere; }}
.compared {{ display: flex; flex-wrap: wrap; gap: 1.25rem 2rem; margin: 1.25rem 0; }}
.curves {{ display: flex; flex-direction: column; gap: .75rem; flex: 1 1 20rem; max-width: 30rem; }}
.compare {{ width: {2 * PICTURE_WIDTH}px; max-width: 100%; }}
.compare.large {{ width: 40rem; }}
.compare.large img {{ image-rendering: auto; }}
.slider {{ --at: 50%; position: relative; box-shadow: 0 0 0 1px var(--line); }}
.slider img {{ box-shadow: none; }}
.over {{ position: absolute; inset: 0; clip-path: inset(0 calc(100% - var(--at)) 0 0); }}
.slider::after {{
  content: ""; position: absolute; top: 0; bottom: 0; left: var(--at); width: 2px; margin-left: -1px;
  background: #fff; box-shadow: 0 0 3px #000; pointer-events: none;
}}
.slider input {{
  position: absolute; inset: 0; width: 100%; height: 100%; margin: 0; background: none; cursor: ew-resize;
  appearance: none; -webkit-appearance: none; touch-action: pan-y;
}}
.slider input::-webkit-slider-thumb {{
  -webkit-appearance: none; width: 28px; height: 28px; border: 2px solid #fff; border-radius: 50%;
  background: rgb(0 0 0 / 45%);
}}
.slider input::-moz-range-thumb {{
  width: 24px; height: 24px; border: 2px solid #fff; border-radius: 50%; background: rgb(0 0 0 / 45%);
}}
.slider input:focus-visible {{ outline-offset: 4px; }}
.curve {{ width: auto; }}
.curve svg {{ display: block; width: 100%; height: auto; }}
.curve text {{ fill: var(--quiet); font-size: 11px; }}
.curve .name {{ fill: var(--text); font-size: 13px; font-weight: 600; }}
.curve .axis {{ stroke: var(--line); }}
.curve .line {{ fill: none; stroke: var(--accent); stroke-width: 2; }}
.curve circle {{ fill: var(--accent); }}
.curve .chosen {{ stroke: var(--text); stroke-width: 1.5; }}
.curve .level {{ stroke: var(--quiet); stroke-dasharray: 4 3; }}
.chart {{ width: auto; margin: 1.25rem 0; }}
.chart img {{ width: auto; max-width: 100%; image-rendering: auto; }}
.strip {{ display: flex; gap: .6rem; margin: 1.25rem 0; padding: .3rem .3rem .8rem; overflow-x: auto; }}
.strip figure {{ flex: 0 0 {PICTURE_WIDTH // 2}px; width: auto; }}
.strip figcaption {{ font-size: .8rem; }}
.marked img {{ box-shadow: 0 0 0 3px var(--accent); }}
.marked figcaption, td.marked {{ font-weight: 600; }}
.note {{ display: block; color: var(--quiet); font-variant-numeric: tabular-nums; }}
.wide {{ overflow-x: auto; margin: 1.25rem 0; }}
table {{ border-collapse: collapse; font-size: .95rem; font-variant-numeric: tabular-nums; }}
th, td {{
  padding: .45rem .9rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line);
}}
th:first-child {{ text-align: left; padding-left: 0; }}
thead th {{ color: var(--quiet); font-size: .85rem; border-bottom: 2px solid var(--line); }}
tbody th {{ font-weight: 500; }}
dl {{
  margin: 0; display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: .9rem 1.5rem;
}}
dt {{ color: var(--quiet); font-size: .85rem; }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
pre {{
  margin: 0; padding: .8rem 1rem; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px;
  background: var(--panel); font: .9rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace;
}}
:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; }}
@media (max-width: 40rem) {{
  body {{ padding: 1.5rem 1rem 3rem; }}
  h1 {{ font-size: 1.5rem; }}
  .pictures {{ display: grid; grid-template-columns: 1fr 1fr; gap: 1rem .75rem; }}
  figure {{ width: auto; }}
  .compare, .compare.large {{ width: 100%; }}
}}
@media print {{ figure, tr {{ break-inside: avoid; }} }}
"""
