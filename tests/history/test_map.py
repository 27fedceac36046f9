"""``map``: which way is fastest over what is recorded, and what effort buys."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import made_up
from compare import cli
from compare.command_line.status import SUCCESS
from compare.history import kept, reading
from compare.history.map import Map, Point, summaries, with_front
from compare.model.op import Cost, UsageError, way_of
from compare.model.result import CaseComparison, Ceilings, CodeSize, Comparison, RoleSize, Row, Timing
from compare.records import archive
from compare.report import maps
from compare.timing import statistics
from compare.timing.statistics import estimate
from made_up import APART, charted, one


def with_rows(run: Comparison, *rows: Row) -> Comparison:
    """``run`` with these rows beside its own, or in their place."""
    (case,) = run.cases
    labels = {row.label for row in rows}
    kept = (*(row for row in case.rows if row.label not in labels), *rows)
    return replace(run, cases=(replace(case, rows=kept),))


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """No source has changed since these runs."""
    monkeypatch.setattr("compare.history.recorded.source_hash", lambda impl: f"hash of {impl.label}")


# --------------------------------------------------------------------------- the fastest way


def test_a_place_has_the_best_of_each_way_and_the_margin_of_the_first() -> None:
    run = one(APART)
    (place,) = charted(run).places
    assert [best.way for best in place.ways] == ["cuda", "torch", "triton"]
    assert place.ways[0].label == "cuda.onepass", "cupy and pybind within noise, as the screens name them"
    assert [best.label for best in place.ways[1:]] == ["torch.compile", "triton.onepass"]
    assert place.leaders == ("cuda",)
    assert place.differs
    assert not place.across
    assert place.lead.median == pytest.approx(58.2 / 47.2, rel=0.01)
    assert place.lead.low < place.lead.median < place.lead.high
    first = place.ways[0]
    assert first.share == pytest.approx(8 * made_up.ELEMENTS / first.cold_us.median / 1e3 / 2990)
    assert first.bound.limit == "bandwidth"
    size = run.code_sizes["cupy.onepass"]
    assert (first.lines, first.tokens) == (size.lines, size.tokens)


def test_ways_within_noise_name_no_winner() -> None:
    (place,) = charted(one(made_up.MEDIANS_US)).places  # 1.5% between them, where 2% counts
    assert place.leaders == ("cuda", "triton")
    assert not place.differs
    (line,) = maps.cases(charted(one(made_up.MEDIANS_US))).rows
    assert "within noise" in line
    assert maps.wins(charted(one(made_up.MEDIANS_US))).rows == (("softmax", "1", "0", "0", "0", "1"),)
    run = one(made_up.MEDIANS_US)
    short = {"triton.onepass": CodeSize(RoleSize(20, 200), RoleSize(3, 35), RoleSize(0, 0), RoleSize(0, 0))}
    found = charted(replace(run, code_sizes={**run.code_sizes, **short}))
    (op,) = maps.ops(found).rows
    (line,) = maps.choices(found)
    assert op[1:3] == ("triton, cuda", "within noise")  # the least code first
    assert line.endswith(" on 1 of 1 ops: softmax triton.onepass 23.")
    assert maps.wins(charted(one(APART))).rows == (("softmax", "1", "0", "0", "1", "0"),)


def test_rows_of_two_runs_are_held_against_each_other_as_two_runs_are() -> None:
    cuda = {
        label: entry for label, entry in APART.items() if label.startswith(("cupy", "pybind", "torch.eager"))
    }
    others = {label: entry for label, entry in APART.items() if label.startswith(("torch", "triton"))}
    old = one(others, created="2026-11-19T00:00:00+00:00")
    new = with_rows(one(cuda, created="2026-11-20T00:00:00+00:00"))
    found = charted(old, new)
    (place,) = found.places
    assert place.across
    expected = statistics.between(place.ways[1].cold_us, place.ways[0].cold_us)
    assert place.lead.median == expected.median
    assert place.lead.low < expected.low  # two runs: with the variance between processes
    assert found.dates == ("2026-11-19", "2026-11-20")
    assert "~" in maps.cases(found).rows[0][6]
    assert "two medians" in maps.render(found, 100)
    # Twice as large a difference as within a run has to be there.
    near = {**others, "torch.compile": ("vendor", 47.2 * 1.03)}
    assert not charted(one(near, created=old.created), new).places[0].differs
    assert charted(one({**cuda, **near})).places[0].differs


def test_the_newest_row_counts() -> None:
    old = one(APART, created="2026-11-19T00:00:00+00:00")
    slow = one({**APART, "cupy.onepass": ("tiled", 90.0), "pybind.onepass": ("tiled", 90.0)})
    for runs in ((old, slow), (slow, old)):
        (place,) = charted(*runs).places
        assert place.ways[0].label == "torch.compile"


def test_what_is_wrong_untimed_unequal_or_tried_leads_nothing() -> None:
    run = one(APART)
    fast = made_up.rows({"torch.eager": ("vendor", 72.4), "cupy.online": ("tiled", 10.0)})[1]
    for row in (
        replace(fast, status="disagrees"),
        replace(fast, timing=None),
        replace(fast, accumulator="tf32"),
        replace(fast, recorded=made_up.RECORDED),
        replace(fast, label="cupy.online:THREADS=64"),
        replace(fast, label="cupy.online:matched"),
    ):
        found = charted(with_rows(run, row))
        (place,) = found.places
        assert place.ways[0].label.endswith(".onepass"), row.label
        assert place.ways[0].cold_us.median > 40
        assert "cupy.online:" not in " ".join(point.label for point in found.points)
    assert charted(with_rows(run, fast)).places[0].ways[0].label == "cupy.online"


def test_few_rounds_say_how_many() -> None:
    run = one(APART)
    (case,) = run.cases
    rows = (replace(row, timing=replace(row.timing, rounds=3)) for row in case.rows if row.timing)
    found = charted(replace(run, cases=(replace(case, rows=tuple(rows)),)))
    assert found.places[0].rounds == 3
    assert maps.cases(found).rows[0][6].endswith("(n=3)")
    assert "too few for an interval" in " ".join(maps.render(found, 100).split())


def test_only_leaves_what_is_unequal_unequal() -> None:
    run = with_rows(one(APART), replace(made_up.rows()[2], label="torch.tf32", accumulator="tf32"))
    (place,) = charted(run, only=("torch.compile", "torch.tf32")).places
    assert [best.label for best in place.ways] == ["torch.compile"]


# --------------------------------------------------------------------------- a line an op


def scaled(**factors: float) -> CaseComparison:
    """A case of `APART` in which ways take so many times as long."""
    medians = {label: (level, us * factors.get(way_of(label), 1.0)) for label, (level, us) in APART.items()}
    name = ",".join(f"{way}={factor}" for way, factor in factors.items()) or "as it is"
    return made_up.case(name, made_up.rows(medians))


def test_an_op_is_the_way_that_is_usually_fastest_with_its_range() -> None:
    """One case on which it is the slowest by far shows in the range, not in the median."""
    found = charted(made_up.comparison(scaled(), scaled(torch=0.9), scaled(triton=2.0), scaled(cuda=3.0)))
    (op,) = summaries(found.places)
    assert (op.op, op.cases, op.of) == ("softmax", 4, 4)
    assert op.first.way == "cuda"
    assert op.first.label.endswith(".onepass")
    assert op.second.way == "torch"
    assert max(op.leads) == pytest.approx(58.2 / 47.2, rel=0.01)
    assert min(op.leads) == pytest.approx(58.2 / 47.2 / 3, rel=0.01)
    assert op.share == found.places[0].ways[0].share
    assert (op.verdict, op.alone, op.noise) == ("fastest", {"cuda": 3, "torch": 1}, 0)
    assert op.binds == "bandwidth"
    (line,) = maps.choices(found)
    assert re.fullmatch(r"CUDA is the fastest on 1 of 1 ops: softmax 1\.1\dx in 3 of 4\.", line)
    assert re.fullmatch(r"1\.1\d, 0\.41 to 1\.24", maps.ops(found).rows[0][2])  # brackets are intervals


def test_a_lead_of_two_percent_is_no_win() -> None:
    """Another run may find none, though this one measured it on every case."""
    case = scaled(torch=47.2 * 1.02 / 58.2)
    rows = (replace(r, timing=r.timing and replace(r.timing, detectable=0.001)) for r in case.rows)
    case = replace(case, rows=tuple(rows))
    found = charted(made_up.comparison(case, replace(case, case="M=1,N=1,fp32")))
    (op,) = summaries(found.places)
    assert (op.verdict, op.alone) == ("within 2%", {"cuda": 2})
    says = "The fastest is ahead by at most 2%, in the median, on 1 of 1 ops: softmax cuda in 2 of 2."
    assert maps.choices(found) == [says]
    assert maps.ops(found).rows[0][1].endswith(".onepass")


def test_a_map_is_kept_until_a_record_a_source_or_the_question_changes(
    recorded: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(recorded.glob("*.json"))
    first = kept.charted(files)
    assert first.ops == ("softmax", "vector_add")
    surveys: list[object] = []

    def counted(*words: Any) -> Map:
        surveys.append(words)
        return first.chart

    monkeypatch.setattr(kept, "survey", counted)
    assert kept.charted(files) == first
    assert surveys == []
    kept.charted(files, ["softmax"])
    kept.charted(files, only=["cupy.*"])
    files[0].write_text(files[0].read_text() + "\n")
    kept.charted(files)
    with monkeypatch.context() as patch:
        patch.setattr("compare.records.result_cache.code", lambda *_: "other sources")
        kept.charted(files)
    assert len(surveys) == 4


def test_without_a_majority_the_case_decides() -> None:
    found = charted(made_up.comparison(scaled(), scaled(torch=0.5)))
    (op,) = summaries(found.places)
    assert (op.verdict, op.alone) == ("by case", {"torch": 1, "cuda": 1})
    assert maps.choices(found) == ["The case decides on 1 of 1 ops: softmax (torch 1, cuda 1)."]
    assert maps.ops(found).rows[0][1] == "by case"


def test_all_figures_of_an_op_are_over_the_same_cases() -> None:
    """Over those in which both ways were timed: where one was not, the other's figures do not count."""
    slow = scaled(torch=4.0, triton=4.0)
    slow = replace(slow, rows=tuple(r for r in slow.rows if way_of(r.label) == "cuda"))
    found = charted(made_up.comparison(scaled(), scaled(cuda=1.01), slow))
    (op,) = summaries(found.places)
    assert (op.cases, op.of, sum(op.alone.values())) == (2, 3, 2)


