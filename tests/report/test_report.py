"""Reports: what the screen, Markdown, CSV and the documents say of a comparison, and what they must not."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_up
from compare import registry
from compare.history.recorded import recorded
from compare.model.result import CaseComparison, CodeSize, Estimate, Ratio, RoleSize, Row
from compare.records import archive
from compare.report import markdown, progress, tables, terminal
from compare.report.sentences import sentences
from compare.report.steps import starting
from compare.report.summary import View, correct
from compare.timing import figures, statistics
from compare.timing.statistics import estimate
from loops import for_each

WIDE = 200
THREE = ("torch.eager", "cupy.online", "cupy.onepass")


DETAILS = View(details=True)


def screen(*cases: CaseComparison, width: int = WIDE, **changes: object) -> str:
    """With ``--details``; the default screen has tests of its own."""
    return terminal.render(made_up.comparison(*cases, **changes), width, DETAILS)


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


# --------------------------------------------------------------------------- widths


def test_a_narrow_screen_says_all_that_a_wide_one_does() -> None:
    def words(text: str) -> set[str]:
        return set(text.split())

    lacking = words(screen()) - words(screen(width=60))
    html = ("--html", "report.html")  # proposed where it fits into the line
    assert not {word for word in lacking if "-" * 3 not in word and "#" not in word} - {"(measured)", *html}


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.lists(
            st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=12),
            min_size=4,
            max_size=4,
        )
    ),
    st.integers(34, 90),
)
def test_any_table_fits(cells: list[list[str]], width: int) -> None:
    rows = tuple((*row, " ".join(row)) for row in cells)
    table = tables.Table("t", ("a", "b\nb", "c", "d", "text"), rows, text_columns=("text",))
    for part in terminal.layout(table, width):
        assert all(len(line) <= width for line in part.splitlines())


# --------------------------------------------------------------------------- what is said


def test_every_figure_of_a_row_is_on_the_screen() -> None:
    line = line_of(screen(), "cupy.onepass ")
    row = figures.row_of(made_up.case(), "cupy.onepass")
    rate = 8 * made_up.ELEMENTS / row.timing.cold_us.median / 1e3
    assert f"{rate:.0f}" in line
    assert f"{rate / 2990:.0%}" in line
    assert "812" in line
    assert "15%" in line


def test_ratios_are_of_pairs_of_the_same_round() -> None:
    case = made_up.case()
    triton, cupy = (figures.row_of(case, label) for label in ("triton.online", "cupy.online"))
    value = figures.ratio(triton, cupy)
    expected = sorted(
        theirs / ours
        for ours, theirs in zip(triton.timing.cold_us.samples, cupy.timing.cold_us.samples, strict=True)  # type: ignore[union-attr]
    )
    assert value.median == pytest.approx((expected[19] + expected[20]) / 2)


def test_samples_of_two_runs_are_no_pairs() -> None:
    """Of a row that was recorded in another run, the ratio is that of two medians, and needs to be larger."""
    case = made_up.case()
    triton, cupy = (figures.row_of(case, label) for label in ("triton.online", "cupy.online"))
    elsewhere = made_up.RECORDED
    other = replace(cupy, recorded=elsewhere)
    value = figures.ratio(triton, other)
    expected = statistics.between(cupy.timing.cold_us, triton.timing.cold_us)
    assert value == statistics.widened(expected, statistics.ACROSS * figures.detectable(triton, cupy))
    assert figures.ratio(replace(triton, recorded=elsewhere), other) == figures.ratio(triton, cupy)
    least = figures.detectable(triton, cupy)
    for gain, within, across in ((3.0, True, True), (1.5, True, False)):
        cold = triton.timing.cold_us
        slower = estimate([sample * (1 + gain * least) for sample in cold.samples])
        behind = replace(triton, timing=replace(triton.timing, cold_us=slower, ratios=()))
        assert figures.differs(triton, behind) is within
        assert figures.differs(triton, replace(behind, recorded=elsewhere)) is across
    assert value.low < value.median < value.high
    far = replace(figures.row_of(case, "torch.naive"), recorded=elsewhere)
    assert re.fullmatch(r"4\.\d\d \(\d\.\d\d-4\.\d\d\)", tables.lead(triton, far))


def test_the_baseline_is_a_row_though_a_ratio_is_against_one_left_out() -> None:
    """As of a record from which ``--only cupy.onepass`` takes a row, with its ratio against Triton's."""
    case = made_up.case(made=tuple(row for row in made_up.rows() if row.label in THREE[::2]))
    timing = figures.row_of(case, "cupy.onepass").timing
    ratios = (*timing.ratios, Ratio("triton.onepass", estimate([1.0] * 20)))
    case = made_up.with_row(case, "cupy.onepass", timing=replace(timing, ratios=ratios))
    assert figures.baseline_of(case) == "torch.eager"
    assert "1.54 (" in line_of(screen(case), "cupy.onepass ")


