"""One op compared: check every implementation, time those that are correct, inspect their kernels.

Without a GPU the same steps check on small cases, compile for the architectures asked for and replay the
times that ``results/`` holds, each labelled with its device and date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

import torch

from compare import device as machine
from compare import registry
from compare.checking.reference import expected_outputs
from compare.code_size.hashes import source_hash
from compare.model.op import Case, Implementation, Op, UsageError
from compare.model.result import Card, CaseComparison, Ceilings, Comparison, Environment, Options
from compare.records import archive
from compare.resources.static import Resources
from compare.stages.checking import check_case, unchecked_case
from compare.stages.compiling import Compilation
from compare.stages.context import Checked, Context, Step
from compare.stages.meter import Meter, Progress, silent
from compare.stages.resources import (
    compile_case,
    inspectable,
    profile_case,
    with_needs,
    with_resources,
)
from compare.stages.sources import Counting
from compare.stages.timing import WEIGHT, replay_case, time_case, with_result
from compare.timing import calibration, speed_of_light
from compare.timing.rounds import Result
from compare.tuning import matching, sweep
from compare.worker.buffers import CaseBuffers
from compare.worker.pool import WorkerPool
from compare.worker.start import prepare
from compare.worker.timing import Cheated

_CPU_CHECK_BYTES = 32 << 20
"""The most memory traffic of a case to interpret: some ten seconds for an implementation."""
_CPU_CHECK_FLOPS = 1 << 28
"""The most operations."""
_INSPECT = 3
"""Resources are read for every case of a list this short, and for the default case of a longer one."""


def plan(op: Op, options: Options, device_type: str) -> list[Step]:
    """Which cases are run, and what for.

    Without a GPU smoke cases are checked, and small cases that were named.  A sweep asks for the op's whole
    list: its times are replayed, as to interpret all of it takes hours.
    """
    cases = list(options.cases) or [op.cases.default]
    inspected = cases if len(cases) <= _INSPECT else [case for case in cases if case == op.cases.default]
    if not options.resources:
        inspected = []
    steps = [Step(case, True, case in inspected) for case in cases]
    if device_type == "cuda":
        return steps
    smoke, swept = op.cases.smoke, {op.cases.default, *op.cases.sweep}
    named = [case for case in options.cases if not (swept <= set(cases) and case in swept)]
    checked = {*smoke, *(case for case in named if _interpretable(op, case))}
    steps = [replace(step, check=step.case in checked) for step in steps]
    if named and all(step.check for step in steps):
        return steps
    return [Step(case, True, False) for case in smoke if case not in cases] + steps


def run(
    op: Op,
    options: Options,
    progress: Progress = silent,
    results: Path = archive.RESULTS,
    pool: WorkerPool | None = None,
) -> Comparison:
    """Compare the implementations of ``op``.

    Ctrl-C ends it early: the comparison then holds every row that was finished and says ``interrupted``.

    Args:
        op: what to compare.
        options: as on the command line; the op's baseline is always among the rows.
        progress: called at every step.
        results: where recorded times are found.
        pool: workers that stay when it is over; if not given, it has its own.

    Raises:
        UsageError: no such device, or a case this machine cannot hold.
    """
    device = prepare(options.device)
    impls = _chosen(op, options.only)
    if options.matched:
        impls = matching.stand_ins(impls)
    tried = tuned(op, options)
    if tried is not None:
        impls = list(tried.impls)
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
        counting = Counting(impls, pool)
        context = Context(op, tuple(impls), tuple(steps), options, device, pool, meter, hashes, tried)
        cases, interrupted = _take_all(context, environment, counting, results)
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


@dataclass
class _CaseResults:
    """The results of one case so far; stages return values, and only `_take` puts them here."""

    checked: dict[str, Checked] = field(default_factory=dict)
    ceilings: Ceilings | None = None
    card: Card | None = None

    def correct(self) -> list[Checked]:
        return [one for one in self.checked.values() if one.row.status == "ok"]

    def take_results(self, results: Mapping[str, Result]) -> None:
        for label, result in results.items():
            one = self.checked[label]
            self.checked[label] = replace(one, row=with_result(one.row, result))

    def take_resources(self, label: str, found: Mapping[str, Resources], *, on_gpu: bool) -> None:
        one = self.checked[label]
        self.checked[label] = replace(one, row=with_resources(one.row, found, on_gpu=on_gpu))

    def as_comparison(
        self, context: Context, case: Case, environment: Environment, uncounted: Mapping[str, str]
    ) -> CaseComparison:
        """The rows in their order, without impossible times, and with the least differences that count."""
        rows = (self.checked[impl.label].row for impl in context.impls if impl.label in self.checked)
        found = CaseComparison(
            str(case),
            context.op.cost(case),
            tuple(replace(row, reason=row.reason or uncounted.get(row.label, "")) for row in rows),
            self.ceilings,
            self.card,
        )
        possible = speed_of_light.reject_below_floor(found, environment.l2_bytes)
        return calibration.with_noise_floor(possible, environment.calibration)


def _take_all(
    context: Context, environment: Environment, counting: Counting, results: Path
) -> tuple[tuple[CaseComparison, ...], bool]:
    """The cases with every row that was finished, and whether Ctrl-C came before the last one."""
    found: dict[Case, _CaseResults] = {}
    compilation = Compilation.begin(context)
    interrupted = True
    try:
        for step in context.steps:
            earlier = [each.checked for each in found.values()]
            found[step.case] = _CaseResults()
            _take(context, step, compilation, earlier, found[step.case], results)
        interrupted = False
    except KeyboardInterrupt:
        pass
    finally:
        compilation.stop()
        context.meter.say("counting lines of code")
        counting.finish()
    cases = (
        each.as_comparison(context, case, environment, counting.uncounted)
        for case, each in found.items()
        if each.checked
    )
    return tuple(cases), interrupted


def _take(
    context: Context,
    step: Step,
    compilation: Compilation,
    earlier: Sequence[Mapping[str, Checked]],
    found: _CaseResults,
    results: Path,
) -> None:
    """Check, time and inspect one case; ``found`` holds the results so far, whatever ends this."""
    for one in check_case(context, step) if step.check else unchecked_case(context, earlier):
        found.checked[one.row.label] = one
    found.checked = {impl.label: found.checked[impl.label] for impl in context.impls}
    if step.check and context.on_gpu:
        _take_on_gpu(context, step, compilation, found)
    if not context.on_gpu and (not step.check or step.inspect or step.case in context.options.cases):
        context.meter.say("reading recorded times")
        recorded = archive.find(context.op.name, str(step.case), results)
        rows, ceilings = replay_case({label: one.row for label, one in found.checked.items()}, recorded)
        found.checked = {label: replace(one, row=rows[label]) for label, one in found.checked.items()}
        found.ceilings = ceilings or found.ceilings
    if step.inspect:
        compiled = [one for one in found.checked.values() if inspectable(one.row)]
        for label, kernels in compile_case(context, step.case, compiled, compilation).items():
            found.take_resources(label, kernels, on_gpu=context.on_gpu)
        for label, one in found.checked.items():
            found.checked[label] = replace(one, row=with_needs(one.row, one.impl, context.archs))


def _take_on_gpu(context: Context, step: Step, compilation: Compilation, found: _CaseResults) -> None:
    """Time and profile the correct rows."""
    op, case = context.op, step.case
    try:
        expected = expected_outputs(op, case, context.device)
        buffers = CaseBuffers(op, case, context.device, expected, timed=True)
    except MemoryError as error:
        found.take_results({one.row.label: error for one in found.correct()})
        return
    with buffers:
        if correct := found.correct():
            compilation.wait(context)
            timed = time_case(context, case, correct, buffers)
            found.ceilings, found.card = timed.ceilings, timed.card
            found.take_results(timed.results)
            if timed.interrupted:
                raise KeyboardInterrupt
        if step.inspect:
            last = step is context.steps[-1]
            for label, kernels in profile_case(context, case, found.correct(), buffers, last=last):
                if isinstance(kernels, Cheated):
                    found.take_results({label: kernels})
                else:
                    found.take_resources(label, {"": kernels}, on_gpu=True)


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


def _interpretable(op: Op, case: Case) -> bool:
    cost = op.cost(case)
    return cost.bytes <= _CPU_CHECK_BYTES and cost.flops <= _CPU_CHECK_FLOPS


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