def test_cases_that_launching_binds_do_not_count_where_there_are_others() -> None:
    tiny = replace(scaled(cuda=9.0), case="M=1,fp32", cost=Cost(10, 10, 10))
    tiny = replace(tiny, rows=tuple(replace(r, timing=slow_to_launch(r)) for r in tiny.rows))
    (op,) = summaries(charted(made_up.comparison(scaled(), tiny)).places)
    assert (op.cases, op.of, op.first.way) == (1, 2, "cuda")
    (alone,) = summaries(charted(made_up.comparison(tiny)).places)
    assert (alone.cases, alone.first.way, alone.binds) == (1, "torch", "launch")


def slow_to_launch(row: Row) -> Timing | None:
    return row.timing and replace(row.timing, back_to_back_us=estimate([1e4]), hot_launch_us=estimate([1e4]))


def test_a_way_that_stands_on_few_cases_is_not_the_fastest() -> None:
    without = replace(scaled(), rows=tuple(r for r in scaled().rows if way_of(r.label) != "cuda"))
    cases = [replace(without, case=f"M={m},fp32") for m in (1, 2)]
    (op,) = summaries(charted(made_up.comparison(scaled(), *cases)).places)
    assert op.first.way == "torch"
    (only,) = summaries(charted(one(APART), only=("triton.*",)).places)
    assert (only.second, only.leads) == (None, ())
    assert "-" in maps.ops(charted(one(APART), only=("triton.*",))).rows[0]
    assert maps.cases(charted(one(APART), only=("triton.*",))).rows[0][6:] == ("-", "-", "-")


