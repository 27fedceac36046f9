"""The table of rooms in docs/architecture.md and its picture, from the contract's layers and the imports.

A *room* is a folder or a loose module of ``compare/``, or a folder of ``tools/``.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import grimp
import networkx
from importlinter import api

from compare.model.op import UsageError
from compare.registry import ROOT
from compare.report import markdown
from compare.report.tables import Table
from tools.docs import svg

Import = tuple[str, str]
"""Importer and imported, both rooms."""

KINDS = {
    "command": "command: what a user types",
    "stage": "stage: values in, one dataclass out",
    "process": "process: starts or confines processes",
    "data": "data: values, records, discovery",
}

PLACES = {
    "tools.docs": ("command", 4.1),
    "compare.cli": ("command", 2.2),
    "compare.pytest_plugin": ("command", 1.1),
    "compare.commands": ("command", 2.6),
    "compare.api": ("command", 3.6),
    "compare.notebook": ("command", 1.1),
    "compare.cluster": ("process", 2.6),
    "compare.serve": ("command", 4.3),
    "compare.pipeline": ("stage", 4.3),
    "compare.aot": ("stage", 2.4),
    "compare.report": ("stage", 2.1),
    "compare.command_line": ("command", 3.5),
    "compare.collectives": ("process", 3.3),
    "compare.labs": ("stage", 2.1),
    "compare.history": ("stage", 2.5),
    "compare.run": ("stage", 1.4),
    "compare.worker": ("process", 1.4),
    "compare.replay": ("process", 1.4),
    "compare.checking": ("stage", 0.6),
    "compare.timing": ("stage", 2.1),
    "compare.resources": ("stage", 3.5),
    "compare.tuning": ("stage", 2.3),
    "compare.code_size": ("stage", 2.5),
    "compare.capture": ("stage", 2.2),
    "compare.device": ("data", 1.6),
    "compare.records": ("data", 2.7),
    "compare.sandbox": ("process", 3.8),
    "compare.registry": ("data", 2.2),
    "compare.inputs": ("data", 1.0),
    "compare.arguments": ("data", 2.8),
    "compare.places": ("data", 3.7),
    "compare.tiles": ("data", 1.9),
    "compare.model": ("data", 2.0),
}
"""A room's kind, which is its colour, and its column in the picture.  Its row is its layer."""

WIDTH, HEIGHT = 800, 648
_COLUMN = 172
BOX_WIDTH, BOX_HEIGHT = 128, 22
_GAP = 12
"""Least distance between an arrow and a box or another arrow, where the arrow passes a row."""
_PORT = 14
"""Distance between the ends of two arrows at one box."""


@dataclass(frozen=True)
class Box:
    """A room as drawn, in pixels: `x` is its centre, `y` its upper edge."""

    room: str
    name: str
    kind: str
    row: int
    x: float
    y: float


@dataclass(frozen=True)
class Arrow:
    """An import as drawn; `path` is SVG's ``d``."""

    importer: str
    imported: str
    by_name: bool
    path: str


@functools.cache
def layers() -> tuple[tuple[str, ...], ...]:
    """The layers of the import-linter contract, each a row of rooms; the highest layer first."""
    contracts = api.read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    (contract,) = [contract for contract in contracts if contract["type"] == "layers"]
    (container,) = contract["containers"]
    return tuple(
        tuple(f"{container}.{name.strip()}" for name in row.split("|")) for row in contract["layers"]
    )


@functools.cache
def graph() -> grimp.ImportGraph:
    """All imports in compare/ and tools/, within functions too; those for type checkers left out."""
    return grimp.build_graph("compare", "tools", exclude_type_checking_imports=True, cache_dir=None)


def imports() -> set[Import]:
    """Which room imports which."""
    return {
        (_room(module), _room(imported))
        for module in graph().modules
        for imported in graph().find_modules_directly_imported_by(module)
        if _room(module) != _room(imported)
    }


def imports_by_name() -> set[Import]:
    """What cli and registry give to `import_module`: strings that name commands."""
    return {
        (importer, _room(module))
        for importer in ("compare.cli", "compare.registry")
        for node in ast.walk(ast.parse(file_of(importer).read_text()))
        if isinstance(node, ast.Constant) and (module := str(node.value).rstrip(".")) in graph().modules
        if _room(module) not in ("compare", importer)
    }


def file_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


# --------------------------------------------------------------------------- the table


def block() -> str:
    """A line for each room, and for each folder within a room."""
    lines = tuple(
        (str(number), f"[`{_path(module)}`](../{_path(module)})", _purpose(module))
        for number, row in enumerate(layers(), 1)
        for room in row
        for module in (room, *sorted(graph().find_descendants(room)))
        if module == room or file_of(module).name == "__init__.py"
    )
    headers = ("layer", "room", "what it is for")
    return markdown.table(Table("Rooms by layer", headers, lines, text_columns=headers))


