"""A roofline as SVG: the measured ceilings, and a point for each row that was timed."""

from __future__ import annotations

import math
from html import escape

from compare.model.result import CaseComparison
from compare.report.html.lanes import Picture
from compare.timing import figures

_WIDE, _HIGH, _LEFT, _TOP = 640, 320, 60, 16
_SPREAD = 16.0
"""From the least to the largest intensity that is drawn, on each side of the case's own."""


def picture(case: CaseComparison, mine: str) -> Picture | None:
    """The rows of a case, that of ``mine`` apart; None where no ceiling is known, or nothing is computed."""
    ceilings = case.ceilings or next((row.ceilings for row in case.rows if row.ceilings), None)
    intensity = figures.intensity(case)
    if ceilings is None or not intensity:
        return None
    slope = ceilings.copy_gbs / 1e3  # TFLOP/s for each FLOP/B
    peak = ceilings.product_tflops or ceilings.matmul_tflops
    times = {row.label: figures.cold_us(row) for row in case.rows}
    points = {label: case.cost.flops / us / 1e6 for label, us in times.items() if 0 < us < math.inf}
    left, right = intensity / _SPREAD, max(intensity, (peak or 0) / slope) * _SPREAD
    roof = [(x, min(x * slope, peak or math.inf)) for x in (left, (peak or right * slope) / slope, right)]
    bottom = min([*points.values(), left * slope]) / 1.5
    top = 2 * max([*points.values(), *(y for _, y in roof)])

    def at(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / left) / math.log(right / left)
        up = math.log(y / bottom) / math.log(top / bottom)
        return _LEFT + across * (_WIDE - _LEFT - 20), _TOP + (1 - up) * (_HIGH - _TOP - 40)

    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*corner) for corner in roof))
    parts = [f'<path d="M{line}" fill="none" stroke="var(--ink)" stroke-width="2"/>']
    x, y = at(intensity, bottom)
    parts.append(f'<path d="M{x:.1f} {y:.1f}V{_TOP}" stroke="var(--rule)" stroke-dasharray="4 3"/>')
    parts.append(_text(x, y + 16, f"{intensity:.3g} FLOP/B", "middle"))
    parts.append(_text(_LEFT, y + 34, f"slope: copy, {ceilings.copy_gbs:,.0f} GB/s", "start"))
    if peak:
        parts.append(_text(*_above(at(right, peak)), f"peak: {peak:,.0f} TFLOP/s", "end"))
    used: list[float] = []
    for label, reached in sorted(points.items(), key=lambda entry: -entry[1]):
        x, y = at(intensity, reached)
        beside = max([y, *(one + 13 for one in used)])
        used.append(beside)
        colour, size = ("var(--bad)", 6) if label == mine else ("var(--accent)", 4)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}"/>')
        parts.append(_text(x + 10, beside + 4, f"{label}, {reached:.3g} TFLOP/s", "start"))
    caption = _caption(case, mine, points, intensity)
    head = (
        f'<svg role="img" viewBox="0 0 {_WIDE} {_HIGH}" width="{_WIDE}" xmlns="http://www.w3.org/2000/svg">'
    )
    return Picture(f"{head}<title>{escape(caption)}</title>{''.join(parts)}</svg>", caption)


def _caption(case: CaseComparison, mine: str, points: dict[str, float], intensity: float) -> str:
    recorded = next((row.recorded for row in case.rows if row.recorded), None)
    where = f"recorded on {recorded}" if recorded else "measured in this run"
    fastest = max(points, key=lambda label: points[label], default="")
    text = f"Roofline of {case.case}, {intensity:.3g} FLOP/B. Ceilings and times: {where}."
    text += f" Fastest: {fastest}, {points[fastest]:.3g} TFLOP/s." if fastest else ""
    own = (
        f" Yours: {points[mine]:.3g} TFLOP/s."
        if mine in points
        else " Yours was not timed: that needs a GPU."
    )
    return text + own


def _above(place: tuple[float, float]) -> tuple[float, float]:
    return place[0], place[1] - 6


def _text(x: float, y: float, text: str, anchor: str) -> str:
    style = f'font-size="12" text-anchor="{anchor}" fill="var(--ink)"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
