"""Correctness: does an implementation compute what the op defines, and nothing else?

The reference is the op's oracle in fp64 on the same inputs.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from compare.checking.errors import Errors, errors_of, mismatch_of
from compare.checking.guarded_memory import (
    BITS,
    SECOND_POISON,
    Borrowed,
    changed,
    is_copy,
    memory_of,
    untouched,
)
from compare.checking.probes import Probe, Probes, with_one_element_changed
from compare.checking.reference import Outputs, Reference, expected_outputs
from compare.checking.stage import CallResult, LocalStage, Stage, threads_for
from compare.checking.tolerance import ToleranceFromBaseline, limit_of
from compare.model.op import Case, Implementation, Op
from compare.model.result import REPEATABLE, Agreement, Finding, Mismatch

_REPEATED_BYTES = 64 << 20
"""Largest memory traffic of a case that is called twice on equal inputs."""

_COMPARING = threading.Lock()
"""A comparison takes about 1 GB: one at a time, while other threads wait for their implementations."""


@dataclass(frozen=True)
class CheckOptions:
    """Where an implementation is called, and what is checked beyond its values."""

    stage: Stage | None = None
    """Where it is called; None: in this process."""
    probes: Probes | None = None
    """Inputs of this case by seed, shared between checks; None: made for this check."""
    one_element_changed: bool = False
    """Call it twice more with one element changed: this exposes results cached by content."""
    own_work: bool = False
    """PyTorch's operators may compute nothing, and copy nothing where the op only moves data."""
    repeated: bool = True
    """Call it once more on the inputs of the first seed."""
    helpers: bool = False
    """Yet they may compute a few values for each row of the output, beside kernels of its own."""
    slack: float = 1.0
    """How many times the tolerance its values may be off."""


def check(
    op: Op,
    impl: Implementation,
    case: Case,
    device: torch.device,
    seeds: Sequence[int] = (0, 1, 2),
    options: CheckOptions | None = None,
) -> Agreement:
    """The agreement of an implementation's outputs with the oracle, on each of its probes.

    Args:
        seeds: of the inputs; the same addresses hold new values each time.

    Raises:
        Exception: what ``impl.run`` raised.
    """
    options = options or CheckOptions()
    nbytes = op.cost(case).bytes
    with torch.cuda.device(device) if device.type == "cuda" else threads_for(nbytes):
        stage = options.stage or LocalStage(impl.given(op.options(case)), device)
        probes = options.probes or Probes(
            op, case, device, ToleranceFromBaseline.local(op, case, device), seeds
        )
        calls = _Calls(op, impl, case, stage, expected_outputs(op, case, device), options)
        for probe in probes.of_check(seeds, impl.accumulator):
            calls.check(probe)
        if options.one_element_changed:
            for one_changed in with_one_element_changed(probes.of(seeds[-1]), calls.expected.values()):
                calls.check(one_changed)
        if options.repeated and nbytes <= _REPEATED_BYTES:
            calls.repeat(probes.of(seeds[0]))
    return calls.agreement(len(seeds))