@pytest.mark.parametrize("kept", [False, True])
def test_no_sentence_has_an_interval_of_one_round(kept: bool, tmp_path: Path) -> None:
    def once(row: Row) -> Row:
        timing = row.timing
        ratios = tuple(replace(each, value=estimate([each.value.median])) for each in timing.ratios)
        return replace(
            row, timing=replace(timing, cold_us=estimate([timing.cold_us.median]), ratios=ratios, rounds=1)
        )

    comparison = made_up.comparison(made_up.case(made=tuple(map(once, made_up.rows()))))
    if kept:
        archive.record(comparison, tmp_path)
        comparison = recorded(registry.get_op("softmax"), tmp_path)
    said = " ".join(sentences(comparison))
    assert "(n=1)" in said
    assert not re.search(r"\d\.\d+ \(\d", said)


@for_each("count, says", [(1, "1 of 1 matches fp64"), (2, "2 of 2 match fp64")])
def test_any_number_of_rows_is_counted(count: int, says: str) -> None:
    rows = made_up.rows({label: made_up.MEDIANS_US[label] for label in THREE[:count]})
    case = made_up.case(made=tuple(replace(row, timing=None) for row in rows))
    said = correct(made_up.comparison(case))
    assert said.startswith(f"{says} on {made_up.CASE} (worst uses 15% of its tol")


@for_each(
    "unchecked, says",
    [
        ({}, "3 of 3 match fp64 on 3 cases ("),
        ({"N=2": [THREE[1]], "N=3": [THREE[1]]}, "match fp64 on 1 to 3 of 3 cases each ("),
        ({"N=2": THREE[:2], "N=3": THREE[2:]}, "match fp64 on 2 of 3 cases each ("),
        ({"N=2": THREE, "N=3": THREE}, "match fp64 on N=1 ("),
    ],
)
def test_no_more_cases_are_said_than_each_was_checked_on(
    unchecked: dict[str, Sequence[str]], says: str
) -> None:
    made = made_up.rows({label: made_up.MEDIANS_US[label] for label in THREE})

    def rows(case: str) -> tuple[Row, ...]:
        return tuple(
            replace(row, timing=None, agreement=None, status="unavailable")
            if row.label in unchecked.get(case, ())
            else replace(row, timing=None)
            for row in made
        )

    comparison = made_up.comparison(*(made_up.case(name, rows(name)) for name in ("N=1", "N=2", "N=3")))
    assert says in correct(comparison)


def test_an_error_is_that_of_the_cases_that_have_one() -> None:
    none = replace(made_up.DISAGREEMENT, max_rel=float("nan"))
    bad = made_up.with_row(made_up.case("N=1"), "torch.eager", status="disagrees", agreement=none)
    for cases in ((bad, made_up.case("N=2")), (made_up.case("N=2"), bad)):
        verdict = figures.verdicts(made_up.comparison(*cases))[1]
        assert (verdict.label, verdict.max_abs) == ("torch.eager", made_up.AGREEMENT.max_abs)
        assert verdict.max_rel == made_up.AGREEMENT.max_rel
    assert figures.verdicts(made_up.comparison(bad))[1].max_abs is None


def test_whole_numbers_are_exact() -> None:
    """They have no tolerance of which a share could be used up."""
    exact = replace(made_up.AGREEMENT, max_abs=0.0, ulp_max=0.0, error=0.0, limit=0.0)
    labels = ("torch.eager", "cupy.online")
    made = made_up.rows({label: made_up.MEDIANS_US[label] for label in labels})
    rows = tuple(replace(row, timing=None, agreement=exact) for row in made)
    assert "(exact)" in correct(made_up.comparison(made_up.case(made=rows)))


