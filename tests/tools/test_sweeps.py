"""The curves of BLOCK_SIZE: what is compiled, what is on record, and what is asked for where nothing is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import made_up
from compare.model.result import Estimate
from compare.records import archive
from compare.tuning import sweep as tuning
from tools.docs import blocks, sweeps

SVG = "{http://www.w3.org/2000/svg}"
SWEEP = sweeps.SWEEPS[0]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A record of the sweep's first op, made up: the larger the tile, the faster."""
    made = made_up.comparison()
    like = next(row for row in made.cases[0].rows if row.label == "triton.online")
    rows = []
    for values in SWEEP.values():
        cold = Estimate(*[1e6 / values[SWEEP.axis] + values[SWEEP.curves]] * 3)
        assert like.timing
        rows.append(
            replace(
                like,
                label=f"{SWEEP.label}:{tuning.worded(tuple(values.items()))}",
                timing=replace(like.timing, cold_us=cold),
                configuration=replace(like.configuration, parameters=tuple(values.items())),
            )
        )
    case = replace(made.cases[0], case=SWEEP.case, rows=tuple(rows))
    archive.record(replace(made, op=SWEEP.op, cases=(case,)), tmp_path)
    return tmp_path


def test_a_sweep_without_a_record_says_which_command_makes_it(tmp_path: Path) -> None:
    for sweep in sweeps.SWEEPS:
        made = blocks.rewritten(f"<!-- generated: sweep {sweep.op} -->\n<!-- end -->\n", tmp_path)
        assert f"\n{sweep.command}\n" in made
        asked = tuning.parse([word for word in sweep.command.split() if word.isupper() or "=" in word])
        trials = tuning.trials([sweep.impl()], asked, {sweep.label}, set())
        values = {tuple(sorted(each.items())) for each in sweep.values()}
        assert {tuple(sorted(each)) for each in trials.parameters.values()} >= values, "the same rows"


def test_a_recorded_sweep_is_named_and_drawn(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = blocks.rewritten(f"<!-- generated: sweep {SWEEP.op} -->\n<!-- end -->\n", recorded)
    assert f"recorded on {made_up.comparison().environment.device}" in made
    assert "BLOCK_SIZE=4096" in made
    assert "WARPS=1," in made or "WARPS=1 " in made
    monkeypatch.setattr(sweeps, "pinned", lambda *packages: True)
    monkeypatch.setattr(
        sweeps, "compiled", lambda requests: [{"registers": 32, "occupancy": 1.0} for _ in requests]
    )
    with_times, without = (ElementTree.fromstring(sweeps.picture(at)) for at in (recorded, recorded / "none"))
    curves = [
        sum("curve" in each.attrib["class"] for each in drawn.iter(f"{SVG}path"))
        for drawn in (with_times, without)
    ]
    lines = len({values[SWEEP.curves] for values in SWEEP.values()})
    assert curves[0] - curves[1] == 2 * lines, "each curve, and its line in the legend"


def test_with_other_compilers_the_picture_and_the_table_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "pinned", lambda *packages: False)
    assert sweeps.picture() == (blocks.ROOT / sweeps.PICTURE).read_text()
    assert sweeps.in_flight(archive.RESULTS, "was") == "was"


def test_one_warp_is_as_fast_at_half_the_occupancy() -> None:
    """As block-size.md says of the recorded vector_add."""
    page = (blocks.ROOT / "docs" / "block-size.md").read_text()
    assert "From 256 to 1024 elements they are as fast as any" in page
    recorded = sweeps.timed(SWEEP, archive.RESULTS)
    assert recorded
    times = {values: row.timing.cold_us.median for values, row in recorded[2].items() if row.timing}
    assert all(times[1, size] < 1.02 * min(times.values()) for size in (256, 512, 1024))


@pytest.mark.thorough
def test_registers_grow_with_the_elements_of_a_thread() -> None:
    requests: list[sweeps.Request] = [
        (SWEEP.op, SWEEP.label, SWEEP.case, {"BLOCK_SIZE": size, "WARPS": 4}) for size in (512, 4096)
    ]
    few, many = sweeps.compiled(requests)
    assert few["registers"] < many["registers"]
    assert few["occupancy"] >= many["occupancy"]
