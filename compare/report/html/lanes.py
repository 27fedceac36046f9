"""Pictures of what a kernel accesses: lanes and 32-byte sectors, banks, and the masked elements of a tile.

They are SVG for a page with ``style.css``, whose colours are light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports Triton, for which the device is not decided yet
    from compare.worker.messages import TracedAccess


SECTOR_BYTES, BANKS, BANK_BYTES, LANES = 32, 32, 4, 32
SHARED = "shared memory"
_CELL, _STEP, _LEFT, _WIDE = 15, 18, 72, 660
_COLOURS = "var(--tint-1)", "var(--tint-0)"


@dataclass(frozen=True)
class Picture:
    """A drawing, and what it shows in words."""

    svg: str
    caption: str


def picture(access: TracedAccess) -> Picture:
    """The lanes of one access, in order; below them its sectors, and its tile if some of it is masked."""
    lanes = [*zip(access.offsets, access.active, strict=True)][:LANES]
    caption = words(access)
    shared = access.tensor == SHARED
    units = [offset // BANK_BYTES % BANKS if shared else offset // SECTOR_BYTES for offset, _ in lanes]
    order = {
        unit: n for n, unit in enumerate(sorted({u for u, (_, on) in zip(units, lanes, strict=True) if on}))
    }
    parts = [_label(0, "lanes")]
    for lane, (unit, (_, on)) in enumerate(zip(units, lanes, strict=True)):
        text = (unit if shared else order[unit]) if on else ""
        parts.append(_cell(lane, 0, order.get(unit, 0) if on else None, str(text)))
    parts.append(_label(2 * _STEP, "banks" if shared else "sectors"))
    for unit, n in order.items():
        if n < LANES:
            parts.append(_cell(n, 2 * _STEP, n, str(unit if shared else n)))
    parts += [
        f'<path d="M{_middle(lane)} {_CELL}L{_middle(order[unit])} {2 * _STEP}" stroke="var(--faint)" '
        'stroke-width=".7"/>'
        for lane, (unit, (_, on)) in enumerate(zip(units, lanes, strict=True))
        if on and order[unit] < LANES
    ]
    high = 2 * _STEP + _CELL
    if len(access.active) > LANES and (not all(access.active) or len(access.shape) > 1):
        tile, rows = _tile(access, high + 12)
        parts, high = [*parts, _label(high + 12, "tile"), *tile], high + 14 + 8 * rows
    svg = f'<svg role="img" viewBox="0 0 {_WIDE} {high + 2}" width="{_WIDE}" xmlns="http://www.w3.org/2000/svg">'
    return Picture(f"{svg}<title>{escape(caption)}</title>{''.join(parts)}</svg>", caption)


def words(access: TracedAccess) -> str:
    """What the picture shows: how many sectors or banks, the least there may be, what is masked."""
    lanes = [offset for offset, on in zip(access.offsets, access.active, strict=True) if on][:LANES]
    verb = {"load": "loads", "store": "stores"}[access.kind]
    who = access.where or "The kernel"
    what = f"{who} {verb} {len(lanes)} elements of {access.bytes} bytes, {access.tensor}"
    if access.tensor == SHARED:
        by_bank: dict[int, set[int]] = {}
        for offset in lanes:
            by_bank.setdefault(offset // BANK_BYTES % BANKS, set()).add(offset // BANK_BYTES)
        ways = max(map(len, by_bank.values()), default=1)
        many = f"{ways}-way bank conflict" if ways > 1 else "no bank conflict"
        text = f"{what}: {len(by_bank)} banks, {many}."
    else:
        count = len(_sectors(lanes, access.bytes))
        least = ceil(len(lanes) * access.bytes / SECTOR_BYTES)
        text = f"{what}: {count} sectors of {SECTOR_BYTES} bytes, {least} at the least."
    masked = access.active.count(False)
    return f"{text} Masked: {masked} of {len(access.active)}." if masked else text


def _sectors(offsets: Sequence[int], size: int) -> set[int]:
    return {
        sector
        for offset in offsets
        for sector in range(offset // SECTOR_BYTES, (offset + size - 1) // SECTOR_BYTES + 1)
    }


def _middle(column: int) -> float:
    return _LEFT + column * _STEP + _CELL / 2


def _label(y: int, text: str) -> str:
    return f'<text x="0" y="{y + 11}" font-size="12" fill="var(--ink)">{text}</text>'


def _cell(column: int, y: int, colour: int | None, text: str) -> str:
    """A square; ``colour`` None: masked."""
    fill = "none" if colour is None else _COLOURS[colour % len(_COLOURS)]
    dashes = ' stroke-dasharray="3 2"' if colour is None else ""
    x = _LEFT + column * _STEP
    size = f'width="{_CELL}" height="{_CELL}"'
    square = f'<rect x="{x}" y="{y}" {size} fill="{fill}" stroke="var(--faint)"{dashes}/>'
    style = 'font-size="8" text-anchor="middle" fill="var(--ink)"'
    return f'{square}<text x="{x + _CELL / 2}" y="{y + 11}" {style}>{text}</text>' if text else square


def _tile(access: TracedAccess, top: int) -> tuple[list[str], int]:
    """A small square for each element, and how many rows they fill."""
    columns = access.shape[-1] if len(access.shape) > 1 else LANES
    squares = [
        f'<rect x="{_LEFT + 8 * (n % columns)}" y="{top + 8 * (n // columns)}" width="7" height="7" '
        f'fill="{_COLOURS[0] if on else "none"}" stroke="var(--faint)" stroke-width=".5"/>'
        for n, on in enumerate(access.active)
    ]
    return squares, ceil(len(access.active) / columns)