def test_what_binds_decides_which_ceiling_is_shown() -> None:
    """By the case's operations a byte: GB/s and a copy, or TFLOP/s and the library's product."""
    case = made_up.case()
    cost = replace(case.cost, flops=1000 * case.cost.bytes)
    busy = replace(case, cost=cost, ceilings=replace(case.ceilings, product_tflops=500.0))
    row = busy.rows[0]
    tflops = cost.flops / row.timing.cold_us.median / 1e6
    assert figures.tflops(busy, row) == pytest.approx(tflops)
    assert figures.share(busy, row) == pytest.approx(tflops / 500)
    assert figures.share(case, row) == figures.share_of_copy(case, row)
    assert {"TFLOP/s", "% of peak\n(measured)"} <= set(tables.speed(busy).headers)
    assert {"GB/s", "% of copy\nbandwidth"} <= set(tables.speed(case).headers)
    assert not {"TFLOP/s", "% of peak\n(measured)"} & set(tables.speed(case).headers)
    assert not {"GB/s", "% of copy\nbandwidth"} & set(tables.speed(busy).headers)
    assert "500 TFLOP/s" in screen(busy)
    assert "TFLOP/s" not in screen(case)
    both = tables.sweep([case, busy]).title
    assert "copy bandwidth" in both
    assert "peak (measured)" in both
    # By the ridge of this run, peak over copy: 1000 FLOP/B is less than a faster peak asks for.
    faster = replace(busy, ceilings=replace(busy.ceilings, product_tflops=4000.0))
    assert figures.ridge(faster) == pytest.approx(4000e3 / 2990)
    assert not figures.compute_bound(faster)
    assert figures.share(faster, row) == figures.share_of_copy(faster, row)
    assert not figures.compute_bound(replace(busy, ceilings=case.ceilings))  # no matmul was measured


def test_an_instruction_is_a_column_where_one_was_read() -> None:
    table = tables.resources(made_up.case())
    assert "multiplies by" not in table.headers
    kernels = tuple(
        made_up.kernel("triton.online", arch="sm_90", reader=reader, instruction=instruction)
        for reader, instruction in (("profiler", ""), ("cubin", "HGMMA.64x256x16"))
    )
    table = tables.resources(made_up.with_row(made_up.case(), "triton.online", resources=kernels))
    at = table.headers.index("multiplies by")
    assert {row[0]: row[at] for row in table.rows if row[0]} == {
        label: "HGMMA.64x256x16" if label == "triton.online" else "-" for label in made_up.MEDIANS_US
    }


def test_a_row_that_disagrees_shows_no_speed_and_says_why() -> None:
    wrong = made_up.with_row(
        made_up.case(),
        "cupy.online",
        status="disagrees",
        agreement=made_up.DISAGREEMENT,
        reason=made_up.DISAGREEMENT.reason,
        timing=None,
    )
    text = screen(wrong)
    line = line_of(text, "cupy.online ")
    assert "WRONG" in line.split()
    assert "nan" not in line
    assert "µs" not in line
    assert not re.search(r"\d±|±\d", line)
    assert "12 elements are NaN" in text
    assert correct(made_up.comparison(wrong)).startswith("8 of 9 match fp64")


def test_replayed_times_carry_their_label() -> None:
    stale = replace(made_up.RECORDED, source_changed=True)
    rows = [replace(row, recorded=made_up.RECORDED) for row in made_up.rows()]
    case = made_up.with_row(made_up.case(made=tuple(rows)), "triton.online", recorded=stale)
    text = screen(case, environment=made_up.LAPTOP)
    assert f"recorded on {made_up.H100.device}, 2026-11-21" in text
    assert line_of(text, "triton.online *")
    assert "*: its source has changed since" in re.sub(r"\s+", " ", text)
    assert any("fastest on the NVIDIA H100" in said for said in sentences(made_up.comparison(case)))


def test_where_no_row_is_right_nothing_is_said_of_what_is_on_record() -> None:
    wrong = [replace(row, status="failed", agreement=None, timing=None) for row in made_up.rows()]
    wrong[0] = replace(wrong[0], status="disagrees")
    text = screen(made_up.case(made=tuple(wrong)), environment=made_up.LAPTOP)
    assert "No speed: no row is correct here" in text
    assert "results/" not in text


