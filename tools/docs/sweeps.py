"""The curves of docs/block-size.md: registers, occupancy and time over a tile's size and the number of warps.

Registers and occupancy are compiled, without a GPU.  Times are those on record; a sweep without a record has
its command in the document, and its panel once it is recorded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from compare import registry
from compare.code_size.hashes import rests_on
from compare.history import recorded
from compare.model.architecture import limits
from compare.model.op import Implementation
from compare.model.result import CaseComparison, Row
from compare.records import archive, result_cache
from compare.report.tables import Table
from compare.resources.compiler import Compiler
from compare.resources.occupancy import WARP
from compare.timing import figures
from tools.docs.canvas import COLOURS, Canvas, parameter
from tools.docs.child import output_of
from tools.docs.stages import PACKAGES, pinned, untitled

ARCH = "sm_90"
PICTURE, SIZES_PICTURE = "docs/block-size.svg", "docs/block-size-sizes.svg"


@dataclass(frozen=True)
class Sweep:
    """An implementation's parameter along the axis, another one as curves, and values that stay."""

    op: str
    label: str
    axis: str
    curves: str
    fixed: tuple[tuple[str, int], ...] = ()

    @property
    def case(self) -> str:
        return str(registry.get_op(self.op).cases.default)

    @property
    def command(self) -> str:
        """What records its times on a GPU."""
        tunes = [self.axis, self.curves, *(f"{name}={value}" for name, value in self.fixed)]
        tuned = " ".join(f"--tune {tune}" for tune in tunes)
        return f"python -m compare {self.op} --only {self.label} {tuned} --record"

    def impl(self) -> Implementation:
        return registry.implementations(self.op, [self.label])[0]

    def values(self) -> list[dict[str, int]]:
        """Every combination, the axis last."""
        declared = dict(self.impl().tunable)
        pairs = product(sorted(declared[self.curves]), sorted(declared[self.axis]))
        return [{self.curves: curve, self.axis: at, **dict(self.fixed)} for curve, at in pairs]


SWEEPS = (
    Sweep("vector_add", "triton.blocked", "BLOCK_SIZE", "WARPS"),
    Sweep("fp8_matmul", "triton.persistent", "BLOCK_N", "WARPS", (("BLOCK_M", 128), ("STAGES", 3))),
)
"""One bound by memory, one on tensor cores."""

Point = tuple[float, float]
"""Along the axis, and up."""


# --------------------------------------------------------------------------- registers and occupancy


Request = tuple[str, str, str, dict[str, int]]
"""Op, label, case, and values of its parameters."""


def compiled(requests: Sequence[Request]) -> list[dict[str, float]]:
    """For each request its kernel's registers and occupancy on `ARCH`, by a process without a GPU."""
    impls = [registry.implementations(op, [label])[0] for op, label, *_ in requests]
    code = result_cache.code("tools/docs/sweeps.py", "compare/resources/*.py", "compare/capture.py")
    text = json.dumps(requests)
    key = result_cache.key(text, *map(rests_on, impls), code, result_cache.versions(*PACKAGES))
    found: list[dict[str, float]] | None = result_cache.read("sweeps", key)
    if found is None:
        # Triton reports a kernel's registers when it compiles it, not when it finds it in its cache.
        reported = {"TRITON_DUMP_PTXAS_LOG": "1", "TRITON_ALWAYS_COMPILE": "1"}
        try:
            found = output_of(__name__, text, without="TRITON_", **reported)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"not compiled: {text}\n{error.stderr[-2000:]}") from error
        result_cache.write("sweeps", key, found)
    return found


def _compile(requests: Sequence[Request]) -> Iterator[dict[str, float]]:
    compiler = Compiler()
    for op, label, case, values in requests:
        impl = registry.implementations(op, [label])[0]
        swept = registry.with_parameters(impl, f"{label}:swept", values) if values else impl
        kernel = compiler.resources(swept, case, ARCH, disassemble=False)[0]
        yield {"registers": kernel.registers, "occupancy": kernel.occupancy or 0}


# --------------------------------------------------------------------------- times on record


def timed(sweep: Sweep, results: Path) -> tuple[str, CaseComparison, dict[tuple[int, ...], Row]] | None:
    """Device, case, and rows by their values in `Sweep.values`'s order; None: the sweep is not on record."""
    names = list(sweep.values()[0])
    for run in archive.runs_of(sweep.op, results):
        for case in (case for case in run.cases if case.case == sweep.case):
            rows = {
                tuple(found[name] for name in names): row
                for row in case.rows
                if row.label.partition(":")[0] == sweep.label
                and (found := dict(row.configuration.parameters)).keys() >= set(names)
                and row.timing
            }
            if len(rows) >= len(sweep.values()) // 2:
                return run.environment.device, case, rows
    return None


