"""All that is on record of an op, as one comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import made_up
from compare import registry
from compare.history.recorded import merged, recorded
from compare.records import archive
from compare.timing import figures

OP = registry.get_op("softmax")


def test_cases_and_rows_come_as_from_one_run(tmp_path: Path) -> None:
    first = made_up.comparison()
    archive.record(first, tmp_path)
    (case,) = first.cases
    labels = [row.label for row in case.rows]
    assert labels == list(first.code_sizes)
    slower = replace(case.ceilings, copy_gbs=case.ceilings.copy_gbs / 2)
    once_more = replace(case, rows=case.rows[-1:], ceilings=slower)
    again = replace(first, cases=(once_more,), created="2099-01-01T00:00:00+00:00")
    archive.record(again, tmp_path)
    found = recorded(OP, tmp_path)
    assert found.created == again.created
    assert [row.label for row in found.cases[0].rows] == labels
    assert list(found.code_sizes) == labels
    assert [row.run for row in found.cases[0].rows] == [first.created] * (len(labels) - 1) + [again.created]
    share = {row.label: figures.share_of_copy(found.cases[0], row) for row in found.cases[0].rows}
    for kept in case.rows[:-1]:  # of what its own run reached
        assert share[kept.label] == pytest.approx(figures.share_of_copy(case, kept), rel=1e-4)
    assert share[labels[-1]] == pytest.approx(
        2 * (figures.share_of_copy(case, case.rows[-1]) or 0.0), rel=1e-4
    )
    other = replace(again, cases=(made_up.case("M=1,N=1024,fp32"),), created="2100-01-01T00:00:00+00:00")
    archive.record(other, tmp_path)
    found = recorded(OP, tmp_path)
    assert found.created == again.created  # the last of the default case
    assert [case.case for case in found.cases] == [case.case, "M=1,N=1024,fp32"]


def test_the_newest_row_of_several_files_counts_and_no_replayed_one() -> None:
    old = made_up.comparison()
    fast = made_up.rows({**made_up.MEDIANS_US, "cupy.online": ("tiled", 10.0)})
    new = made_up.comparison(made_up.case(made=fast), created="2026-11-24T00:00:00+00:00")
    elsewhere = made_up.case(made=tuple(replace(row, recorded=made_up.RECORDED) for row in fast))
    replayed = made_up.comparison(elsewhere, created="2026-11-25T00:00:00+00:00")
    found = merged([old, replayed, new])
    (case,) = found.cases
    assert [row.label for row in case.rows] == list(made_up.MEDIANS_US)
    assert {row.run for row in case.rows} == {new.created}
    assert merged([replayed]) is None


def test_only_the_device_recorded_last_counts(tmp_path: Path) -> None:
    assert recorded(OP, tmp_path) is None
    archive.record(made_up.comparison(), tmp_path)
    elsewhere = replace(made_up.H100, device="NVIDIA T4")
    archive.record(made_up.comparison(environment=elsewhere, created="2099-01-01T00:00:00+00:00"), tmp_path)
    found = recorded(OP, tmp_path)
    assert found.environment.device == "NVIDIA T4"
    assert all(str(row.recorded).startswith("NVIDIA T4, 2099-01-01") for row in found.cases[0].rows)