def test_an_interruption_is_said_first() -> None:
    assert "INTERRUPTED" in screen(interrupted=True).split("\n\n")[1]


def test_several_architectures_share_a_line() -> None:
    kernels = tuple(
        made_up.kernel("triton.online", arch=arch, reader="cubin", registers=registers, spilled_bytes=0)
        for arch, registers in (("sm_75", 30), ("sm_80", 32), ("sm_90a", 32))
    )
    case = made_up.with_row(made_up.case(), "triton.online", resources=kernels)
    table = tables.resources(case)
    assert "sm_75 / sm_80 / sm_90" in table.title
    (line,) = (row for row in table.rows if row[0] == "triton.online")
    assert line[2] == "30 / 32 / 32"
    assert line[3] == "64"


def test_profiler_and_cubin_of_one_kernel_are_one_line() -> None:
    table = tables.resources(made_up.case())
    assert len(table.rows) == len(made_up.MEDIANS_US)
    spilled = table.headers.index("spilled B\n/thread")
    assert {row[spilled] for row in table.rows} == {"0"}  # known to the cubin alone


def test_code_sizes_are_all_code_and_its_parts() -> None:
    size = CodeSize(
        kernel=RoleSize(10, 100),
        launch=RoleSize(5, 50),
        helpers=RoleSize(3, 30),
        shared=RoleSize(40, 400),
        binding=RoleSize(1, 9),
        module=RoleSize(2, 12),
        concepts=("masks", "barriers"),
        fallbacks=("slow_kernel",),
    )
    shown = made_up.comparison(code_sizes={"pybind.onepass": size})
    table = tables.code(shown)
    parts = ("own\nkernels", "own host\ncode", "op\nhelpers", "shared with\nother ops")
    assert table.headers[1:] == ("all", *parts, "concepts")
    cells = ("61 / 601", "10 / 100", "8 / 71", "3 / 30", "40 / 400", "2")
    assert table.rows == (("pybind.onepass", *cells),)
    said = markdown.section(shown)
    assert said.count("tl.sum") == 1
    assert "pybind.onepass (slow_kernel)" in said
    lines = made_up.in_csv(shown)
    assert lines["torch.eager"]["lines"] == "", "of a row without a size"
    names = ("kernel_lines", "helpers_lines", "lines", "shared_tokens", "module_lines")
    assert [lines["pybind.onepass"][name] for name in names] == ["10", "3", "61", "400", "2"]


@for_each("timed", [True, False], ids=str)
@for_each(
    "algorithms, instruction",
    [(("x", "x"), ""), (("x", "x"), "HMMA.16816"), (("x", "y"), ""), (("", ""), "")],
    ids=str,
)
def test_lines_compare_where_both_declare_an_algorithm_at_one_level(
    algorithms: tuple[str, str], instruction: str, timed: bool
) -> None:
    sizes = {
        label: CodeSize(*[RoleSize(n, 10 * n) for n in (10, 1, 2, 50)], algorithm=algorithm)
        for label, algorithm in zip(("triton.onepass", "cupy.onepass"), algorithms, strict=True)
    }
    sizes["cupy.onepass"] = replace(sizes["cupy.onepass"], shared=RoleSize(113, 1130))
    rows = tuple(row if timed else replace(row, timing=None) for row in made_up.rows())
    rows = tuple(
        replace(row, resources=(made_up.kernel(row.label, instruction=instruction),))
        if row.label == "triton.onepass"
        else row
        for row in rows
    )
    text = " ".join(sentences(made_up.comparison(made_up.case(made=rows), code_sizes=sizes)))
    said = (
        "takes 2.0x the lines of code to read"
        if timed
        else "The same algorithm (x) is 63 lines of code to read in Triton and 126 in CUDA"
    )
    assert (said in text) == (algorithms == ("x", "x") and not instruction)
    assert ("lines" in text) == (said in text)


