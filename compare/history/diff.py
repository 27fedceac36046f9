"""The difference of two recorded runs: rows that are faster, slower, wrong, or no longer there.

The samples of two runs are not pairs, so a speedup is the ratio of the two medians, with an interval derived
from theirs (`statistics.between`).  Clocks and temperature differ more between two runs than within one, so
the interval holds `statistics.ACROSS` times the variance between processes of one run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from compare import registry
from compare.model.result import WRONG, Comparison, Environment, Estimate, Row
from compare.records.archive import Key, Recorded, newest
from compare.timing import figures, statistics

NOTICEABLE = 0.01
"""The relative difference from which clocks and ceilings of two runs are listed."""

Outcome = Literal["broken", "lost", "slower", "ambiguous", "faster", "fixed", "new", "same", "untimed"]
"""In the order of the screen.  ``broken``: was correct and is not; ``fixed``: the reverse; ``untimed``: as
correct as before, without a measured time on both sides."""

WORSE: tuple[Outcome, ...] = ("slower", "lost", "broken")

_EQUAL = Estimate(1.0, 1.0, 1.0)
"""The speedup where both sides hold the very same samples."""


@dataclass(frozen=True)
class Change:
    """What became of one implementation on one case."""

    op: str
    case: str
    label: str
    outcome: Outcome
    ratio: Estimate | None = None
    """The speedup, before / now: above 1 is faster."""
    least: float | None = None
    """The largest difference that equals show between two runs, as a share: part of the interval."""
    old_us: Estimate | None = None
    new_us: Estimate | None = None
    source_changed: bool = False
    detail: str = ""
    history_us: tuple[float | None, ...] = ()
    """Of three files or more the median in each; None where the row is not correct or not timed."""


@dataclass(frozen=True)
class Diff:
    environment: tuple[str, ...]
    """How machines and software differ, one line each."""
    changes: tuple[Change, ...]
    counts: Mapping[Outcome, int] = field(default_factory=dict)
    in_both: int = 0
    """How many rows are in both files; without one nothing was compared."""
    files: tuple[str, ...] = ()
    """Of three or more their names and dates, as given."""
    in_order: bool = True
    """Whether the dates ascend."""

    @property
    def worse(self) -> bool:
        return any(change.outcome in WORSE for change in self.changes)

    @property
    def undecided(self) -> bool:
        """A row is ambiguous, or no row was timed in both."""
        outcomes = {change.outcome for change in self.changes}
        return "ambiguous" in outcomes or outcomes <= {"untimed", "new"}


def diff(old: Sequence[Comparison], new: Sequence[Comparison], only: Sequence[str] = ()) -> Diff:
    """What changed from ``old`` to ``new``, each the runs of one file, in the order of ``old``.

    Args:
        old: the runs to compare with.
        new: the runs to judge.
        only: glob patterns over labels; none means all.
    """
    before, after = _chosen(old, only), _chosen(new, only)
    changes = [_change(key, before.get(key), after.get(key)) for key in dict.fromkeys((*before, *after))]
    return Diff(
        machines(old, new, only),
        tuple(changes),
        Counter(each.outcome for each in changes),
        len(before.keys() & after.keys()),
    )


def _chosen(runs: Sequence[Comparison], only: Sequence[str]) -> dict[Key, Recorded]:
    return {key: row for key, row in newest(runs).items() if registry.is_among(row.row.label, only)}


def _change(key: Key, old: Recorded | None, new: Recorded | None) -> Change:
    if new is None:
        assert old is not None
        cold = measured(old.row) if old.row.status == "ok" else None
        return Change(*key, "lost" if cold else "untimed", old_us=cold, detail="only in the old")
    if old is None:
        return Change(*key, "new", new_us=measured(new.row), detail=f"only in the new: {_state(new.row)}")
    changed = old.row.source_hash != new.row.source_hash
    before, after = measured(old.row), measured(new.row)
    if old.row == new.row:
        return Change(*key, "same", _EQUAL if before else None, old_us=before, new_us=after)
    if old.row.status == "ok" and new.row.status != "ok":
        return Change(*key, "broken", old_us=before, source_changed=changed, detail=_state(new.row))
    if old.row.status != "ok":
        outcome: Outcome = "fixed" if new.row.status == "ok" else "untimed"
        detail = f"was: {_state(old.row)}" if outcome == "fixed" else f"still: {_state(new.row)}"
        return Change(*key, outcome, new_us=after, source_changed=changed, detail=detail)
    if before is None or after is None:
        if before is not None and not new.row.recorded:
            return Change(*key, "lost", old_us=before, source_changed=changed, detail="no longer timed")
        return Change(*key, "untimed", source_changed=changed, detail="not timed in both")
    least = statistics.ACROSS * figures.detectable(old.row, new.row)
    if before == after:
        return Change(*key, "same", _EQUAL, least, before, after, changed)
    ratio = statistics.between(before, after)
    outcome = statistics.verdict(ratio, least)
    return Change(*key, outcome, statistics.widened(ratio, least), least, before, after, changed)


def measured(row: Row) -> Estimate | None:
    """Its measured time; a replayed one belongs to another run."""
    cold = row.timing.cold_us if row.timing and not row.recorded else None
    return cold if cold and cold.median > 0 and cold.low > 0 else None


def _state(row: Row) -> str:
    if row.status == "ok":
        return "correct"
    return (
        f"{row.status}, {row.reason}" if row.reason and row.status not in WRONG else row.reason or row.status
    )


# --------------------------------------------------------------------------- the machines


def machines(
    old: Sequence[Comparison], new: Sequence[Comparison], only: Sequence[str] = ()
) -> tuple[str, ...]:
    """How machines, software and ceilings of two files differ, one line each."""
    before, after = _chosen(old, only), _chosen(new, only)
    both = [(before[key], after[key]) for key in before if key in after]
    # Without a row in both, the machines are those of the newest runs.
    newest_pair = zip(list(before.values())[:1], list(after.values())[:1], strict=False)
    differences = (line for pair in both or newest_pair for line in _differences(*pair))
    return tuple(dict.fromkeys((*differences, *_ceilings(both))))


def _differences(old: Recorded, new: Recorded) -> Iterator[str]:
    ours, theirs = old.run.environment, new.run.environment
    for name in ("device", "arch", "driver", "host"):
        yield from _line(name, getattr(ours, name), getattr(theirs, name))
    for package in dict.fromkeys((*ours.versions, *theirs.versions)):
        yield from _line(package, ours.versions.get(package), theirs.versions.get(package))
    for name, unit in (("sm_mhz", "MHz"), ("memory_mhz", "MHz"), ("power_limit_w", "W")):
        yield from _figure(name.partition("_")[0] + " " + unit, _clock(ours, name), _clock(theirs, name))
    yield from _line("throttled by", _throttle(ours), _throttle(theirs))
    yield from _line("seed", str(old.run.seed), str(new.run.seed))


def _ceilings(both: Sequence[tuple[Recorded, Recorded]]) -> Iterator[str]:
    """How copy bandwidth differs, one line for each op: the median over the cases where it does."""
    differing: dict[str, dict[str, tuple[float, float]]] = {}
    for old, new in both:
        before, after = old.comparison.ceilings, new.comparison.ceilings
        if before and after and _differs(before.copy_gbs, after.copy_gbs):
            cases = differing.setdefault(old.run.op, {})
            cases[str(old.comparison.case)] = before.copy_gbs, after.copy_gbs
    for op, cases in differing.items():
        on = f" {next(iter(cases))}" if len(cases) == 1 else f", median of {len(cases)} cases"
        before_gbs, after_gbs = (median(each) for each in zip(*cases.values(), strict=True))
        yield _change_of(f"copy bandwidth in GB/s, {op}{on}", before_gbs, after_gbs)


def _line(name: str, old: str | None, new: str | None) -> Iterator[str]:
    if old != new:
        yield f"{name}: {old or 'none'} -> {new or 'none'}"


def _figure(name: str, old: float | None, new: float | None) -> Iterator[str]:
    if old and new and _differs(old, new):
        yield _change_of(name, old, new)


def _differs(old: float, new: float) -> bool:
    return abs(new / old - 1) > NOTICEABLE


def _change_of(name: str, old: float, new: float) -> str:
    return f"{name}: {old:.4g} -> {new:.4g} ({new / old - 1:+.1%})"


def _clock(environment: Environment, name: str) -> float | None:
    """The higher of before and after: an idle card clocks down."""
    values = [environment.clocks.get(f"{name}_{when}") for when in ("before", "after")]
    return max((value for value in values if isinstance(value, float)), default=None)


def _throttle(environment: Environment) -> str:
    return str(environment.clocks.get("throttle_after", "none"))
