"""What ``make mutations`` prints: how many bugs of each op were caught, or every bug and what caught it."""

from __future__ import annotations

from collections.abc import Sequence

from compare.report.tables import NOTHING, Table
from mutations.record import Entry

WHERE = {"cpu": "without a GPU", "cuda": "on a GPU"}


def by_op(entries: Sequence[Entry]) -> Table:
    """A line for each op: its bugs, and how many of those that can show on a kind of machine were caught."""
    ops = sorted({entry["op"] for entry in entries})
    groups = [(op, [entry for entry in entries if entry["op"] == op]) for op in ops]
    rows = tuple(
        (name, str(len(mine)), *(_caught(mine, machine) for machine in WHERE))
        for name, mine in (*groups, ("all", entries))
    )
    devices = sorted({found["on"] for e in entries if (found := e["caught"].get("cuda")) and "on" in found})
    title = f"Seeded bugs that were caught{', on a GPU: ' if devices else ''}{', '.join(devices)}"
    return Table(title, ("op", "bugs", *WHERE.values()), rows)


def _caught(entries: Sequence[Entry], machine: str) -> str:
    possible = [entry for entry in entries if entry["instruments"][machine]]
    caught = sum(machine in entry["caught"] for entry in possible)
    if not possible:
        return NOTHING
    return f"{caught} of {len(possible)}" if caught else "not run yet"


def by_bug(entries: Sequence[Entry]) -> Table:
    """A line for each bug: what caught it on each kind of machine and what it said, or why nothing has."""
    headers = ("op", "bug", "what goes wrong", "in", "run as", *WHERE.values())
    rows = tuple(
        (
            *(entry[name] for name in ("op", "bug", "what", "file", "label")),
            *(_finding(entry, machine) for machine in WHERE),
        )
        for entry in entries
    )
    return Table("Seeded bugs and what caught each", headers, rows, headers)


def _finding(entry: Entry, machine: str) -> str:
    caught = entry["caught"].get(machine)
    if caught:
        return f"{caught['by']}: {caught['found']}"
    return "not run yet" if entry["instruments"][machine] else f"needs {entry['needs']}"
