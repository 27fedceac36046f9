"""The picture of docs/programs-and-threads.md: from an element to its program, warp and lane."""

from __future__ import annotations

from typing import NamedTuple

from tools.docs.canvas import Canvas, constant, parameter

PICTURE = "docs/programs-and-threads.svg"
N = 2500
"""No multiple of any size here, so that the last program, block, warp and vector are partial."""
VEC = 4
"""Elements of fp32 in 16 bytes: a lane's, by the layout."""
_LEFT, _WIDTH, _BAR = 12, 850, 26


def picture() -> str:
    """Triton's program, warps and lanes above CUDA's, each row a part of the one above it, enlarged."""
    size = parameter("vector_add", "triton.blocked", "BLOCK_SIZE")
    warps = parameter("vector_add", "triton.blocked", "WARPS")
    threads = parameter("vector_add", "cupy.scalar", "THREADS")
    lanes = constant("cuda_impl/kernels/common.cuh", "WARP")
    programs, blocks, span = -(-N // size), -(-N // threads), lanes * VEC
    canvas = Canvas(alt(size, warps, threads, lanes), _LEFT * 2 + _WIDTH)
    title = f"Triton: z[{N}] in {programs} programs of BLOCK_SIZE = {size}"
    y = _row(canvas, 0, title, "program", Cells(0, size, programs))
    title = f"program {programs - 1}: num_warps = {warps}; a warp has {lanes} lanes of {VEC} elements, twice"
    last = (programs - 1) * size
    y = _row(canvas, y, title, "warp", Cells(last, span, size // span), warps)
    title = f"the warp in which z ends, its {lanes} lanes: mask = n < {N} is a truth value for each element"
    y = _row(canvas, y, title, "", Cells(last + (N - last) // span * span, VEC, lanes))
    title = f"CUDA: z[{N}] in {blocks} blocks of THREADS = {threads}, an element a thread"
    y = _row(canvas, y + 8, title, "", Cells(0, threads, blocks))
    title = f"block {blocks - 1}: {threads // lanes} warps of {lanes} threads"
    last = (blocks - 1) * threads
    y = _row(canvas, y, title, "warp", Cells(last, lanes, threads // lanes))
    title = f"the warp in which z ends, its {lanes} lanes: if (n < {N}) holds for some threads"
    _row(canvas, y, title, "", Cells(last + (N - last) // lanes * lanes, 1, lanes))
    return canvas.drawn()


class Cells(NamedTuple):
    """Neighbouring cells, all of the same number of elements."""

    first: int
    size: int
    number: int


def _row(canvas: Canvas, y: float, title: str, name: str, cells: Cells, modulo: int = 0) -> float:
    """The y below a row of cells; faint where there is no element, numbered modulo the number of warps."""
    canvas.text("title", _LEFT, y + 16, title)
    width = _WIDTH / cells.number
    for i in range(cells.number):
        x, begin = _LEFT + i * width, cells.first + i * cells.size
        inside = max(0, min(N - begin, cells.size)) / cells.size
        canvas.cell("faint", x, y + 24, width, _BAR)
        if inside:
            canvas.cell(f"part{i % 2}", x, y + 24, width * inside, _BAR)
        label = f"{name} {i % modulo if modulo else i}".strip() if width > 60 else str(i)
        canvas.texts.append(("", x + width / 2, y + 28 + _BAR / 2, "middle", label))
        if cells.number <= 10 or i % 8 == 0:
            canvas.texts.append(("note", x, y + 37 + _BAR, "start", str(begin)))
    return y + 48 + _BAR


def alt(size: int, warps: int, threads: int, lanes: int) -> str:
    """What the picture shows, for readers who do not see it."""
    return (
        f"{N} elements twice. Triton: programs of {size} elements, {warps} warps each; of the last program "
        f"the warps, and of the warp in which the vector ends its {lanes} lanes with {VEC} elements each, "
        f"some outside. CUDA: blocks of {threads} threads; of the last block the warps, and of the last warp "
        f"with elements its {lanes} lanes"
    )
