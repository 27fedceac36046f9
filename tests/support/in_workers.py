"""Implementations timed in worker processes, as a run times them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from compare import registry
from compare.checking.reference import expected_outputs
from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.op import Case, Implementation, Op
from compare.timing.rounds import Plan, Result
from compare.timing.stopwatch import CudaStopwatch
from compare.worker.buffers import CaseBuffers
from compare.worker.pool import WorkerPool
from compare.worker.replaying import Replaying
from compare.worker.timing import Settings, Subject, measure
from host_stopwatch import HostStopwatch


def settings_on(device: torch.device, budget_s: float = 60.0, plan: Plan | None = None) -> Settings:
    """Settings with the GPU's clock, or the host's on a CPU."""
    if device.type == "cuda":
        return Settings(CudaStopwatch(device), 0, budget_s, plan or Plan())
    return Settings(HostStopwatch(device), 0, budget_s, plan or Plan(), "host_stopwatch:HostStopwatch")


def timed(
    op: Op,
    impls: Sequence[Implementation],
    case: Case,
    settings: Settings,
    device: torch.device,
    first_calls_ms: Mapping[str, float] | None = None,
    *,
    replayed: bool = False,
) -> dict[str, Result]:
    """The results of `measure`, with a worker for each of ``impls``; ``replayed``: and users' runners."""
    with WorkerPool(op, device, 20.0 if device.type == "cpu" else 300.0) as pool:
        pool.build(impls, [case.dtype])
        for impl in impls:
            pool.built_s(impl, case.dtype)
        workers = {impl.label: pool.of(impl) for impl in impls}
        tolerance = ToleranceFromBaseline.local(registry.get_op(op.name), case, device)
        with (
            CaseBuffers(op, case, device, expected_outputs(op, case, device), timed=True) as buffers,
            Replaying(op, case, buffers, 60.0) as replaying,
        ):
            if replayed:
                replaying.prepare([impl for impl in impls if impl.user_file])
            first_ms = first_calls_ms or {}
            subject = Subject(
                op, impls, case, device, workers, buffers, tolerance, first_ms, replaying.runners
            )
            return measure(subject, settings)
