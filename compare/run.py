"""One op compared: check every implementation, time those that agree, look at what they take.

Without a GPU the same steps check on small cases, compile for the architectures asked for and replay the
times that ``results/`` holds, each labelled with its device and date.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from compare import registry
from compare.records import archive
from compare.spec import (
    WRONG,
    Card,
    Case,
    CaseComparison,
    Ceilings,
    CodeSize,
    Comparison,
    Cost,
    Environment,
    Implementation,
    KernelResources,
    Op,
    Options,
    Row,
    Status,
    Timing,
    UsageError,
)
from compare.timing import calibration, speed_of_light
from compare.tuning import cache, sweep

if TYPE_CHECKING:
    import torch

    from compare.resources.static import Compiling, Request
    from compare.worker.checking import Outcome
    from compare.worker.exchange import Exchange
    from compare.worker.pool import Crew

Progress = Callable[[str, float], None]
"""``progress(what, done)``: what is being done now, and which share of the whole run is over."""

STATIC_ARCHS = ("sm_75", "sm_80", "sm_90a")
"""Compiled for where there is no GPU to ask and ``--arch`` is not given."""

SEEDS = 3
FEWER_SEEDS = 2
"""For the many cases of a sweep, and for the smoke cases that stand for a large one without a GPU."""
SLOW_TO_START = ("torch.compile",)
"""Left out of the run that a CPU makes unasked: it would take longer than all the others together, and what
it makes of an op for a CPU is other code than for a GPU."""

_CPU_CHECK_BYTES = 32 << 20
"""The most memory traffic of a case that is worth interpreting: some ten seconds for an implementation."""
_LESS_URGENT = 10
"""Added to the nice value of what compiles while first calls are timed."""
_INSPECT = 3
"""Resources are read for every case of a short list, and for the default one of a sweep."""


@dataclass(frozen=True)
class Step:
    """What is done with one case."""

    case: Case
    check: bool
    inspect: bool


def silent(what: str, done: float) -> None:
    """No progress shown."""


def prepare(device: str = "auto", ops: Sequence[str] = ()) -> torch.device:
    """The device to run on.  To be called before any Triton kernel is imported.

    Args:
        device: as on the command line.
        ops: whose modules workers will need; they are imported there while this process does its own.

    Raises:
        UsageError: there is no such device.
    """
    from compare.worker.server import likely_cpu, start

    if likely_cpu(device):
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated
    from compare.device import pick  # and with it PyTorch: what the server is forked with

    start(ops, from_here=_is_command())
    picked = pick(device)
    if picked.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    start(ops)
    return picked


def default_archs(device: torch.device) -> tuple[str, ...]:
    """What is compiled for where ``--arch`` is not given: a GPU's own architecture, or `STATIC_ARCHS`."""
    from compare.device import arch

    here = arch(device)
    return STATIC_ARCHS if here is None else (here,)


