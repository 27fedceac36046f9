"""Comparisons as JSON: what ``--json`` writes and ``results/<device>/<op>.json`` keeps.

A file holds the schema's version and a list of runs, newest first.  A run added to a record takes the
place of every row it has measured anew (same case, same label); rows it has not stay where they were,
under the environment, date and ceilings they were measured with.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from compare.records.encoding import decode, encode, write_whole
from compare.registry import ROOT
from compare.spec import WRONG, CaseComparison, Comparison, Row, UsageError

RESULTS = ROOT / "results"
SCHEMA = Comparison.schema

CHANGED = "its source changed since"


@dataclass(frozen=True)
class Recorded:
    """One row of a record, with the run it comes from."""

    row: Row
    comparison: CaseComparison
    run: Comparison


# --------------------------------------------------------------------------- text


def dumps(runs: Sequence[Comparison]) -> str:
    """Runs as JSON text: strict (no bare NaN), sorted as the dataclasses are, a list of figures on a line."""
    document = {"schema": SCHEMA, "runs": [encode(run) for run in runs]}
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    # JSON strings hold no raw line breaks, so this touches nothing but layout.
    return re.sub(r"\[\s*\n([^][{}]*?)\s*\n\s*\]", _on_one_line, text) + "\n"


def loads(text: str, origin: str = "the text", case: str | None = None) -> tuple[Comparison, ...]:
    """Read what `dumps` wrote, or of every run one ``case`` only, which takes a fraction of the time.

    Raises:
        UsageError: it is damaged, or of a schema this checkout does not know; ``origin`` is named.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"{origin} is not whole, or none that --json or --record wrote: {error}. One of results/ comes "
            "back by git checkout"
        ) from None
    if not isinstance(document, dict) or "schema" not in document or "runs" not in document:
        raise UsageError(f"{origin} is no record of comparisons: it has no 'schema' and 'runs'")
    if document["schema"] != SCHEMA:
        raise UsageError(
            f"{origin} has schema {document['schema']!r}, this checkout reads {SCHEMA}. "
            "Use the version of the project that wrote it, or record anew"
        )
    try:
        runs = document["runs"]
        if case is not None:
            runs = [{**run, "cases": [c for c in run["cases"] if c["case"] == case]} for run in runs]
        found = tuple(decode(Comparison, run, f"runs[{i}]") for i, run in enumerate(runs))
        for run in found:
            _check_times(run)
        return found
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(f"{origin} is damaged: {error}. Restore it (git checkout) or delete it") from None


def _check_times(run: Comparison) -> None:
    """Others are divided by them."""
    for case in run.cases:
        for row in case.rows:
            cold = row.timing.cold_us if row.timing else None
            if cold and not all(time > 0 for time in (cold.median, cold.low, *cold.samples)):
                raise ValueError(f"{run.op} on {case.case}: {row.label} has a cold time that is not above 0")


def _on_one_line(match: re.Match[str]) -> str:
    return "[" + re.sub(r"\s*\n\s*", " ", match[1].strip()) + "]"


# --------------------------------------------------------------------------- files


def read(path: Path, case: str | None = None) -> tuple[Comparison, ...]:
    """The runs in one file, or one ``case`` of them; a `UsageError` if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return loads(text, str(path), case)


def device_slug(device: str) -> str:
    """``NVIDIA H100 80GB HBM3`` -> ``nvidia-h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def path_of(device: str, op: str, root: Path = RESULTS) -> Path:
    return root / device_slug(device) / f"{op}.json"


def record(comparison: Comparison, root: Path = RESULTS) -> Path:
    """Add a run to its device's record and return the file's path.

    Only what this run has measured itself goes in: replayed rows do not, nor do rows that an
    interruption left without a time.  Two runs that record at once wait for each other.

    Raises:
        UsageError: the record cannot be written, or what is there cannot be read.
    """
    path = path_of(comparison.environment.device, comparison.op, root)
    lock = Path(tempfile.gettempdir()) / f"compare-{os.getuid()}-{device_slug(str(path.resolve()))}.lock"
    try:
        with FileLock(lock):
            older = read(path) if path.exists() else ()
            write_whole(path, dumps(merge(_measured(comparison), older)))
    except OSError as error:
        raise UsageError(
            f"{path} could not be written: {error}. What was found is on the screen; to have it recorded, "
            "mend that and run this again"
        ) from None
    return path


def merge(new: Comparison, older: Iterable[Comparison]) -> tuple[Comparison, ...]:
    """``new`` first, then of the older runs the rows that it has not measured anew."""
    measured = {(case.case, row.label) for case in new.cases for row in case.rows}
    kept = [_without(run, measured) for run in older]
    return tuple(run for run in (new, *kept) if run.cases)


def _measured(comparison: Comparison) -> Comparison:
    def finished(row: Row) -> bool:
        return not row.replayed and (row.timing is not None or row.status in (*WRONG, "failed"))

    def lean(row: Row) -> Row:
        """Without the samples of ratios: those of the cold times are kept, and they follow from them."""
        if row.timing is None:
            return row
        ratios = tuple(replace(r, value=replace(r.value, samples=())) for r in row.timing.ratios)
        return replace(row, timing=replace(row.timing, ratios=ratios))

    kept = _filter(comparison, lambda case, row: finished(row))
    cases = tuple(replace(case, rows=tuple(map(lean, case.rows))) for case in kept.cases)
    return replace(kept, cases=cases)


def _without(run: Comparison, measured: set[tuple[str, str]]) -> Comparison:
    return _filter(run, lambda case, row: (case, row.label) not in measured)


def _filter(run: Comparison, keep: Callable[[str, Row], bool]) -> Comparison:
    """``run`` with only the rows that are to be kept, without cases and code sizes left empty."""
    cases = [
        replace(case, rows=tuple(row for row in case.rows if keep(case.case, row))) for case in run.cases
    ]
    labels = {row.label for case in cases for row in case.rows}
    return replace(
        run,
        cases=tuple(case for case in cases if case.rows),
        code_sizes={label: size for label, size in run.code_sizes.items() if label in labels},
    )


def runs_of(op: str, root: Path = RESULTS, case: str | None = None) -> list[Comparison]:
    """Every recorded run of ``op`` on any device, newest first; of ``case`` only if it is given."""
    runs = [run for path in sorted(root.glob(f"*/{op}.json")) for run in read(path, case)]
    return sorted(runs, key=lambda run: run.created, reverse=True)


def find(op: str, case: str, root: Path = RESULTS) -> dict[str, Recorded]:
    """The recorded rows of one case by label, all of the device that was recorded last."""
    found: dict[str, Recorded] = {}
    device = None
    for recorded in _rows(runs_of(op, root, case), case):
        device = device or recorded.run.environment.device
        if recorded.run.environment.device == device:
            found.setdefault(recorded.row.label, recorded)
    return found


def provenance(run: Comparison, row: Row, source_hash: str) -> str:
    """Where and when a recorded row was measured, and whether its source has changed since."""
    origin = f"{run.environment.device}, {run.created[:10]}"
    return origin if row.source_hash == source_hash else f"{origin}, {CHANGED}"


def changed_since(row: Row) -> bool:
    """Whether a replayed row's source is no longer the one that was measured."""
    return row.replayed.endswith(CHANGED)


def _rows(runs: Iterable[Comparison], case: str) -> Iterator[Recorded]:
    for run in runs:
        for comparison in run.cases:
            if comparison.case == case:
                for row in comparison.rows:
                    yield Recorded(row, comparison, run)
