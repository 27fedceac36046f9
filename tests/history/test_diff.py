"""``diff``: what became of every row between two files, and the exit status that a CI acts on."""

from __future__ import annotations

import csv
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

import made_up
from compare import cli
from compare.history import diff
from compare.model.result import Ceilings, Comparison, Environment, Estimate, Timing
from compare.records import archive
from compare.report import differences
from compare.timing import statistics
from compare.timing.statistics import estimate
from loops import for_each

LABEL = "triton.online"
FEWER = made_up.comparison(made_up.case(made=tuple(row for row in made_up.rows() if row.label != LABEL)))
"""A run without that row."""
WIDE = Timing(cold_us=Estimate(61.0, 50.0, 72.0))


def times(factor: float = 1.0, **changes: object) -> Comparison:
    """The made-up run, with one row's times multiplied and otherwise changed."""
    return made_up.comparison(made_up.slowed(LABEL, factor, **changes))


def outcome(old: Comparison, new: Comparison, label: str = LABEL) -> diff.Change:
    found = diff.diff([old], [new])
    (change,) = (change for change in found.changes if change.label == label)
    return change


@for_each("factor, expected", [(1.005, "same"), (1.2, "slower"), (0.8, "faster")])
def test_a_row_is_judged_by_its_time(factor: float, expected: str) -> None:
    change = outcome(times(), times(factor))
    assert change.outcome == expected
    assert change.ratio.median == pytest.approx(1 / factor)
    assert change.ratio.low < change.ratio.median < change.ratio.high
    others = [c for c in diff.diff([times()], [times(factor)]).changes if c.label != LABEL]
    assert {c.outcome for c in others} == {"same"}


def test_between_two_runs_a_difference_must_be_twice_as_large() -> None:
    limit = 0.01

    def limited(factor: float) -> Comparison:
        made = times(factor)
        rows = (
            replace(row, timing=replace(row.timing, detectable=limit))
            for row in made.cases[0].rows
            if row.timing
        )
        return replace(made, cases=(replace(made.cases[0], rows=tuple(rows)),))

    assert outcome(limited(1.0), limited(1.015)).outcome != "slower"
    assert outcome(limited(1.0), limited(1.03)).outcome == "slower"


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says() -> None:
    generator = random.Random(5)
    held = 0
    for _ in range(1000):
        old, new = (estimate([generator.lognormvariate(0, 0.1) for _ in range(25)]) for _ in range(2))
        ratio = statistics.between(old, new)
        held += ratio.low <= 1 <= ratio.high
    assert 0.93 <= held / 1000 <= 0.985


WRONG = {"status": "disagrees", "reason": "12 are NaN", "timing": None}
IMPOSSIBLE = {"status": "impossible", "reason": "impossible: 4 us", "timing": None}
FAILED = {"status": "failed", "reason": "X", "timing": None}
NO_GPU = {"timing": None, "reason": "no GPU"}
NOT_RUN = {"status": "unavailable", "timing": None}
RECORDED = {"recorded": made_up.RECORDED}


@for_each(
    "old, new, expected, says",
    [
        ({}, WRONG, "broken", "12 are NaN"),
        ({}, IMPOSSIBLE, "broken", "4 us"),
        ({}, FAILED, "broken", "failed, X"),
        (FAILED, {}, "fixed", "was: failed, X"),
        (NOT_RUN, {**NOT_RUN, **NO_GPU}, "untimed", "still"),
        ({}, {"timing": None}, "lost", "no longer timed"),
        ({"timing": None}, NO_GPU, "untimed", "not timed"),
        ({}, RECORDED, "untimed", "not timed"),
        ({}, {"timing": WIDE}, "ambiguous", ""),
        # in one file only
        ({}, None, "lost", ""),
        (None, {}, "new", ""),
        ({"timing": None}, None, "untimed", "only in the old"),
        (RECORDED, None, "untimed", "only in the old"),
    ],
)
def test_a_row_without_two_times_that_can_be_compared(
    old: dict[str, object] | None, new: dict[str, object] | None, expected: str, says: str
) -> None:
    change = outcome(*(FEWER if changes is None else times(**changes) for changes in (old, new)))
    assert change.outcome == expected
    assert says in change.detail


