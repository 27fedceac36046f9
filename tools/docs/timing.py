"""The pictures of docs/measuring.md: one cold sample, and the rounds that samples are taken in."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from tools.docs import svg

LANE = 34
LEFT = 108
"""Where time begins, in pixels."""


@dataclass(frozen=True)
class Box:
    """What a lane does for a while, in pixels."""

    lane: int
    x: int
    width: int
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Span:
    """A stretch of time with a name, above or below all lanes."""

    x: int
    width: int
    text: str


def cold_sample() -> str:
    """docs/cold-sample.svg: host and GPU, from the untimed call to the second event."""
    host, gpu = 0, 1
    call, flush, wait, kernel = 96, 130, 130, 116
    begin = LEFT + 20 + call + 84
    event = begin + flush + wait
    boxes = [
        Box(host, LEFT, 62, "faint", "call"),
        Box(gpu, LEFT + 20, call, "faint", "untimed call"),
        Box(gpu, LEFT + 20 + call, 84, "faint", "new inputs"),
        Box(host, begin - 24, 76, "plain", "flush, wait"),
        Box(gpu, begin, flush, "flush", "read 4 x L2"),
        Box(host, begin + 70, 74, "timed", "call"),
        Box(gpu, begin + flush, wait, "plain", "wait kernel"),
        Box(gpu, event, kernel, "timed", "kernels"),
    ]
    return svg.drawn(
        "lanes",
        title="One cold sample: untimed call, new inputs, L2 flush, wait, event, timed call, event",
        lanes=("host", "GPU"),
        boxes=boxes,
        above=[Span(begin + 70, 74, "host time")],
        below=[Span(event, kernel, "GPU time: event to event")],
        lines=[event, event + kernel],
        left=LEFT,
        lane_height=LANE,
        width=800,
    )


ROUNDS = (
    ("triton.onepass", "cupy.onepass", "torch.naive", "torch.eager"),
    ("cupy.onepass", "torch.eager", "triton.onepass"),
    ("torch.eager", "triton.onepass", "cupy.onepass"),
    ("torch.naive", "cupy.onepass", "torch.eager", "triton.onepass"),
)
"""Who is sampled when: the order is drawn at random, and a slow row sits out."""
WIDTHS = {"torch.naive": 96, "torch.eager": 46, "triton.onepass": 32, "cupy.onepass": 32}


def rounds() -> str:
    """docs/rounds.svg: one sample of each implementation a round, a ratio within each round."""
    lanes = [*WIDTHS]
    gap = 12
    lengths = [sum(WIDTHS[label] for label in order) for order in ROUNDS]
    starts = [LEFT + x for x in accumulate((length + gap for length in lengths[:-1]), initial=0)]
    boxes = [
        Box(lanes.index(label), x, WIDTHS[label], "slow" if label == "torch.naive" else "timed")
        for start, order in zip(starts, ROUNDS, strict=True)
        for label, x in zip(order, accumulate((WIDTHS[one] for one in order), initial=start), strict=False)
    ]
    above = [
        Span(start, length, f"round {number}")
        for number, (start, length) in enumerate(zip(starts, lengths, strict=True), 1)
    ]
    return svg.drawn(
        "lanes",
        title="Four rounds: one sample of each implementation in random order; the slow one sits out two",
        lanes=lanes,
        boxes=boxes,
        above=above,
        below=[],
        lines=[],
        left=LEFT,
        lane_height=LANE,
        width=800,
    )
