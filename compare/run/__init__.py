"""One op compared: check every implementation, time those that are correct, inspect their kernels.

Without a GPU the same steps check on small cases, compile for the architectures asked for and replay the
times that ``results/`` holds, each labelled with its device and date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from compare import device as machine
from compare import registry
from compare.checking.reference import expected_outputs
from compare.code_size.hashes import source_hash
from compare.model.op import Case, Implementation, Op, UsageError
from compare.model.result import CaseComparison, Comparison, Environment, Options
from compare.records import archive
from compare.run import interrupts
from compare.run.checking import check_case, note_ordinary, skip_check
from compare.run.compiling import Compilation
from compare.run.context import CaseResult, Context, Meter, Progress, Step, silent
from compare.run.resources import compile_case, profile_case
from compare.run.shortened import shortened
from compare.run.sources import Counting
from compare.run.timing import WEIGHT, time_case, use_recorded_times
from compare.timing import calibration, speed_of_light
from compare.tuning import matching, sweep
from compare.worker.buffers import CaseBuffers
from compare.worker.pool import WorkerPool
from compare.worker.sanitizer import check_installed
from compare.worker.start import prepare

_INSPECT = 3
"""Resources are read for every case of a list this short, and for the default case of a longer one, or with a
user's file for its first: what no compiler takes is wrong, though a CPU may run it."""


def plan(op: Op, options: Options, device_type: str) -> list[Step]:
    """Which cases are run, and what for.

    Without a GPU smoke cases are checked, and small cases that were named.  A sweep asks for one of the op's
    whole lists: its times are replayed, as to interpret all of it takes hours.
    """
    cases = list(options.cases) or [op.cases.default]
    inspected = cases if len(cases) <= _INSPECT else [case for case in cases if case == op.cases.default]
    if any(impl.user_file for impl in registry.implementations(op.name)):
        inspected = inspected or cases[:1]
    if not options.resources:
        inspected = []
    steps = [Step(case, True, case in inspected) for case in cases]
    if device_type == "cuda":
        return steps
    smoke = op.cases.smoke
    lists = [{op.cases.default, *each} for each in (op.cases.sweep, op.cases.shapes) if each]
    swept = set[Case]().union(*(each for each in lists if each <= set(cases)))
    named = [case for case in options.cases if case not in swept]
    short = shorter(op, options, named)
    checked = {*smoke, *(case for case in named if op.interpretable(case) and case not in short)}
    steps = [replace(step, check=step.case in checked) for step in steps]
    steps = [Step(case, True, False) for case in dict.fromkeys(short.values()) if case not in cases] + steps
    if named and all(step.check or step.case in short for step in steps):
        return steps
    return [Step(case, True, False) for case in smoke if case not in cases] + steps


def shorter(op: Op, options: Options, cases: Sequence[Case]) -> dict[Case, Case]:
    """Of those of ``cases`` that a CPU would check for minutes, the cases that stand for them."""
    if not options.shorten:
        return {}
    cpu = torch.device("cpu")
    able = sum(machine.supports(impl, cpu) is None for impl in _chosen(op, options.only))
    pairs = ((case, shortened(op, case, able)) for case in cases)
    return {case: short for case, short in pairs if short not in (case, None)}


def run(
    op: Op,
    options: Options,
    progress: Progress = silent,
    results: Path = archive.RESULTS,
    pool: WorkerPool | None = None,
) -> Comparison:
    """Compare the implementations of ``op``.

    Ctrl-C ends it early: the comparison then holds every row that was finished and says ``interrupted``.
    After the last case it waits for the end of `interrupts.saving`, if the caller is in such a block.

    Args:
        op: what to compare.
        options: as on the command line; the op's baseline is always among the rows.
        progress: called at every step.
        results: where recorded times are found.
        pool: workers that stay when it is over; if not given, it has its own.

    Raises:
        UsageError: no such device, a case this machine cannot hold, or no compute-sanitizer.
    """
    device = _device(options)
    impls = _chosen(op, options.only)
    if options.matched:
        impls = matching.stand_ins(impls)
    trials = tuned(op, options)
    if trials is not None:
        impls = list(trials.impls)
    with nullcontext(pool) if pool else WorkerPool(op, device, options.timeout_s) as pool:
        able = [impl for impl in impls if machine.supports(impl, device) is None and not impl.stand_in]
        steps = plan(op, options, device.type)
        pool.build(able, [step.case.dtype for step in steps if step.check])
        if device.type == "cuda":  # making contexts takes seconds, in which there is enough to be done here
            progress("starting workers", 0.0)
            pool.start(able)
        progress("looking at this machine", 0.0)
        environment = _environment(device)
        for step in steps:
            if step.check:
                _fits(op, step.case, environment.memory_bytes)
        meter = Meter(progress, _weight(steps, len(impls), device))
        meter.say("reading sources")
        hashes = {impl.label: source_hash(impl) for impl in impls}
        counting = Counting(impls, pool, on_gpu=device.type == "cuda")
        context = Context(op, tuple(impls), tuple(steps), options, device, pool, meter, hashes, trials)
        cases, interrupted = _run_cases(context, environment, counting, results)
        meter.say("ending the workers")
    meter.say("looking at this machine again")
    clocks = {**environment.clocks, **machine.clocks(device, "after")}
    return Comparison(
        op=op.name,
        signature=op.signature,
        environment=replace(environment, versions=machine.versions(), clocks=clocks),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seed=options.seed,
        cases=cases,
        code_sizes=counting.code_sizes,
        interrupted=interrupted,
    )