def test_the_short_screen_says_first_which_way_to_choose_and_how_to_see_the_rest() -> None:
    other = replace(one(APART), op="vector_add")
    found = charted(made_up.comparison(scaled(), scaled(torch=0.9)), other)
    short, whole = (" ".join(maps.render(found, 80, whole=w).split()) for w in (False, True))
    assert [row[0] for row in maps.ops(found).rows] == ["softmax", "vector_add"]
    assert "torch=0.9" not in short
    assert "torch=0.9" in whole
    assert short.index("CUDA is the fastest on 2 of 2 ops") < short.index("speedup over")
    assert short.endswith("NEXT --all 3 cases · map softmax · --plot map.svg · --csv map.csv")
    assert "Pareto" in whole
    assert "Pareto" not in short
    assert max(map(len, maps.render(found, 80, whole=False).splitlines())) <= 80
    assert len(maps.render(found, 80, whole=False).splitlines()) <= 24


# --------------------------------------------------------------------------- stale


def test_what_has_changed_since_is_marked_and_named() -> None:
    changed = ("torch.compile", "triton.onepass")
    run = one(APART)
    (case,) = run.cases
    older = (replace(row, source_hash="another") for row in case.rows if row.label in changed)
    found = charted(with_rows(run, *older))
    assert found.changed == tuple(("softmax", label) for label in changed)
    (place,) = found.places
    assert [best.changed for best in place.ways] == [False, True, True]
    text = maps.render(found, 200)
    assert "torch.compile *" in text
    assert "softmax: torch.compile, triton.onepass" in " ".join(text.split())
    assert "its source has changed" in " ".join(text.split())
    assert (
        "Source changed since, or gone, so figures may have changed: 2 implementations of 1 ops."
        in " ".join(maps.render(found, 200, whole=False).split())
    )
    fresh = maps.render(charted(run), 200)
    assert "*" not in fresh
    assert "hanged since" not in fresh