@for_each(
    "declared, instructions, shown",
    [
        ("tensor_core", {"sm_90": "FFMA"}, "tiled"),
        ("hopper", {"sm_90": "FFMA"}, "tiled"),
        ("naive", {"sm_90": "FFMA"}, "naive"),
        ("hopper", {"sm_90": "HMMA.16816"}, "tensor_core"),
        ("hopper", {"sm_90a": "HGMMA.64x256x16"}, "hopper"),
        ("tensor_core", {"sm_90": "QGMMA.64x256x32"}, "tensor_core"),
        ("tiled", {"sm_80": "IMMA.16832"}, "tensor_core"),
        ("naive", {"sm_100": "UTCHMMA"}, "tensor_core"),
        ("tensor_core", {"sm_75": "FFMA", "sm_90a": "HMMA.16816"}, "tensor_core"),
        ("tensor_core", {"sm_100": "FFMA", "sm_90a": "HMMA.16816"}, "tiled"),
        ("tensor_core", {"sm_90": ""}, "tensor_core"),
        ("hopper", {}, "hopper"),
    ],
    ids=str,
)
def test_a_level_is_what_the_machine_code_of_the_case_shows(
    declared: str, instructions: dict[str, str], shown: str
) -> None:
    kernels = tuple(
        made_up.kernel("triton.mine", reader="cubin", arch=arch, instruction=instruction)
        for arch, instruction in instructions.items()
    )
    rows = (Row("triton.mine", declared, "ok", agreement=made_up.AGREEMENT, resources=kernels),)
    run = made_up.comparison(made_up.case(made=rows))
    assert rows[0].shown_level == shown
    assert made_up.in_csv(run)["triton.mine"]["level"] == shown
    assert tables.speed(run.cases[0]).rows[0][1] == shown
    assert figures.verdicts(run)[0].level == shown


def test_concepts_are_said_once_a_way() -> None:
    needs = {
        "torch.eager": (),
        "triton.online": ("masks",),
        "triton.split": ("masks", "memory ordering"),
        "cupy.online": ("barriers",),
        "cupy.split": ("barriers", "memory ordering"),
        "pybind.online": ("barriers", "C++ binding"),
        "pybind.split": ("barriers", "memory ordering", "C++ binding"),
    }
    none = RoleSize(0, 0)
    sizes = {label: CodeSize(none, none, none, none, concepts=words) for label, words in needs.items()}
    assert tables.concepts(made_up.comparison(code_sizes=sizes)) == [
        ("triton", "masks; split also memory ordering"),
        ("cuda", "barriers; split also memory ordering; pybind also C++ binding"),
    ]


# --------------------------------------------------------------------------- sentences


def test_a_few_sentences_each_with_a_figure() -> None:
    said = sentences(made_up.comparison())
    assert 2 <= len(said) <= 4
    assert all(re.search(r"\d|within noise", text) for text in said)


def test_no_difference_is_claimed_within_the_interval() -> None:
    level = {label: (level, 50.0) for label, (level, _) in made_up.MEDIANS_US.items()}
    said = " ".join(sentences(made_up.comparison(made_up.case(made=made_up.rows(level)))))
    assert "is the fastest: " not in said
    assert "control buys" not in said
    assert "within noise" in said
    assert "measurably faster" in said


@settings(deadline=None, max_examples=40)
@given(st.floats(0.2, 5.0), st.floats(0.0, 0.5))
def test_a_lead_is_claimed_only_where_its_interval_excludes_one(median: float, margin: float) -> None:
    value = Estimate(median, median * (1 - margin), median * (1 + margin))
    case = made_up.case(
        made=made_up.rows({label: made_up.MEDIANS_US[label] for label in ("torch.eager", "triton.online")})
    )

    def with_ratio(row: Row) -> Row:
        return replace(row, timing=replace(row.timing, ratios=(Ratio("torch.eager", value),)))

    rows = tuple(with_ratio(row) if row.label == "triton.online" else row for row in case.rows)
    said = " ".join(sentences(made_up.comparison(replace(case, rows=rows))))
    if "triton.online is the fastest" in said:
        assert value.low > 1


def test_a_host_bound_size_is_said_to_be_one() -> None:
    small = {label: (level, 3.0) for label, (level, _) in made_up.MEDIANS_US.items()}
    said = sentences(made_up.comparison(made_up.case(made=made_up.rows(small))))
    assert any(text.startswith("Launch bound: 9 of 9 rows (") for text in said)
    assert not any("Launch bound" in text for text in sentences(made_up.comparison()))


