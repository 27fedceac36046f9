"""The colours of every page and picture, light and dark: the only place that names any.

Ways have the colours of M. Okabe and K. Ito, which colour-blind readers tell apart. Marks also have shapes.
"""

from __future__ import annotations

_HUES = ("#e69f00", "#56b4e9", "#cc79a7", "#009e73", "#f0e442", "#0072b2")
TINTS = len(_HUES)
"""Backgrounds for text, ``--tint-0`` and so on."""
_BOTH = {
    # Grounds, text and lines.
    "paper": ("#ffffff", "#14161a"),
    "panel": ("#f6f7f9", "#1c1f24"),
    "ink": ("#1b1d21", "#e7e9ed"),
    "faint": ("#5b626d", "#a2a9b4"),
    "rule": ("#d5d9df", "#343942"),
    "accent": ("#0b57d0", "#8ab4ff"),
    "bad": ("#b3261e", "#ff9d94"),
    "bad-panel": ("#fdeceb", "#3a1d1b"),
    "good": ("#0a6b2d", "#7fd79a"),
    "lit": ("#ffe08a", "#4a3d00"),
    "near": ("#fff0c2", "#3d3512"),
    "found": ("#d9ecff", "#123f66"),
    # Highlighted code, by its class.
    "c": ("#555c68", "#a6adb8"),
    "s": ("#0a6128", "#8fd6a4"),
    "m": ("#0f5a8a", "#8cc8f0"),
    "t": ("#6a3ea1", "#cdb0ff"),
    "k": ("#9c1f5c", "#ff9ac6"),
    "f": ("#1f4fb8", "#a3c2ff"),
    "v": ("#754700", "#f0c489"),
    "d": ("#6a3ea1", "#cdb0ff"),
    # Ways.
    "torch": ("#0072b2", "#56b4e9"),
    "triton": ("#d55e00", "#e69f00"),
    "cuda": ("#009e73", "#009e73"),
    "library": ("#cc79a7", "#cc79a7"),
}
"""By name: on a light page and on a dark one."""


def _with_tints(colours: dict[str, str], share: float) -> dict[str, str]:
    """Tints have so much of each hue in the paper."""
    return colours | {f"tint-{n}": _mixed(colours["paper"], hue, share) for n, hue in enumerate(_HUES)}


def _mixed(one: str, other: str, share: float) -> str:
    parts = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


LIGHT = _with_tints({name: light for name, (light, _) in _BOTH.items()}, 0.16)
DARK = _with_tints({name: dark for name, (_, dark) in _BOTH.items()}, 0.2)


def css() -> str:
    """Custom properties, ``--triton``: the dark ones on a dark screen, never on paper."""
    light, dark = (" ".join(f"--{name}: {colour};" for name, colour in of.items()) for of in (LIGHT, DARK))
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )
