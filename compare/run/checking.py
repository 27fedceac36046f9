"""Check a case: every implementation in its worker against the fp64 oracle, each a row."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from compare import registry
from compare.device import supports
from compare.model.op import Case, Implementation
from compare.model.result import HARD_INPUTS, HELPERS, OTHER_SIZES, THREAD_ORDERS, WRONG, Options
from compare.run.context import CaseResult, Context, RowState, Step
from compare.run.verdict import of_judge, verdict
from compare.tuning import matching
from compare.worker.checking import Checking, CheckOutcome
from compare.worker.sanitizer import NotSanitized, sanitize

SEEDS = 3
FEWER_SEEDS = 2
"""For the many cases of a sweep, and for the smoke cases that stand for a large one without a GPU."""
SLOW_TO_START = ("torch.compile",)
"""Not checked on a CPU unless named by ``--only`` or with ``--case``: it takes longer than all others
together, and the code that it generates for a CPU is not the code for a GPU."""

_PHASE = "building kernels and checking"


def check_case(context: Context, step: Step, result: CaseResult) -> None:
    """Check every implementation on a case; ``result`` gets each as soon as it is known."""
    case, meter = step.case, context.meter
    runnable = []
    for impl in context.impls:
        if reason := _unavailable(context, impl, case):
            meter.step(f"checking {impl.label} on {case}")
            result.keep(RowState(impl, context.row(impl, "unavailable", reason)))
        else:
            runnable.append(impl)
    checking = Checking(
        context.op,
        case,
        context.device,
        context.pool,
        _seeds(context, step, runnable),
        more=_more_findings(context, step),
        retune=context.options.retune,
    )
    at_once = checking.width(len(runnable)) > 1
    if at_once:
        context.pool.start(impl for impl in runnable if not impl.stand_in)
        meter.say(f"{_PHASE}, 0 of {len(runnable)} implementations on {case}")

    def check(impls: Sequence[Implementation]) -> None:
        for impl, outcome in checking.run(impls, lambda impl: meter.step(f"checking {impl.label} on {case}")):
            result.keep(_entry(context, impl, outcome))
            if at_once:
                done = sum(each.label in result.entries for each in runnable)
                of = f"{done} of {len(runnable)} implementations"
                meter.step(f"{_PHASE}, {of} (last {impl.label}: {outcome})")

    check([impl for impl in runnable if not impl.stand_in and not impl.untuned])
    for impl in runnable:
        if impl.untuned:  # alone: a search that shares the GPU finds another configuration
            check([impl])
    matched = list(_matched(context, [impl for impl in runnable if impl.stand_in], result))
    check([impl for impl, _, _ in matched])
    for impl, text, unmatched in matched:
        entry = result.entries[impl.label]
        configuration = replace(entry.row.configuration, text=text, unmatched=unmatched)
        entry.row = replace(entry.row, configuration=configuration)
    result.entries = {impl.label: result.entries[impl.label] for impl in context.impls}
    if context.options.sanitize and step == context.first_check:
        _sanitize(context, result)


def _sanitize(context: Context, result: CaseResult) -> None:
    """Run the correct rows of users, and those that are named, under compute-sanitizer."""
    only = context.options.only
    for entry in result.correct():
        impl, agreement = entry.impl, entry.row.agreement
        named = bool(only) and registry.is_among(impl.label, only)
        if agreement is None or not impl.has_own_kernels or not (impl.user_file or named):
            continue
        context.meter.say(f"running {impl.label} under compute-sanitizer")
        try:
            finding = sanitize(context.op, impl, context.device, context.pool.timeout_s)
        except NotSanitized as error:
            entry.row = replace(entry.row, status="failed", reason=str(error), by_judge=True)
            continue
        agreement = replace(agreement, passed=finding.passed, findings=(*agreement.findings, finding))
        entry.row = replace(entry.row, agreement=agreement)
        if not finding.passed:
            entry.row = replace(entry.row, status="disagrees", reason=agreement.reason)


def _more_findings(context: Context, step: Step) -> list[str]:
    """What a user's row is checked on beside the case: on hard inputs once in a run.

    Memory accesses and thread orders are then checked on these, else on each case.
    """
    more = [OTHER_SIZES] if step.inspect else []
    if not context.options.hard_inputs:
        return [*more, THREAD_ORDERS]
    more.append(HELPERS)  # a lab, which does without hard inputs, takes none
    return [*more, HARD_INPUTS, THREAD_ORDERS] if step == context.first_check else more


def _matched(
    context: Context, stand_ins: Iterable[Implementation], result: CaseResult
) -> Iterator[tuple[Implementation, str, str]]:
    """Each stand-in with another's configuration; that in words, and what of it was not taken."""
    for stand_in in stand_ins:
        model = next(impl for impl in context.impls if impl.label == stand_in.matches)
        known = result.entries.get(model.label)
        try:
            impl, text, unmatched = matching.matched(
                stand_in, matching.configuration(model, known.row if known else None)
            )
        except NotImplementedError as error:
            result.keep(RowState(stand_in, context.row(stand_in, "unavailable", str(error))))
        else:
            yield impl, text, unmatched