@dataclass
class _Calls:
    """Calls one implementation, and examines the outputs and the memory after each call."""

    op: Op
    impl: Implementation
    case: Case
    stage: Stage
    expected: Outputs
    options: CheckOptions
    findings: dict[str, Finding] = field(default_factory=dict)
    """By name: the first failure, else the first."""
    errors: list[Errors] = field(default_factory=list)
    """Of each output of each call."""
    mismatch: Mismatch | None = None
    """The first."""
    first: Outputs | None = None
    """The outputs of the first call."""
    notes: dict[str, None] = field(default_factory=dict)
    """What a reader should know, each once."""

    def check(self, probe: Probe) -> None:
        """Call it on the inputs of a probe."""
        called, again = self._call(probe)
        if not self.errors:
            self.first = called.outputs
        where = "around the output" if called.guarded else "none around the output"
        self._find(probe, "guard zones", "; ".join(called.violations) or None, where)
        self.notes |= dict.fromkeys(note for note in called.notes if not note.endswith(HELPED))
        if self.options.own_work:
            self._find(probe, "own work", self._not_its_own(probe, called))
        if called.outputs is None:
            self.errors.append(Errors(score=math.inf, compared=1))
            return
        self._find(probe, "output is fresh", called.shared)
        for reference, (name, output) in zip(probe.references, called.outputs.items(), strict=True):
            with _COMPARING:
                self._compare(probe, reference, output, again.get(name) if output.itemsize == 1 else None)

    def repeat(self, probe: Probe) -> None:
        """Call it again on the inputs of the first call, over memory with another poison.

        Float atomics may change an output's bits, so a difference counts only if it is beyond the tolerance.
        """
        if self.first is None:
            return
        self.stage.place(probe.inputs)
        second = self.stage.call(self.expected, SECOND_POISON).outputs or {}
        problem = None
        for reference, (name, output) in zip(probe.references, second.items(), strict=False):
            op, first = reference.op, self.first[name]
            op.mask_unspecified(probe.inputs, output)
            bits = BITS[output.itemsize]  # NaN equals itself
            if torch.equal(first.view(bits), output.view(bits)):
                continue
            limit = self._limit(reference)
            before, after = (
                errors_of(op, self.case, reference, x, limit, self.impl.accumulator) for x in (first, output)
            )
            counts = [each.wrong + each.misplaced for each in (before, after)]
            if counts[0] != counts[1]:
                problem = (
                    f"{counts[0]} and {counts[1]} elements are wrong in two runs on equal inputs: a race?"
                )
        self._find(probe, REPEATABLE, problem)

    def _limit(self, reference: Reference) -> float:
        """The largest error that is allowed."""
        tolerance = reference.op.tolerance(self.case)
        return self.options.slack * limit_of(tolerance, self.impl.accumulator, reference.limit)

    def _not_its_own(self, probe: Probe, called: CallResult) -> str | None:
        """The work that PyTorch did in place of the implementation, or that no kernel of its own ran."""
        if idle := _idling(self.impl, probe.inputs, called):
            return _borrowing(self.op, called.borrowed) or idle
        if not self.options.helpers or not _helps(self.op, called):
            return _borrowing(self.op, called.borrowed)
        if note := _help(self.op, called):
            self.notes[note] = None
        return None

    def _find(self, probe: Probe, name: str, problem: str | None, otherwise: str = "") -> None:
        if name not in self.findings or (problem is not None and self.findings[name].passed):
            detail = otherwise if problem is None else f"{probe.name}: {problem}"
            self.findings[name] = Finding(name, problem is None, detail)

    def _call(self, probe: Probe) -> tuple[CallResult, Outputs]:
        """The result of a call; where outputs have one-byte elements, also those over the other poison."""
        inputs = self.stage.place(probe.inputs)
        memory = [memory_of(x) for x in inputs]
        # Inputs placed elsewhere are copies already.
        copies = [
            x.clone() if placed is original else memory_of(original)
            for x, placed, original in zip(memory, inputs, probe.inputs, strict=True)
        ]
        called = self.stage.call(self.expected)
        again: Outputs = {}
        if called.outputs is not None and any(x.itemsize == 1 for x in self.expected.values()):
            again = self.stage.call(self.expected, SECOND_POISON).outputs or {}
        self._find(probe, "output", called.problem)
        written = changed(memory, copies)
        self._find(probe, "inputs unchanged", f"argument {written[0]} was written to" if written else None)
        for i in written:
            memory[i].copy_(copies[i])
        return called, again

    def _compare(
        self, probe: Probe, reference: Reference, output: torch.Tensor, again: torch.Tensor | None
    ) -> None:
        op, accumulator = reference.op, self.impl.accumulator
        which = f"{op.output}: " if len(self.expected) > 1 else ""
        limit = self._limit(reference)
        op.mask_unspecified(probe.inputs, output)
        left_out = untouched(output, again)
        unwritten = int(left_out.sum())
        gap = f"{which}{unwritten} of {output.numel()} elements were not written"
        self._find(probe, "all written", gap if unwritten else None)
        errors = errors_of(op, self.case, reference, output, limit, accumulator)
        self.errors.append(errors)
        by = f"{errors.score:.3g} {accumulator} roundings (tolerance: {limit:.3g})"
        if not output.is_floating_point():
            by = f"{errors.max_abs:.0f}"
        wrong = f"{which}{errors.wrong} of {errors.compared} elements are wrong, by up to {by}"
        hint = f". {reference.hint}" if reference.hint else ""
        self._find(probe, "values", wrong + hint if errors.wrong else None)
        differ = "element differs" if errors.misplaced == 1 else "elements differ"
        misplaced = f"{which}{errors.misplaced} {differ} from the reference in being NaN or infinite"
        self._find(probe, "NaN and infinity", misplaced + hint if errors.misplaced else None)
        for invariant in () if errors.wrong or errors.misplaced else op.invariants:
            self._find(probe, invariant.name, invariant.check(probe.inputs, output))
        if self.mismatch is None and (errors.wrong or errors.misplaced):
            mismatch = mismatch_of(op, self.case, reference, output, limit, accumulator, left_out)
            if mismatch is not None and which:
                mismatch = replace(mismatch, pattern=which + (mismatch.pattern or "no pattern"))
            self.mismatch = mismatch

    def agreement(self, seeds: int) -> Agreement:
        """All calls in one: the worst of each figure."""
        worst = max(self.errors, key=lambda each: each.score / each.limit if each.limit else math.inf)
        measured = [each for each in self.errors if each.measured]
        samples = [ulp for each in self.errors for ulp in each.ulps]
        ulps = torch.cat(samples) if samples else torch.full((1,), math.nan, dtype=torch.float64)
        without = 0.0 if measured else math.nan
        p50, p99 = ulps.nanquantile(ulps.new_tensor((0.5, 0.99))).nan_to_num(nan=without).tolist()
        compared = sum(each.compared for each in self.errors)
        return Agreement(
            passed=all(finding.passed for finding in self.findings.values()),
            max_abs=max((each.max_abs for each in measured), default=math.nan),
            max_rel=max((each.max_rel for each in measured), default=math.nan),
            ulp_p50=p50,
            ulp_p99=p99,
            ulp_max=max((each.max_ulp for each in measured), default=math.nan),
            within=sum(each.within for each in self.errors) / compared if compared else 1.0,
            error=worst.score,
            limit=worst.limit,
            seeds=seeds,
            findings=tuple(self.findings.values()),
            mismatch=self.mismatch,
            notes=tuple(self.notes),
        )


