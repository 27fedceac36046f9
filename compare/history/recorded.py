"""All that is on record of an op, as one comparison: the runs of a device merged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from compare import registry
from compare.code_size.hashes import source_hash
from compare.model.op import Op
from compare.model.result import CaseComparison, Comparison
from compare.records import archive
from compare.tuning.matching import registered_as


def recorded(op: Op, root: Path = archive.RESULTS) -> Comparison | None:
    """`merged` of the device recorded last; None: nothing is recorded."""
    files = sorted(root.glob(f"*/{op.name}.jsonl"))
    return _recorded(op.name, root, tuple((file, file.stat().st_mtime_ns) for file in files))


@functools.lru_cache(1)
def _recorded(op: str, root: Path, files: tuple[tuple[Path, int], ...]) -> Comparison | None:
    """Read once for the blocks of a page; ``files`` tells when to read again."""
    runs = archive.runs_of(op, root)
    return merged([run for run in runs if run.environment.device == runs[0].environment.device])


def merged(runs: Sequence[Comparison]) -> Comparison | None:
    """The runs of one op on one device as one comparison; None: they hold no measured row.

    Cases and rows are in the registry's order, the newest of each; a row says where it is from, and whether
    its source has changed.  Date and machine are those of the last run of the default case, which a screen
    shows.
    """
    runs = sorted(runs, key=lambda run: run.created, reverse=True)
    op = next((registry.get_op(run.op) for run in runs if run.op in registry.op_names()), None)
    hashes = {impl.label: source_hash(impl) for impl in registry.implementations(op.name)} if op else {}
    cases: dict[str, CaseComparison] = {}
    for run in runs:
        for case in run.cases:
            seen = cases.get(case.case)
            known = {row.label for row in seen.rows} if seen else set()
            rows = tuple(
                replace(
                    row,
                    recorded=archive.provenance(
                        archive.Recorded(row, case, run), hashes.get(registered_as(row.label), "")
                    ),
                )
                for row in case.rows
                if row.label not in known and not row.recorded  # that is another run's
            )
            if rows:
                cases[case.case] = (
                    replace(seen, rows=(*seen.rows, *rows)) if seen else replace(case, rows=rows)
                )
    if not cases:
        return None
    names = [str(case) for case in (op.cases.default, *op.cases.sweep)] if op else []
    place, case_place = _places(hashes), _places(names)

    def label_place(label: str) -> int:
        return place(registered_as(label))

    sizes = {label: size for run in reversed(runs) for label, size in run.code_sizes.items()}
    of_default = (run for run in runs if any(case.case in names[:1] for case in run.cases))
    return replace(
        next(of_default, runs[0]),
        cases=tuple(
            replace(case, rows=tuple(sorted(case.rows, key=lambda row: label_place(row.label))))
            for case in sorted(cases.values(), key=lambda case: case_place(case.case))
        ),
        code_sizes={label: sizes[label] for label in sorted(sizes, key=label_place)},
    )


def _places(names: Iterable[str]) -> Callable[[str], int]:
    """The place of a name among these; unknown names come last."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return lambda name: places.get(name, len(places))
