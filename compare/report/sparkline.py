"""Numbers as a line of bars, one character each."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
GAP = "·"
"""Where there is no number."""


def sparkline(values: Sequence[float | None], least: float = 0.0) -> str:
    """A bar for each value, the smallest lowest and the largest highest.

    Args:
        values: None: not known, shown as `GAP`.
        least: where the largest exceeds the smallest by no more than this share, all bars are alike.
    """
    known = [value for value in values if value is not None]
    if not known:
        return GAP * len(values)
    low, high = min(known), max(known)
    flat = high - low <= least * low
    steps = (0 if flat else round((value - low) / (high - low) * (len(BARS) - 1)) for value in known)
    bars = iter([BARS[step] for step in steps])
    return "".join(GAP if value is None else next(bars) for value in values)