def _is_command() -> bool:
    """Whether this process is ``python -m compare``, which has done nothing by now but import."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "compare.__main__"


def plan(op: Op, options: Options, device_type: str) -> list[Step]:
    """Which cases are run, and what for."""
    cases = list(options.cases) or [op.cases.default]
    inspected = cases if len(cases) <= _INSPECT else [case for case in cases if case == op.cases.default]
    if not options.resources:
        inspected = []
    steps = [Step(case, True, case in inspected) for case in cases]
    if device_type == "cuda":
        return steps
    smoke = op.cases.smoke
    asked = bool(options.cases)
    steps = [replace(s, check=s.case in smoke or (asked and _interpretable(op, s.case))) for s in steps]
    if asked and all(step.check for step in steps):
        return steps
    return [Step(case, True, False) for case in smoke if case not in cases] + steps


def run(
    op: Op,
    options: Options,
    progress: Progress = silent,
    results: Path = archive.RESULTS,
    crew: Crew | None = None,
) -> Comparison:
    """Compare the implementations of ``op``.

    Ctrl-C ends it early: the comparison then holds every row that was finished and says ``interrupted``.

    Args:
        op: what to compare.
        options: as on the command line; the op's baseline is always among the rows.
        progress: called at every step.
        results: where recorded times are found.
        crew: workers that stay when it is over; if not given, it has its own.

    Raises:
        UsageError: no such device, or a case this machine cannot hold.
    """
    from compare import device as machine
    from compare.worker.pool import Crew

    device = prepare(options.device)
    impls = _chosen(op, options.only)
    if options.matched:
        impls = cache.stand_ins(impls)
    tried = tuned(op, options)
    if tried is not None:
        impls = list(tried.impls)
    interrupted = False
    with nullcontext(crew) if crew else Crew(op, device, options.timeout_s) as crew:
        able = [impl for impl in impls if machine.supports(impl, device) is None and not impl.stand_in]
        crew.build(able)
        if device.type == "cuda":  # making contexts takes seconds, in which there is enough to be done here
            progress("starting workers", 0.0)
            crew.start(able)
        progress("looking at this machine", 0.0)
        environment = machine.environment(device)
        if device.type == "cuda":
            environment = replace(environment, calibration=calibration.stored(environment.device))
        steps = plan(op, options, device.type)
        for step in steps:
            if step.check:
                _fits(op, step.case, environment.memory_bytes)
        meter = _Meter(progress, _weight(steps, impls, device))
        bench = _Bench(op, impls, options, device, steps, results, meter, crew, tried)
        try:
            bench.run()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            bench.stop()
        meter.say("ending the workers")
    meter.say("looking at this machine again")
    return Comparison(
        op=op.name,
        signature=op.signature,
        environment=replace(
            environment,
            versions=machine.versions(),
            clocks={**environment.clocks, **machine.clocks(device, "after")},
        ),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seed=options.seed,
        cases=bench.cases(environment),
        code_sizes=bench.code_sizes,
        interrupted=interrupted,
    )


# --------------------------------------------------------------------------- steps


class _Bench:
    """The rows so far.  They are kept here as they come, so that an interruption loses none."""

    def __init__(
        self,
        op: Op,
        impls: Sequence[Implementation],
        options: Options,
        device: torch.device,
        steps: Sequence[Step],
        results: Path,
        meter: _Meter,
        crew: Crew,
        tried: sweep.Trials | None = None,
    ) -> None:
        self.op, self.impls, self.options, self.device = op, impls, options, device
        self.archs = options.archs or default_archs(device)
        self.steps, self.results, self.meter, self.crew = steps, results, meter, crew
        self.rows: dict[Case, dict[str, Row]] = {}
        self.ceilings: dict[Case, Ceilings] = {}
        self.cards: dict[Case, Card | None] = {}
        self.code_sizes: dict[str, CodeSize] = {}
        self.uncounted: dict[str, str] = {}
        """Why those that have none do not, by label."""
        self.hashes: dict[str, str] = {}
        self.matched: dict[tuple[Case, str], tuple[str, str]] = {}
        self.tried = tried
        self.first_calls_ms: dict[tuple[Case, str], float] = {}
        self.held_bytes: dict[tuple[Case, str], int] = {}
        self.requests: list[Request] = []
        self.compiling: Compiling | None = None

    def run(self) -> None:
        """Check, time and inspect every case."""
        self._read_sources()
        self._start_compiling()
        for step in self.steps:
            self._take(step)

    def stop(self) -> None:
        """End what was started and is still at work."""
        if self.compiling is not None:
            self.compiling.stop()

    def _take(self, step: Step) -> None:
        """Check, time and inspect one case."""
        from compare.worker.checking import Changed

        rows = self.rows[step.case] = {}
        if not step.check:
            for impl in self.impls:
                rows[impl.label] = self._elsewhere(impl)
        else:
            self._check(step)
            if self.device.type == "cuda":
                try:
                    exchange = self._exchange(step.case)
                except MemoryError as error:
                    self._put(step.case, {label: error for label, row in rows.items() if row.status == "ok"})
                else:
                    with exchange:
                        self._measure(step.case, exchange)
                        if step.inspect:
                            self._profile(step.case, exchange, last=step is self.steps[-1])
        if self.device.type != "cuda" and (not step.check or step.inspect):
            self._replay(step.case)
        if step.inspect:
            self._compile(step.case)
        if any(impl.foreign for impl in self.impls) and (changed := self.crew.tree.changed()):
            problem = Changed(f"{changed} while it was timed or looked at, by it or by a file beside it")
            foreign = [impl.label for impl in self.impls if impl.foreign]
            blamed = [label for label in foreign if rows[label].status == "ok"] or foreign
            self._put(step.case, dict.fromkeys(blamed, problem))

    def cases(self, environment: Environment) -> tuple[CaseComparison, ...]:
        """What there is so far, save the times that cannot be, with what can be told apart."""
        found = (
            CaseComparison(
                str(case),
                self.op.cost(case),
                tuple(self._finished(rows[impl.label]) for impl in self.impls if impl.label in rows),
                self.ceilings.get(case),
                self.cards.get(case),
            )
            for case, rows in self.rows.items()
            if rows
        )
        judged = (speed_of_light.enforced(case, environment.l2_bytes) for case in found)
        return tuple(calibration.marked(case, environment.calibration) for case in judged)

    def _finished(self, row: Row) -> Row:
        return replace(row, reason=row.reason or self.uncounted.get(row.label, ""))

    def _read_sources(self) -> None:
        from compare.code_size import source_hash

        self.meter.say("reading sources")
        for impl in self.impls:
            self.hashes[impl.label] = source_hash(impl)
            if impl.base:
                continue
            try:
                self.code_sizes[impl.label] = self._code_size(impl)
            except Exception as error:  # however it is written, it is checked
                self.uncounted[impl.label] = f"code size unread: {error}"

    def _code_size(self, impl: Implementation) -> CodeSize:
        from compare.code_size import code_size, kept_code_size

        # A user's file is not run here, and what its worker tells is not kept.
        return code_size(impl, self._launched(impl)) if impl.foreign else kept_code_size(impl)

    def _launched(self, impl: Implementation) -> list[tuple[str, str]]:
        """What a user's file launches, as a worker tells it."""
        if impl.route != "cupy":
            return []
        try:
            told = self.crew.of(impl).ask("launched", "finding out what it launches")
            return [(str(source), str(kernel)) for source, kernel in told]
        except Exception:  # whatever it is, the check meets it again and says so
            return []

    def _start_compiling(self) -> None:
        """Let another process compile, while workers are checked, what earlier runs have not left behind.

        All of it is over before anything is timed but first calls.
        """
        from compare.resources.static import Compiling, Request

        self.requests = [
            Request(self.op, impl, step.case, arch)
            for step in self.steps
            if step.inspect
            for impl in self.impls
            if not impl.foreign and not impl.stand_in  # a user's is, once it is known to be right
            for arch in self._archs(impl)
        ]
        nice = _LESS_URGENT if self.device.type == "cuda" else 0
        self.compiling = Compiling(self.requests, nice, self.options.timeout_s)

    def _row(self, impl: Implementation, status: Status = "ok", reason: str = "") -> Row:
        row = Row(
            impl.label,
            impl.rung,
            status,
            reason,
            source_hash=self.hashes[impl.label],
            accumulator=impl.accumulator,
            default=impl.base or impl.untuned,
            model=impl.matches if impl.base else "",
        )
        if self.tried is None:
            return row
        values = self.tried.parameters.get(impl.label, ())
        note = self.tried.notes.get(impl.label, "")
        return replace(row, parameters=values, configuration=sweep.worded(values), unmatched=note)

    def _exchange(self, case: Case) -> Exchange:
        """The memory through which the judge and the workers see a case's tensors while it is timed."""
        from compare.checking.reference import expected_output
        from compare.worker.exchange import Exchange

        return Exchange(self.op, case, self.device, expected_output(self.op, case, self.device), timed=True)

    def _check(self, step: Step) -> None:
        from compare.worker.checking import Checking

        rows = self.rows[step.case]
        runnable = []
        for impl in self.impls:
            reason = self._unavailable(impl)
            if reason is None:
                runnable.append(impl)
            else:
                self.meter.step(f"checking {impl.label} on {step.case}")
                rows[impl.label] = self._row(impl, "unavailable", reason)
        own = self._seeds(step)
        seeds = {impl.label: self._seeds(step) if impl.foreign else own for impl in runnable}
        checking = Checking(
            self.op,
            step.case,
            self.device,
            self.crew,
            seeds,
            elsewhere=step.inspect,
            retune=self.options.retune,
        )
        at_once = checking.width(len(runnable)) > 1
        if at_once:
            self.crew.start(impl for impl in runnable if not impl.stand_in)
            self.meter.say(f"building, calling and checking {len(runnable)} at once on {step.case}")

        def begin(impl: Implementation) -> None:
            self.meter.step(f"checking {impl.label} on {step.case}")

        def take(impls: Sequence[Implementation]) -> None:
            for impl, outcome in checking.run(impls, begin):
                rows[impl.label] = self._checked(impl, step.case, outcome)
                if at_once:
                    self.meter.step(f"checking the others than {impl.label} ({outcome})")

        take([impl for impl in runnable if not impl.stand_in and not impl.untuned])
        for impl in runnable:
            if impl.untuned:  # a search that shares the GPU with others finds what suits it then
                take([impl])
        take(self._matched(step.case, [impl for impl in runnable if impl.stand_in]))

    def _matched(self, case: Case, stand_ins: Sequence[Implementation]) -> list[Implementation]:
        """Those of them that there is a configuration for, to be run with it."""
        rows, found = self.rows[case], []
        for stand_in in stand_ins:
            source = next(impl for impl in self.impls if impl.label == stand_in.matches)
            try:
                wanted = cache.configuration(source, rows.get(source.label))
                impl, configuration, unmatched = cache.matched(stand_in, wanted)
            except NotImplementedError as error:
                rows[stand_in.label] = self._row(stand_in, "unavailable", str(error))
                continue
            self.matched[case, impl.label] = configuration, unmatched
            self.impls = [impl if other.label == impl.label else other for other in self.impls]
            found.append(impl)
        return found

    def _seeds(self, step: Step) -> tuple[int, ...]:
        """The one that was asked for, so that a finding can be had again, and others that nobody knows."""
        count = SEEDS if step.inspect else FEWER_SEEDS
        return (self.options.seed, *(secrets.randbelow(1 << 31) for _ in range(count - 1)))

    def _unavailable(self, impl: Implementation) -> str | None:
        from compare import device as machine

        reason = machine.supports(impl, self.device)
        if reason is None and self._left_out(impl):
            reason = f"not checked on a CPU unless asked for, as it is slow to start: --only {impl.label}"
        return reason

    def _checked(self, impl: Implementation, case: Case, outcome: Outcome) -> Row:
        self.held_bytes[case, impl.label] = outcome.held_bytes
        if outcome.first_call_ms is not None:
            self.first_calls_ms[case, impl.label] = outcome.first_call_ms
        if outcome.error is not None:
            row = self._row(impl, *_verdict(outcome.error))
        else:
            agreement = outcome.agreement
            assert agreement is not None
            row = self._row(impl) if agreement.passed else self._row(impl, "disagrees", agreement.reason)
            row = replace(row, agreement=agreement, tunings=outcome.tunings)
        if (case, impl.label) in self.matched:
            configuration, unmatched = self.matched[case, impl.label]
            row = replace(row, configuration=configuration, unmatched=unmatched)
        return row

    def _left_out(self, impl: Implementation) -> bool:
        unasked = not self.options.cases and not self.options.only
        return self.device.type == "cpu" and unasked and impl.label in SLOW_TO_START

    def _elsewhere(self, impl: Implementation) -> Row:
        """A row of a case too large to check here: as good as the implementation was on the small ones."""
        earlier = [rows[impl.label] for rows in self.rows.values() if impl.label in rows]
        for status in (*WRONG, "failed"):
            for row in earlier:
                if row.status == status:
                    return self._row(impl, row.status, row.reason)
        # What it does not take of one case it may take of another.
        if earlier and all(row.status == "unavailable" for row in earlier):
            return self._row(impl, "unavailable", earlier[0].reason)
        return self._row(impl)

    def _measure(self, case: Case, exchange: Exchange) -> None:
        import torch

        from compare.checking.tolerance import ToleranceFromBaseline
        from compare.timing.measure import CeilingMeter, Interrupted, Plan
        from compare.timing.stopwatch import CudaStopwatch
        from compare.worker.exchange import WorkerStage
        from compare.worker.timing import measure

        rows = self.rows[case]
        agreeing = [impl for impl in self.impls if rows[impl.label].status == "ok"]
        if not agreeing:
            return
        self.meter.say(f"compiling for {', '.join(self.archs)}")
        if self.compiling is not None:
            self.compiling.results()
        self.meter.say("measuring what a plain copy reaches")
        ceilings = CeilingMeter.on(self.device, self.op.cost(case), case.dtype)
        budget = self.options.budget_s / max(1, len(self.options.cases))
        held_bytes = sum(self.held_bytes[case, impl.label] for impl in agreeing)
        baseline = next((impl for impl in agreeing if impl.label == self.op.baseline), None)
        with self.meter.part(f"timing {case}", _MEASURE_WEIGHT * len(self.impls)) as part:
            try:
                stage = None if baseline is None else WorkerStage(self.crew.of(baseline), exchange)
                timings = measure(
                    self.op,
                    agreeing,
                    case,
                    self.device,
                    {impl.label: self.crew.of(impl) for impl in agreeing},
                    exchange,
                    ToleranceFromBaseline(self.op, stage),
                    local=CudaStopwatch(self.device),
                    seed=self.options.seed,
                    budget_s=budget,
                    progress=part,
                    first_calls_ms={i.label: self.first_calls_ms[case, i.label] for i in agreeing},
                    ceilings=ceilings,
                    plan=Plan(sustained=self.options.sustained),
                    tidy=held_bytes > torch.cuda.get_device_properties(self.device).total_memory // 2,
                    say=self.meter.say,
                )
            except Interrupted as interrupted:
                self._put(case, interrupted.partial)
                raise
            finally:
                self.ceilings[case], self.cards[case] = ceilings.ceilings(), ceilings.card()
        self._put(case, timings)
        if self.options.timer == "nvbench":
            from compare.timing import nvbench

            self.meter.say(f"timing {case} by nvbench")
            again = nvbench.retimed(self.op, agreeing, case, self.device, timings, self.options.seed)
            self._put(case, again)

    def _put(self, case: Case, timings: Mapping[str, Timing | Exception]) -> None:
        rows = self.rows[case]
        for label, timing in timings.items():
            if isinstance(timing, Timing):
                rows[label] = replace(rows[label], timing=timing)
            else:
                status, reason = _verdict(timing)
                rows[label] = replace(rows[label], status=status, reason=reason, timing=None)

    def _replay(self, case: Case) -> None:
        """Put recorded times beside the rows of ``case``, save those that are wrong here."""
        self.meter.say("reading recorded times")
        rows = self.rows[case]
        for label, recorded in archive.find(self.op.name, str(case), self.results).items():
            row = rows.get(label)
            if row is None or row.status in (*WRONG, "failed") or recorded.row.timing is None:
                continue
            replayed = archive.provenance(recorded.run, recorded.row, row.source_hash)
            # What a row runs with for --tune is known here, and not of interest where that is not asked for.
            said = row if row.parameters or recorded.row.parameters else recorded.row
            rows[label] = replace(
                row,
                timing=recorded.row.timing,
                replayed=replayed,
                ceilings=recorded.comparison.ceilings,
                tunings=recorded.row.tunings,
                configuration=said.configuration,
                unmatched=said.unmatched,
            )
            if recorded.comparison.ceilings:
                self.ceilings[case] = recorded.comparison.ceilings

    def _profile(self, case: Case, exchange: Exchange, *, last: bool) -> None:
        """What every kernel takes, watched on the GPU; the ``last`` that workers are asked."""
        from compare.worker.checking import Checking
        from compare.worker.parallel import abreast

        impls = [impl for impl in self.impls if self.rows[case][impl.label].status == "ok"]
        if not impls:
            return
        exchange.put(self._inputs(case), 0)
        exchange.poison()
        places = exchange.as_json()

        own: dict[str, list[str]] = {}

        def watched(impl: Implementation) -> tuple[KernelResources, ...] | Exception:
            try:
                worker = self.crew.of(impl)
                exchange.hand_to(worker)
                told = worker.ask("profile", "being profiled", inputs=places)
                own[impl.label] = [str(name) for name in told["own"]]
                return tuple(archive.decode(KernelResources, kernel) for kernel in told["kernels"])
            except Exception as error:
                return error
            finally:
                if last:
                    self.crew.dismiss(impl)

        self.meter.say(f"watching the kernels of {len(impls)}")
        width = Checking(self.op, case, self.device, self.crew, {}).width(len(impls))
        for impl, found in abreast(watched, impls, width, self.crew.close):
            self._add(case, impl, {"": found})
        self._refuse_borrowed(case, [impl for impl in impls if impl.foreign and impl.label in own], own)

    def _refuse_borrowed(
        self, case: Case, impls: Sequence[Implementation], own: Mapping[str, Sequence[str]]
    ) -> None:
        """Refuse users' implementations that had kernels of PyTorch's do their work."""
        from compare.resources.kernels import borrowed
        from compare.worker.timing import Cheated

        def ran(impl: Implementation) -> list[str]:
            return [kernel.kernel for kernel in self.rows[case][impl.label].resources]

        torchs = [impl for impl in self.impls if impl.way == "torch" and not impl.foreign]
        pytorchs = [name for impl in torchs for name in ran(impl)]
        for impl in impls:
            if impl.way == "torch":
                continue
            if theirs := borrowed(ran(impl), own[impl.label], pytorchs, self.op.only_moves):
                problem = f"it ran PyTorch's {', '.join(theirs)}, which it does not launch itself"
                self._put(case, {impl.label: Cheated(f"own work: {problem}")})

    def _compile(self, case: Case) -> None:
        """What every kernel takes, compiled for the architectures asked for."""
        from compare.resources.static import Compiling, Request

        assert self.compiling is not None
        rows = self.rows[case]
        labels = [label for label, row in rows.items() if row.status not in (*WRONG, "failed")]
        with self.meter.part(f"compiling for {', '.join(self.archs)}", len(self.impls)) as part:
            found = self.compiling.results(lambda done, total: part(done / total))
        theirs = [
            Request(self.op, impl, case, arch)
            for impl in self.impls
            if (impl.foreign or (impl.stand_in and impl.parameters)) and impl.label in labels
            for arch in self._archs(impl)
        ]
        later = Compiling(theirs, timeout_s=self.options.timeout_s)
        try:
            found += later.results()
        finally:
            later.stop()
        results = list(zip([*self.requests, *theirs], found, strict=True))
        for impl in self.impls:
            if impl.label in labels:
                own = {
                    r.arch: result for r, result in results if r.case == case and r.impl.label == impl.label
                }
                self._add(case, impl, own)

    def _add(
        self,
        case: Case,
        impl: Implementation,
        found: Mapping[str, tuple[KernelResources, ...] | Exception],
    ) -> None:
        """Put beside a row what its kernels take, by architecture, and why that is not known of some.

        What no compiler takes, for whichever architecture, runs nowhere, though a CPU may have run it.
        """
        from compare.resources.static import Refused

        row = self.rows[case][impl.label]
        errors = {arch: error for arch, error in found.items() if isinstance(error, Exception)}
        read = [
            kernel for kernels in found.values() if not isinstance(kernels, Exception) for kernel in kernels
        ]
        row = replace(row, resources=(*row.resources, *read))
        refused = {arch: error for arch, error in errors.items() if isinstance(error, Refused)}
        nowhere = len(errors) == len(found)
        if refused:
            _, said = _verdict(next(iter(refused.values())))
            reason = f"does not compile for {', '.join(refused)}: {said}"
            not_taken = all(isinstance(error, (Refused, NotImplementedError)) for error in errors.values())
            if nowhere and not_taken and self.device.type != "cuda":
                row = replace(row, status="failed", reason=reason, timing=None, replayed="")
            else:
                row = replace(row, reason="; ".join(filter(None, (row.reason, reason))))
        elif errors and not row.reason:
            status, reason = _verdict(next(iter(errors.values())))
            if nowhere and row.agreement is None and status == "unavailable":
                row = replace(row, status=status, reason=reason)
            else:
                archs = "" if nowhere else f" for {', '.join(errors)}"
                row = replace(row, reason=f"resources unread{archs}: {reason}")
        self.rows[case][impl.label] = row

    def _archs(self, impl: Implementation) -> list[str]:
        """Those of the architectures asked for that ``impl`` can be compiled for."""
        from compare.device import capability

        needed = capability(impl.requires) if impl.requires else 0
        return [arch for arch in self.archs if capability(arch) >= needed]

    def _inputs(self, case: Case) -> tuple[torch.Tensor, ...]:
        import torch

        generator = torch.Generator(self.device).manual_seed(self.options.seed)
        return self.op.make_inputs(case, generator, self.device)


