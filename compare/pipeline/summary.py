"""An op's kernels, opened up, on one screen: a line for each implementation; ``--all`` has the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from compare.model.op import ROUTES
from compare.pipeline.caches import caches
from compare.pipeline.differences import kinds
from compare.pipeline.records import CacheEntry, Opened
from compare.report.layout import PROSE_WIDTH, Column, fitted, paragraph
from compare.report.lines import grouped
from compare.report.tables import NOTHING, number

MOST_LINES = 25
_MESSAGE_LINES = 3
_FAILURES = 2
_NAMED = 3
_FIX = " install "
"""In the reason why there is no compiler: ``pip install``, ``apt-get install``."""
_COLUMNS = {
    "load": "widest load from global memory",
    "store": "widest store to global memory",
    "spills": "local memory (spills)",
    "copies": "asynchronous copies",
    "multiplies by": "multiplies with",
}
"""The kinds of `differences` in the table, by header."""
_LEGEND = "load, store: the widest of global memory, in bits."


def summary(opened: Sequence[Opened], signature: str, width: int) -> str:
    """What each implementation became on the newest architecture, in at most `MOST_LINES` lines."""
    prose = min(width, PROSE_WIDTH)
    archs = list(dict.fromkeys(one.arch for one in opened))
    here = [one for one in opened if one.arch == archs[-1]]
    compiled = [one for one in here if one.stages]
    others = f" ({', '.join(archs[:-1])}: --all)" if archs[1:] else ""
    head = [paragraph(f"{opened[0].op}  {signature}", prose)]
    head.append(paragraph(f"{opened[0].case}, compiled for {archs[-1]}{others}", prose))
    head += _failures(opened, prose)
    tail = [paragraph(line, prose, hanging="  ") for line in _notes(opened, compiled)]
    names = {label: name for name, labels in _merged(compiled).items() for label in labels[:1]}
    used = 2 + sum(text.count("\n") + 1 for text in (*head, *tail))
    rows = _shortened(list(names), MOST_LINES - used)
    table = _table(compiled, {label: names[label] for label in rows}, width)
    if left := len(names) - len(rows):
        table.append(f"and {left} more: --all")
    return "\n".join([*head, *table, *tail])


def _shortened(names: list[str], room: int) -> list[str]:
    """As many as fit; a line says how many more there are."""
    return names if len(names) <= room else names[: max(1, room - 1)]


def _failures(opened: Sequence[Opened], width: int) -> list[str]:
    lines = []
    failed = [one for one in opened if one.failure]
    for one in failed[:_FAILURES]:
        assert one.failure is not None
        lines.append(paragraph(f"FAILED  {one.label} for {one.arch} at {one.failure.stage}", width))
        message = one.failure.message.strip().splitlines()[:_MESSAGE_LINES]
        lines += [paragraph(line, width, "    ") for line in message]
    if rest := [one.label for one in failed[_FAILURES:]]:
        lines.append(f"and {len(rest)} more failed (--all)")
    return lines


def _notes(opened: Sequence[Opened], compiled: Sequence[Opened]) -> Iterable[str]:
    if compiled:
        yield _LEGEND
    arch = opened[-1].arch
    here = [one for one in opened if one.unavailable and one.arch == arch]
    reasons = {one.label: one.unavailable.partition("\n")[0] for one in here}
    for reason, labels in grouped((why, label) for label, why in reasons.items() if _FIX in why).items():
        yield f"not compiled: {', '.join(labels)}: {reason}"
    if left := [one.label for one in here if _FIX not in reasons[one.label]]:
        named = f" ({', '.join(left)})" if len(left) <= _NAMED else ""
        yield f"not compiled: {len(left)}{named}; --all says why"
    first = compiled[0].label if compiled else opened[0].label
    yield f"NEXT  --all · --only {first} --stage ptx · --html FILE"


def _merged(compiled: Sequence[Opened]) -> dict[str, list[str]]:
    """By the name in the table the labels: ``cuda.X`` where both routes made the same machine code."""
    code: dict[str, list[object]] = {}
    for one in compiled:
        code.setdefault(one.label, []).append([i.text for i in one.instructions])
    names: dict[str, list[str]] = {}
    for label, own in code.items():
        route, _, variant = label.partition(".")
        both = [f"{each}.{variant}" for each in ROUTES]
        same = route in ROUTES and all(code.get(each) == own for each in both)
        names.setdefault(f"cuda.{variant}" if same else label, []).append(label)
    return names


def _table(compiled: Sequence[Opened], names: dict[str, str], width: int) -> list[str]:
    if not names:
        return []
    mine = {label: [one for one in compiled if one.label == label] for label in names}
    columns = [Column("", tuple(names.values()), left=True)]

    def add(header: str, cell: Callable[[Sequence[Opened]], str], *, left: bool = False) -> None:
        columns.append(Column(header, tuple(map(cell, mine.values())), left))

    add("compiled\nin ms", _milliseconds)
    add("instruc-\ntions", lambda each: str(sum(len(one.instructions) for one in each) or NOTHING))
    for header, what in _COLUMNS.items():
        add(header, lambda each, what=what: _kinds(each, what), left=header == "multiplies by")  # type: ignore[misc]
    without = [column for column in columns if column.header != "copies"]
    shorter = [column for column in without if column.header not in ("compiled\nin ms", "store")]
    return fitted([(columns, 2), (without, 2), (shorter, 2), (shorter[:-1], 1)], width)


def _milliseconds(each: Sequence[Opened]) -> str:
    took = [stage.took_ms for one in each for stage in one.stages if stage.took_ms is not None]
    return number(sum(took)) if took else NOTHING


def _kinds(each: Sequence[Opened], what: str) -> str:
    names = dict.fromkeys(kinds(one)[what] for one in each if one.instructions)
    return ", ".join(kind for kind in names if kind != "none") or NOTHING


# --------------------------------------------------------------------------- caches


def cache_summary(
    opened: Sequence[Opened], headers: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> str:
    """The table of all caches, then for each implementation how much is kept of it, in which of them."""
    columns = [
        Column(header, tuple(cells), left=header in ("whose", "folder", "set by"))
        for header, cells in zip(headers, zip(*rows, strict=True), strict=True)
    ]
    narrow = [column for column in columns if column.header != "set by"]
    table = fitted([(columns, 2), (narrow, 2), (narrow, 1)], width)
    kept = {}
    for label in dict.fromkeys(one.label for one in opened if one.cached):
        entries = [entry for one in opened if one.label == label for entry in one.cached]
        each = (f"{name} {size}" for name in caches() if (size := _kept(entries, name)))
        kept[label] = f"{label}: {', '.join(each) or 'nothing is kept'}"
    shown = _shortened(list(kept), MOST_LINES - len(table) - 3)
    lines = [paragraph(kept[label], min(width, PROSE_WIDTH), hanging="  ") for label in shown]
    more = [f"and {left} more"] if (left := len(kept) - len(shown)) else []
    return "\n".join([*table, "", *lines, *more, "NEXT  --caches --all shows keys and files"])


def _kept(entries: Iterable[CacheEntry], cache: str) -> str:
    kept = [entry for entry in entries if entry.cache == cache]
    sizes = {(entry.place, name): size for entry in kept for name, size in entry.files.items()}
    return f"{len(sizes)} files, {sum(sizes.values()) / 1e3:.0f} KB" if sizes else ""