# --------------------------------------------------------------------------- shares


def product(medians: Mapping[str, tuple[str, float]], cost: Cost, dtype: str = "bf16") -> Comparison:
    case = CaseComparison(
        f"M=1,N=1,{dtype}", cost, made_up.rows(dict(medians)), Ceilings(3000.0, 3000.0, 800.0, 50.0)
    )
    return made_up.comparison(case)


def test_a_share_is_of_the_ceiling_that_is_near() -> None:
    medians = {"torch.eager": ("vendor", 100.0), "cupy.a": ("tiled", 50.0)}
    busy = product(medians, Cost(flops=2 * 10**9, read_bytes=10**6, written_bytes=10**6))
    (place,) = charted(busy).places
    assert place.share_of == "peak (measured)"
    assert place.ways[0].share == pytest.approx(40 / 50, rel=0.01)  # TFLOP/s, of its own dtype's product
    assert place.ways[0].bound.limit == "arithmetic"
    assert maps.cases(charted(busy)).rows[0][3].endswith(" p")
    # 10 FLOP/B, below the measured ridge of 17.
    narrow = product(medians, Cost(flops=12 * 10**8, read_bytes=6 * 10**7, written_bytes=6 * 10**7))
    (place,) = charted(narrow).places
    assert place.share_of == "copy bandwidth"
    assert place.ways[0].share == pytest.approx(2400 / 3000, rel=0.01)


# --------------------------------------------------------------------------- effort