def _entry(context: Context, impl: Implementation, outcome: CheckOutcome) -> RowState:
    if outcome.error is not None:
        row = replace(context.row(impl, *verdict(outcome.error)), by_judge=of_judge(outcome.error))
        return RowState(impl, row, outcome.first_call_ms, outcome.held_bytes)
    agreement = outcome.agreement
    assert agreement is not None
    row = context.row(impl, agreement.status, agreement.reason)
    configuration = replace(row.configuration, tunings=outcome.tunings)
    row = replace(row, agreement=agreement, configuration=configuration)
    return RowState(impl, row, outcome.first_call_ms, outcome.held_bytes)


def note_ordinary(earlier: Iterable[CaseResult], result: CaseResult) -> None:
    """Mark the correct rows of a case that were wrong on hard inputs, which are tried with the first case."""
    wrong = {
        label: entry.row
        for each in earlier
        for label, entry in each.entries.items()
        if entry.row.status == "ordinary"
    }
    for label in wrong.keys() & {entry.impl.label for entry in result.correct()}:
        entry = result.entries[label]
        entry.row = replace(entry.row, status="ordinary", reason=entry.row.reason or wrong[label].reason)


def skip_check(context: Context, earlier: Iterable[CaseResult], result: CaseResult) -> None:
    """Rows of a case that is not checked here, with each implementation's verdict on ``earlier`` cases."""
    seen = list(earlier)
    for impl in context.impls:
        entries = [each.entries[impl.label] for each in seen if impl.label in each.entries]
        rows = [entry.row for entry in entries]
        wrong = next((row for status in (*WRONG, "failed") for row in rows if row.status == status), None)
        if wrong is not None:
            row = replace(context.row(impl, wrong.status, wrong.reason), by_judge=wrong.by_judge)
        elif rows and all(row.status == "unavailable" for row in rows):
            # A case that it refuses says nothing of another one.
            row = context.row(impl, "unavailable", rows[0].reason)
        else:
            row = context.row(impl)
        result.keep(RowState(entries[-1].impl if entries else impl, row))


def _seeds(context: Context, step: Step, impls: Iterable[Implementation]) -> Mapping[str, tuple[int, ...]]:
    """By label the seed asked for, to reproduce a finding, and others that no file can anticipate."""
    count = SEEDS if step.inspect else FEWER_SEEDS

    def drawn() -> tuple[int, ...]:
        return (context.options.seed, *(secrets.randbelow(1 << 31) for _ in range(count - 1)))

    own = drawn()
    return {impl.label: drawn() if impl.user_file else own for impl in impls}


def _unavailable(context: Context, impl: Implementation, case: Case) -> str | None:
    """Why ``impl`` is not run here, None if it is."""
    reason = supports(impl, context.device)
    if reason is None and not context.on_gpu and left_out(context.options, impl, case):
        return "slow to start on a CPU (--only runs it)"
    return reason


def left_out(options: Options, impl: Implementation, case: Case) -> bool:
    """Whether a CPU does not check ``impl`` on this case, as it is slow to start and was not asked for."""
    return impl.label in SLOW_TO_START and not options.only and case not in options.cases
