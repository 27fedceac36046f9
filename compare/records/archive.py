"""Comparisons as JSON: what ``--json`` writes and ``results/<device>/<op>.json`` keeps.

One document: the schema's number and a list of runs, newest first.  Every row has a line of its own, so that
a diff is readable; fields with their default value are left out.

A run added to a record replaces the rows that it measured again (same case, same label), unless they failed
now and have times of the same source.  Other rows stay, with the environment, date and ceilings of their own
run.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from compare.model.op import UsageError
from compare.model.result import WRONG, CaseComparison, Comparison, Estimate, Provenance, Row
from compare.places import RECORDS
from compare.places import RESULTS as RESULTS
from compare.records.encoding import decode, encode, write_whole
from compare.records.reading import read_text

SCHEMA: Literal[3] = 3
_SCHEMA_OF = re.compile(r'\s*\{\s*"schema":\s*(\d{1,9})\b')
_ROW_DEPTH = 6
"""Of a row in a document: below ``runs``, a run, ``cases``, a case, ``rows``."""
_DECIMALS = 3
"""Decimals of a recorded sample in microseconds: the event clock's tick is 0.032 us."""

MOST_BYTES = 1 << 28
"""Of a file of records."""
_DIGITS = 20
"""Of a whole number, with its sign: 64 bits."""
_LOCK_S = 60.0

Key = tuple[str, str, str]
"""Op, case, label."""


@dataclass(frozen=True)
class Document:
    schema: Literal[3]
    runs: tuple[Comparison, ...]


@dataclass(frozen=True)
class Recorded:
    """One row of a record, with its case and run."""

    row: Row
    comparison: CaseComparison
    run: Comparison


# --------------------------------------------------------------------------- text


def dumps(runs: Sequence[Comparison]) -> str:
    """Runs as strict JSON text (no bare NaN): fields in the dataclasses' order, a row a line."""
    return _lines({"schema": SCHEMA, "runs": [encode(run, lean=True) for run in runs]}, _ROW_DEPTH) + "\n"


def _lines(value: Any, depth: int, margin: str = "\n") -> str:
    """JSON text with a line for each item, ``depth`` levels down; a flat value has one line."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if depth == 0 or not any(isinstance(item, (dict, list)) for item in items):
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    inner = margin + " "
    texts = [_lines(item, depth - 1, inner) for item in items]
    if isinstance(value, dict):
        names = (json.dumps(name, ensure_ascii=False) for name in value)
        texts = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}{inner}{f',{inner}'.join(texts)}{margin}{closing}"


def loads(text: str, origin: str = "the text") -> tuple[Comparison, ...]:
    """The runs in the text of `dumps`.

    Raises:
        UsageError: the text is damaged, or of a schema this checkout does not know; names ``origin``.
    """
    schema = _SCHEMA_OF.match(text)
    if schema and schema[1] != str(SCHEMA):
        raise UsageError(
            f"{origin} has schema {schema[1]}, this checkout reads {SCHEMA}. "
            "Use the version of the project that wrote it, or record anew"
        )
    try:
        document = json.loads(text, parse_int=_whole)
        _check_printable(text)
        # Names that the schema does not have are ignored: a later version may add a figure.
        return decode(Document, document).runs
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{origin} is damaged, or not written by --json or --record: {error}. git checkout restores "
            "a file of results/"
        ) from None


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _check_printable(text: str) -> None:
    """Check that no string in JSON text has characters that could rewrite the terminal."""
    text = re.sub(r"\\(?:u....|.)", lambda escape: str(json.loads(f'"{escape[0]}"')), text)
    text = text.replace("\n", "").replace("\t", "")
    if not text.isprintable():
        character = next(c for c in text if not c.isprintable())
        raise ValueError(f"{character!a} cannot be printed")


# --------------------------------------------------------------------------- files


def read(path: Path) -> tuple[Comparison, ...]:
    """The runs in one file.

    Raises:
        UsageError: the file cannot be read.
    """
    return loads(read_text(path, MOST_BYTES), str(path))


@functools.lru_cache(maxsize=32)
def _read_once(path: Path, changed_ns: int, size: int) -> tuple[Comparison, ...]:
    """`read`, which takes long, once for all cases of an op; anew where the file has changed."""
    return read(path)


def device_slug(device: str) -> str:
    """``NVIDIA H100 80GB HBM3`` -> ``nvidia-h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def path_of(device: str, op: str, root: Path = RESULTS) -> Path:
    return root / device_slug(device) / f"{op}.json"