def _run_cases(
    context: Context, environment: Environment, counting: Counting, results: Path
) -> tuple[tuple[CaseComparison, ...], bool]:
    """The cases with every row that was finished, and whether Ctrl-C came before the last one."""
    finished: list[CaseResult] = []
    compilation = Compilation.begin(context)
    interrupted = True
    try:
        for step in context.steps:
            result = CaseResult(step.case)
            finished.append(result)
            _run_case(context, step, compilation, finished, results)
        interrupted = False
    except KeyboardInterrupt:
        pass
    finally:
        interrupts.hold()
        compilation.stop()
        context.meter.say("counting lines of code")
        counting.finish()
    cases = (
        _compared(context, result, environment, counting.uncounted) for result in finished if result.entries
    )
    return tuple(cases), interrupted


def _run_case(
    context: Context, step: Step, compilation: Compilation, cases: Sequence[CaseResult], results: Path
) -> None:
    """Check, time and inspect the last one of ``cases``, which keeps what is known, whatever ends this."""
    *earlier, result = cases
    if step.check:
        check_case(context, step, result)
        note_ordinary(earlier, result)
    else:
        skip_check(context, earlier, result)
    if context.on_gpu and step.check:
        _measure(context, step, compilation, result)
    if not context.on_gpu and (not step.check or step.inspect or step.case in context.options.cases):
        use_recorded_times(context, result, results)
    if step.inspect:
        compile_case(context, result, compilation)


def _measure(context: Context, step: Step, compilation: Compilation, result: CaseResult) -> None:
    """Time and profile the correct rows on the GPU."""
    try:
        expected = expected_outputs(context.op, step.case, context.device)
        buffers = CaseBuffers(context.op, step.case, context.device, expected, timed=True)
    except MemoryError as error:
        for entry in result.correct():
            entry.refuse(error)
        return
    with buffers:
        if result.correct():
            compilation.wait(context)
            time_case(context, result, buffers)
        if step.inspect:
            profile_case(context, result, buffers, last=step is context.steps[-1])


def _compared(
    context: Context, result: CaseResult, environment: Environment, uncounted: Mapping[str, str]
) -> CaseComparison:
    """The rows in their order, without impossible times, and with the least differences that count."""
    rows = (result.entries[impl.label].row for impl in context.impls if impl.label in result.entries)
    case = CaseComparison(
        str(result.case),
        context.op.cost(result.case),
        tuple(replace(row, reason=row.reason or uncounted.get(row.label, "")) for row in rows),
        result.ceilings,
        result.card,
    )
    possible = speed_of_light.reject_below_floor(case, environment.l2_bytes)
    return calibration.with_noise_floor(possible, environment.calibration)


def _device(options: Options) -> torch.device:
    """The device to run on; a `UsageError` if it does not exist or lacks what the options need."""
    device = prepare(options.device)
    if options.sanitize:
        check_installed(device)
    return device


def _environment(device: torch.device) -> Environment:
    """The machine, with the differences in speed that it can tell apart."""
    found = machine.environment(device)
    return replace(found, calibration=calibration.stored(found.device)) if device.type == "cuda" else found


def tuned(op: Op, options: Options) -> sweep.Trials | None:
    """The implementations to run for ``--tune``; None without it.

    Only those with the parameters, and the baseline, unless ``--only`` names others.

    Raises:
        UsageError: as `trials.trials`.
    """
    if not options.tune:
        return None
    chosen = [impl.label for impl in _chosen(op, options.only)]
    keep = chosen if options.only else [op.baseline]
    return sweep.trials(registry.implementations(op.name), options.tune, chosen, keep)


def _chosen(op: Op, only: Sequence[str]) -> list[Implementation]:
    """The implementations asked for, and the baseline, without which no ratio means anything."""
    chosen = {impl.label for impl in registry.implementations(op.name, only)} | {op.baseline}
    everything = registry.implementations(op.name)
    if not everything:
        raise UsageError(f"{op.name} has no implementations. Register one with @implementation")
    return [impl for impl in everything if impl.label in chosen]


def _fits(op: Op, case: Case, memory_bytes: int) -> None:
    cost = op.cost(case)
    if cost.bytes > memory_bytes:
        raise UsageError(
            f"case {case} of {op.name} takes {cost.bytes / 1e9:,.0f} GB for its inputs and output alone; "
            f"this device has {memory_bytes / 1e9:,.0f} GB. Give a smaller --case"
        )


def _weight(steps: Sequence[Step], impls: int, device: torch.device) -> float:
    measured = WEIGHT if device.type == "cuda" else 0
    return impls * sum(step.check + step.inspect + measured for step in steps)