def test_of_a_row_held_twice_the_newest_counts() -> None:
    assert {c.outcome for c in diff.diff([times()], [times(), times(5.0)]).changes} == {"same"}


def test_a_changed_source_is_marked() -> None:
    change = outcome(times(), times(1.2, source_hash="other"))
    assert change.source_changed
    found = diff.diff([times()], [times(source_hash="other")])
    assert f"{LABEL} *" in differences.render(found, 200, every=True)


# --------------------------------------------------------------------------- the machines


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"device": "NVIDIA L4"}, "device: NVIDIA H100 80GB HBM3 -> NVIDIA L4"),
        ({"driver": "590.1"}, "driver: 580.95.05 -> 590.1"),
        ({"versions": {**made_up.H100.versions, "triton": "3.7.0"}}, "triton: 3.6.0 -> 3.7.0"),
        ({"versions": {**made_up.H100.versions, "commit": "abc"}}, "commit: none -> abc"),
        ({"clocks": {"sm_mhz_before": 345.0, "sm_mhz_after": 1410.0}}, "sm MHz: 1980 -> 1410 (-28.8%)"),
        ({"clocks": {**made_up.H100.clocks, "throttle_after": "power cap"}}, "throttled by: none -> power"),
    ],
)
def test_what_differs_of_the_machines_is_said_first(environment: dict[str, object], says: str) -> None:
    changed: Environment = replace(made_up.H100, **environment)  # type: ignore[arg-type]
    found = diff.diff([times()], [replace(times(1.2), environment=changed)])
    text = differences.render(found, 200)
    assert says in text
    assert text.index(says) < text.index("SLOWER")
    assert "These differ" in text.splitlines()[0]


def test_ceilings_and_seeds_that_differ_are_said() -> None:
    new = times()
    new = replace(new, seed=3, cases=(replace(new.cases[0], ceilings=Ceilings(2500.0, 2600.0)),))
    lines = diff.diff([times()], [new]).environment
    assert "seed: 0 -> 3" in lines
    assert any(line.startswith("copy bandwidth in GB/s, softmax") and "-16.4%" in line for line in lines)
    other = replace(new.cases[0], case="M=4,N=8,fp16")
    old = replace(times(), cases=(times().cases[0], replace(other, ceilings=times().cases[0].ceilings)))
    (line,) = diff.diff([old], [replace(times(), cases=(new.cases[0], other))]).environment
    assert line.startswith("copy bandwidth in GB/s, softmax, median of 2 cases: ")
    # An idle card's clock is lower before a run than after it, which is no difference.
    idle = replace(made_up.H100, clocks={"sm_mhz_before": 345.0, "sm_mhz_after": 1980.0})
    found = diff.diff([times()], [replace(times(), environment=idle)])
    assert found.environment == ()
    assert differences.render(found, 200).startswith("Both ran on the same device")


def test_without_a_row_in_both_nothing_is_said_to_be_the_same() -> None:
    """Neither of machines that are equal nor of others; how these differ is said all the same."""
    other_op = replace(times(), op="another")
    found = diff.diff([times()], [other_op])
    text = differences.render(found, 200)
    assert text.startswith("Nothing was compared: none of these rows is in both files.")
    assert "same device" not in text
    assert found.environment == ()

    elsewhere = made_up.case("M=1,N=1,fp32")
    elsewhere = replace(elsewhere, ceilings=Ceilings(30.0, 31.0))
    found = diff.diff([times()], [made_up.comparison(elsewhere, environment=made_up.LAPTOP)])
    text = differences.render(found, 200)
    says = "device: NVIDIA H100 80GB HBM3 -> A laptop's CPU"
    assert text.startswith("Nothing was compared: none of these rows is in both files.")
    assert text.index("These differ between their newest runs:") < text.index(says) < text.index("LOST")
    assert says in differences.as_markdown(found)
    # Ceilings are those of a case, and these are two.
    assert not any("copy bandwidth" in line for line in found.environment)


