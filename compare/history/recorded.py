"""All that is on record of an op, as one comparison: the runs of a device merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from compare import registry
from compare.code_size.hashes import source_hash
from compare.model.op import Op
from compare.model.result import CaseComparison, Comparison
from compare.records import archive
from compare.timing.figures import is_trial
from compare.tuning.matching import registered_as


def recorded(op: Op, root: Path = archive.RESULTS, device: str = "") -> Comparison | None:
    """`merged` of a device's runs without ``--tune``'s rows; None: nothing is recorded.

    The device is by default `archive.device_of`'s.
    """
    runs = [archive.filtered(run, lambda _, row: not is_trial(row)) for run in archive.runs_of(op.name, root)]
    device = device or archive.device_of(runs, str(op.cases.default))
    return merged([run for run in runs if run.environment.device == device])


def case_of(run: Comparison | None, case: str) -> CaseComparison | None:
    """None: nothing is on record, or not of this case."""
    return next((each for each in run.cases if each.case == case), None) if run else None


def most_recorded(runs: Iterable[Comparison]) -> str:
    """The device with the most ops among these runs: pages that show many ops show one device."""
    ops: dict[str, set[str]] = {}
    for run in runs:
        ops.setdefault(run.environment.device, set()).add(run.op)
    return max(ops, key=lambda device: len(ops[device]), default="")


def merged(runs: Sequence[Comparison]) -> Comparison | None:
    """The runs of one op on one device as one comparison; None: they hold no measured row.

    Cases and rows are in the registry's order, the newest of each; a row says where it is from, and whether
    its source has changed.  Date and machine are those of the last run of the default case, which a screen
    shows.
    """
    runs = sorted(runs, key=lambda run: run.created, reverse=True)
    op = next((registry.get_op(run.op) for run in runs if run.op in registry.op_names()), None)
    hashes = {impl.label: source_hash(impl) for impl in registry.implementations(op.name)} if op else {}
    measured = (archive.filtered(run, lambda _, row: not row.recorded) for run in runs)
    cases: dict[str, list[archive.Recorded]] = {}
    for entry in archive.newest(measured).values():
        cases.setdefault(entry.comparison.case, []).append(entry)
    if not cases:
        return None
    names = [str(case) for case in (op.cases.default, *op.cases.sweep)] if op else []
    place, case_place = _places(hashes), _places(names)

    def label_place(label: str) -> int:
        return place(registered_as(label))

    def merged_case(case: str) -> CaseComparison:
        entries = sorted(cases[case], key=lambda entry: label_place(entry.row.label))
        rows = (
            replace(
                entry.row,
                recorded=archive.provenance(entry, hashes.get(registered_as(entry.row.label), "")),
            )
            for entry in entries
        )
        return replace(cases[case][0].comparison, rows=tuple(rows))

    sizes = {label: size for run in reversed(runs) for label, size in run.code_sizes.items()}
    of_default = (run for run in runs if any(case.case in names[:1] for case in run.cases))
    return replace(
        next(of_default, runs[0]),
        cases=tuple(map(merged_case, sorted(cases, key=case_place))),
        code_sizes={label: sizes[label] for label in sorted(sizes, key=label_place)},
    )


def _places(names: Iterable[str]) -> Callable[[str], int]:
    """The place of a name among these; unknown names come last."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return lambda name: places.get(name, len(places))