def record(comparison: Comparison, root: Path = RESULTS) -> Path:
    """Add a run to its device's record; returns the file's path.

    Only rows that this run measured are added: no replayed ones, and none of the case that an interruption
    ended, which may have few samples.  A file lock orders runs that record at once.

    Raises:
        UsageError: no case was finished, the record cannot be written, or the present one cannot be read.
    """
    new = _measured(comparison)
    if not new.cases:
        raise UsageError(f"nothing is recorded: no case of {comparison.op} was measured to its end")
    path = path_of(comparison.environment.device, comparison.op, root)

    def text() -> str:
        older = read(path) if path.exists() else ()
        return dumps(merge(new, older, _rows_of(comparison)))

    return update(path, text)


def update(path: Path, text: Callable[[], str]) -> Path:
    """Write a record anew, by one process at a time; returns its path.

    Args:
        path: of the record.
        text: gives the new text; it may read the file.

    Raises:
        UsageError: the record cannot be written; or as of ``text``.
    """
    name = hashlib.sha256(bytes(path.resolve())).hexdigest()[:20]
    shared = os.environ.get("COMPARE_TMPDIR") or tempfile.gettempdir()  # of all runs, and not this one's
    lock = Path(shared) / f"compare-{os.getuid()}-{name}.lock"
    try:
        with FileLock(lock, timeout=_LOCK_S):
            write_whole(path, text())
    except Timeout:
        raise UsageError(
            f"{path} was not written: {lock} has been held for {_LOCK_S:g} s. End the process that records "
            "or hangs, and run this again"
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path} could not be written: {error}. Fix that and run this again to record it"
        ) from None
    return path


def merge(
    new: Comparison, older: Iterable[Comparison], reported: set[tuple[str, str]]
) -> tuple[Comparison, ...]:
    """``new``, then the older runs' rows that it did not measure again.

    An older row without times, such as a failed one, goes also where its case and label are among those of
    which the run ``reported`` something else, such as that it is unavailable.  A row that failed now never
    replaces times of the same source: a lost GPU or a full disk says nothing of the code.  A row whose
    resources were not read keeps those of the same source and configuration.
    """
    older = tuple(older)
    timed = {
        (case.case, row.label, row.source_hash): row
        for run in reversed(older)
        for case in run.cases
        for row in case.rows
        if row.timing is not None
    }

    def counts(case: str, row: Row) -> bool:
        return row.status != "failed" or (case, row.label, row.source_hash) not in timed

    def whole(case: str, row: Row) -> Row:
        old = timed.get((case, row.label, row.source_hash))
        if old is None or row.resources or old.configuration != row.configuration:
            return row
        return replace(row, resources=old.resources)

    new = filtered(new, counts)
    cases = (replace(each, rows=tuple(whole(each.case, row) for row in each.rows)) for each in new.cases)
    new = replace(new, cases=tuple(cases))
    measured = _rows_of(new)

    def stays(case: str, row: Row) -> bool:
        return (case, row.label) not in (measured if row.timing is not None else reported)

    kept = [filtered(run, stays) for run in older]
    return tuple(run for run in (new, *kept) if run.cases)


def _rows_of(run: Comparison) -> set[tuple[str, str]]:
    """The case and label of each row."""
    return {(case.case, row.label) for case in run.cases for row in case.rows}


def _measured(comparison: Comparison) -> Comparison:
    def finished(row: Row) -> bool:
        return not row.recorded and (row.timing is not None or row.status in (*WRONG, "failed"))

    whole = comparison.cases[:-1] if comparison.interrupted else comparison.cases
    kept = filtered(replace(comparison, cases=whole), lambda case, row: finished(row))
    cases = tuple(replace(case, rows=tuple(map(_lean, case.rows))) for case in kept.cases)
    return replace(kept, cases=cases, interrupted=False)  # what is recorded was finished


