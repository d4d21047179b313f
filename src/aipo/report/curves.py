"""Small line charts over λ or another number, as SVG that takes its colors from the page around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Curve", "draw"]

WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 38, 34


@dataclass(frozen=True)
class Curve:
    """One curve, by default over lam on a logarithmic axis.

    Attributes:
        name: what is drawn.
        lam: where, ascending; > 0 on a logarithmic axis.
        values: as many; points that are not finite are left out.
        chosen: the lam that was chosen and its value, marked.
        level: a value to compare with, drawn across, with its name.
        axis: what lies below.
        logarithmic: whether that axis is.
    """

    name: str
    lam: Sequence[float]
    values: Sequence[float]
    chosen: tuple[float, float] | None = None
    level: tuple[float, str] | None = None
    axis: str = "λ"
    logarithmic: bool = True


def draw(curve: Curve) -> str:
    """The curve as an <svg> element."""
    shown = [x > 0 or not curve.logarithmic for x in curve.lam]
    pairs = zip(curve.lam, curve.values, shown, strict=True)
    points = [(x, y) for x, y, show in pairs if show and math.isfinite(y)]
    marks = [curve.chosen] if curve.chosen else []
    xs = [x for x, _ in (*points, *marks)] or [1.0]
    ys = [y for _, y in (*points, *marks)] + ([curve.level[0]] if curve.level else []) or [0.0]
    place = math.log10 if curve.logarithmic else float
    x_low, x_high = _widened(place(min(xs)), place(max(xs)), 0.05)
    y_low, y_high = _widened(min(ys), max(ys), 1.0)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (place(x) - x_low) / (x_high - x_low)
        up = (y - y_low) / (y_high - y_low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    described = f"{curve.name} over {curve.axis}, {len(points)} points"
    if curve.chosen:
        described += f"; {curve.chosen[1]:.4g} at the chosen {curve.axis} {curve.chosen[0]:.3g}"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(described)}">',
        f'<text class="name" x="0" y="14">{escape(curve.name)}</text>',
    ]
    for value in _ticks(y_low, y_high):
        y = at(xs[0], value)[1]
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    for value in _lam_ticks(10**x_low, 10**x_high) if curve.logarithmic else _ticks(x_low, x_high):
        x = at(value, y_low)[0]
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(curve.axis)}</text>')
    if curve.level:
        y = at(xs[0], curve.level[0])[1]
        parts.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT + 4}" y="{y - 5:.1f}">{escape(curve.level[1])}</text>')
    if curve.chosen:
        x, y = at(*curve.chosen)
        parts.append(f'<line class="chosen" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        anchor, shift = ("end", -5) if x > WIDTH * 0.6 else ("start", 5)
        label = f"{curve.axis} {curve.chosen[0]:.2g}"
        parts.append(f'<text x="{x + shift:.1f}" y="{TOP - 4}" text-anchor="{anchor}">{label}</text>')
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
    parts.append(f'<polyline class="line" points="{path}"/>')
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in (at(*point) for point in points)]
    if curve.chosen:
        x, y = at(*curve.chosen)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
    return "\n".join([*parts, "</svg>"])


def _widened(low: float, high: float, least: float) -> tuple[float, float]:
    """The range with a little room at both ends, and some room if there is none at all."""
    room = 0.06 * (high - low) or least * max(abs(low), 1.0) / 2
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers in a range."""
    step = 10 ** math.floor(math.log10((high - low) / 2))
    for factor in (1, 2, 5, 10):
        count = math.floor(high / (step * factor)) - math.ceil(low / (step * factor)) + 1
        if count <= 6:
            first = math.ceil(low / (step * factor))
            return [(first + i) * step * factor for i in range(max(count, 1))]
    return [low]


def _lam_ticks(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis: 1, 2 and 5 times powers of ten, or powers only if those are many."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        # Through text, so that 3 * 0.1 reads 0.3.
        ticks = [v for e in exponents for f in factors if low <= (v := float(f"{f}e{e}")) <= high]
        if len(ticks) <= 8:
            break
    return ticks or [float(f"{math.sqrt(low * high):.2g}")]


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.6g}"
