"""Comparisons as JSON: what ``--json`` writes and ``results/<device>/<op>.jsonl`` keeps.

``--json`` writes one document: the schema's version and a list of runs, newest first.  A record has one JSON
object a line: first the runs without their rows, newest first, then the rows, each with its run's date, its
case, and its fields as columns (``timing.cold_us.median``); fields with their default value are left out.

A run added to a record replaces the rows that it measured again (same case, same label).  Other rows stay,
with the environment, date and ceilings of their own run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from compare.model.op import UsageError
from compare.model.result import WRONG, Calibration, CaseComparison, Comparison, Estimate, Provenance, Row
from compare.records.encoding import decode, encode, flat, nested, read_whole, write_whole
from compare.registry import ROOT

RESULTS = ROOT / "results"
SCHEMA = Comparison.schema
RECORD_SCHEMA = 2
_DECIMALS = 3
"""Decimals of a recorded sample in microseconds: the event clock's tick is 0.032 us."""

_MOST_BYTES = 1 << 28
_DIGITS = 20
"""Of a whole number, with its sign: 64 bits."""
_LOCK_S = 60.0

Key = tuple[str, str, str]
"""Op, case, label."""


@dataclass(frozen=True)
class Recorded:
    """One row of a record, with its case and run."""

    row: Row
    comparison: CaseComparison
    run: Comparison


# --------------------------------------------------------------------------- text


def dumps(runs: Sequence[Comparison]) -> str:
    """Runs as strict JSON text (no bare NaN): fields in the dataclasses' order, a list of figures a line."""
    document = {"schema": SCHEMA, "runs": [encode(run) for run in runs]}
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    # JSON strings hold no raw line breaks, so this changes layout only.
    lists = re.compile(r"\[\s*\n([^][{}]*?)\s*\n\s*\]")
    return lists.sub(lambda found: "[" + re.sub(r"\s*\n\s*", " ", found[1].strip()) + "]", text) + "\n"


def dumps_record(runs: Sequence[Comparison]) -> str:
    """Runs as a record: a line for each run, then a line for each row."""
    bare = [replace(run, cases=tuple(replace(case, rows=()) for case in run.cases)) for run in runs]
    lines: list[dict[str, Any]] = [{"schema": RECORD_SCHEMA, "run": encode(run)} for run in bare]
    for name, run in zip(_names(run.created for run in runs), runs, strict=True):
        for case in run.cases:
            lines += [{"of": name, "case": case.case, **_columns(row)} for row in case.rows]
    return "".join(f"{_line(line)}\n" for line in lines)


def _columns(row: Row) -> dict[str, Any]:
    """A row as columns; a finding that passed without detail as its name, a ratio as
    ``[against, median, low, high]``."""
    columns = flat(encode(row, lean=True))
    if row.agreement:
        columns["agreement.findings"] = [
            finding.name if finding.passed and not finding.detail else encode(finding, lean=True)
            for finding in row.agreement.findings
        ]
    if row.timing and row.timing.ratios:
        columns["timing.ratios"] = [
            [ratio.against, *encode((ratio.value.median, ratio.value.low, ratio.value.high))]
            for ratio in row.timing.ratios
        ]
    return columns


