"""The picture of docs/ops/transpose.md: rows of y, each split at its own sector boundaries."""

from __future__ import annotations

from tools.docs import svg
from tools.docs.timing import LANE, LEFT, Box, Span

SECTOR, WINDOW, PAST = 8, 16, 3
"""Elements of a sector and of a window; M % SECTOR."""
SHOWN = range(1, 42)
"""Of m, the columns of y."""
SCALE = 16.8


def _x(m: int) -> int:
    return LEFT + round(SCALE * (m - SHOWN.start))


def windows() -> str:
    """docs/ops/transpose_windowed.svg: the windows that tile 1 writes, and the rows of x that it reads."""
    boxes = []
    for n in range(3):
        past_boundary = n * PAST % SECTOR
        for begin in range(-past_boundary, SHOWN.stop, SECTOR):
            tile = (begin + past_boundary) // WINDOW
            first, end = max(begin, SHOWN.start), min(begin + SECTOR, SHOWN.stop)
            if first < end:
                text = f"{begin} to {begin + SECTOR - 1}" if end - first == SECTOR else ""
                boxes.append(Box(n, _x(first), _x(end) - _x(first), "timed" if tile == 1 else "faint", text))
    earliest, rows = WINDOW - (SECTOR - 1), WINDOW + SECTOR
    window = WINDOW - 2 * PAST
    return svg.drawn(
        "lanes",
        title="Windows of three rows of y: each begins at a sector boundary of its own row, inside one tile",
        lanes=[f"row {n} of y" for n in range(3)],
        boxes=boxes,
        above=[
            Span(
                _x(earliest),
                _x(earliest + rows) - _x(earliest),
                f"tile 1 reads {rows} rows of x, WINDOW + SECTOR",
            )
        ],
        below=[
            Span(_x(window), _x(window + WINDOW) - _x(window), "window of row 2: WINDOW elements"),
            Span(_x(2 * WINDOW), 0, "boundary of fixed tiles"),
        ],
        lines=[_x(WINDOW), _x(2 * WINDOW)],
        left=LEFT,
        lane_height=LANE,
        width=800,
    )
