"""What `compare.toolchain.caches` found, as text for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from compare.report.tables import NOTHING, Table
from compare.report.terminal import PROSE_WIDTH, laid_out, paragraph
from compare.toolchain.caches.records import Cache, Cleared, Entry, Found

_CLEARING = (
    "'python -m compare cache --clear' removes ours and no other. The others may be removed by hand; the "
    "compilers make them again."
)
_LISTED = ("cupy", "ours")
"""Caches whose entries are one file each; their keys are described by kind."""


def render(found: Found, width: int) -> str:
    """All caches, and of an op each entry with its files and what made its key."""
    prose = min(width, PROSE_WIDTH)
    blocks = [laid_out(_caches(found.caches), width)]
    if found.op:
        there = [entry for entry in found.entries if entry.files]
        blocks[0] = f"{found.op}\n{len(there)} of its entries are kept here\n\n{blocks[0]}"
    blocks += [_entry(entry, prose) for entry in found.entries if entry.whose not in _LISTED]
    for whose in _LISTED:
        listed = [entry for entry in found.entries if entry.whose == whose]
        if listed:
            blocks.append(laid_out(_list(whose, listed), width) + "\n" + _made_of(listed, prose))
    if found.notes:
        lines = [paragraph(note, prose, "  ") for note in found.notes]
        blocks.append("\n".join(["Unknown keys", *lines]))
    return "\n\n".join([*blocks, paragraph(_CLEARING, prose)])


def cleared(found: Cleared, caches: Sequence[Cache], width: int) -> str:
    """What was removed, and what was left."""
    prose = min(width, PROSE_WIDTH)
    lines = [f"removed {found.files} files, {size(found.bytes)}, from {found.folder}"]
    lines += [f"  {kind}: {count}, {size(bytes_)}" for kind, count, bytes_ in found.kinds]
    lines += [f"kept: {what}" for what in found.kept]
    others = [cache for cache in caches if cache.whose != "ours" and cache.there]
    if others:
        left = "; ".join(f"{cache.whose}'s in {shlex.quote(str(cache.folder))}" for cache in others)
        lines.append(paragraph(f"not ours, not removed: {left}", prose))
    return "\n".join(lines)


def _caches(caches: Sequence[Cache]) -> Table:
    rows = []
    for cache in caches:
        kept = (str(cache.files), size(cache.bytes)) if cache.there else (NOTHING, NOTHING)
        rows.append((cache.whose, cache.holds, str(cache.folder), cache.variable, *kept))
    headers = ("whose", "holds", "folder", "set by", "files", "size")
    return Table("What compilers keep on disk", headers, tuple(rows), ("holds", "folder", "set by"))


def _list(whose: str, entries: Sequence[Entry]) -> Table:
    rows = tuple((entry.kernel, entry.what, entry.key, size(entry.bytes)) for entry in entries)
    title = f"{'Ours' if whose == 'ours' else whose}, in {entries[0].place.parent}"
    return Table(title, ("of", "what", "key", "size"), rows, ("what", "key"))


def _made_of(entries: Sequence[Entry], width: int) -> str:
    """Each kind of key once, with what it is a hash of."""
    kinds: dict[str, list[str]] = {}
    for entry in entries:
        made_of = "; ".join(part.value for part in entry.made_of)
        kind = entry.what.partition(" for ")[0].partition(",")[0]
        if kind not in kinds.setdefault(made_of, []):
            kinds[made_of].append(kind)
    lines = [f"key of a {', '.join(whose)}: a hash of {made_of}" for made_of, whose in kinds.items()]
    return "\n".join(paragraph(line, width, "  ") for line in lines)


def _entry(entry: Entry, width: int) -> str:
    head = f"{entry.whose}: {entry.kernel}  ({entry.what})"
    lines = [paragraph(head, width, hanging="  "), f"  key  {entry.key}"]
    if entry.files:
        lines.append(f"  in   {entry.place}")
        lines += [f"         {size(file.bytes):>9}  {file.name}" for file in entry.files]
    else:
        lines.append(f"  not kept here; it would be {entry.place}")
    shown = max((len(part.name) for part in entry.made_of), default=0)
    last = None
    for part in entry.made_of:
        name = "" if part.name == last else part.name
        last = part.name
        lines.append(paragraph(f"{name:<{shown}}  {part.value}", width, "  ", " " * (shown + 4)))
    return "\n".join(lines)


def size(count: int) -> str:
    """``512 B``, ``34.5 KB``, ``1.2 MB``."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} KB" if count < 1e6 else f"{count / 1e6:.1f} MB"