def block(name: str, results: Path) -> str:
    """``OP``: where the times of its sweep are from, or the command that records them."""
    sweep = next(sweep for sweep in SWEEPS if sweep.op == name)
    found = timed(sweep, results)
    if found is None:
        says = "Times of this sweep are not on record yet. On a GPU, this records them:"
        return f"{says}\n\n```\n{sweep.command}\n```"
    device, case, rows = found
    shares = {values: share for values, row in rows.items() if (share := figures.share(case, row))}
    values, share = max(shares.items(), key=lambda item: item[1])
    best = ", ".join(f"{name}={value}" for name, value in zip(sweep.values()[0], values, strict=True))
    return (
        f"Times are of {case.case}, recorded on {device}. The fastest is {best}, at {share:.0%} of "
        f"{figures.share_of(case)}."
    )


# --------------------------------------------------------------------------- pictures

_PANEL, _HEIGHT, _GAP, _LEFT = 238, 120, 46, 44


def picture(results: Path = archive.RESULTS) -> str:
    """A row of panels for each sweep; the file as it is with another Triton than constraints.txt names."""
    if not pinned(*PACKAGES):
        return (registry.ROOT / PICTURE).read_text()
    rows = [_panels(sweep, results) for sweep in SWEEPS]
    canvas = Canvas(ALT, _LEFT + max(map(len, rows)) * (_PANEL + _GAP))
    for i, (sweep, panels) in enumerate(zip(SWEEPS, rows, strict=True)):
        y = 14 + i * (_HEIGHT + 104)
        title = f"{sweep.op}, {sweep.label}: {sweep.axis} along the axis, a curve for each {sweep.curves}"
        canvas.text("title", 10, y, title)
        for column, panel in enumerate(panels):
            _draw(canvas, _LEFT + column * (_PANEL + _GAP), y + 34, panel)
    return canvas.drawn()


class Panel(NamedTuple):
    """Curves over one axis, and how a value is written."""

    title: str
    curves: Mapping[str, Sequence[Point]]
    shown: Callable[[float], str]


def _panels(sweep: Sweep, results: Path) -> list[Panel]:
    found = compiled([(sweep.op, sweep.label, sweep.case, values) for values in sweep.values()])
    panels = [
        Panel(
            "registers of a thread", _curves(sweep, [each["registers"] for each in found]), "{:.0f}".format
        ),
        Panel("occupancy", _curves(sweep, [each["occupancy"] for each in found]), "{:.0%}".format),
    ]
    if times := timed(sweep, results):
        device, case, rows = times
        shares = [
            figures.share(case, row) if (row := rows.get(tuple(values.values()))) else None
            for values in sweep.values()
        ]
        title = f"% of {figures.share_of(case)}, {device}"
        panels.append(Panel(title, _curves(sweep, shares), "{:.0%}".format))
    return panels


def _curves(sweep: Sweep, values: Sequence[float | None]) -> dict[str, list[Point]]:
    curves: dict[str, list[Point]] = {}
    for each, value in zip(sweep.values(), values, strict=True):
        if value is not None:
            name = f"{sweep.curves}={each[sweep.curves]}"
            curves.setdefault(name, []).append((each[sweep.axis], value))
    return curves


def _draw(canvas: Canvas, x: float, y: float, panel: Panel) -> None:
    """Axes with the curves' own sizes as ticks, and a legend below."""
    canvas.text("", x, y - 8, panel.title)
    places = sorted({at for curve in panel.curves.values() for at, _ in curve})
    most = max(value for curve in panel.curves.values() for _, value in curve) or 1
    step = _PANEL / max(1, len(places) - 1)

    def position(at: float, value: float) -> str:
        return f"{x + step * places.index(at):.1f} {y + _HEIGHT * (1 - value / most):.1f}"

    canvas.line(f"M{x} {y}V{y + _HEIGHT}H{x + _PANEL}")
    for share in (0.5, 1):
        canvas.text("small", x - 5, y + _HEIGHT * (1 - share) + 3, panel.shown(most * share), "end")
    for i, at in enumerate(places):
        text = f"{at:.0f}" if at < 1 << 18 else f"2^{int(at).bit_length() - 1}"
        canvas.text("small", x + step * i, y + _HEIGHT + 12, text, "middle")
    for i, (name, curve) in enumerate(panel.curves.items()):
        kind = f"curve{i % COLOURS}"
        left, below = x + i % 2 * 120, y + _HEIGHT + 24 + i // 2 * 13
        canvas.line("M" + "L".join(position(*point) for point in curve), kind)
        canvas.line(f"M{left} {below}h12", kind)
        canvas.text("small", left + 15, below + 3, name)


