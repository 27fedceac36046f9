"""The colours of every page and picture, light and dark: the only place that names any.

Ways have the colours of M. Okabe and K. Ito, which colour-blind readers tell apart. Marks also have shapes.
"""

from __future__ import annotations

_LIGHT_WAYS = {"torch": "#0072b2", "triton": "#d55e00", "cuda": "#009e73", "library": "#cc79a7"}
_DARK_WAYS = {"torch": "#56b4e9", "triton": "#e69f00", "cuda": "#009e73", "library": "#cc79a7"}
_HUES = ("#e69f00", "#56b4e9", "#cc79a7", "#009e73", "#f0e442", "#0072b2")
TINTS = len(_HUES)
"""Backgrounds ``--tint-0`` and so on for text."""


def _tints(paper: str, share: float) -> dict[str, str]:
    """Backgrounds for text: so much of each hue in the paper."""
    return {f"tint-{n}": _mixed(paper, hue, share) for n, hue in enumerate(_HUES)}


def _mixed(one: str, other: str, share: float) -> str:
    parts = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


LIGHT = {
    "paper": "#ffffff",
    "panel": "#f6f7f9",
    "ink": "#1b1d21",
    "faint": "#5b626d",
    "rule": "#d5d9df",
    "accent": "#0b57d0",
    "bad": "#b3261e",
    "bad-panel": "#fdeceb",
    "good": "#0a6b2d",
    "lit": "#ffe08a",
    "near": "#fff0c2",
    "found": "#d9ecff",
    "c": "#555c68",
    "s": "#0a6128",
    "m": "#0f5a8a",
    "t": "#6a3ea1",
    "k": "#9c1f5c",
    "f": "#1f4fb8",
    "v": "#754700",
    "d": "#6a3ea1",
    **_LIGHT_WAYS,
    **_tints("#ffffff", 0.16),
}
DARK = {
    "paper": "#14161a",
    "panel": "#1c1f24",
    "ink": "#e7e9ed",
    "faint": "#a2a9b4",
    "rule": "#343942",
    "accent": "#8ab4ff",
    "bad": "#ff9d94",
    "bad-panel": "#3a1d1b",
    "good": "#7fd79a",
    "lit": "#4a3d00",
    "near": "#3d3512",
    "found": "#123f66",
    "c": "#a6adb8",
    "s": "#8fd6a4",
    "m": "#8cc8f0",
    "t": "#cdb0ff",
    "k": "#ff9ac6",
    "f": "#a3c2ff",
    "v": "#f0c489",
    "d": "#cdb0ff",
    **_DARK_WAYS,
    **_tints("#14161a", 0.2),
}
"""By name: grounds, text and lines, then highlighted code by its class, then ways, then tints."""


def css() -> str:
    """Custom properties, ``--triton``: the dark ones on a dark screen, never on paper."""
    light, dark = (" ".join(f"--{name}: {colour};" for name, colour in of.items()) for of in (LIGHT, DARK))
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )
