"""A/A measurements: one implementation under several names, each in its own process, timed as usual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

import torch

from compare import registry
from compare.checking.reference import expected_outputs
from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.op import Case, Implementation, Op
from compare.model.result import Calibration, Options, Timing
from compare.timing.calibration import ColdSamples, derived
from compare.timing.ceilings import measure_ceilings
from compare.timing.rounds import RoundProgress
from compare.timing.stopwatch import CudaStopwatch
from compare.worker.buffers import CaseBuffers, WorkerStage
from compare.worker.floors import floors_us
from compare.worker.pool import WorkerPool
from compare.worker.timing import Settings, Subject, measure

COPIES = 8
"""Names of the same implementation; every two of them are a pair."""
OPS = 2
"""Ops whose calls are compared with themselves."""
BUDGET_S = 1.0
"""For the rounds of one size."""
TARGETS_US = (2.0, 7.0, 20.0, 60.0, 200.0, 1000.0)
"""Approximate times of the call: two sizes for each class."""


def subjects() -> list[tuple[Op, Implementation]]:
    """What is compared with itself: PyTorch's call and the last CUDA kernel of the two simplest ops.

    These have the fewest dimensions, then the lowest arithmetic intensity.  Ops that only move data are left
    out: they may run the driver's copy, which loads no code in a process.  The kernels differ, because one
    that runs alone shows less than a call of several launches.
    """

    def simplest(op: Op) -> tuple[int, float]:
        cost = op.cost(op.cases.default)
        return len(op.dims), cost.flops / cost.bytes

    ops = sorted(
        (op for op in map(registry.get_op, registry.op_names()) if not op.is_copy_only), key=simplest
    )
    found: list[tuple[Op, Implementation]] = []
    for op in ops[:OPS]:
        (baseline,) = registry.implementations(op.name, [op.baseline])
        own = [impl for impl in registry.implementations(op.name, ["cupy.*"]) if impl.requires is None]
        found += [(op, baseline), *((op, impl) for impl in own[-1:])]
    return found


def equals(impl: Implementation, copies: int = COPIES) -> list[Implementation]:
    """The implementation under several names."""
    return [replace(impl, label=f"{impl.label}:{number}", base=impl.label) for number in range(copies)]


def cold_samples(
    op: Op,
    impls: Sequence[Implementation],
    case: Case,
    device: torch.device,
    pool: WorkerPool,
    settings: Settings,
) -> list[tuple[float, ...]]:
    """Cold samples of each of ``impls``, in us, timed by the rules of every comparison.

    Each runs in its own process, as in a run: the addresses of code and context can change a time by more
    than the clock's noise.

    Raises:
        Exception: what a call raised.
    """
    pool.start(impls)
    workers = {impl.label: pool.of(impl) for impl in impls}
    op = replace(op, baseline=impls[0].label)
    with CaseBuffers(op, case, device, expected_outputs(op, case, device), timed=True) as buffers:
        tolerance = ToleranceFromBaseline(op, WorkerStage(workers[op.baseline], buffers))
        found = measure(Subject(op, impls, case, device, workers, buffers, tolerance), settings)
    for result in found.values():
        if isinstance(result, Exception):
            raise result
    timings = [result for result in found.values() if isinstance(result, Timing)]
    return [timing.cold_us.samples for timing in timings if timing.cold_us]


def measured(device: torch.device, progress: RoundProgress = lambda share: None) -> Calibration:
    """The calibration from calls timed against themselves at sizes of every class.

    Takes about two minutes on a GPU.  Launch floors come first, while no other process has work.
    """
    found: list[ColdSamples] = []
    with torch.cuda.device(device):
        floors = floors_us(device)
        bytes_per_us = measure_ceilings(device).copy_gbs * 1e3
        pairs = subjects()
        for seed, (op, impl) in enumerate(pairs):
            moved = op.cost(op.cases.default).bytes / op.cases.default.shape[0]
            with WorkerPool(op, device, Options.timeout_s) as pool:
                for target_us in TARGETS_US:
                    size = max(256, round(target_us * bytes_per_us / moved))
                    case = replace(op.cases.default, dims=((op.dims[0], size),))
                    settings = Settings(CudaStopwatch(device), seed, BUDGET_S)
                    found.append(cold_samples(op, equals(impl), case, device, pool, settings))
                    progress(len(found) / (len(TARGETS_US) * len(pairs)))
    calibration = derived(found, datetime.now(timezone.utc).isoformat(timespec="seconds"))
    return replace(calibration, launch_floors_us=floors)
