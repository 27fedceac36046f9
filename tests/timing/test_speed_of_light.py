"""The lower bound: impossible times are refused with the arithmetic, and no measured time is."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

import made_up
from compare import registry
from compare.command_line import status
from compare.command_line.status import FAILURE
from compare.model.op import Cost
from compare.model.result import CaseComparison, Ceilings, Estimate, Row, Timing
from compare.records import archive
from compare.report import tables, terminal
from compare.timing import figures, speed_of_light
from compare.timing.statistics import estimate
from loops import for_each

L2 = 50 << 20
CEILINGS = Ceilings(3000.0, 2970.0)
ADD = Cost(flops=1 << 24, read_bytes=2 << 26, written_bytes=1 << 26)
"""134 MB in, 67 MB out."""


def one(cost: Cost, *times_us: float, ceilings: Ceilings = CEILINGS, **changes: object) -> CaseComparison:
    row = Row("triton.a", "tiled", "ok", timing=Timing(cold_us=estimate(times_us)))
    return CaseComparison("N=1,fp32", cost, (replace(row, **changes),), ceilings)  # type: ignore[arg-type]


def refusal(case: CaseComparison) -> str | None:
    return speed_of_light.impossible(case, case.rows[0], L2)


def test_a_cold_time_below_its_compulsory_traffic_is_refused_with_the_arithmetic() -> None:
    why = refusal(one(ADD, *[12.1] * 10))
    # 134 MB read, and of 67 MB written those 41 that a 52 MB cache does not hold dirty.
    assert "12.1 us cold for 175 MB that must be read from and written to memory" in why
    assert "would be 14.5 TB/s" in why
    assert "a copy or a read on this device reaches 3 TB/s" in why


def test_the_bound_is_the_reads_at_the_best_rate_and_a_margin() -> None:
    held = replace(ADD, written_bytes=L2 // 2)
    (bound,) = speed_of_light.cold(held, CEILINGS, L2)
    assert bound.least_us == pytest.approx(ADD.read_bytes / 3000e9 / 1.1 * 1e6)
    (of_reading,) = speed_of_light.cold(held, Ceilings(3000.0, 3200.0), L2)
    assert of_reading.least_us == pytest.approx(ADD.read_bytes / 3200e9 / 1.1 * 1e6)
    assert refusal(one(held, bound.least_us * 1.001)) is None
    assert refusal(one(held, bound.least_us * 0.999)) is not None
    for times_l2, margin in ((3.9, 0.10), (4.1, 0.05)):  # large cases get little margin
        moved = Cost(flops=0, read_bytes=int(times_l2 * L2), written_bytes=0)
        (bound,) = speed_of_light.cold(moved, replace(CEILINGS, best_gbs=3100.0), L2)
        assert bound.least_us == pytest.approx(moved.read_bytes / 3100e9 / (1 + margin) * 1e6)


def test_what_the_cache_holds_dirty_need_not_have_been_written_yet() -> None:
    only_written = Cost(flops=0, read_bytes=0, written_bytes=L2 // 2)
    assert refusal(one(only_written, 0.01)) is None
    assert refusal(one(replace(only_written, written_bytes=L2), 1.0)) is not None


def test_small_cases_are_bound_by_nothing_the_floor_knows() -> None:
    for elements in (0, 1, 1024, 1 << 16):
        assert refusal(one(Cost(elements, 8 * elements, 4 * elements), *[1.8] * 10)) is None


@for_each("field", ["warm_us", "graph_us"])
def test_calls_back_to_back_may_keep_what_the_cache_holds_and_no_more(field: str) -> None:
    def timed(cost: Cost, us: float) -> str | None:
        return refusal(one(cost, 70.0, timing=Timing(**{field: estimate([us] * 8)})))

    fits = Cost(0, L2 // 2, L2 // 2)
    assert timed(fits, 2.0) is None
    least_us = (ADD.bytes - L2) / 3300e9 * 1e6
    assert timed(ADD, least_us * 1.01) is None
    assert "more than the L2 holds" in timed(ADD, least_us * 0.99)


@for_each("dtype, times", [("fp16", 1), ("bf16", 1), ("int8", 2.5), ("fp8", 2.5)])
def test_eight_bits_may_be_multiplied_faster_than_fp16(dtype: str, times: float) -> None:
    """An int8 kernel of ours is faster than the library's and than twice fp16: less power, a higher clock."""
    ceilings = Ceilings(3000.0, 2970.0, matmul_tflops=700.0, product_tflops=650.0)
    flops = Cost(flops=2 * 4096**3, read_bytes=1 << 20, written_bytes=1 << 20)
    least_us = 2 * 4096**3 / (times * 700e12 * 1.1) * 1e6
    for us, allowed in ((1.01 * least_us, True), (0.99 * least_us, False)):
        c = replace(one(flops, us, ceilings=ceilings), case=f"M=4096,N=4096,K=4096,{dtype}")
        assert (refusal(c) is None) is allowed


