"""Time a case: the correct implementations in rounds, together with the ceilings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.op import Case
from compare.model.result import WRONG, Card, Ceilings, Row, Timing
from compare.records import archive
from compare.stages.context import Checked, Context
from compare.stages.verdict import verdict
from compare.timing.ceilings import CeilingMeter
from compare.timing.rounds import Interrupted, Plan, Result
from compare.timing.stopwatch import CudaStopwatch
from compare.worker.buffers import CaseBuffers, WorkerStage
from compare.worker.replaying import Replaying
from compare.worker.timing import Settings, Subject, measure

WEIGHT = 4
"""Timing an implementation takes about as long as checking it four times."""


@dataclass(frozen=True)
class Timed:
    """What timing a case gave, by label, and the device's state meanwhile."""

    results: Mapping[str, Result]
    ceilings: Ceilings
    card: Card | None
    interrupted: bool = False
    """Ctrl-C ended it early."""


def time_case(context: Context, case: Case, checked: Sequence[Checked], buffers: CaseBuffers) -> Timed:
    """Time the correct implementations.

    Args:
        context: the run.
        case: on which inputs.
        checked: the implementations that are correct, in the order of the rows.
        buffers: the memory that the judge and the workers share for this case.
    """
    context.meter.say("measuring copy bandwidth")
    op, device, options = context.op, context.device, context.options
    ceilings = CeilingMeter.on(device, op.cost(case), case.dtype)
    impls = [one.impl for one in checked]
    workers = {impl.label: context.pool.of(impl) for impl in impls}
    held_bytes = sum(one.held_bytes for one in checked)
    baseline = workers.get(op.baseline)
    interrupted = False
    with (
        Replaying(op, case, buffers, options.timeout_s) as replaying,
        context.meter.part(f"timing {case}", WEIGHT * len(context.impls)) as part,
    ):
        if of_users := [impl for impl in impls if impl.user_file]:
            context.meter.say("recording the rows of users' files")
            replaying.prepare(of_users)
        try:
            subject = Subject(
                op,
                impls,
                case,
                device,
                workers,
                buffers,
                ToleranceFromBaseline(op, None if baseline is None else WorkerStage(baseline, buffers)),
                {one.row.label: one.first_call_ms for one in checked if one.first_call_ms is not None},
                replaying.runners,
            )
            settings = Settings(
                CudaStopwatch(device),
                options.seed,
                options.budget_s / max(1, len(options.cases)),
                Plan(*options.samples, sustained=options.sustained),
                tidy=held_bytes > torch.cuda.get_device_properties(device).total_memory // 2,
            )
            results: Mapping[str, Result] = measure(subject, settings, ceilings, part, context.meter.say)
        except Interrupted as error:
            results, interrupted = error.partial, True
    return Timed(results, ceilings.ceilings(), ceilings.card(), interrupted)


def with_result(row: Row, result: Result) -> Row:
    """``row`` with its times, or with the reason why it has none."""
    if isinstance(result, Timing):
        return replace(row, timing=result)
    status, reason = verdict(result)
    return replace(row, status=status, reason=reason, timing=None)


def replay_case(
    rows: Mapping[str, Row], recorded: Mapping[str, archive.Recorded]
) -> tuple[dict[str, Row], Ceilings | None]:
    """``rows`` with recorded times, save those that are wrong here; and the ceilings of that run."""
    found, ceilings = dict(rows), None
    for label, entry in recorded.items():
        row = rows.get(label)
        if row is None or row.status in (*WRONG, "failed") or entry.row.timing is None:
            continue
        # What a row runs with for --tune is known here, and of no interest where that is not asked for.
        known, stored = row.configuration, entry.row.configuration
        said = known if known.parameters or stored.parameters else stored
        found[label] = replace(
            row,
            timing=entry.row.timing,
            recorded=archive.provenance(entry, row.source_hash),
            configuration=replace(known, tunings=stored.tunings, text=said.text, unmatched=said.unmatched),
        )
        ceilings = entry.comparison.ceilings or ceilings
    return found, ceilings