# --------------------------------------------------------------------------- the command


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "old.json", tmp_path / "new.json"


def command(files: tuple[Path, Path], old: Comparison, new: Comparison, *options: str) -> int:
    for file, comparison in zip(files, (old, new), strict=True):
        file.write_text(archive.dumps([comparison]))
    return cli.main(["diff", *map(str, files), *options])


def untimed(seeds: int) -> Comparison:
    checked = replace(made_up.AGREEMENT, seeds=seeds)
    rows = (replace(row, timing=None, agreement=checked) for row in made_up.rows())
    return made_up.comparison(made_up.case(made=tuple(rows)))


@for_each(
    "old, new, status",
    [
        (times(), times(), 0),
        (times(), times(0.8), 0),
        (FEWER, times(), 0),
        (times(), times(1.2), 1),
        (times(), times(status="disagrees", timing=None), 1),
        (times(), times(timing=None), 1),
        (times(), FEWER, 1),
        (times(), replace(times(), op="another"), 1),
        (times(), times(timing=WIDE), cli.INCONCLUSIVE),
        (untimed(2), untimed(3), cli.INCONCLUSIVE),
    ],
    ids=lambda case: f"status {case[2]}",
)
def test_exit_status(
    files: tuple[Path, Path],
    old: Comparison,
    new: Comparison,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(files, old, new) == status
    assert "rows:" in capsys.readouterr().out


def test_only_leaves_the_other_rows_out(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(files, times(), times(1.2), "--only", "cupy.*") == 0
    assert LABEL not in capsys.readouterr().out
    assert command(files, times(), times(1.2), "--only", "nothing.*") == cli.USAGE
    assert "nothing.*" in capsys.readouterr().err


def test_files_can_be_written(files: tuple[Path, Path], tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "markdown")}
    arguments = [word for kind, path in paths.items() for word in (f"--{kind}", str(path))]
    assert command(files, times(), times(1.2), *arguments) == 1
    changes = json.loads(paths["json"].read_text())["changes"]
    (slow,) = (change for change in changes if change["outcome"] == "slower")
    assert slow["label"] == LABEL
    lines = list(csv.DictReader(paths["csv"].read_text().splitlines()))
    (line,) = (line for line in lines if line["implementation"] == LABEL)
    assert float(line["speedup_low"]) < float(line["speedup"]) < 1
    assert float(line["new_us"]) > float(line["old_us"])
    assert f"| - {LABEL}" in paths["markdown"].read_text()


def test_rows_that_changed_are_shown_and_with_all_the_others(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def swept(factor: float) -> Comparison:
        slow = replace(times(factor).cases[0], case="M=7,N=7,fp32")
        return made_up.comparison(*(made_up.case(f"M=1,N={n},fp32") for n in range(1, 6)), slow)

    assert command(files, swept(1.0), swept(1.5)) == 1
    shown = capsys.readouterr().out
    assert re.search(rf"(?m)^M=7,N=7,fp32\n- {LABEL} +SLOWER +0\.67 ", shown)
    assert "N=3" not in shown
    assert "54 rows: 1 slower, 53 same. --all shows each." in shown
    assert command(files, swept(1.0), swept(1.5), "--all") == 1
    shown = capsys.readouterr().out
    assert shown.count(f"- {LABEL} ") == 6
    assert "--all" not in shown


@for_each("path", sorted(archive.RESULTS.glob("*/*.json")), ids=lambda path: path.stem)
def test_a_file_and_itself_are_the_same(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", str(path), str(path)]) == 0
    count, kinds = re.search(r"(\d+) rows: (.+) --all", capsys.readouterr().out).groups()
    assert kinds == f"{count} same."


def test_equal_samples_are_the_same_however_wide_their_interval() -> None:
    change = outcome(times(timing=WIDE), times(timing=WIDE, source_hash="other"))
    assert (change.outcome, change.ratio) == ("same", Estimate(1.0, 1.0, 1.0))
