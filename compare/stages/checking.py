"""Check a case: every implementation in its worker against the fp64 oracle, each a row."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from compare.device import supports
from compare.model.op import Case, Implementation
from compare.model.result import WRONG, Options, Row
from compare.stages.context import Checked, Context, Step
from compare.stages.verdict import verdict
from compare.tuning import matching
from compare.worker.checking import Checking, CheckOutcome

SEEDS = 3
FEWER_SEEDS = 2
"""For the many cases of a sweep, and for the smoke cases that stand for a large one without a GPU."""
SLOW_TO_START = ("torch.compile",)
"""Not checked on a CPU unless named by ``--only`` or with ``--case``: it takes longer than all others
together, and the code that it generates for a CPU is not the code for a GPU."""


def check_case(context: Context, step: Step) -> Iterator[Checked]:
    """Check every implementation on a case; each result is yielded as soon as it is known."""
    case, meter = step.case, context.meter
    runnable = []
    for impl in context.impls:
        reason = _unavailable(context, impl, step.case)
        if reason is None:
            runnable.append(impl)
        else:
            meter.step(f"checking {impl.label} on {case}")
            yield Checked(impl, context.row(impl, "unavailable", reason))
    own = _seeds(context, step)
    seeds = {impl.label: _seeds(context, step) if impl.user_file else own for impl in runnable}
    checking = Checking(
        context.op,
        case,
        context.device,
        context.pool,
        seeds,
        elsewhere=step.inspect,
        retune=context.options.retune,
    )
    at_once = checking.width(len(runnable)) > 1
    if at_once:
        context.pool.start(impl for impl in runnable if not impl.stand_in)
        meter.say(f"building, calling and checking {len(runnable)} at once on {case}")
    rows: dict[str, Row] = {}

    def begin(impl: Implementation) -> None:
        meter.step(f"checking {impl.label} on {case}")

    def checked(impls: Sequence[Implementation]) -> Iterator[Checked]:
        for impl, outcome in checking.run(impls, begin):
            found = _checked(context, impl, outcome)
            rows[impl.label] = found.row
            yield found
            if at_once:
                meter.step(f"checking the others than {impl.label} ({outcome})")

    yield from checked([impl for impl in runnable if not impl.stand_in and not impl.untuned])
    for impl in runnable:
        if impl.untuned:  # alone: a search that shares the GPU finds another configuration
            yield from checked([impl])
    matched: dict[str, tuple[str, str]] = {}
    configured = []
    for stand_in in (impl for impl in runnable if impl.stand_in):
        source = next(impl for impl in context.impls if impl.label == stand_in.matches)
        try:
            wanted = matching.configuration(source, rows.get(source.label))
            impl, *said = matching.matched(stand_in, wanted)
        except NotImplementedError as error:
            yield Checked(stand_in, context.row(stand_in, "unavailable", str(error)))
            continue
        matched[impl.label] = said[0], said[1]
        configured.append(impl)
    for found in checked(configured):
        text, unmatched = matched[found.impl.label]
        configuration = replace(found.row.configuration, text=text, unmatched=unmatched)
        yield replace(found, row=replace(found.row, configuration=configuration))


def unchecked_case(context: Context, earlier: Sequence[Mapping[str, Checked]]) -> Iterator[Checked]:
    """Rows of a case that is not checked here, with each implementation's verdict on ``earlier`` cases."""
    for impl in context.impls:
        seen = [checked[impl.label] for checked in earlier if impl.label in checked]
        impl = seen[-1].impl if seen else impl
        rows = [checked.row for checked in seen]
        wrong = next((row for status in (*WRONG, "failed") for row in rows if row.status == status), None)
        if wrong is not None:
            yield Checked(impl, context.row(impl, wrong.status, wrong.reason))
        elif rows and all(row.status == "unavailable" for row in rows):
            # A case that it refuses says nothing of another one.
            yield Checked(impl, context.row(impl, "unavailable", rows[0].reason))
        else:
            yield Checked(impl, context.row(impl))


def _checked(context: Context, impl: Implementation, outcome: CheckOutcome) -> Checked:
    if outcome.error is not None:
        row = context.row(impl, *verdict(outcome.error))
    else:
        agreement = outcome.agreement
        assert agreement is not None
        row = context.row(impl) if agreement.passed else context.row(impl, "disagrees", agreement.reason)
        configuration = replace(row.configuration, tunings=outcome.tunings)
        row = replace(row, agreement=agreement, configuration=configuration)
    return Checked(impl, row, outcome.first_call_ms, outcome.held_bytes)


def _seeds(context: Context, step: Step) -> tuple[int, ...]:
    """The seed asked for, to reproduce a finding, and others that no file can anticipate."""
    count = SEEDS if step.inspect else FEWER_SEEDS
    return (context.options.seed, *(secrets.randbelow(1 << 31) for _ in range(count - 1)))


def _unavailable(context: Context, impl: Implementation, case: Case) -> str | None:
    """Why ``impl`` is not run here, None if it is."""
    reason = supports(impl, context.device)
    if reason is None and not context.on_gpu and left_out(context.options, impl, case):
        return "slow to start on a CPU (--only runs it)"
    return reason


def left_out(options: Options, impl: Implementation, case: Case) -> bool:
    """Whether a CPU does not check ``impl`` on this case, as it is slow to start and was not asked for."""
    return impl.label in SLOW_TO_START and not options.only and case not in options.cases
