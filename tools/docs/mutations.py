"""The table of seeded bugs and what caught each, from ``results/mutations.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compare.records import archive
from compare.report import markdown
from compare.report.tables import Table

_HEADERS = ("bug", "what goes wrong", "in", "run as", "without a GPU", "on a GPU")


def block(results: Path = archive.RESULTS) -> str:
    """Markdown: a table an op, and how many there are; one sentence where nothing is recorded."""
    file = results / "mutations.json"
    if not file.is_file():
        return "Nothing is recorded yet: `make mutations` does it."
    entries = json.loads(file.read_text(encoding="utf-8"))["mutations"]
    ops = sorted({entry["op"] for entry in entries})
    parts = [_summary(entries)]
    for op in ops:
        rows = tuple(_row(entry) for entry in entries if entry["op"] == op)
        parts.append(markdown.table(Table(op, _HEADERS, rows, text_columns=_HEADERS)))
    return "\n\n".join(parts)


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    cells = (_cell(entry, machine) for machine in ("cpu", "cuda"))
    return entry["bug"], entry["what"], f"`{entry['file']}`", f"`{entry['label']}`", *cells


def _cell(entry: Mapping[str, Any], machine: str) -> str:
    """What caught it there and what it said, or why it has not."""
    caught = entry["caught"].get(machine)
    if caught:
        return f"{caught['by']}: {caught['found']}"
    return "not run yet" if entry["instruments"][machine] else f"needs {entry['needs']}"


def _summary(entries: list[dict[str, Any]]) -> str:
    sentences = [f"{len(entries)} bugs."]
    for machine, where in (("cpu", "Without a GPU"), ("cuda", "On a GPU")):
        caught = [entry["caught"][machine] for entry in entries if machine in entry["caught"]]
        possible = sum(bool(entry["instruments"][machine]) for entry in entries)
        devices = sorted({each["on"] for each in caught}) if machine == "cuda" else []
        on = f" ({', '.join(devices)})" if devices else ""
        share = f"{len(caught)} of the {possible} that can show there have been caught"
        sentences.append(f"{where}{on} {share if caught else 'none has been run yet'}.")
    return " ".join(sentences)