def point(label: str, tokens: int, share: float, least: float = 0.01) -> Point:
    return Point("softmax", label, tokens // 10, tokens, share, share, share, 3, 3, least, False, False)


def test_the_front_is_what_nothing_as_short_reaches() -> None:
    points = [
        point("cupy.long", 4000, 0.99),
        point("torch.eager", 30, 0.5),
        point("torch.compile", 30, 0.6),
        point("triton.level", 500, 0.605),  # no more than equals show
        point("cupy.worse", 900, 0.4),
        point("triton.good", 600, 0.9),
        point("pybind.long", 4100, 0.991),
    ]
    found = list(with_front(points))
    assert [p.label for p in found if p.front] == ["torch.compile", "triton.good", "cupy.long"]
    assert [p.tokens for p in found] == sorted(p.tokens for p in points)


def test_a_point_is_the_median_over_what_launching_does_not_bind() -> None:
    factors = {"M=1,fp32": 1.0, "M=2,fp32": 1.25, "M=3,fp32": 1.1}

    def case(name: str, factor: float, without: str = "") -> CaseComparison:
        medians = {k: (r, us * factor) for k, (r, us) in APART.items() if k != without}
        return made_up.case(name, made_up.rows(medians))

    cases = [case(name, factor) for name, factor in factors.items()]
    cases.append(case("M=4,fp32", 1.0, without="triton.onepass"))
    tiny = replace(case("M=5,fp32", 0.1), cost=Cost(10, 10, 10))
    found = charted(made_up.comparison(*cases, tiny))
    by_label = {point.label: point for point in found.points}
    some = by_label["triton.onepass"]
    assert (some.cases, some.of) == (3, 4)
    assert some.share == pytest.approx(8 * made_up.ELEMENTS / 60.0 / 1.1 / 1e3 / 2990, rel=0.01)
    assert some.lowest < some.share < some.highest
    assert by_label["torch.naive"].cases == 4
    assert "3 of 4" in " ".join(cell for row in maps.efforts(found).rows for cell in row)
    assert "(3 of 4 cases)" in " ".join(maps.fronts(found)) or not some.front
    # Where launching binds everywhere, that is what there is.
    assert {point.of for point in charted(made_up.comparison(tiny)).points} == {1}


def test_what_has_no_code_size_is_no_point() -> None:
    run = one(APART)
    sizes = {"torch.eager": CodeSize(RoleSize(0, 0), RoleSize(3, 35), RoleSize(0, 0), RoleSize(0, 0))}
    found = charted(replace(run, code_sizes=sizes))
    assert [p.label for p in found.points] == ["torch.eager"]
    assert found.places[0].ways[0].tokens is None
    assert found.places[0].ways[0].label.endswith(".onepass")


# --------------------------------------------------------------------------- what is read


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The folder of one device, with two ops."""
    run = one(APART)
    archive.record(run, tmp_path)
    archive.record(replace(run, op="vector_add"), tmp_path)
    return tmp_path / "nvidia-h100-80gb-hbm3"


def test_folders_and_files_are_read(recorded: Path) -> None:
    files = sorted(recorded.glob("*.json"))
    assert reading.files_of([recorded]) == files
    assert reading.files_of([files[1], recorded]) == [files[1], files[0]]
    assert {run.op for run in reading.read(files)} == {"softmax", "vector_add"}
    (recorded / "empty").mkdir()
    for path, says in (
        (recorded / "none", "no such file"),
        (recorded / "empty", "no .json file"),
        (Path("softmax"), "ops go before --records"),
    ):
        with pytest.raises(UsageError, match=says):
            reading.files_of([path])


def test_without_records_named_it_is_this_gpu_s_or_the_fullest(recorded: Path) -> None:
    root, files = recorded.parent, sorted(recorded.glob("*.json"))
    (root / "mutations.json").write_text("{}")
    assert reading.recorded_here(lambda: None, root=root) == files
    assert reading.recorded_here(lambda: "NVIDIA T4", root=root) == files
    (root / "nvidia-t4").mkdir()
    (root / "nvidia-t4" / "softmax.json").write_text(files[0].read_text())
    assert reading.recorded_here(lambda: "NVIDIA T4", root=root) == [root / "nvidia-t4" / "softmax.json"]
    (root / "nvidia-t4" / "matmul.json").write_text(files[0].read_text())
    assert reading.recorded_here(lambda: None, root=root) == files
    assert reading.recorded_here(lambda: None, ["matmul"], root)[0] == root / "nvidia-t4" / "matmul.json"
    assert reading.recorded_here(lambda: None, ["softmax"], root) == files
    newer = root / "nvidia-t4" / "softmax.json"
    newer.write_text(newer.read_text().replace("2026-11-", "2026-12-"))
    assert newer in reading.recorded_here(lambda: None, ["softmax"], root)
    assert newer in reading.recorded_here(lambda: None, root=root)
    with pytest.raises(UsageError, match="run python -m compare all --sweep --record"):
        reading.recorded_here(lambda: None, root=root / "nvidia-t4")


# --------------------------------------------------------------------------- the command


def test_the_command_shows_and_writes(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "markdown")}
    options = [word for name, path in outputs.items() for word in (f"--{name}", str(path))]
    assert cli.main(["map", "softmax", *options, "--records", str(recorded)]) == SUCCESS
    screen = capsys.readouterr().out
    assert f"softmax {made_up.CASE}" in screen
    assert "vector_add" not in screen
    assert "onepass" in screen
    document = json.loads(outputs["json"].read_text())
    assert document["places"][0]["case"] == made_up.CASE
    assert {point["label"] for point in document["points"]} == set(APART)
    (line,) = csv.DictReader(outputs["csv"].read_text().splitlines())
    assert (line["op"], line["fastest"], line["torch"]) == ("softmax", "cuda", "torch.compile")
    assert float(line["speedup_low"]) < float(line["speedup"]) < float(line["speedup_high"])
    assert float(line["triton_cold_us"]) == pytest.approx(60, rel=0.01)
    text = outputs["markdown"].read_text()
    assert f"| softmax {made_up.CASE}" in text
    assert "| torch.eager" in text


def test_of_several_ops_the_command_shows_a_line_each_until_it_is_asked_for_more(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["softmax", "vector_add"]
    files = [recorded / f"{op}.json" for op in both]
    for words, records, ops in (
        ([], [recorded], []),
        (["--all"], [recorded], both),
        (["softmax"], [recorded], ["softmax"]),
        (both, [recorded], both),
        ([], files[:1], ["softmax"]),
        (["--all"], files, both),
    ):
        options = (word for path in records for word in ("--records", str(path)))
        assert cli.main(["map", *words, *options]) == SUCCESS
        printed = capsys.readouterr().out
        assert [op for op in both if f"{op} {made_up.CASE}" in printed] == ops
        assert ops or "--all" in printed
