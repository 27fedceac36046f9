"""Pictures of a lab's report: lanes, sectors, banks, masked elements, and the roofline."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import made_up
from compare.report import labs
from compare.report.html import lanes, roofline
from compare.timing import figures
from compare.worker.messages import TracedAccess
from loops import for_each

ALL = (True,) * 32
WARP = TracedAccess("mine.py:4", "load", "x", (32,), 4, tuple(range(0, 128, 4)), ALL)
COLUMN = TracedAccess("mine.py:4", "store", "y", (32,), 4, tuple(range(0, 32 * 132, 132)), ALL)
SHARED = TracedAccess(
    "mine.py:5", "load", "shared memory", (32,), 4, tuple(range(0, 32 * 128, 128)), (True,) * 32
)
PADDED = TracedAccess(
    "mine.py:5", "load", "shared memory", (32,), 4, tuple(range(0, 32 * 132, 132)), (True,) * 32
)
MASKED = TracedAccess(
    "mine.py:6", "load", "x", (64,), 4, tuple(range(0, 256, 4)), (True,) * 33 + (False,) * 31
)
WIDE = TracedAccess("mine.py:7", "load", "x", (32,), 16, tuple(range(8, 520, 16)), ALL)
SQUARES = "{http://www.w3.org/2000/svg}rect"


@for_each(
    "access, says, squares",
    [
        (WARP, "mine.py:4 loads 32 elements of 4 bytes, x: 4 sectors of 32 bytes, 4 at the least.", 32 + 4),
        (COLUMN, "y: 32 sectors of 32 bytes, 4 at the least.", 32 + 32),
        (SHARED, "shared memory: 1 banks, 32-way bank conflict.", 32 + 1),
        (PADDED, "shared memory: 32 banks, no bank conflict.", 32 + 32),
        (MASKED, "4 sectors of 32 bytes, 4 at the least. Masked: 31 of 64.", 32 + 4 + 64),
        (WIDE, "17 sectors of 32 bytes, 16 at the least.", 32 + 16),
    ],
)
def test_the_lanes_of_an_access(access: TracedAccess, says: str, squares: int) -> None:
    picture = lanes.picture(access)
    assert says in picture.caption
    root = ElementTree.fromstring(picture.svg)
    assert root[0].text == picture.caption, "the text for a screen reader"
    assert len(root.findall(SQUARES)) == squares
    assert len([each for each in root.iter(SQUARES) if each.get("fill") == "none"]) == picture.svg.count(
        "none"
    )
    assert not re.search("#[0-9a-f]{3}", picture.svg), "colours of the page: light or dark"


def test_the_points_of_a_roofline_lie_as_high_as_their_speed() -> None:
    comparison = made_up.comparison()
    case = comparison.cases[0]
    mine = next(row.label for row in case.rows if row.timing)
    picture = roofline.picture(case, mine)
    assert "Yours: " in picture.caption
    assert "measured in this run" in picture.caption
    root = ElementTree.fromstring(picture.svg)
    circles = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    timed = sorted(figures.cold_us(row) for row in case.rows if row.timing)
    assert len(circles) == len(timed)
    heights = [float(each.get("cy", "")) for each in circles]
    assert heights == sorted(heights), "the fastest is the highest"
    assert [each.get("fill") for each in circles].count("var(--bad)") == 1
    untimed = roofline.picture(case, "triton.mine")
    assert "Yours was not timed: that needs a GPU." in untimed.caption
    assert roofline.picture(replace(case, cost=replace(case.cost, flops=0)), mine) is None


def test_a_page_has_each_picture_above_its_caption_and_no_other_markup() -> None:
    hostile = lanes.picture(TracedAccess("<b>*x*.py:1", "load", "x", (1,), 4, (0,), (True,)))
    text = labs.plain(hostile.caption)
    page = labs.html(f"# Lab\n\n{text}\n", "Lab", [hostile])
    assert page.index("<svg") < page.index("<figcaption><p>&lt;b&gt;*x*.py:1 loads 1")
    assert "<b>" not in page
    assert "<svg" not in labs.html("# Lab\n\nnothing\n", "Lab", [hostile])
