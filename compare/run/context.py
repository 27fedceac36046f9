"""What every stage of a run is given, and the results of one case, which the stages fill in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from compare.device import capability, default_archs
from compare.model.op import Case, Implementation, Op
from compare.model.result import Card, Ceilings, Configuration, Options, Row, Status
from compare.run.verdict import of_judge, verdict
from compare.tuning import sweep
from compare.worker.pool import WorkerPool

Progress = Callable[[str, float], None]
"""``progress(what, done)``: the current step, and the share of the run that is over, 0 to 1."""


def silent(what: str, done: float) -> None:
    """No progress shown."""


class Meter:
    """Reports steps of unequal weight as the share of a run that is over.

    Args:
        progress: called at every step.
        total: the weight of the whole run.
    """

    def __init__(self, progress: Progress, total: float) -> None:
        self._progress, self._total = progress, max(total, 1.0)
        self._done = 0.0

    def say(self, what: str) -> None:
        self._progress(what, min(1.0, self._done / self._total))

    def step(self, what: str) -> None:
        """Begin a step of weight 1."""
        self.say(what)
        self._done += 1

    @contextmanager
    def part(self, what: str, weight: float) -> Iterator[Callable[[float], None]]:
        """A step that reports its own share, 0 to 1."""
        start = self._done

        def advance(share: float) -> None:
            self._done = start + weight * share
            self.say(what)

        advance(0.0)
        yield advance
        self._done = start + weight


@dataclass(frozen=True)
class Step:
    """What is done with one case."""

    case: Case
    check: bool
    inspect: bool


@dataclass(frozen=True)
class Context:
    """One run: what is compared, how, where, and with which workers.  No stage changes any of it."""

    op: Op
    impls: tuple[Implementation, ...]
    steps: tuple[Step, ...]
    options: Options
    device: torch.device
    pool: WorkerPool
    meter: Meter
    hashes: Mapping[str, str]
    """Of the implementations' sources, by label."""
    trials: sweep.Trials | None = None
    """What ``--tune`` added."""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def first_check(self) -> Step | None:
        """The first step that checks: what is checked once in a run is checked there."""
        return next((step for step in self.steps if step.check), None)

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures that kernels are compiled for."""
        return self.options.archs or default_archs(self.device)

    def archs_of(self, impl: Implementation) -> list[str]:
        """Those of `archs` that ``impl`` can be compiled for."""
        needed = capability(impl.requires) if impl.requires else 0
        return [arch for arch in self.archs if capability(arch) >= needed]

    def inputs(self, case: Case) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator(self.device).manual_seed(self.options.seed)
        return self.op.make_inputs(case, generator, self.device)

    def row(self, impl: Implementation, status: Status = "ok", reason: str = "") -> Row:
        """A row of ``impl`` with nothing but its verdict."""
        configuration = Configuration(
            default=impl.base or impl.untuned, model=impl.matches if impl.base else ""
        )
        if self.trials is not None:
            values = self.trials.parameters.get(impl.label, ())
            note = self.trials.notes.get(impl.label, "")
            configuration = replace(
                configuration, parameters=values, text=sweep.worded(values), unmatched=note
            )
        return Row(
            impl.label,
            impl.level,
            status,
            reason,
            impl.accumulator,
            self.hashes[impl.label],
            configuration=configuration,
        )


@dataclass
class RowState:
    """One implementation on one case.  Each stage replaces the row by one that it knows more of."""

    impl: Implementation
    """As it was run: with ``--matched`` it has another's configuration."""
    row: Row
    first_call_ms: float | None = None
    held_bytes: int = 0
    """The most GPU memory that PyTorch held for it."""

    def refuse(self, error: BaseException) -> None:
        """The row has no times, for the reason that ``error`` gives; one that is wrong stays so."""
        status, reason = verdict(error)
        if self.row.status == "ordinary" and status != "disagrees":
            status, reason = self.row.status, self.row.reason
        by_judge = of_judge(error)
        self.row = replace(self.row, status=status, reason=reason, timing=None, by_judge=by_judge)


@dataclass
class CaseResult:
    """What is known of one case so far: whatever ends the run, it holds every row that was finished."""

    case: Case
    entries: dict[str, RowState] = field(default_factory=dict)
    """By label."""
    ceilings: Ceilings | None = None
    card: Card | None = None

    def keep(self, entry: RowState) -> None:
        self.entries[entry.impl.label] = entry

    def correct(self) -> list[RowState]:
        """The rows to time: those that are correct on this case, if on ordinary inputs only."""
        return [entry for entry in self.entries.values() if entry.row.status in ("ok", "ordinary")]