def _path(module: str) -> str:
    """``compare/cli.py``, or ``compare/timing/`` of a folder."""
    return str(file_of(module).relative_to(ROOT)).removesuffix("__init__.py")


def _purpose(module: str) -> str:
    """The first paragraph of the module's docstring."""
    text = ast.get_docstring(ast.parse(file_of(module).read_text())) or ""
    if not text:
        raise UsageError(f"{_path(module)}: write a docstring, which docs/architecture.md shows")
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`")


# --------------------------------------------------------------------------- the picture


def picture() -> str:
    """docs/architecture.svg."""
    drawn = boxes()
    return svg.drawn(
        "architecture",
        rows=len(layers()),
        boxes=drawn,
        arrows=arrows(drawn),
        BOX_HEIGHT=BOX_HEIGHT,
        BOX_WIDTH=BOX_WIDTH,
        HEIGHT=HEIGHT,
        KINDS=KINDS,
        WIDTH=WIDTH,
    )


def boxes() -> list[Box]:
    """Every room at its place.

    Raises:
        UsageError: a room has none.
    """
    rows = {room: number for number, row in enumerate(layers()) for room in row} | {"tools.docs": 0}
    if missing := sorted(rows.keys() - PLACES.keys()):
        raise UsageError(f"{', '.join(missing)}: give it a kind and a column in tools/docs/architecture.py")
    return [
        Box(room, _path(room).removeprefix("compare/"), kind, row, _COLUMN * column - 8, _top(row))
        for room, row in rows.items()
        for kind, column in [PLACES[room]]
    ]


def _top(row: int) -> float:
    """The upper edge of a row's boxes."""
    height = HEIGHT / len(layers())
    return row * height + (height - BOX_HEIGHT) / 2


def arrows(drawn: Sequence[Box]) -> list[Arrow]:
    """The transitive reduction of the imports, and the imports by name."""
    places = {box.room: box for box in drawn}
    known = {pair for pair in imports() if set(pair) <= places.keys()}
    shown = sorted(networkx.transitive_reduction(networkx.DiGraph(known)).edges)
    by_name = sorted(imports_by_name() - set(shown))
    routes = _routes(places, [*shown, *by_name])
    return [Arrow(*pair, pair in by_name, _curve(route)) for pair, route in routes.items()]


Point = tuple[float, float]


def _routes(places: dict[str, Box], pairs: Sequence[Import]) -> dict[Import, list[Point]]:
    """The points that each arrow goes through.

    It passes rows in one vertical line, beside their boxes and the arrows placed before.
    """
    half = BOX_WIDTH / 2 + _GAP
    taken = [(box.row, box.x - half, box.x + half) for box in places.values()]
    passes: dict[Import, float] = {}
    for pair in sorted(pairs, key=lambda pair: places[pair[1]].row - places[pair[0]].row):
        start, end = (places[room] for room in pair)
        between = range(start.row + 1, end.row)
        if between:
            x = _free(start.x, end.x, [(low, high) for row, low, high in taken if row in between])
            taken += [(row, x - _GAP, x + _GAP) for row in between]
            passes[pair] = x
    routes = {}
    for pair in pairs:
        start, end = (places[room] for room in pair)
        leave = {other: passes.get(other, places[other[1]].x) for other in pairs if other[0] == pair[0]}
        arrive = {other: passes.get(other, places[other[0]].x) for other in pairs if other[1] == pair[1]}
        points = [(start.x + _port(pair, leave), start.y + BOX_HEIGHT)]
        if pair in passes:
            points += [(passes[pair], _top(start.row + 1)), (passes[pair], _top(end.row - 1) + BOX_HEIGHT)]
        routes[pair] = [*points, (end.x + _port(pair, arrive), end.y)]
    return routes


def _free(start: float, end: float, taken: Sequence[tuple[float, float]]) -> float:
    """The x outside all intervals on the shortest way from start to end; of equals, the nearest to end."""
    edges = [start, end, *(edge for interval in taken for edge in interval)]
    free = [edge for edge in edges if not any(low < edge < high for low, high in taken) and 0 < edge < WIDTH]
    return min(free, key=lambda edge: (abs(edge - start) + abs(edge - end), abs(edge - end)))


def _port(pair: Import, ends: dict[Import, float]) -> float:
    """The offset of an arrow's end from its box's centre: ``ends`` in order of their x, spread evenly."""
    order = sorted(ends, key=lambda other: (ends[other], other))
    return _PORT * (order.index(pair) - (len(order) - 1) / 2)


def _curve(points: Sequence[Point]) -> str:
    """Vertical lines where x stays, Bezier curves with vertical ends elsewhere."""
    path = f"M{points[0][0]:.0f} {points[0][1]:.0f}"
    for (x, y), (next_x, next_y) in pairwise(points):
        middle = (y + next_y) / 2
        bent = f"C{x:.0f} {middle:.0f} {next_x:.0f} {middle:.0f} {next_x:.0f} {next_y:.0f}"
        path += f"V{next_y:.0f}" if x == next_x else bent
    return path
