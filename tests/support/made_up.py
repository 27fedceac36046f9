"""Comparisons made up for the tests of what keeps and prints them: as a GPU would give, without one."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from compare.history.map import Map, survey
from compare.model.op import Cost
from compare.model.result import (
    Agreement,
    CaseComparison,
    Ceilings,
    CodeSize,
    Comparison,
    Environment,
    Finding,
    KernelResources,
    Provenance,
    Ratio,
    RoleSize,
    Row,
    Timing,
    Tuning,
)
from compare.report import csv_file
from compare.resources.static import Request, Resources
from compare.run.compiling import Compilation
from compare.timing.statistics import estimate

CASE = "M=4096,N=4096,fp32"
ELEMENTS = 4096 * 4096
ROUNDS = 40

H100 = Environment(
    device="NVIDIA H100 80GB HBM3",
    device_type="cuda",
    arch="sm_90",
    multiprocessors=132,
    memory_bytes=85_000_000_000,
    l2_bytes=52_428_800,
    driver="580.95.05",
    versions={"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "cupy-cuda13x": "14.2.0"},
    host="Linux",
    clocks={"sm_mhz_before": 1980.0, "throttle_before": "none"},
)
LAPTOP = replace(
    H100,
    device="A laptop's CPU",
    device_type="cpu",
    arch=None,
    multiprocessors=None,
    l2_bytes=None,
    driver=None,
)

RECORDED = Provenance(H100.device, "2026-11-21T00:00:00+00:00")

AGREEMENT = Agreement(
    passed=True,
    max_abs=2.4e-7,
    max_rel=1e-6,
    ulp_p50=0.2,
    ulp_p99=0.9,
    ulp_max=1.4,
    within=1.0,
    error=3.0,
    limit=20.0,
    seeds=3,
    findings=(Finding("values", True, ""),),
)
DISAGREEMENT = replace(
    AGREEMENT,
    passed=False,
    error=float("inf"),
    max_abs=float("nan"),
    findings=(Finding("values", False, "12 elements are NaN, the first at (0, 5)"),),
)

MEDIANS_US = {
    "torch.naive": ("naive", 251.0),
    "torch.eager": ("vendor", 72.4),
    "torch.compile": ("vendor", 58.2),
    "triton.online": ("tiled", 61.0),
    "triton.onepass": ("tiled", 47.9),
    "cupy.online": ("tiled", 60.1),
    "cupy.onepass": ("tiled", 47.2),
    "pybind.online": ("tiled", 60.1),
    "pybind.onepass": ("tiled", 47.2),
}


def samples(median: float, seed: str, spread: float = 0.005) -> list[float]:
    noise = random.Random(seed)
    return [round(median * (1 + noise.uniform(-spread, spread)), 3) for _ in range(ROUNDS)]


def timing(label: str, median: float, baseline: list[float] | None) -> Timing:
    cold = samples(median, label)
    ratios = (
        (Ratio("torch.eager", estimate([b / c for b, c in zip(baseline, cold, strict=True)])),)
        if baseline and label != "torch.eager"
        else ()
    )
    return Timing(
        cold_us=estimate(cold),
        warm_us=estimate(samples(median * 0.95, label + "warm")),
        graph_us=estimate(samples(median * 0.93, label + "graph")),
        hot_launch_us=estimate(samples(12.0, label + "launch")[:20]),
        back_to_back_us=estimate(samples(max(12.0, median * 0.95), label + "back to back")[:20]),
        after_idle_us=estimate(samples(60.0, label + "idle")[:10]),
        first_call_ms=812.5,
        ratios=ratios,
        rounds=ROUNDS,
        converged=True,
    )


def kernel(label: str, **changes: object) -> KernelResources:
    made = KernelResources(
        kernel=f"softmax_{label.partition('.')[2]}_kernel<float, 256>",
        arch="sm_90",
        reader="profiler",
        registers=40,
        static_shared_bytes=64,
        dynamic_shared_bytes=0,
        reserved_shared_bytes=1024,
        grid=(4096, 1, 1),
        block=(256, 1, 1),
        occupancy=0.75,
        limiter="registers",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def rows(medians: dict[str, tuple[str, float]] = MEDIANS_US) -> tuple[Row, ...]:
    baseline = samples(medians["torch.eager"][1], "torch.eager") if "torch.eager" in medians else None
    return tuple(
        Row(
            label,
            level,
            "ok",
            agreement=AGREEMENT,
            timing=timing(label, median, baseline),
            resources=(kernel(label), kernel(label, reader="cubin", spilled_bytes=0, code_bytes=2048)),
            source_hash=f"hash of {label}",
        )
        for label, (level, median) in medians.items()
    )


def case(name: str = CASE, made: tuple[Row, ...] | None = None) -> CaseComparison:
    return CaseComparison(
        name,
        Cost(5 * ELEMENTS, 4 * ELEMENTS, 4 * ELEMENTS),
        rows() if made is None else made,
        Ceilings(2990.0, 3105.0),
    )


def comparison(*cases: CaseComparison, **changes: object) -> Comparison:
    shown = cases or (case(),)
    labels = {row.label for entry in shown for row in entry.rows}
    sizes = {
        label: CodeSize(
            RoleSize(0 if label.startswith("torch") else 24, 0 if label.startswith("torch") else 310),
            RoleSize(9, 92),
            RoleSize(8, 71) if label.startswith("pybind") else RoleSize(0, 0),
            RoleSize(0, 0) if label.startswith("t") else RoleSize(40, 400),
            concepts=() if label.startswith("torch") else ("masks", "pointer arithmetic"),
        )
        for label in MEDIANS_US
        if label in labels
    }
    made = Comparison(
        op="softmax",
        signature="x[M,N] -> y[M,N]",
        environment=H100,
        created="2026-11-21T02:30:00+00:00",
        seed=0,
        cases=tuple(shown),
        code_sizes=sizes,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def in_csv(run: Comparison) -> dict[str, dict[str, str]]:
    """The lines of a run's CSV file, each by its columns, by implementation."""
    return {line["implementation"]: line for line in csv.DictReader(io.StringIO(csv_file.dumps([run])))}