def tuned(op: Op, options: Options) -> sweep.Trials | None:
    """What is run for ``--tune``; None where nothing is asked for.

    Only what has the parameters is, and the baseline, unless other rows are asked for by name.

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
    return op.cost(case).bytes <= _CPU_CHECK_BYTES


def _fits(op: Op, case: Case, memory_bytes: int) -> None:
    cost: Cost = op.cost(case)
    if cost.bytes > memory_bytes:
        raise UsageError(
            f"case {case} of {op.name} takes {cost.bytes / 1e9:,.0f} GB for its inputs and output alone; "
            f"this device has {memory_bytes / 1e9:,.0f} GB. Give a smaller --case"
        )


def _verdict(error: BaseException) -> tuple[Status, str]:
    """What an exception makes of a row, in one sentence."""
    from compare.resources.static import CompileError, Refused
    from compare.worker.checking import Changed
    from compare.worker.process import Ended, Raised
    from compare.worker.timing import Cheated, TooFast
    from cuda_impl.build import is_asserted

    if os.environ.get("COMPARE_TRACEBACK"):
        traceback.print_exception(error)
    text = " ".join(str(error).split())
    if isinstance(error, (NotImplementedError, UsageError)):
        return "unavailable", text
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "unavailable", f"out of memory on this device{_asked(text)}; give a smaller --case"
    if isinstance(error, Cheated):
        return "disagrees", text
    if isinstance(error, TooFast):
        return "impossible", text
    if isinstance(error, (Ended, Changed)):
        return "failed", text
    name = error.name if isinstance(error, Raised) else type(error).__name__
    if name == "BuildError":
        text = str(error).partition("\n")[0]
        if is_asserted(text):
            return "unavailable", text
    if "Unexpected non-ASCII character" in text:  # which ptxas does not say more of
        return "failed", (
            "ptxas takes ASCII only, and Triton tells it the names of the file and of its kernels: rename "
            "what has other letters"
        )
    if len(text) > 200:
        text = f"{text[:200]} ..."
    if isinstance(error, Refused):
        return "failed", f"{text} (python -m compare pipeline shows all that its compiler says)"
    if isinstance(error, CompileError):
        return "failed", text
    return "failed", f"{name}: {text} (COMPARE_TRACEBACK=1 shows where)"


def _asked(text: str) -> str:
    """What an allocator says of how much was asked for, and of a worker's own limit."""
    found = (
        re.search(r"([Tt]ried|[Uu]nable) to allocate [\d.]+ \w+", text),
        re.search(r"[\d.]+ \w+ allowed", text),
    )
    said = ", ".join(match[0].lower().replace("gib", "GiB").replace("mib", "MiB") for match in found if match)
    return f" ({said})" if said else ""


# --------------------------------------------------------------------------- progress

_MEASURE_WEIGHT = 4
"""Timing an implementation takes about as long as checking it four times."""


def _weight(steps: Sequence[Step], impls: Sequence[Implementation], device: torch.device) -> float:
    measured = _MEASURE_WEIGHT if device.type == "cuda" else 0
    return len(impls) * sum(step.check + step.inspect + measured for step in steps)


@dataclass
class _Meter:
    """Turns steps of unequal weight into the share of the run that is over."""

    progress: Progress
    total: float
    done: float = 0.0
    what: str = dataclasses.field(default="", init=False)

    def say(self, what: str) -> None:
        self.what = what
        self.progress(what, min(1.0, self.done / max(self.total, 1.0)))

    def step(self, what: str) -> None:
        """Begin a step of weight 1."""
        self.say(what)
        self.done += 1

    @contextmanager
    def part(self, what: str, weight: float) -> Iterator[Callable[[float], None]]:
        """A step that reports itself how far it is, 0 to 1."""
        start = self.done

        def advance(share: float) -> None:
            self.done = start + weight * share
            self.say(what)

        advance(0.0)
        yield advance
        self.done = start + weight
