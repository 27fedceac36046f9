"""The colours of pages and pictures: named in one place, and legible on every ground that they stand on."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from compare.model.op import WAYS
from compare.registry import ROOT
from compare.report.html import palette

TEXT, SHAPE = 4.5, 3.0
"""The least contrast of text and of shapes, by WCAG 2.1's success criteria 1.4.3 and 1.4.11."""
CODE = ("ink", "faint", "c", "s", "m", "t", "k", "f", "v", "d")
GROUNDS = ("paper", "panel", "lit", "near", "found", *(f"tint-{n}" for n in range(palette.TINTS)))

SCHEMES = pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK], ids=["light", "dark"])


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.1 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@SCHEMES
def test_text_is_legible_on_every_ground(colours: dict[str, str]) -> None:
    pairs = [(text, ground) for text in CODE for ground in GROUNDS]
    pairs += [
        ("bad", "paper"),
        ("bad", "bad-panel"),
        ("ink", "bad-panel"),
        ("good", "paper"),
        ("accent", "paper"),
    ]
    low = {pair: contrast(*(colours[name] for name in pair)) for pair in pairs}
    assert {pair: value for pair, value in low.items() if value < TEXT} == {}


@SCHEMES
def test_ways_are_seen_and_differ_in_hue(colours: dict[str, str]) -> None:
    ways = (*WAYS, "library")
    assert all(contrast(colours[way], colours["paper"]) >= SHAPE for way in ways)
    for one, other in combinations(ways, 2):
        assert distance(colours[one], colours[other]) > 40, (one, other)


def distance(one: str, other: str) -> float:
    """Of two colours as a deuteranope sees them (Vienot, Brettel and Mollon, 1999), in steps of 0 to 255."""
    seen = []
    for colour in (one, other):
        red, green, blue = ((int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5))
        yellow = 0.29275 * red + 0.70725 * green
        seen.append(
            [255 * part ** (1 / 2.2) for part in (yellow, max(0.0, -0.02234 * red + 0.02234 * green + blue))]
        )
    return sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5


def test_no_page_or_picture_names_a_colour_of_its_own() -> None:
    files = [
        path
        for folder in ("compare/report", "compare/pipeline/page")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".css", ".js", ".html", ".j2", ".py") and path.name != "palette.py"
    ]
    assert len(files) > 20
    colour = re.compile(r"#[0-9a-fA-F]{6}\b|(?<![&\w])#[0-9a-fA-F]{3}\b|\brgba?\(")
    assert {str(path): names for path in files if (names := colour.findall(path.read_text()))} == {}


def test_the_style_sheet_has_both_schemes() -> None:
    light, dark = palette.css().split("@media screen and (prefers-color-scheme: dark)")
    assert f"--triton: {palette.LIGHT['triton']};" in light
    assert f"--triton: {palette.DARK['triton']};" in dark