SIZES = {
    "vector_add": ("N", ("triton.blocked", "cupy.scalar", "cupy.vectorized")),
    "matmul": (
        "M",
        ("torch.eager", "triton.tiled", "triton.autotuned", "cupy.tensor_core", "cupy.tma_store"),
    ),
}
"""By op the dimension along the axis, and the implementations."""


def sizes_picture(results: Path = archive.RESULTS) -> str:
    """Share of the ceiling over the size, from records; of cubes only where there are three dimensions."""
    canvas = Canvas(SIZES_ALT, 620)
    for column, (name, (axis, labels)) in enumerate(SIZES.items()):
        op = registry.get_op(name)
        found = recorded.recorded(op, results)
        if found is None:
            continue
        dtype = _sizes(str(op.cases.default))[1]
        curves: dict[str, list[Point]] = {label: [] for label in labels}
        for case in found.cases:
            sizes, further = _sizes(case.case)
            if len(set(sizes.values())) == 1 and further == dtype:
                rows = ((label, figures.row_of(case, label)) for label in labels)
                shares = ((label, row and figures.share(case, row)) for label, row in rows)
                for label, share in ((label, share) for label, share in shares if share):
                    curves[label].append((sizes[axis], share))
        x = _LEFT + column * (_PANEL + _GAP + 16)
        canvas.text("title", x - 34, 14, f"{name}, {dtype}, over {axis}")
        shown = {label: sorted(curve) for label, curve in curves.items() if curve}
        _draw(canvas, x, 48, Panel(f"% of the ceiling, {found.environment.device}", shown, "{:.0%}".format))
    return canvas.drawn()


def _sizes(case: str) -> tuple[dict[str, int], str]:
    """A case's sizes, and what follows them: its dtype, alone in the usual case.

    >>> _sizes("M=64,N=32,bf16,misaligned")
    ({'M': 64, 'N': 32}, 'bf16,misaligned')
    """
    parts = case.split(",")
    sizes = {name: int(value) for name, equals, value in (part.partition("=") for part in parts) if equals}
    return sizes, ",".join(parts[len(sizes) :])


def in_flight(results: Path, was: str) -> str:
    """Bytes of loads in flight on a multiprocessor beside the speed reached, of vector_add on record."""
    op = registry.get_op("vector_add")
    found = recorded.recorded(op, results)
    if found is None:
        return "Nothing is recorded yet: `python -m compare vector_add --sweep --record` on a GPU does it."
    if not pinned(*PACKAGES):
        return was
    cases = [case for case in found.cases if case.case in ("N=67108864,fp32", "N=67108864,bf16")]
    requests: list[Request] = [(op.name, label, case.case, {}) for case in cases for label in ELEMENTS]
    kernels = compiled(requests)
    rows = []
    for (_, label, name, _), kernel in zip(requests, kernels, strict=True):
        case = next(case for case in cases if case.case == name)
        row, itemsize = figures.row_of(case, label), 2 if name.endswith("bf16") else 4
        share = row and figures.share(case, row)
        if not share:
            continue
        each = ELEMENTS[label](itemsize)
        threads = round(kernel["occupancy"] * limits(ARCH).threads)
        cells = (
            *(str(each), f"{kernel['registers']:.0f}", f"{kernel['occupancy']:.0%}"),
            *(f"{threads * 2 * each * itemsize / 1024:.0f}", f"{share:.0%}"),
        )
        rows.append((f"`{label}`, {name.rpartition(',')[2]}", *cells))
    headers = ("", "elements a thread", "registers", "occupancy", "KiB of loads", "% of copy bandwidth")
    table = untitled(Table("", headers, tuple(rows)))
    return f"{table}\n\nSpeeds are recorded on {found.environment.device}; the rest is compiled for {ARCH}."


def _blocked(itemsize: int) -> int:
    size, warps = (parameter("vector_add", "triton.blocked", name) for name in ("BLOCK_SIZE", "WARPS"))
    return size // (WARP * warps)


ELEMENTS: dict[str, Callable[[int], int]] = {
    "cupy.scalar": lambda itemsize: 1,
    "triton.blocked": _blocked,
    "cupy.vectorized": lambda itemsize: (
        parameter("vector_add", "cupy.vectorized", "VECTORS") * 16 // itemsize
    ),
}
"""Elements of a thread, by label, from the bytes of an element."""


ALT = (
    "Registers of a thread and theoretical occupancy on sm_90 over the size of a tile, a curve for each "
    "number of warps, for vector_add and for fp8_matmul; and the speed where the sweep is on record. "
    "Registers grow with the elements of a thread, and beyond a point occupancy falls"
)
SIZES_ALT = (
    "Speed over the size of the problem, from records: vector_add reaches copy bandwidth only with "
    "millions of elements, and stays below it with one element a thread; matmul needs matrices of some "
    "thousand rows"
)


if __name__ == "__main__":
    print(json.dumps(list(_compile(json.loads(sys.argv[1])))))