def with_row(entry: CaseComparison, label: str, **changes: object) -> CaseComparison:
    """``entry`` with one row changed."""
    changed = (replace(row, **changes) if row.label == label else row for row in entry.rows)  # type: ignore[arg-type]
    return replace(entry, rows=tuple(changed))


def slowed(label: str, factor: float, **changes: object) -> CaseComparison:
    """The made-up case, with one row's times multiplied and otherwise changed."""
    entry = case()
    row = next(row for row in entry.rows if row.label == label)
    cold = estimate([sample * factor for sample in row.timing.cold_us.samples])
    return with_row(entry, label, **{"timing": replace(row.timing, cold_us=cold), **changes})


class NoCompilation(Compilation):
    """Nothing is compiled, and no kernel found."""

    def __init__(self, requests: Sequence[Request], nice: int = 0, timeout_s: float = 0.0) -> None:
        self.requests = tuple(requests)

    def results(self, progress: object = None) -> list[Resources]:
        return [() for _ in self.requests]

    def stop(self) -> None:
        pass


@contextmanager
def compiled_by(compilation: type[Compilation]) -> Iterator[None]:
    """Runs compile by this one."""
    with (
        mock.patch("compare.run.Compilation", compilation),
        mock.patch("compare.run.compiling.Compilation", compilation),
    ):
        yield


SEARCH = Tuning(
    "matmul_grouped_kernel",
    "(4096, 4096, 'torch.bfloat16')",
    "BLOCK_M=128 BLOCK_N=256 BLOCK_K=64 GROUP_M=8 num_warps=8 num_stages=3",
    (
        "BLOCK_M=128 BLOCK_N=128 BLOCK_K=32 GROUP_M=8 num_warps=4 num_stages=4",
        "BLOCK_M=128 BLOCK_N=256 BLOCK_K=64 GROUP_M=8 num_warps=8 num_stages=3",
        "BLOCK_M=64 BLOCK_N=64 BLOCK_K=64 GROUP_M=8 num_warps=4 num_stages=4",
    ),
    2,
    7.25,
    "2026-11-20T10:00:00+00:00",
)
"""What an autotuned kernel of matmul has found."""

SLOWER = {"triton.onepass": ("tiled", 60.0), "triton.online": ("tiled", 61.0)}
APART = {**MEDIANS_US, **SLOWER}
"""With a way that is told apart from the next."""


def charted(*runs: Comparison, **arguments: object) -> Map:
    return survey(runs, **arguments)  # type: ignore[arg-type]


def one(medians: Mapping[str, tuple[str, float]], name: str = CASE, **changes: object) -> Comparison:
    return comparison(case(name, rows(dict(medians))), **changes)
