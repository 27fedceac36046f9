"""The screen, the record and the page of an op of several GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compare import registry
from compare.code_size.hashes import source_hash
from compare.collectives.results import RankedCase, RankedComparison, RankedRow, record, recorded
from compare.inputs import ITEM_BYTES
from compare.model.op import UsageError
from compare.model.result import CodeSize, Environment, KernelResources, RoleSize
from compare.report import collectives
from compare.timing.statistics import estimate
from loops import for_each
from tools.docs import ranks

OP = registry.get_op("all_reduce")
IMPLS = registry.implementations("all_reduce")
ENVIRONMENT = Environment(
    *("NVIDIA H200", "cuda", "sm_90", 132, 150 << 30, 60 << 20, "580"),
    versions={"torch": "2.11.0", "triton": "3.6.0"},
    host="a host",
)


def compared(us: float = 10.0) -> RankedComparison:
    """A sweep in which every implementation takes ``us``, and 1 µs more for each MB."""
    nothing = RoleSize(0, 0)
    size = CodeSize(kernel=RoleSize(121, 1500), launch=nothing, helpers=nothing, shared=nothing)
    kernel = KernelResources("k", "sm_90", "cubin", 62, 0, 4096, 1024)
    cases = []
    for case in OP.cases.sweep:
        x_bytes = case["N"] * ITEM_BYTES[case.dtype]
        times = estimate([us + x_bytes / 1e6] * 10)
        rows = [RankedRow(i.label, i.level, "ok", "", times, times, source_hash(i)) for i in IMPLS]
        cases.append(RankedCase(str(case), x_bytes, OP.cost(case).read_bytes, tuple(rows)))
    return RankedComparison(
        *("all_reduce", 2, ENVIRONMENT, 393.0, "2026-11-29T11:00:00+00:00", tuple(cases)),
        resources={i.label: (kernel,) for i in IMPLS if i.has_own_kernels},
        code_sizes={i.label: size for i in IMPLS},
    )


def test_the_screen_fits_and_says_both_kinds_of_figures():
    text = collectives.render(compared(), [], 200)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80, text
    assert len(lines) <= 30, text
    assert "2 x NVIDIA H200 · peer copy 393 GB/s each way · torch 2.11.0 · triton 3.6.0" in text
    assert "CORRECT  12 of 12 match fp64 on all GPUs, on 11 cases" in text
    row = next(line for line in lines if line.startswith("cupy.two_shot"))
    # 4 MB in 14.2 µs: 295 GB/s.
    words = row.removeprefix("cupy.two_shot")
    assert " ".join(words.split()) == "10.0 10.1 11.0 10.0 295 870 991 62 4 KB 121"


def test_a_wrong_row_comes_first_and_a_changed_one_is_marked():
    comparison = compared()
    case = comparison.cases[0]
    why = "rank 1: values: 3 of 4 elements are wrong"
    wrong = replace(case.rows[3], status="wrong", reason=why, graph_us=None)
    changed = replace(case.rows[4], source_hash="of another")
    rows = (*case.rows[:3], wrong, changed, *case.rows[5:])
    comparison = replace(comparison, cases=(replace(case, rows=rows), *comparison.cases[1:]))
    text = collectives.render(comparison, [], 80)
    assert text.splitlines()[3].startswith(f"WRONG  triton.one_shot on D=2,N=2048,bf16: {why[:20]}")
    assert "CORRECT  11 of 12" in text
    shown = collectives.render(replace(comparison, cases=()), [comparison], 80)
    assert "RECORDED 2026-11-29: 2 x NVIDIA H200" in shown
    assert "triton.two_shot* " in shown
    assert "triton.one_shot " in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_record_keeps_what_a_run_has_not_measured(tmp_path: Path):
    first = compared(10.0)
    record(first, tmp_path)
    failed = replace(first.cases[0].rows[0], status="failed", graph_us=None)
    other = replace(first.cases[0], rows=(failed, *compared(5.0).cases[0].rows[1:]))
    path = record(replace(first, cases=(other,)), tmp_path)
    assert path == tmp_path / "all_reduce-2x-nvidia-h200.json"
    (found,) = recorded("all_reduce", tmp_path)
    assert [case.case for case in found.cases] == [str(case) for case in OP.cases.sweep]
    kept, new = found.cases[0].rows[:2]
    assert (kept.graph_us and kept.graph_us.median, new.graph_us and new.graph_us.median) == pytest.approx(
        (10.0, 5.0), rel=1e-2
    )


@for_each("text", ["", '{"schema": 9, "runs": []}', "[1]"])
def test_a_damaged_record_is_named_and_stays(text: str, tmp_path: Path):
    path = tmp_path / "all_reduce-2x-nvidia-h200.json"
    path.write_text(text)
    for use in (lambda: recorded("all_reduce", tmp_path), lambda: record(compared(), tmp_path)):
        with pytest.raises(UsageError, match=f"{path.name} is damaged, .* git checkout"):
            use()
    assert path.read_text() == text


def test_the_page_says_how_levels_do_against_the_library(tmp_path: Path):
    assert ranks.block("all_reduce", tmp_path) == "Nothing is recorded yet."
    record(compared(), tmp_path)
    text = ranks.block("all_reduce", tmp_path)
    assert "`cupy.low_latency` takes 1.00 to 1.00 of `torch.nccl`'s time up to 512 KB." in text
    assert "`triton.two_shot` has 1.00 to 1.00 of its bandwidth from 64 MB on." in text
