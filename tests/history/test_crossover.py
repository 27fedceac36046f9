"""The crossover finder: it closes in on every change of the fastest way, and says what binds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import made_up
from compare import cli, registry
from compare.command_line.status import SUCCESS
from compare.history import crossover
from compare.model.op import Case, Cost, Op
from compare.model.result import CaseComparison, Ceilings, Comparison, Options, Row, Timing
from compare.records import archive
from compare.report import crossings
from compare.timing.statistics import estimate
from loops import for_each

OP = registry.get_op("softmax")
BASE = OP.cases.default
MEMORY = 80 * 10**9

CROSS = 1500
"""Where the made-up CUDA kernel overtakes the made-up Triton kernel."""


def row(label: str, us: float, launch_us: float = 12.0) -> Row:
    cold = estimate([round(us, 4)] * 20)
    timing = Timing(cold_us=cold, back_to_back_us=estimate([max(us, launch_us)] * 20))
    return Row(label, "tiled", "ok", agreement=made_up.AGREEMENT, timing=timing)


def run(asked: Options) -> Comparison:
    """Triton takes 20 us and more by size, CUDA always 35: they meet at `CROSS`."""
    (case,) = asked.cases
    made = [
        row("torch.eager", 100.0),
        row("triton.a", 20 + 15 * case["N"] / CROSS),
        row("triton.slow", 500.0),
        row("cupy.a", 35.0),
    ]
    kept = tuple(r for r in made if not asked.only or r.label in asked.only or r.label == "torch.eager")
    compared = CaseComparison(str(case), OP.cost(case), kept, Ceilings(3000.0, 2970.0))
    return made_up.comparison(compared)


def found_in(
    asked: list[Options] | None = None, memory: int = MEMORY, ran: Callable[[Options], Comparison] = run
) -> crossover.Crossover:
    def watched(options: Options) -> Comparison:
        if asked is not None:
            asked.append(options)
        return ran(options)

    return crossover.find(OP, "N", BASE, Options(cases=()), memory, watched)


# --------------------------------------------------------------------------- the search


def test_the_interval_holds_the_crossing_and_is_narrow() -> None:
    (sizes,) = crossover.crossings(found_in().standings)
    below, above = sizes[0], sizes[-1]
    assert (below.leaders, above.leaders) == ({"triton"}, {"cuda"})
    # Within 2% of each other, at about 35 us, they are level: that is where neither leads.
    level = 0.02 * 35 / 15 * CROSS
    assert CROSS - 2 * level - CROSS / 8 < below.size < CROSS < above.size < CROSS + 2 * level + CROSS / 8


def test_only_what_may_win_is_timed_between_sizes() -> None:
    asked: list[Options] = []
    found_in(asked)
    assert all(not options.resources for options in asked)
    assert asked[0].only == ()
    assert asked[-1].only
    assert "triton.slow" not in asked[-1].only
    assert len({options.cases[0] for options in asked}) == len(asked)  # no size twice


def test_no_size_is_too_large_for_the_device() -> None:
    small = 10**9
    asked: list[Options] = []
    found_in(asked, small)
    assert max(OP.cost(options.cases[0]).bytes for options in asked) <= small / crossover.MEMORY_SHARE
    with pytest.raises(ValueError, match="memory"):
        found_in(memory=10**6)


def test_an_interruption_keeps_what_there_is() -> None:
    count = itertools.count()

    def stopped(options: Options) -> Comparison:
        return replace(run(options), interrupted=next(count) == 3)

    found = found_in(ran=stopped)
    assert found.interrupted
    assert len(found.standings) == 4
    assert "INTERRUPTED" in crossings.render(found, 100)


@given(
    st.lists(st.integers(2, 10**6), min_size=1, max_size=3, unique=True),
    st.integers(0, 20),
)
def test_every_change_between_grid_sizes_is_closed_in_on(changes: list[int], level: int) -> None:
    """A, then B, then A again ..., level within some percent of each change."""
    changes = sorted(changes)
    seen: dict[int, crossover.Standing] = {}
    nothing = CaseComparison("", Cost(0, 0, 0), ())
    grid = sizes = crossover.grid([1, 1 << 20])
    while sizes:
        for size in sizes:
            near = any(abs(size - at) * 100 < level * at for at in changes)
            leaders = frozenset("AB" if near else "AB"[sum(size >= at for at in changes) % 2])
            seen[size] = crossover.Standing(size, {}, leaders, nothing)
        sizes = crossover.next_sizes(seen)
        assert not seen.keys() & set(sizes)
        assert all(size % max(1, 2 ** (size.bit_length() - 1) // 16) == 0 for size in sizes), "round ones"
    known = sorted(seen)
    for crossing in crossover.crossings(seen.values()):
        ends = [standing.size for standing in crossing]
        assert ends == [size for size in known if ends[0] <= size <= ends[-1]]
        assert any(ends[0] <= at <= ends[-1] for at in changes)
        # Whatever lies between is level, and no round size next to either end is left out.
        assert all(standing.leaders == {"A", "B"} for standing in crossing[1:-1])
        assert crossover.middle(ends[0], ends[1]) is None
        assert crossover.middle(ends[-2], ends[-1]) is None
    assert len(known) <= len(grid) + 24 * len(changes)


def test_a_grid_spans_what_is_swept() -> None:
    assert crossover.grid([128, 512, 131072]) == [128, 512, 2048, 8192, 32768, 131072]
    assert crossover.grid([128, 300]) == [128, 300]
    assert crossover.grid([7]) == [7]


# --------------------------------------------------------------------------- standings


def test_each_way_stands_with_its_best_and_level_ways_lead_together() -> None:
    made = (row("torch.eager", 60), row("triton.a", 50), row("triton.b", 40), row("pybind.a", 40.1))
    wrong = replace(row("cupy.fast", 1), status="disagrees")
    in_less = replace(row("torch.tf32", 9), accumulator="tf32")
    standing = crossover.standing(7, CaseComparison("", Cost(0, 0, 0), (*made, wrong, in_less)))
    assert {way: best.label for way, best in standing.best.items()} == {
        "triton": "triton.b",
        "cuda": "pybind.a",
        "torch": "torch.eager",
    }
    assert standing.leaders == {"triton", "cuda"}
    assert crossings.leaders(standing) == "triton, cuda within noise"


@pytest.mark.parametrize(
    ("us", "launch_us", "tflops", "says"),
    [
        (100.0, 12.0, None, "bandwidth binds, 100% of measured bandwidth"),
        (4000.0, 12.0, None, "bandwidth is nearest, at 2% of measured bandwidth"),
        (8.0, 12.0, None, "bandwidth binds"),
        (300.0, 400.0, None, "launch overhead binds (400 µs a call back to back)"),
        (140.0, 12.0, 700.0, "arithmetic binds, 102% of peak (measured)"),
        (170.0, 500.0, 700.0, "arithmetic binds, 84%"),
    ],
)
def test_what_binds(us: float, launch_us: float, tflops: float | None, says: str) -> None:
    cost = Cost(flops=10**11, read_bytes=150 * 10**6, written_bytes=150 * 10**6)
    ceilings = Ceilings(3000.0, 2970.0, product_tflops=tflops)
    case = CaseComparison("", cost, (), ceilings)
    assert crossings.binding(case, row("cupy.a", us, launch_us)).startswith(says)


def test_without_ceilings_only_launch_overhead_can_bind() -> None:
    case = CaseComparison("", Cost(flops=10**10, read_bytes=10**6, written_bytes=10**6), ())
    assert crossings.binding(case, row("cupy.a", 3.0, 12.0)).startswith("launch overhead binds")
    assert crossings.binding(case, row("cupy.a", 30.0, 12.0)) == "the bound is not known"


# --------------------------------------------------------------------------- what is said, and the command


def test_the_screen_names_the_interval_the_ways_and_what_binds() -> None:
    found = found_in()
    (sizes,) = crossover.crossings(found.standings)
    text = " ".join(crossings.render(found, 100).split())
    assert (
        f"Between N={sizes[0].size} and N={sizes[-1].size} the fastest way changes from triton to "
        "cuda." in text
    )
    assert f"At N={sizes[-1].size} cupy.a takes 35.00 µs:" in text
    assert f"At N={sizes[0].size} triton.a takes" in text
    assert "No GPU here" not in text
    assert f"| {sizes[0].size}" in crossings.as_markdown(found)
    assert all(len(line) <= 60 for line in crossings.render(found, 60).splitlines())


@pytest.mark.parametrize(
    ("cuda_us", "who"),
    [
        ((12.0, 12.0), "triton leads at every size"),
        ((12.0, 9.0), "triton leads, alone or within noise of another, at every size"),
        ((9.0, 9.0), "triton and cuda lead at every size"),
    ],
)
def test_where_nothing_crosses_that_is_said(cuda_us: tuple[float, float], who: str) -> None:
    """And no more than the table shows: a way within noise of another at some size does not lead it alone."""
    made = tuple(
        crossover.standing(size, CaseComparison("", Cost(1, 1, 1), (row("triton.a", 9), row("cupy.a", us))))
        for size, us in zip((64, 128), cuda_us, strict=True)
    )
    found = crossover.Crossover("softmax", "N", BASE, made)
    (said,) = crossings.findings(found)
    assert said == f"No crossover between N=64 and N=128: {who}."


@pytest.fixture
def results(tmp_path: Path) -> Path:
    cases = []
    for size in (512, 1024, 4096):
        case = Case.parse(f"M=4096,N={size},fp32", OP)
        cases += run(Options(cases=(case,))).cases
    other = replace(cases[0], case="M=8,N=99,fp32")
    archive.record(made_up.comparison(*cases, other, created="2026-11-21T00:00:00+00:00"), tmp_path)
    return tmp_path


def test_without_a_gpu_recorded_sizes_do_and_it_says_so(results: Path) -> None:
    found = crossover.recorded(OP, "N", BASE, results)
    assert [standing.size for standing in found.standings] == [512, 1024, 4096]
    (sizes,) = crossover.crossings(found.standings)
    assert (sizes[0].size, sizes[-1].size) == (1024, 4096)
    text = " ".join(crossings.render(found, 100).split())
    assert "No GPU here: these are the sizes recorded on NVIDIA H100 80GB HBM3, 2026-11-21." in text
    with pytest.raises(ValueError, match=r"holds 0 size\(s\) of N"):
        crossover.recorded(OP, "N", Case.parse("M=4096,N=1,bf16", OP), results)


def test_the_command_searches_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("compare.worker.start.prepare", lambda name, ops: SimpleNamespace(type="cuda"))
    monkeypatch.setattr("compare.device.uuid", lambda device: None)
    monkeypatch.setattr("compare.device.environment", lambda device: made_up.H100)
    monkeypatch.setattr("compare.run.run", lambda op, asked, progress, pool: run(asked))
    out = tmp_path / "out.json"
    assert cli.main(["softmax", "--crossover", "N", "--json", str(out)]) == SUCCESS
    printed = capsys.readouterr()
    assert "changes from triton to cuda" in " ".join(printed.out.split())
    sizes = [Case.parse(case.case, OP)["N"] for read in archive.read(out) for case in read.cases]
    assert len(sizes) == len(set(sizes)) > 6


@for_each("op", map(registry.get_op, registry.op_names()), ids=lambda op: op.name)
def test_every_op_has_an_answer_from_its_record(op: Op, capsys: pytest.CaptureFixture[str]) -> None:
    default = op.cases.default
    on_record = [Case.parse(case.case, op) for run in archive.runs_of(op.name) for case in run.cases]

    def sizes(dim: str) -> set[int]:
        """Of this dimension, with all others as they are by default."""
        return {case[dim] for case in on_record if crossover._sized(case, dim, default[dim]) == default}

    dim = max(op.dims, key=lambda dim: len(sizes(dim)))
    if len(sizes(dim)) < 2:
        pytest.skip("no two sizes are recorded")
    assert cli.main([op.name, "--crossover", dim, "--device", "cpu"]) == SUCCESS
    assert "the fastest way" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.alone
def test_a_real_search_ends_with_an_interval_or_says_there_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["softmax", "--crossover", "N", "--case", "M=128,N=1024,bf16", "--budget", "0.5"]
    assert cli.main([*arguments, "--only", "triton.*", "--only", "cupy.onepass"]) == SUCCESS
    assert "the fastest way" in capsys.readouterr().out
