"""Time a case: the correct implementations in rounds, together with the ceilings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.result import WRONG, Timing
from compare.records import archive
from compare.run.context import CaseResult, Context
from compare.timing.ceilings import CeilingMeter
from compare.timing.rounds import Interrupted, Plan
from compare.timing.stopwatch import CudaStopwatch
from compare.worker.buffers import CaseBuffers, WorkerStage
from compare.worker.replaying import Replaying
from compare.worker.timing import Settings, Subject, measure

WEIGHT = 4
"""Timing an implementation takes about as long as checking it four times."""


def time_case(context: Context, result: CaseResult, buffers: CaseBuffers) -> None:
    """Time the correct implementations.

    Args:
        context: the run.
        result: of which case; gets the times and the ceilings.
        buffers: the memory that the judge and the workers share for this case.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it early; ``result`` has what was measured until then.
    """
    context.meter.say("measuring copy bandwidth")
    op, case, device, options = context.op, result.case, context.device, context.options
    entries = result.correct()
    ceilings = CeilingMeter.on(device, op.cost(case), case.dtype)
    impls = [entry.impl for entry in entries]
    workers = {impl.label: context.pool.of(impl) for impl in impls}
    held_bytes = sum(entry.held_bytes for entry in entries)
    baseline = workers.get(op.baseline)
    interrupted = False
    with (
        Replaying(op, case, buffers, options.timeout_s) as replaying,
        context.meter.part(f"timing {case}", WEIGHT * len(context.impls)) as part,
    ):
        if of_users := [impl for impl in impls if impl.user_file]:
            context.meter.say("recording the rows of users' files")
            replaying.prepare(of_users)
        subject = Subject(
            op,
            impls,
            case,
            device,
            workers,
            buffers,
            ToleranceFromBaseline(op, None if baseline is None else WorkerStage(baseline, buffers)),
            {entry.row.label: entry.first_call_ms for entry in entries if entry.first_call_ms is not None},
            replaying.runners,
        )
        settings = Settings(
            CudaStopwatch(device),
            options.seed,
            options.budget_s / max(1, len(options.cases)),
            Plan(*options.samples, sustained=options.sustained),
            tidy=held_bytes > torch.cuda.get_device_properties(device).total_memory // 2,
        )
        try:
            outcomes = measure(subject, settings, ceilings, part, context.meter.say)
        except Interrupted as error:
            outcomes, interrupted = error.partial, True
    result.ceilings, result.card = ceilings.ceilings(), ceilings.monitor.card()
    for label, outcome in outcomes.items():
        entry = result.entries[label]
        if isinstance(outcome, Timing):
            entry.row = replace(entry.row, timing=outcome)
        else:
            entry.refuse(outcome)
    if interrupted:
        raise KeyboardInterrupt


def use_recorded_times(context: Context, result: CaseResult, results: Path) -> None:
    """Give the rows that are not wrong here their recorded times, and the case that run's ceilings.

    All cases have those of one device: a sweep stands in one table.
    """
    context.meter.say("reading recorded times")
    op, cases = context.op.name, context.options.cases or (context.op.cases.default,)
    device = archive.device_of(archive.runs_of(op, results), *map(str, cases))
    for label, recorded in archive.find(op, str(result.case), results, device).items():
        entry = result.entries.get(label)
        if entry is None or entry.row.status in (*WRONG, "failed") or recorded.row.timing is None:
            continue
        row, stored = entry.row, recorded.row.configuration
        # What a row runs with for --tune is known here, and of no interest where that is not asked for.
        shown = row.configuration if row.configuration.parameters or stored.parameters else stored
        entry.row = replace(
            row,
            timing=recorded.row.timing,
            recorded=archive.provenance(recorded, row.source_hash),
            configuration=replace(
                row.configuration, tunings=stored.tunings, text=shown.text, unmatched=shown.unmatched
            ),
        )
        result.ceilings = recorded.comparison.ceilings or result.ceilings
