"""Whether launching limits a row: calls back to back against their GPU work, in records of today only."""

from __future__ import annotations

import json

import pytest

import made_up
from compare.history.crossover import bound
from compare.model.result import Row, Timing
from compare.records import archive
from compare.report import lines
from compare.report.sentences import sentences
from compare.timing import figures
from compare.timing.statistics import estimate


def row(**times_us: float) -> Row:
    us = {f"{kind}_us": estimate([value] * 20) for kind, value in times_us.items()}
    return Row("triton.a", "tiled", "ok", timing=Timing(detectable=0.05, **us))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("times_us", "bound"),
    [
        ({"cold": 12.0, "warm": 10.0, "back_to_back": 20.0}, True),
        ({"cold": 12.0, "warm": 10.0, "back_to_back": 10.4}, False),  # within noise
        ({"cold": 30.0, "warm": 10.0, "back_to_back": 20.0}, True),  # what a cache holds costs nothing here
        ({"cold": 30.0, "back_to_back": 20.0}, False),  # a user's row: only its cold time is known
        ({"cold": 12.0, "back_to_back": 20.0}, True),
        ({"cold": 12.0, "warm": 10.0, "back_to_back": 20.0, "hot_launch": 19.0}, True),
        ({"cold": 12.0, "warm": 10.0, "back_to_back": 20.0, "hot_launch": 2.0}, False),  # clocks fell
        ({"cold": 12.0, "warm": 10.0, "hot_launch": 20.0}, False),  # two figures decide nothing
        ({"back_to_back": 20.0}, False),
    ],
)
def test_a_row_is_launch_bound_where_calls_back_to_back_take_longer_than_their_work(
    times_us: dict[str, float], bound: bool
) -> None:
    assert figures.launch_bound(row(**times_us)) is bound
    assert not figures.launch_bound(Row("triton.a", "tiled", "ok"))


def test_the_interval_of_neither_time_may_reach_the_other() -> None:
    scattered = estimate([9.0, 10.0, 30.0] * 7)
    timing = Timing(cold_us=scattered, warm_us=scattered, back_to_back_us=estimate([20.0] * 20))
    assert not figures.launch_bound(Row("triton.a", "tiled", "ok", timing=timing))


def test_the_figure_of_an_old_record_is_never_shown_as_todays() -> None:
    """It was of one to twenty calls by a process that had just woken: by GPU time, not by the launch."""
    small = {label: (level, 3.0) for label, (level, _) in made_up.MEDIANS_US.items()}
    text = archive.dumps([made_up.comparison(made_up.case(made=made_up.rows(small)))])
    (today,) = archive.loads(text)
    assert any("Launch bound" in sentence for sentence in sentences(today))
    document = json.loads(text)
    for each in document["runs"][0]["cases"][0]["rows"]:
        for name in ("back_to_back_us", "after_idle_us"):
            del each["timing"][name]
        each["timing"]["launch_us"] = each["timing"].pop("hot_launch_us")
    (old,) = archive.loads(json.dumps(document))
    (case,) = old.cases
    assert all(line.launch_us is None for line in lines.every(case))
    assert not any("Launch bound" in sentence for sentence in sentences(old))
    assert {bound(case, each).limit for each in case.rows} <= {"bandwidth", None}
