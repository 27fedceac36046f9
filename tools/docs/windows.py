"""The windows of docs/ops/transpose.md as picture and table: rows of y, split at their sector boundaries."""

from __future__ import annotations

from compare.report.tables import Table
from tools.docs import svg
from tools.docs.canvas import constant
from tools.docs.stages import untitled
from tools.docs.timing import LANE, LEFT, Box, Span

_FILE = "cuda_impl/kernels/transpose.cuh"
SIZE = {"SIZE": 4}
"""``sizeof(T)``: the picture is of fp32."""
SECTOR = constant(_FILE, "SECTOR", SIZE)
ROWS = constant(_FILE, "WORDS") * constant(_FILE, "PER_WORD", SIZE)
WINDOW = constant(_FILE, "WINDOW", {"ROWS": ROWS, "SECTOR": SECTOR})
"""Elements of a sector, rows of x that a tile reads, and elements of a window, as in the kernel."""
PAST = 3
"""M % SECTOR in the example."""
SHOWN = range(WINDOW - 2 * SECTOR - 3, 2 * WINDOW + SECTOR + 3)
"""Of m, the columns of y."""
SCALE = 680 / len(SHOWN)


def _x(m: int) -> int:
    return LEFT + round(SCALE * (m - SHOWN.start))


def alt() -> str:
    """What the picture shows, for readers who do not see it."""
    return (
        f"Three rows of y in sectors of {SECTOR} elements, for M % {SECTOR} = {PAST}. Row 0 begins at a "
        f"sector boundary, row 1 begins {PAST} elements after one, row 2 begins {2 * PAST} after one. Tile 1 "
        f"writes {WINDOW // SECTOR} whole sectors of each, which begin at m = {WINDOW}, {WINDOW - PAST} and "
        f"{WINDOW - 2 * PAST}. It reads {ROWS} rows of x. Fixed tile boundaries at m = {WINDOW} and "
        f"{2 * WINDOW} would cut sectors of rows 1 and 2"
    )


def windows() -> str:
    """docs/ops/transpose_windowed.svg: the windows that tile 1 writes, and the rows of x that it reads."""
    boxes = []
    for n in range(3):
        past_boundary = n * PAST % SECTOR
        for begin in range(-past_boundary, SHOWN.stop, SECTOR):
            tile = (begin + past_boundary) // WINDOW
            first, end = max(begin, SHOWN.start), min(begin + SECTOR, SHOWN.stop)
            if first < end:
                text = f"{begin}" if end - first == SECTOR else ""
                boxes.append(Box(n, _x(first), _x(end) - _x(first), "timed" if tile == 1 else "faint", text))
    earliest = WINDOW - (SECTOR - 1)
    window = WINDOW - 2 * PAST
    return svg.drawn(
        "lanes",
        title=alt(),
        lanes=[f"row {n} of y" for n in range(3)],
        boxes=boxes,
        above=[
            Span(
                _x(earliest),
                _x(earliest + ROWS) - _x(earliest),
                f"tile 1 reads {ROWS} rows of x, WINDOW + SECTOR",
            )
        ],
        below=[
            Span(
                _x(window), _x(window + WINDOW) - _x(window), f"window of row 2: WINDOW = {WINDOW} elements"
            ),
            Span(_x(2 * WINDOW), 0, "boundary of fixed tiles"),
        ],
        lines=[_x(WINDOW), _x(2 * WINDOW)],
        left=LEFT,
        lane_height=LANE,
        width=800,
    )


def block() -> str:
    """The windows of the picture as a table."""
    pasts = [n * PAST % SECTOR for n in range(3)]
    rows = (
        ("elements after a sector boundary", "`past_boundary = n * M % SECTOR`", *map(str, pasts)),
        ("first m of the window", "`window - past_boundary`", *(str(WINDOW - past) for past in pasts)),
        ("last m of the window", "`... + WINDOW - 1`", *(str(2 * WINDOW - past - 1) for past in pasts)),
    )
    return untitled(Table("", ("", "in the kernels", "row 0", "row 1", "row 2"), rows, ("in the kernels",)))