def _lean(row: Row) -> Row:
    """``row`` with samples rounded to the clock's tick, without those of ratios, which follow from them."""
    timing = row.timing
    if timing is None:
        return row
    series: dict[str, Any] = {
        name: replace(estimate, samples=tuple(round(sample, _DECIMALS) for sample in estimate.samples))
        for name, estimate in vars(timing).items()
        if isinstance(estimate, Estimate)
    }
    ratios = tuple(replace(ratio, value=replace(ratio.value, samples=())) for ratio in timing.ratios)
    return replace(row, timing=replace(timing, **series, ratios=ratios))


def filtered(run: Comparison, keep: Callable[[str, Row], bool]) -> Comparison:
    """``run`` with the rows to keep only, without empty cases and unused code sizes."""
    cases = [
        replace(case, rows=tuple(row for row in case.rows if keep(case.case, row))) for case in run.cases
    ]
    labels = {row.label for case in cases for row in case.rows}
    return replace(
        run,
        cases=tuple(case for case in cases if case.rows),
        code_sizes={label: size for label, size in run.code_sizes.items() if label in labels},
    )


def files_in(root: Path = RESULTS, pattern: str = "*/*.json") -> list[Path]:
    """The records in a folder: of an installed copy the user's, then those that came with it."""
    roots = (RESULTS, RECORDS) if root == RESULTS != RECORDS else (root,)
    return [path for each in roots for path in sorted(each.glob(pattern))]


def runs_of(op: str, root: Path = RESULTS) -> list[Comparison]:
    """Every recorded run of ``op`` on any device, newest first."""
    stats = [(path, path.stat()) for path in files_in(root, f"*/{op}.json")]
    runs = [run for path, stat in stats for run in _read_once(path, stat.st_mtime_ns, stat.st_size)]
    return sorted(runs, key=lambda run: run.created, reverse=True)


def find(op: str, case: str, root: Path = RESULTS, device: str = "") -> dict[str, Recorded]:
    """The recorded rows of one case by label, from one device: by default `device_of`'s."""
    runs = [filtered(run, lambda name, row: name == case) for run in runs_of(op, root)]
    device = device or device_of(runs, case)
    rows = newest(run for run in runs if run.environment.device == device)
    return {label: recorded for (_, _, label), recorded in rows.items()}


def device_of(runs: Sequence[Comparison], *cases: str) -> str:
    """The device with the most rows of a case, of several the one recorded last; empty: there is no run.

    A few rows, recorded alone on another device, do not hide the rest.

    Args:
        runs: of one op, the newest first.
        cases: the first that a run has counts; where none has, it is the device recorded last.
    """
    known = {each.case for run in runs for each in run.cases}
    case = next((case for case in cases if case in known), "")
    labels: dict[str, set[str]] = {run.environment.device: set() for run in runs}
    for run in runs:
        rows = (row for each in run.cases if each.case == case for row in each.rows)
        labels[run.environment.device] |= {row.label for row in rows if ":" not in row.label}
    return max(labels, key=lambda device: len(labels[device]), default="")


def newest(runs: Iterable[Comparison]) -> dict[Key, Recorded]:
    """Every row once: where several have one key, that of the first of ``runs``."""
    rows: dict[Key, Recorded] = {}
    for run in runs:
        for case in run.cases:
            for row in case.rows:
                rows.setdefault((run.op, case.case, row.label), Recorded(row, case, run))
    return rows


def provenance(recorded: Recorded, source_hash: str) -> Provenance:
    """The origin of a row, whose source has ``source_hash`` today."""
    run, changed = recorded.run, recorded.row.source_hash != source_hash
    environment = run.environment
    versions = environment.versions | ({"driver": environment.driver} if environment.driver else {})
    return Provenance(environment.device, run.created, changed, recorded.comparison.ceilings, versions)


def changed_since(row: Row) -> bool:
    """Whether a recorded row's source has changed since it was measured."""
    return row.recorded is not None and row.recorded.source_changed