def test_nothing_run_is_nothing_claimed() -> None:
    empty = replace(made_up.comparison(), cases=(), code_sizes={})
    assert sentences(empty) == []
    assert "Nothing was run" in terminal.render(empty, 80)


# --------------------------------------------------------------------------- streams


class _Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_no_escapes_and_full_width_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    wide, narrow = io.StringIO(), io.StringIO()
    terminal.show(made_up.comparison(), DETAILS, wide)
    assert "\x1b" not in wide.getvalue()
    assert max(map(len, wide.getvalue().splitlines())) > 100
    monkeypatch.setenv("COLUMNS", "60")
    terminal.show(made_up.comparison(), stream=narrow)
    assert max(map(len, narrow.getvalue().splitlines())) <= 60


def test_a_terminal_gets_colour_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = _Tty(), _Tty()
    terminal.show(made_up.comparison(), stream=coloured)
    assert "\x1b[" in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.show(made_up.comparison(), stream=plain)
    assert "\x1b" not in plain.getvalue()
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.getvalue()) == plain.getvalue()
    assert max(map(len, plain.getvalue().splitlines())) <= 80


def test_into_a_pipe_goes_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    told = progress.lines("softmax", lambda: now_s)
    for i in range(100):
        now_s = 0.5 * i
        told(f"step {i} (built in 0.10 s)", i / 100)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        f"softmax: {2 * s}% after {s} s, step {2 * s}" for s in (2, 12, 22, 32, 42)
    ]
    assert printed.out == ""
    assert "\r" not in printed.err


def test_into_a_pipe_the_first_line_counts_from_the_start_of_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch takes a second or two to import: the first step after it is shown at once."""
    for ago_s, line in (
        (progress.FIRST_S + 0.1, "softmax: 0% after 2 s, looking at this machine\n"),
        (0.0, ""),
    ):
        pipe = io.StringIO()
        monkeypatch.setattr(sys, "stderr", pipe)
        with progress.of_run("softmax", None, time.monotonic() - ago_s) as step:
            step("looking at this machine", 0.0)
        assert pipe.getvalue() == line


def test_a_terminal_shows_at_once_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal_stream, pipe = io.StringIO(), io.StringIO()
    monkeypatch.setattr(terminal_stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    for stream in (terminal_stream, pipe):
        monkeypatch.setattr(sys, "stderr", stream)
        with starting("softmax: loading PyTorch", None):
            shown = stream.getvalue()
        if stream is terminal_stream:
            assert shown == "softmax: loading PyTorch\r"
    assert terminal_stream.getvalue() == "softmax: loading PyTorch\r\x1b[K"
    assert pipe.getvalue() == ""


# --------------------------------------------------------------------------- files


def test_csv_has_a_line_for_each_row_with_units() -> None:
    comparison = made_up.comparison()
    lines = made_up.in_csv(comparison)
    assert [*lines] == [*made_up.MEDIANS_US]
    line = lines["cupy.onepass"]
    row = comparison.cases[0].rows[6]
    assert float(line["cold_us"]) == row.timing.cold_us.median
    assert float(line["speedup_low"]) <= float(line["speedup"]) <= float(line["speedup_high"])
    assert line["registers"] == "40;40"
    assert int(line["kernel_tokens"]) == 310


def test_texts_from_files_are_neither_formulas_nor_html() -> None:
    entry = made_up.with_row(
        made_up.case(), "cupy.online", status="failed", reason='=cmd("<img onerror=alert(1)>")', timing=None
    )
    comparison = made_up.comparison(entry)
    reason = made_up.in_csv(comparison)["cupy.online"]["reason"]
    assert reason == '\'=cmd("<img onerror=alert(1)>")'
    text = markdown.dumps([comparison])
    assert "&lt;img onerror" in text
    assert "<" not in text


def test_markdown_tables_are_whole() -> None:
    text = markdown.dumps([made_up.comparison()])
    for block in re.findall(r"(?m)(?:^\|.*\n?)+", text):
        assert len({line.count("|") for line in block.splitlines()}) == 1
    for label in made_up.MEDIANS_US:
        assert f"| {label}" in text
