"""What the page shows of records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import made_up
from compare.records import archive
from compare.serve import answers


def test_a_recorded_sweep_is_shown_with_its_origin(tmp_path: Path):
    rows = []
    for row in made_up.rows():
        rows.append(row)
        if row.label == "triton.onepass":
            for size in (64, 128):
                choice = replace(row.configuration, parameters=(("BLOCK", size),))
                rows.append(replace(row, label=f"{row.label}:BLOCK={size}", configuration=choice))
    archive.record(made_up.comparison(made_up.case(made=tuple(rows))), tmp_path)
    sweep = answers.recorded_sweep("softmax", "triton.onepass", tmp_path)
    assert sweep["origin"].startswith(f"{made_up.CASE}, recorded on {made_up.H100.device}")
    assert [trial["values"] for trial in sweep["trials"]] == [{"BLOCK": 64}, {"BLOCK": 128}]
    assert all(float(trial["us"]) > 0 for trial in sweep["trials"])
    assert answers.recorded_sweep("softmax", "triton.online", tmp_path) == {}