def test_answers_remembered_now_and_then_move_no_median_and_are_refused() -> None:
    honest, cached = 65.0, 3.0
    assert refusal(one(ADD, *[honest] * 100)) is None
    assert refusal(one(ADD, *[honest] * 96, *[cached] * 4)) is None  # a clock that slipped
    assert "3 us cold" in refusal(one(ADD, *[honest] * 90, *[cached] * 10))


def test_operations_count_where_their_rate_is_known() -> None:
    product = Cost(flops=2 * 8192**3, read_bytes=2 << 27, written_bytes=1 << 27)
    fast = [1000.0] * 8  # 1.1 PFLOP/s
    assert refusal(one(product, *fast)) is None
    known = replace(CEILINGS, matmul_tflops=720.0)
    why = refusal(one(product, *fast, ceilings=known))
    assert "1.1 TFLOP would be 1.1 PFLOP/s" in why
    assert "reaches 720 TFLOP/s" in why
    assert refusal(one(product, *[1420.0] * 8, ceilings=known)) is None
    # The case's own dtype may go faster than fp16.
    slower = replace(known, product_tflops=740.0)
    assert "reaches 740 TFLOP/s" in refusal(one(product, *fast, ceilings=slower))
    assert refusal(one(product, *fast, ceilings=replace(known, product_tflops=1010.0))) is None
    # Sums in fp16 go twice as fast on some cards.
    assert refusal(one(product, *fast, ceilings=known, accumulator="fp16")) is None


def test_nothing_is_said_where_nothing_is_known() -> None:
    fast = one(ADD, 0.001)
    assert speed_of_light.impossible(fast, fast.rows[0], None) is None
    assert refusal(replace(fast, ceilings=None)) is None
    assert refusal(one(ADD, 1.0, timing=None)) is None
    assert refusal(one(ADD, 0.001, recorded=made_up.RECORDED)) is None
    assert "without limit" in (refusal(one(ADD, *[0.0] * 8)) or "")


def test_amounts_read_well() -> None:
    amounts = {134e6: "134 MB", 11.1e12: "11.1 TB", 999.9e9: "1 TB", 5: "5 B", 2048: "2.05 kB"}
    assert {amount: speed_of_light.scaled(amount, "B") for amount in amounts} == amounts


def too_fast(label: str = "cupy.online") -> CaseComparison:
    """The made-up case with a row that is too fast to have read its input."""
    us = Estimate(4.0, 3.9, 4.1, (4.0,) * made_up.ROUNDS)
    case = made_up.case()
    timing = replace(figures.row_of(case, label).timing, cold_us=us)
    return speed_of_light.reject_below_floor(made_up.with_row(case, label, timing=timing), L2)


def test_a_refused_row_shows_no_speed_says_why_and_costs_the_run() -> None:
    comparison = made_up.comparison(too_fast())
    row = figures.row_of(comparison.cases[0], "cupy.online")
    assert (row.status, row.timing) == ("impossible", None)
    assert status.of(comparison) == FAILURE
    text = terminal.render(comparison, 300)
    (line,) = (line for line in tables.speed(comparison.cases[0]).rows if line[0] == "cupy.online")
    assert line[2] == "impossible"
    assert set(line[6:]) == {"-"}
    assert text.split("\n\n")[1].startswith(f"WRONG  cupy.online on {made_up.CASE}: impossible: 4 us cold")
    others = [row for row in comparison.cases[0].rows if row.label != "cupy.online"]
    assert all(row.timing and row.status == "ok" for row in others)


def test_no_ratio_refers_to_a_refused_row() -> None:
    for row in too_fast("torch.eager").rows:
        if row.label != "torch.eager":
            assert row.timing.ratios == ()
            assert "no ratio to torch.eager: its time is impossible" in row.timing.notes


def _times_the_floor(op: str) -> list[float]:
    """Every recorded cold time over each of its lower bounds."""
    found = []
    for run in archive.runs_of(op):
        for case in run.cases:
            for row in case.rows:
                assert speed_of_light.impossible(case, row, run.environment.l2_bytes) is None
                if row.timing and row.timing.cold_us and case.ceilings and run.environment.l2_bytes:
                    ceilings = speed_of_light.of_dtype(case.case, case.ceilings)
                    bounds = list(speed_of_light.cold(case.cost, ceilings, run.environment.l2_bytes))
                    found += [row.timing.cold_us.median / bound.least_us for bound in bounds]
    return found


def test_no_recorded_time_is_refused_nor_close_to_it_but_near_the_floor() -> None:
    """The bound is tight: the best kernels of most ops reach the ceiling within the bound's margin."""
    times = {op: found for op in registry.op_names() if (found := _times_the_floor(op))}
    # reduce_sum reads 4 GB of an H200's memory 4% faster than the read that is its ceiling.
    assert {op: min(found) for op, found in times.items() if min(found) <= 1.01} == {}
    nearest = sorted(map(min, times.values()))
    assert statistics.median(nearest) < 1.2
    assert nearest[-4] < 1.4  # all but three
    assert nearest[-1] < 2