def _work(op: Op, borrowed: Mapping[str, Borrowed]) -> dict[str, Borrowed]:
    """PyTorch's operators that did work of the op; copies count only where the op only moves data."""
    return {name: did for name, did in borrowed.items() if op.is_copy_only or not is_copy(name)}


_HELPER_VALUES = 4
"""A row's sum and maximum, that one's index, and a quotient."""


def _helps(op: Op, called: CallResult) -> bool:
    """Whether PyTorch computed no more than a few values for each row of the output.

    The output cannot come from these, unless the op itself reduces a dimension or only moves data.
    """
    dims, remaining = (
        {name for sizes in re.findall(r"\[([^]]*)\]", part) for name in re.findall(r"\w+", sizes)}
        for part in op.signature.split("->")
    )
    if op.is_copy_only or dims - remaining or called.outputs is None:
        return False
    rows = max(math.prod(output.shape[:-1]) for output in called.outputs.values())
    values = sum(did.values for did in _work(op, called.borrowed).values())
    return values <= _HELPER_VALUES * max(1, rows)


def _help(op: Op, called: CallResult) -> str | None:
    """The note on what PyTorch's operators did beside the implementation's own kernels."""
    work = _work(op, called.borrowed)
    if not work:
        return None
    names = [f"torch.{name.partition('::')[2]}" for name in work]
    return note_on_helpers(sum(did.calls for did in work.values()), called.launched, names)


HELPED = ": label it torch.NAME to compare it"
"""How the note ends on a row that has PyTorch do a part."""


def note_on_helpers(theirs: int, own: int | None, names: Sequence[str]) -> str:
    """The note on a row with ``theirs`` launches of PyTorch's, by ``names``, and ``own`` if that is known."""
    launches = f"{theirs} of {theirs + own}" if own is not None else "some"
    return f"{launches} launches are PyTorch's ({', '.join(names)}){HELPED}"


def _borrowing(op: Op, borrowed: Mapping[str, Borrowed]) -> str | None:
    """The PyTorch operators that did the op's work."""
    work = _work(op, borrowed)
    if not work:
        return None
    why = f": moving data is all that {op.name} does" if all(map(is_copy, work)) else ""
    return f"it called PyTorch's {', '.join(work)} in place of its own code{why}"


def _idling(impl: Implementation, inputs: tuple[torch.Tensor, ...], called: CallResult) -> str | None:
    """That no kernel ran, though the implementation has its own and there was something to compute."""
    if called.launched != 0 or called.outputs is None or impl.route not in ("triton", "cupy"):
        return None
    if not all(x.numel() for x in (*inputs, *called.outputs.values())):
        return None
    return f"it launches no {'Triton' if impl.way == 'triton' else 'CUDA'} kernel"
