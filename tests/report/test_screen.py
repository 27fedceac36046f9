"""The default screen: correct, how fast, why, at what cost, what next, in 30 lines of 80 columns."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

import made_up
from compare import registry
from compare.history import recorded as history
from compare.model.op import Cost
from compare.model.result import (
    HARD_INPUTS,
    UNREAD,
    CaseComparison,
    Ceilings,
    Comparison,
    Finding,
    Mismatch,
    Ratio,
    Row,
)
from compare.records import archive
from compare.report import lines, terminal
from compare.report.kernel_names import demangled
from compare.report.sentences import evidence
from compare.report.summary import View
from compare.timing import figures
from compare.timing.calibration import BUILT_IN
from compare.timing.figures import short_kernel
from compare.timing.statistics import estimate
from loops import for_each

RECORDED = made_up.RECORDED


def screen(*cases: CaseComparison, width: int = 80, view: View | None = None, **changes: object) -> str:
    return terminal.render(made_up.comparison(*cases, **changes), width, view)


def line_of(text: str, label: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f" {label} ")]
    return line.split()


@functools.cache
def recorded(op: str) -> Comparison:
    """Its default case as a screen shows it."""
    found = history.recorded(registry.get_op(op))
    (case,) = [case for case in found.cases if case.case == str(registry.get_op(op).cases.default)]
    rows = tuple(replace(row, recorded=None) for row in case.rows)
    return replace(found, cases=(replace(case, rows=rows),))


# --------------------------------------------------------------------------- size


@pytest.mark.parametrize("op", registry.op_names())
def test_a_recorded_screen_is_at_most_thirty_lines(op: str) -> None:
    if history.recorded(registry.get_op(op)) is None:
        pytest.skip("a new op: nothing is recorded")
    comparison = recorded(op)
    for width in (60, 80, 120):
        lines = terminal.render(comparison, width).splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) <= 30
        assert not any(line.endswith("...") for line in lines)
    text = terminal.render(comparison, 80)
    assert text.splitlines()[0].split()[0] == op
    for heading in ("CORRECT  ", " best of each way ", "WHY   ", "NEXT  "):
        assert text.count(f"\n{heading}") == 1


def test_without_a_gpu_it_is_as_long() -> None:
    rows = tuple(replace(row, recorded=RECORDED) for row in made_up.rows())
    text = screen(made_up.case(made=rows), environment=made_up.LAPTOP)
    assert len(text.splitlines()) <= 30
    assert f"recorded on {RECORDED}" in text
    assert "9 of 9 match fp64 on this CPU (" in text


def test_the_header_names_op_case_machine_and_ceiling() -> None:
    first, second = screen().splitlines()[:2]
    assert first.startswith("softmax  y = exp(x - max(x)) / sum(exp(x - max(x)))   ")
    assert first.endswith("M=4096 N=4096 fp32")
    assert len(first) == 80
    assert second == f"{made_up.H100.device} · copy 2990 GB/s · torch 2.11.0 triton 3.6.0"


# --------------------------------------------------------------------------- the table


def test_every_line_has_time_speedup_share_registers_memory_and_lines() -> None:
    text = screen()
    assert line_of(text, "torch.eager")[1:3] == ["72.5", "1.00x"]
    label, us, speedup, bar, share, registers, shared, unit, lines = line_of(text, "triton.onepass")
    row = figures.row_of(made_up.case(), "triton.onepass")
    assert float(us) == pytest.approx(figures.cold_us(row), abs=0.05)
    assert (label, speedup) == ("triton.onepass", "1.51x")
    assert set(bar) == {"#"}
    assert share == f"{figures.share(made_up.case(), row):.0%}"
    assert (registers, shared, unit, lines) == ("40", "64", "B", "33")


def test_the_best_of_each_way_is_shown_and_all_are_on_request() -> None:
    def shown(view: View | None) -> list[str]:
        return re.findall(r"(?m)^ (\w+\.\w+) ", screen(view=view))

    torchs = ["torch.naive", "torch.eager", "torch.compile"]
    assert shown(None) == [*torchs, "triton.onepass", "cuda.onepass"]
    assert shown(View(every=True)) == list(made_up.MEDIANS_US)


def test_a_tilde_is_explained_where_it_stands() -> None:
    note = "   ~: within noise of torch.eager"
    as_eager = ("tiled", made_up.MEDIANS_US["torch.eager"][1])
    level = made_up.MEDIANS_US | dict.fromkeys(("triton.online", "triton.onepass"), as_eager)
    near, far = screen(made_up.case(made=made_up.rows(level))), screen()
    for text in (near, far):
        assert (note in text) == bool(re.search(r" ~\d", text))
    assert note in near
    assert note not in far


@pytest.mark.parametrize("op", registry.op_names())
def test_evidence_and_table_agree_on_the_share_of_the_fastest(op: str) -> None:
    if history.recorded(registry.get_op(op)) is None:
        pytest.skip("a new op: nothing is recorded")
    text = terminal.render(recorded(op), 80)
    for label, share in re.findall(r"(\w+\.\w+) at\s+(?:      )?(\d+%) of (?:copy|peak)", text):
        if (table := re.search(rf"(?m)^ {re.escape(label)} .* (\d+%) ", text)) is not None:
            assert share == table[1], label


def test_cupy_and_pybind_are_one_line_while_within_noise() -> None:
    text = screen()
    assert "launch overhead: triton 12 µs, cupy 12, pybind 12 (torch.eager 12)" in text
    apart = dict(made_up.MEDIANS_US)
    apart["pybind.onepass"] = ("tiled", 44.0)
    text = screen(made_up.case(made=made_up.rows(apart)))
    assert " cuda.onepass" not in text
    assert line_of(text, "cupy.onepass")[1] == "47.1"
    assert line_of(text, "pybind.onepass")[1][:2] in ("43", "44")


def test_a_library_is_shown_where_it_is_the_fastest() -> None:
    for median, there in ((40.0, True), (60.0, False)):
        case = made_up.case(made=made_up.rows({**made_up.MEDIANS_US, "library.cub": ("vendor", median)}))
        assert ("\n library.cub" in screen(case)) == there


def test_a_row_within_noise_of_the_baseline_is_marked() -> None:
    case = made_up.case(made=made_up.rows({**made_up.MEDIANS_US, "torch.compile": ("vendor", 72.5)}))
    assert line_of(screen(case), "torch.compile")[2] == "~1.00x"


def test_unequal_terms_have_no_speedup() -> None:
    case = made_up.case(
        made=made_up.rows({k: made_up.MEDIANS_US[k] for k in ("torch.eager", "triton.onepass")})
    )
    text = screen(made_up.with_row(case, "triton.onepass", accumulator="tf32"))
    assert line_of(text, "triton.onepass")[2] == "(tf32)"
    assert "UNEQUAL TERMS: triton.onepass computes in tf32, torch.eager in fp32" in text
    details = screen(
        made_up.with_row(case, "triton.onepass", accumulator="tf32"), width=200, view=View(details=True)
    )
    (line,) = re.findall(r"(?m)^triton.onepass .* yes .*$", details)
    assert "unequal terms" in line


def test_what_binds_follows_from_the_measured_ridge() -> None:
    batched, product = recorded("batched_matmul").cases[0], recorded("matmul").cases[0]
    assert batched.cost.compute_bound  # by the constant it would be bound by arithmetic
    assert not figures.compute_bound(batched)
    assert figures.compute_bound(product)
    assert "% of copy bandwidth" in terminal.render(recorded("batched_matmul"), 80)
    assert "WHY   Memory bound (16 FLOP/B, ridge" in terminal.render(recorded("batched_matmul"), 80)
    assert "% of peak (measured)" in terminal.render(recorded("matmul"), 80)
    assert "WHY   Compute bound (1365 FLOP/B, ridge" in terminal.render(recorded("matmul"), 80)
    whose = "which is PyTorch's own product"
    assert whose not in terminal.render(recorded("matmul"), 80)
    assert whose in " ".join(terminal.render(recorded("int8_matmul"), 80).split()), "far beyond it"


def test_no_time_stands_beside_registers_of_another_architecture() -> None:
    """Recorded on sm_90: what is compiled for sm_75 is not put beside it, nor is it evidence."""
    turing = {"arch": "sm_75", "registers": 75, "instruction": "HMMA.1688", "spilled_bytes": 64}
    hopper = {"arch": "sm_90a", "registers": 90, "instruction": "HGMMA.64x64x16", "spilled_bytes": 0}

    def compiled(*figures: dict[str, object]) -> str:
        rows = (
            replace(
                row,
                recorded=RECORDED,
                resources=tuple(made_up.kernel(row.label, reader="cubin", **each) for each in figures),
            )
            for row in made_up.rows()
        )
        return screen(made_up.case(made=tuple(rows)), environment=made_up.LAPTOP)

    both, other = compiled(turing, hopper), compiled(turing)
    assert "HMMA.1688" not in both
    assert "spill" not in both
    kept = archive.find("softmax", made_up.CASE)["triton.onepass"].row.resources
    for text in (both, other):
        assert line_of(text, "triton.onepass")[5] == str(kept[0].registers), "of that device's record"


def test_recorded_registers_and_versions_stand_beside_recorded_times() -> None:
    """A compiler of this machine may need other registers than the one of the record."""
    recorded = archive.find("softmax", made_up.CASE)
    of_label = {label: archive.provenance(each, each.row.source_hash) for label, each in recorded.items()}

    def compiled(labels: Sequence[str]) -> str:
        rows = [
            replace(
                row,
                recorded=of_label.get(row.label, RECORDED),
                resources=(made_up.kernel(row.label, reader="cubin", arch="sm_90", registers=251),),
            )
            for row in made_up.rows()
        ]
        return screen(made_up.case(made=[r for r in rows if r.label in labels]), environment=made_up.LAPTOP)

    text = compiled(["torch.eager", "triton.onepass"])
    assert line_of(text, "triton.onepass")[5] == str(recorded["triton.onepass"].row.resources[0].registers)
    assert "251" not in text
    ours, theirs = " ".join(text.partition("CORRECT")[0].split()).split(" µs, regs, smem recorded on ")
    versions = made_up.LAPTOP.versions
    of_here = f"torch {versions['torch']} triton {versions['triton']} interpreted, CUDA by g++"
    assert ours.endswith(f" checked on {made_up.LAPTOP.device} (CPU) {of_here}")
    run = recorded["triton.onepass"].run.environment
    assert theirs.startswith(f"{run.device}, {recorded['triton.onepass'].run.created[:10]}")
    assert f" torch {run.versions['torch']} triton {run.versions['triton']} cuda " in theirs
    assert theirs.endswith(f"driver {run.driver}")
    assert "compiled here" not in text


@for_each("flops, text", [(0, "torch.eager runs the driver's copy (cudaMemcpy), not a kernel"), (5, "")])
def test_a_copy_without_a_kernel_is_said_to_be_one(flops: int, text: str) -> None:
    case = made_up.with_row(made_up.case(), "torch.eager", resources=())
    shown = screen(replace(case, cost=replace(case.cost, flops=flops)))
    assert line_of(shown, "torch.eager")[-3:-1] == ["-", "-"]
    assert ("no regs, smem" in shown, text in shown) == (bool(text), True)


def test_registers_compiled_here_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = archive.find("softmax", made_up.CASE)
    bare = {label: replace(each, row=replace(each.row, resources=())) for label, each in kept.items()}
    kernel = functools.partial(made_up.kernel, reader="cubin", arch="sm_90", registers=90)
    rows = [
        replace(row, recorded=RECORDED, resources=(kernel(row.label),) if "triton" in row.label else ())
        for row in made_up.rows()
    ]
    case = made_up.case(made=tuple(rows))
    monkeypatch.setattr(archive, "find", lambda *_, **__: {**kept, "triton.onepass": bare["triton.onepass"]})
    some = screen(case, environment=made_up.LAPTOP)
    assert line_of(some, "triton.onepass")[5] == "90"
    assert "\n   regs, smem compiled here, not recorded: triton.onepass\n" in some
    monkeypatch.setattr(archive, "find", lambda *_, **__: bare)
    every = screen(case, environment=made_up.LAPTOP)
    assert "\nregs, smem compiled here for sm_90\n" in every
    assert f"\nµs recorded on {made_up.H100.device}" in every
    assert "not recorded" not in every


def test_without_times_every_row_is_shown_with_what_is_known() -> None:
    rows = tuple(replace(row, timing=None) for row in made_up.rows())
    text = screen(made_up.case(made=rows), environment=made_up.LAPTOP)
    assert line_of(text, "cuda.online") == ["cuda.online", "40", "64", "B", "73"]
    assert "speedup" not in text
    assert len(text.splitlines()) <= 30


# --------------------------------------------------------------------------- what is wrong, and what is yours


@pytest.mark.parametrize(
    ("got", "expected", "text"),
    [
        (1.5, 2.0, "got 1.5, expected 2"),
        (6 - 2.0**-21, 6.0, "got 5.99999952, expected 6"),
        (1234567.0, 1234568.0, "got 1234567, expected 1234568"),
        (2.0**53 - 1, 2.0**53, "got 9007199254740991, expected 9007199254740992"),
    ],
)
def test_a_wrong_element_does_not_look_like_the_expected_one(got: float, expected: float, text: str) -> None:
    assert lines.got_and_expected(Mismatch((0, 1), got, expected, 1, 2)) == text


def test_what_is_wrong_comes_first_with_its_first_mismatch() -> None:
    mismatch = Mismatch((3, 768), float("nan"), 0.25, 53248, 16777216, "only the last 13 columns: tail mask?")
    wrong = replace(made_up.DISAGREEMENT, mismatch=mismatch)
    case = made_up.case()
    for label, changes in {
        "cupy.onepass": {"status": "disagrees", "agreement": wrong, "reason": wrong.reason},
        "torch.compile": {"status": "failed", "reason": "it raised"},
        "pybind.online": {"status": "disagrees", "reason": "caught while it was timed"},
    }.items():
        case = made_up.with_row(case, label, timing=None, **changes)
    said = screen(case).split("\n\n")[1].splitlines()
    assert said[0].startswith(f"WRONG  cupy.onepass on {made_up.CASE}: values: 12 elements")
    assert "      first at (3, 768): got nan, expected 0.25; 53248 of 16777216 wrong" in said
    assert "      pattern: only the last 13 columns: tail mask?" in said
    assert f"WRONG  pybind.online on {made_up.CASE}: caught while it was timed" in said
    failed = said.index(f"FAILED  torch.compile on {made_up.CASE}: it raised")
    assert said[failed + 1].startswith("CORRECT  6 of 9 match fp64")
    assert "NEXT  --only cupy.onepass" in screen(case)


def test_no_flood_of_failures() -> None:
    rows = tuple(
        replace(row, status="failed", reason=f"{row.label} " * 80, timing=None) for row in made_up.rows()[2:]
    )
    text = screen(made_up.case(made=(*made_up.rows()[:2], *rows)))
    assert text.count("\nFAILED ") + text.startswith("FAILED ") == 4
    assert "and 3 more (--details): cupy.onepass, pybind.online, pybind.onepass" in text
    text = screen(made_up.case(made=rows), view=View(yours=frozenset({"pybind.onepass"})))
    assert "FAILED  pybind.onepass on" in text


def test_rows_not_run_are_one_line() -> None:
    case = made_up.case()
    for label in ("cupy.online", "triton.online"):
        case = made_up.with_row(
            case, label, status="unavailable", reason="needs a GPU", timing=None, agreement=None
        )
    assert "\nnot run: needs a GPU: 2 rows (triton.online, cupy.online)\n" in screen(case)
    gone = {"status": "unavailable", "reason": "slow to start", "timing": None, "agreement": None}
    for label, reason in (
        ("pybind.online", "needs sm_90"),
        ("pybind.onepass", "needs sm_90"),
        ("cupy.onepass", "too large"),
    ):
        case = made_up.with_row(case, label, reason=f"{UNREAD} for sm_75: {reason}")
    case = made_up.with_row(case, "torch.compile", **gone)
    text = screen(case)
    assert "\nnot run: 3 rows, not compiled for sm_75: 3 rows (4 reasons: --details)\n" in text
    assert "CORRECT  6 of 6 match" in text
    text = screen(case, view=View(yours=frozenset({"torch.compile"})))
    assert "\nnot run: torch.compile: slow to start\n" in text
    assert "\nnot run: 2 rows, not compiled for sm_75: 3 rows (3 reasons: --details)\n" in text


def test_a_measurable_difference_of_two_percent_is_called_that() -> None:
    medians = {**made_up.MEDIANS_US, "triton.onepass": ("tiled", 47.9)}
    rows = tuple(
        replace(row, timing=row.timing and replace(row.timing, detectable=0.001))
        for row in made_up.rows(medians)
    )
    case = made_up.case(made=rows)
    triton, cuda = (figures.row_of(case, label) for label in ("triton.onepass", "cupy.onepass"))
    assert triton is not None
    assert cuda is not None
    assert figures.differs(cuda, triton)
    assert figures.near(figures.ratio(cuda, triton).median)
    assert "Triton and CUDA are within 2%" in " ".join(evidence(made_up.comparison(case), case))
    assert [figures.near(ratio) for ratio in (0.974, 0.98, 1.0, 1.024, 1.026)] == [
        False,
        True,
        True,
        True,
        False,
    ]


@for_each(
    "read, written, product, says",
    [
        (1, 1, None, "the ceiling is PyTorch's copy in the same run"),
        (9, 1, None, "this mostly reads: reads reach 3105 GB/s"),
        (1, 1, 1e-3, "the ceiling is PyTorch's product of 4096-cubed matrices"),
    ],
)
def test_more_than_100_percent_is_explained_where_it_stands(
    read: int, written: int, product: float | None, says: str
) -> None:
    case = made_up.case()
    scale = 2 * 8 * made_up.ELEMENTS // (read + written)
    case = replace(
        case,
        cost=Cost(made_up.ELEMENTS, read * scale, written * scale),
        ceilings=Ceilings(2990.0, 3105.0, product_tflops=product),
    )
    text = " ".join(screen(case).split())
    assert f"above 100%: {says}" in text or f"above 100%: the ceiling is a copy, and {says}" in text
    assert "above 100%" not in screen(made_up.case())


def test_a_case_without_elements_matches_in_shape_and_dtype() -> None:
    exact = replace(made_up.AGREEMENT, error=0.0, max_abs=0.0)
    rows = tuple(replace(row, agreement=exact) for row in made_up.rows())
    empty = replace(made_up.case("M=0,N=4,fp32", made=rows), cost=Cost(0, 0, 0))
    assert "match fp64: no elements, shape and dtype checked" in " ".join(screen(empty).split())
    assert "no elements" not in screen(made_up.case(made=rows))


def test_kernels_have_their_short_names_in_every_message() -> None:
    mangled = "_ZN2at6native18elementwise_kernelILi128ELi4EEEvi"
    case = made_up.with_row(made_up.case(), "cupy.online", status="failed", reason=f"{mangled} has no source")
    assert "FAILED  cupy.online" in screen(case)
    assert "elementwise_kernel has no source" in screen(case)
    assert demangled("_Z3unknown!") == "_Z3unknown!"
    for name, short in (
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(int)", "cunn_SoftMaxForward"),
        ("softmax_online_kernel<float, 256>", "softmax_online_kernel"),
        ("triton_red_fused_0", "triton_red_fused_0"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_gemm>(Params)", "cutlass_80_tensorop_gemm"),
        ("DeviceKernel2<float>", "DeviceKernel2"),
    ):
        assert short_kernel(name) == short


def test_a_user_s_row_is_always_there_with_verdict_and_place() -> None:
    view = View(yours=frozenset({"triton.mine"}))
    medians = {**made_up.MEDIANS_US, "triton.mine": ("tiled", 59.0)}
    text = screen(made_up.case(made=made_up.rows(medians)), view=view)
    assert line_of(text, "triton.mine")[1] == "59.0"
    said = "YOURS triton.mine: correct, speedup 1.23x vs torch.eager, 5th of 10 rows (behind torch.compile,"
    assert said in " ".join(text.split())
    rows = (
        *(replace(row, recorded=RECORDED) for row in made_up.rows()),
        replace(made_up.rows(medians)[-1], timing=None, resources=()),
    )
    text = screen(made_up.case(made=rows), view=view, environment=made_up.LAPTOP)
    assert line_of(text, "triton.mine")[1:3] == ["-", "-"]
    assert "YOURS triton.mine: correct, not timed" in text


def test_a_user_s_row_says_on_which_inputs_it_is_correct() -> None:
    view, medians = (
        View(yours=frozenset({"triton.mine"})),
        {**made_up.MEDIANS_US, "triton.mine": ("tiled", 59.0)},
    )
    case = made_up.case(made=made_up.rows(medians))

    def shown(status: str, finding: Finding) -> str:
        agreement = replace(made_up.AGREEMENT, passed=finding.passed, findings=(finding,))
        assert agreement.status == status
        changes = {"status": status, "reason": agreement.reason, "agreement": agreement}
        return screen(made_up.with_row(case, "triton.mine", **changes), view=view)

    text = shown("ok", Finding(HARD_INPUTS, True, "37 inputs (5 layouts, 6 fills)"))
    assert "YOURS triton.mine: correct on 37 inputs (5 layouts, 6 fills), speedup 1.23x" in text
    text = shown("ordinary", Finding(HARD_INPUTS, False, "M=6,N=517,fp32,huge: 3 elements are NaN"))
    assert "WRONG  triton.mine on M=6,N=517,fp32,huge: 3 elements are NaN\n" in text
    assert line_of(text, "triton.mine")[1:3] == ["(ordinary)", "59.0"]
    assert "YOURS triton.mine: correct on ordinary inputs only, speedup 1.23x vs torch.eager\n" in text
    shown("disagrees", Finding("values", False, "3 elements are wrong"))


def test_too_few_samples_are_said() -> None:
    row = made_up.rows()[0]
    few = made_up.with_row(made_up.case(), row.label, timing=replace(row.timing, rounds=2))
    assert "n=2, too few for an interval: torch.naive" in screen(few)


def test_a_row_that_cannot_run_here_keeps_its_record() -> None:
    """A Hopper kernel on a laptop: the best that is recorded is still the best."""
    rows = tuple(replace(row, recorded=RECORDED) for row in made_up.rows())
    gone = {"status": "unavailable", "reason": "needs sm_90", "agreement": None}
    case = made_up.with_row(made_up.case(made=rows), "triton.onepass", **gone)
    text = screen(case, environment=made_up.LAPTOP)
    assert line_of(text, "triton.onepass")[1] == "47.9"
    assert "not run here, correct when recorded: triton.onepass" in text


def test_a_way_without_a_recorded_time_is_named() -> None:
    rows = [replace(row, recorded=RECORDED) for row in made_up.rows()]
    lacking = [replace(r, recorded=None, timing=None) if r.label.startswith("triton") else r for r in rows]
    text = screen(made_up.case(made=tuple(lacking)), environment=made_up.LAPTOP)
    count = sum(row.timing is None for row in lacking)
    assert f"no time on record: triton ({count} rows)" in text
    assert "on record" not in screen(made_up.case(made=tuple(rows)), environment=made_up.LAPTOP)
    wrong = [replace(row, status="disagrees") if row.timing is None else row for row in lacking]
    assert "on record" not in screen(made_up.case(made=tuple(wrong)), environment=made_up.LAPTOP)


# --------------------------------------------------------------------------- several cases, options


def test_several_cases_have_a_block_each_below_one_head() -> None:
    text = screen(made_up.case("M=1,N=4096,fp32"), made_up.case("M=2,N=4096,fp32"))
    assert text.count("softmax  y = exp(x") == text.count("CORRECT  ") == text.count("NEXT  ") == 1
    assert text.count(" best of each way ") == text.count("WHY   ") == 2
    assert "\nM=1,N=4096,fp32\n" in text
    assert "match fp64 on 2 cases" in text


def test_a_sweep_is_a_line_for_each_case() -> None:
    rows = made_up.rows(made_up.APART)
    cases = [made_up.case(f"M={m},N=4096,fp32", rows) for m in (1, 2, 4, 8, 16)]
    text = screen(*cases)
    lines = [line.split() for line in text.splitlines() if line.startswith(" M=")]
    assert [line[0] for line in lines] == [case.case for case in cases]
    assert lines[0][1:] == ["72.5", "1.24x", "1.21x", "1.54x", "cuda.onepass", "95%", "copy"]
    assert len(text.splitlines()) <= 30
    assert "Fastest over 5 cases: cuda 5, torch 0, triton 0; within noise 0." in " ".join(text.split())


def test_a_sweep_of_shapes_names_each_way_s_best_on_every_case_and_ends_with_geometric_means() -> None:
    slower = {**made_up.APART, "triton.onepass": ("tiled", made_up.APART["triton.onepass"][1] * 4)}
    slower["triton.online"] = slower["triton.onepass"]
    several = [made_up.rows(made_up.APART), made_up.rows(slower)] * 6
    cases = [made_up.case(f"M={m},N=4096,fp32", rows) for m, rows in enumerate(several)]
    text = screen(*cases, view=View(shapes=True), width=110)
    lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith(" M=")]
    assert len(lines) == 12
    assert "1.21x onepass 1.54x" in lines[0]
    means = re.search(
        r"Geometric means: torch [\d.]+x, triton ([\d.]+)x, cuda 1\.5\d+x\.", " ".join(text.split())
    )
    assert float(means[1]) == pytest.approx(1.21 / 2, abs=0.005)
    unlike = {label: times for label, times in made_up.APART.items() if not label.startswith("triton")}
    row = replace(made_up.rows()[0], agreement=None, timing=None)
    cases += [
        made_up.case("M=12,N=4096,fp32", made_up.rows(unlike)),
        made_up.case("M=13,N=4096,fp32", (row,)),
    ]
    text = " ".join(screen(*cases, view=View(shapes=True), width=110).split())
    assert f"triton {means[1]}x over 12, cuda 1.5" in text
    assert "Without a time: 1 of 14 cases." in text


@pytest.mark.parametrize("op", registry.op_names())
def test_a_recorded_sweep_is_at_most_thirty_lines(op: str) -> None:
    whole = history.recorded(registry.get_op(op))
    if whole is None:
        pytest.skip("a new op: nothing is recorded")
    if len(whole.cases) < 4:
        pytest.skip(f"a new op: {len(whole.cases)} of its cases are recorded")
    for width in (80, 120):
        text = terminal.render(whole, width)
        assert max(map(len, text.splitlines())) <= width
        assert len(text.splitlines()) <= 30
    shown = [case.case for case in whole.cases if f"\n {case.case} " in text]
    assert 4 <= len(shown) <= 10
    assert {shown[0], shown[-1]} == {whole.cases[0].case, whole.cases[-1].case}
    every = terminal.render(whole, 80, View(every=True))
    assert all(re.search(rf"(?m)^ ({case.case}|{sizes_of(case.case)}) ", every) for case in whole.cases)


def sizes_of(case: str) -> str:
    """Without names, as a narrow terminal shows it below a header with the names."""
    return re.sub(r"\w+=", "", case)


def test_a_swept_case_within_noise_names_the_ways_and_no_winner() -> None:
    level = {**made_up.MEDIANS_US, "triton.onepass": ("tiled", 47.2)}
    text = screen(*(made_up.case(f"M={m},N=4096,fp32", made_up.rows(level)) for m in (1, 2, 4, 8)))
    assert re.search(r"(?m)^ M=1,N=4096,fp32 .* triton, cuda +95% copy$", text)
    assert "Fastest over 4 cases: torch 0, triton 0, cuda 0; within noise 4." in " ".join(text.split())


def test_a_swept_case_is_compared_with_its_own_baseline() -> None:
    without = {label: times for label, times in made_up.MEDIANS_US.items() if label != "torch.eager"}
    other = made_up.case("M=8,N=4096,fp32", made_up.rows(without))
    row = figures.row_of(other, "triton.onepass")
    timing = replace(row.timing, ratios=(Ratio("torch.compile", estimate([1.25] * 20)),))
    other = made_up.with_row(other, "triton.onepass", timing=timing)
    text = screen(*(made_up.case(f"M={m},N=4096,fp32") for m in (1, 2, 4)), other)
    assert re.search(r"(?m)^ M=8,N=4096,fp32 +58\.2 +1\.00x +1\.25x ", text)


def test_what_each_column_is_can_be_asked_for() -> None:
    text = screen(view=View(explain=True))
    legend = text.partition("\nNEXT")[2]
    columns = ("µs", "speedup", "% of copy bandwidth", "regs", "smem", "lines", "launch overhead", "noise")
    for column in columns:
        assert f"\n{column}: " in legend
    assert "--explain" not in legend
    assert "in whichever file; --details splits it" in " ".join(legend.split()), "shared code counts"


@for_each(
    "floors, says",
    [
        ({}, "doctor --calibrate measures the floor, an empty kernel and its output."),
        ({"triton": 22.31, "pybind": 6.5}, "in µs: triton 22, pybind 6.5."),
    ],
)
def test_launch_overhead_is_explained_with_its_floors(floors: dict[str, float], says: str) -> None:
    comparison = made_up.comparison()
    calibrated = replace(BUILT_IN, launch_floors_us=floors)
    environment = replace(comparison.environment, calibration=calibrated)
    text = terminal.render(replace(comparison, environment=environment), 80, View(explain=True))
    shown = " ".join(text.split())
    assert "argument checks and the allocation of the output included" in shown
    assert says in shown


@for_each(
    "op, view, facts",
    [
        ("softmax", View(), "--all rows · --explain columns · --html report.html · pipeline softmax"),
        ("batched_matmul", View(), "--all rows · --explain columns · --details · pipeline batched_matmul"),
        # not what is given already
        (
            "softmax",
            View(every=True, details=True),
            "--explain columns · --html report.html · pipeline softmax",
        ),
        ("softmax", View(html=True), "--all rows · --explain columns · --details · pipeline softmax"),
    ],
)
def test_what_to_type_next_is_one_line(op: str, view: View, facts: str) -> None:
    assert f"\nNEXT  {facts}" in screen(op=op, view=view) + "\n"


def test_what_was_run_for_an_option_is_on_the_screen_unasked() -> None:
    row: Row = made_up.rows()[4]
    both = replace(row.timing, burst_us=row.timing.warm_us, sustained_us=row.timing.warm_us)
    assert "Back to back" in screen(made_up.with_row(made_up.case(), row.label, timing=both))


def test_a_case_that_is_not_the_default_is_named_where_times_are_missing() -> None:
    rows = tuple(replace(row, timing=None) for row in made_up.rows())
    text = screen(replace(made_up.case(made=rows), case="M=7,N=9,fp32"), environment=made_up.LAPTOP)
    assert "python -m compare softmax --case M=7,N=9,fp32 --record" in " ".join(text.split())


def test_evidence_names_a_row_as_the_table_does() -> None:
    """cupy and pybind are one row while within noise; what is said of either is said of that row."""
    low = replace(made_up.rows()[-1].resources[0], occupancy=0.25, limiter="registers", spilled_bytes=16)
    case = made_up.case(
        made=tuple(
            replace(row, resources=(low,)) if row.label.endswith(".onepass") else row
            for row in made_up.rows()
        )
    )
    said = [text for text in evidence(made_up.comparison(case), case) if "spills" in text or "occup" in text]
    assert said
    named = {figures.represented(case, row)[0] for row in case.rows}
    assert all(re.split(r":| spills", text)[0] in named for text in said), said