def _document(columns: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `_columns`: a row as a document has it."""
    if "agreement.findings" in columns:
        columns["agreement.findings"] = [
            {"name": finding, "passed": True} if isinstance(finding, str) else finding
            for finding in columns["agreement.findings"]
        ]
    if "timing.ratios" in columns:
        columns["timing.ratios"] = [
            {"against": against, "value": {"median": median, "low": low, "high": high}}
            for against, median, low, high in columns["timing.ratios"]
        ]
    return nested(columns)


def _line(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _names(dates: Iterable[str]) -> list[str]:
    """The names of runs in rows: the date, with a number where two are the same."""
    seen: Counter[str] = Counter()
    found = []
    for date in dates:
        seen[date] += 1
        found.append(date if seen[date] == 1 else f"{date} #{seen[date]}")
    return found


def loads(text: str, origin: str = "the text", case: str | None = None) -> tuple[Comparison, ...]:
    """The runs in the text of `dumps` or `dumps_record`, or one ``case`` of them, which is much faster.

    Raises:
        UsageError: the text is damaged, or of a schema this checkout does not know; names ``origin``.
    """
    try:
        if text.startswith(f'{{"schema":{RECORD_SCHEMA},'):
            schema, runs = RECORD_SCHEMA, _runs_of_record(text, case)
        else:
            document = _json(text)
            if not isinstance(document, dict) or "schema" not in document or "runs" not in document:
                raise UsageError(f"{origin} is no record of comparisons: 'schema' or 'runs' is missing")
            schema, runs = document["schema"], document["runs"]
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{origin} is incomplete, or not written by --json or --record: {error}. git checkout restores "
            "a file of results/"
        ) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{origin} is damaged: {error!r}. Restore it (git checkout) or delete it") from None
    if schema not in (SCHEMA, RECORD_SCHEMA):
        raise UsageError(
            f"{origin} has schema {schema!r}, this checkout reads {SCHEMA} and {RECORD_SCHEMA}. "
            "Use the version of the project that wrote it, or record anew"
        )
    try:
        if case is not None:
            runs = [{**run, "cases": [c for c in run["cases"] if c["case"] == case]} for run in runs]
        found = tuple(decode(Comparison, run, f"runs[{i}]") for i, run in enumerate(runs))
        for run in found:
            _check_figures(run)
        return found
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise UsageError(f"{origin} is damaged: {error}. Restore it (git checkout) or delete it") from None


def _runs_of_record(text: str, case: str | None) -> list[dict[str, Any]]:
    """The runs of a record as a document has them, with the rows of one ``case`` or of all."""
    wanted = None if case is None else f'"case":{json.dumps(case)}'
    runs: list[dict[str, Any]] = []
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in text.splitlines():
        if line.startswith('{"schema":'):
            runs.append(_json(line)["run"])
        elif wanted is None or wanted in line:
            row = _json(line)
            rows.setdefault((row.pop("of"), row.pop("case")), []).append(_document(row))
    for name, run in zip(_names(run["created"] for run in runs), runs, strict=True):
        for each in run["cases"]:
            each["rows"] = rows.get((name, each["case"]), [])
    return runs


def _json(text: str) -> Any:
    return json.loads(text, parse_int=_whole)


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def check_calibration(found: Calibration) -> None:
    """Check that limits are shares: a larger one would call any two times the same.

    Raises:
        ValueError: one is none.
    """
    if not found.classes:
        raise ValueError("a calibration without classes")
    _check_finite("a calibration", "a least time", (found.tick_us,))
    for size in found.classes:
        if not (0 < size.share <= 1 and size.below_us > 0):
            raise ValueError(f"a calibration has a least difference of {size.share} below {size.below_us} us")


def _check_figures(run: Comparison) -> None:
    """Check that figures can be: ratios divide by times, and limits are shares."""
    if run.environment.calibration:
        check_calibration(run.environment.calibration)
    for case in run.cases:
        where = f"{run.op} on {case.case}"
        if min(case.cost.flops, case.cost.read_bytes, case.cost.written_bytes) < 0:
            raise ValueError(f"{where} has a negative cost")
        if case.ceilings:
            _check_finite(where, "a ceiling", encode(case.ceilings).values())
        for row in case.rows:
            if row.timing is None:
                continue
            for name, found in vars(row.timing).items():
                if isinstance(found, Estimate):
                    figures = (found.median, found.low, found.high, *found.samples)
                    _check_finite(f"{where}: {row.label}", name, figures, above=name != "launch_us")
            for ratio in row.timing.ratios:
                _check_finite(f"{where}: {row.label}", "a ratio", (ratio.value.median,))
            if not 0 <= (row.timing.detectable or 0.0) <= 1:
                raise ValueError(f"{where}: {row.label} has a least difference that is no share of 1")


def _check_finite(where: str, what: str, figures: Iterable[float | None], above: bool = True) -> None:
    """Check that figures are finite, and above 0 or, unless ``above``, not below it."""
    for figure in figures:
        good = figure is None or (isinstance(figure, float) and math.isfinite(figure) and figure >= 0)
        if not good or (above and figure == 0):
            raise ValueError(f"{where} has {what} of {figure}: it takes a number above 0")


# --------------------------------------------------------------------------- files


def read(path: Path, case: str | None = None) -> tuple[Comparison, ...]:
    """The runs in one file, or one ``case`` of them.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        text = read_whole(path, _MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be read: {why}") from None
    return loads(text, str(path), case)


def device_slug(device: str) -> str:
    """``NVIDIA H100 80GB HBM3`` -> ``nvidia-h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def path_of(device: str, op: str, root: Path = RESULTS) -> Path:
    return root / device_slug(device) / f"{op}.jsonl"


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
    name = hashlib.sha256(bytes(path.resolve())).hexdigest()[:20]
    lock = Path(tempfile.gettempdir()) / f"compare-{os.getuid()}-{name}.lock"
    try:
        with FileLock(lock, timeout=_LOCK_S):
            older = read(path) if path.exists() else ()
            write_whole(path, dumps_record(merge(new, older, _rows_of(comparison))))
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


def merge(new: Comparison, older: Iterable[Comparison], said: set[tuple[str, str]]) -> tuple[Comparison, ...]:
    """``new``, then the older runs' rows that it did not measure again.

    An older row without times, such as a failed one, goes also where its case and label are among those of
    which the run has ``said`` something else, such as that it is unavailable.
    """
    measured = _rows_of(new)

    def stays(case: str, row: Row) -> bool:
        return (case, row.label) not in (measured if row.timing is not None else said)

    kept = [_filter(run, stays) for run in older]
    return tuple(run for run in (new, *kept) if run.cases)


def _rows_of(run: Comparison) -> set[tuple[str, str]]:
    """The case and label of each row."""
    return {(case.case, row.label) for case in run.cases for row in case.rows}


def _measured(comparison: Comparison) -> Comparison:
    def finished(row: Row) -> bool:
        return not row.recorded and (row.timing is not None or row.status in (*WRONG, "failed"))

    whole = comparison.cases[:-1] if comparison.interrupted else comparison.cases
    kept = _filter(replace(comparison, cases=whole), lambda case, row: finished(row))
    cases = tuple(replace(case, rows=tuple(map(_lean, case.rows))) for case in kept.cases)
    return replace(kept, cases=cases, interrupted=False)  # what is recorded was finished


def _lean(row: Row) -> Row:
    """``row`` with samples rounded to the clock's tick, without those of ratios, which follow from them."""
    timing = row.timing
    if timing is None:
        return row
    series: dict[str, Any] = {
        name: replace(found, samples=tuple(round(sample, _DECIMALS) for sample in found.samples))
        for name, found in vars(timing).items()
        if isinstance(found, Estimate)
    }
    ratios = tuple(replace(ratio, value=replace(ratio.value, samples=())) for ratio in timing.ratios)
    return replace(row, timing=replace(timing, **series, ratios=ratios))


def _filter(run: Comparison, keep: Callable[[str, Row], bool]) -> Comparison:
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


def runs_of(op: str, root: Path = RESULTS, case: str | None = None) -> list[Comparison]:
    """Every recorded run of ``op`` on any device, newest first; with one ``case`` only, if given."""
    runs = [run for path in sorted(root.glob(f"*/{op}.jsonl")) for run in read(path, case)]
    return sorted(runs, key=lambda run: run.created, reverse=True)


def find(op: str, case: str, root: Path = RESULTS) -> dict[str, Recorded]:
    """The recorded rows of one case by label, from the device recorded last."""
    runs = runs_of(op, root, case)
    device = next((each.run.environment.device for each in newest(runs).values()), None)
    found = newest(run for run in runs if run.environment.device == device)
    return {label: recorded for (_, _, label), recorded in found.items()}


def newest(runs: Iterable[Comparison]) -> dict[Key, Recorded]:
    """Every row once: where several have one key, that of the first of ``runs``."""
    found: dict[Key, Recorded] = {}
    for run in runs:
        for case in run.cases:
            for row in case.rows:
                found.setdefault((run.op, case.case, row.label), Recorded(row, case, run))
    return found


def provenance(recorded: Recorded, source_hash: str) -> Provenance:
    """The origin of a row, whose source has ``source_hash`` today."""
    run, changed = recorded.run, recorded.row.source_hash != source_hash
    return Provenance(run.environment.device, run.created, changed, recorded.comparison.ceilings)


def changed_since(row: Row) -> bool:
    """Whether a recorded row's source has changed since it was measured."""
    return row.recorded is not None and row.recorded.source_changed
