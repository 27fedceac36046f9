"""The pictures of docs/trust.md and docs/pipeline.md: which process runs what, and the compilers' stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.docs import svg


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text, each of a class of the template; in pixels."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    lines: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Arrow:
    """A path in SVG's own words; ``both``: with a head at either end."""

    path: str
    both: bool = False


Text = tuple[str, int, int, str]
"""Class, x, y and words."""


# --------------------------------------------------------------------------- processes

WORKERS = """
plain | worker | one per project row: / builds, checks and / times it | requests, inputs | outputs, times
user | worker of the file | checks it, times its / host code | requests, inputs | output, host time
user | recorder | records one call: / kernels, memsets, / copies, sources | other inputs | recorded call
plain | compiler | Triton and NVRTC / on the sources, / without a GPU | kernel sources | machine code
plain | runner | replays the call at / the same addresses | call, new inputs | output, GPU time
"""
"""Kind of box, name, what it does, what the judge gives it and what it gets back."""


def processes() -> str:
    """docs/processes.svg: the judge process above, one column for each kind of worker below."""
    column, width, top, below = 160, 146, 10, 112
    judge = "draws inputs, holds the fp64 oracle, checks outputs, decides, reports; runs no implementation"
    isolated = (
        "a --load file on a GPU: each process is isolated by namespaces, Landlock, seccomp; "
        "orange: runs the file"
    )
    boxes = [
        Box(10, top, 5 * column - 6, 42, "judge", (("name", "judge process"), ("", judge))),
        Box(column + 2, below - 8, 4 * column + 2, 108, "frame"),
    ]
    arrows: list[Arrow] = []
    texts: list[Text] = [("note", column + 10, below + 92, isolated)]
    for number, row in enumerate(WORKERS.strip().splitlines()):
        kind, name, work, given, returned = row.split(" | ")
        x = 10 + number * column
        lines = (("name", name), *(("", line) for line in work.split(" / ")))
        boxes.append(Box(x, below, width, 72, kind, lines))
        arrows.append(Arrow(f"M{x + 14} {top + 42}V{below}", both=True))
        texts += [
            ("", x + 24, top + 60, f"\N{DOWNWARDS ARROW} {given}"),
            ("", x + 24, top + 76, f"\N{UPWARDS ARROW} {returned}"),
        ]
    return svg.drawn(
        "flow",
        title="The judge process gives inputs to a worker for each row; of a user's file, one process "
        "records a call, one compiles its kernels, and one that never loads the file replays and times it",
        boxes=boxes,
        arrows=arrows,
        texts=texts,
        width=814,
        height=below + 110,
    )


# --------------------------------------------------------------------------- stages

Stage = tuple[int, str, str, tuple[str, ...]]
"""Column, name, the tool that makes it, and what it holds."""

PTX = ("virtual", "instructions")
CODE = ("machine code",)
SASS: Stage = (7, "sass", "nvdisasm", ("machine code", "as text"))
TRITON: tuple[Stage, ...] = (
    (0, "source, ast", "Python", ("kernel, and its", "syntax tree")),
    (1, "frontend", "Triton", ("TTIR as written", "from the tree")),
    (2, "ttir", "make_ttir", ("whole tensors,", "no threads yet")),
    (3, "ttgir", "make_ttgir", ("layouts: element", "to warp and lane")),
    (4, "llir", "make_llir", ("one thread,", "as LLVM IR")),
    (5, "ptx", "LLVM", PTX),
    (6, "cubin", "ptxas", CODE),
    SASS,
)
NVCC: tuple[Stage, ...] = (
    (0, "source", "", ("kernels/*.cuh",)),
    (4, "preprocessed", "g++", ("device half, for", "one architecture")),
    (5, "ptx", "cicc", PTX),
    (6, "cubin", "ptxas", CODE),
    SASS,
)
HOST: tuple[Stage, ...] = (
    (2, "host-preprocessed", "g++", ("host half, with all", "headers")),
    (4, "cudafe", "cudafe++", ("kernels become", "launch stubs")),
    (5, "object, library", "g++", ("host half with", "the fat binary")),
    (6, "fatbin", "fatbinary", ("cubins of all", "architectures")),
)
NVRTC: tuple[Stage, ...] = (
    (0, "source", "", ("kernels/*.cuh",)),
    (5, "ptx", "NVRTC", ("front end and", "optimizer")),
    (6, "cubin", "NVRTC", ("PTX translation",)),
    SASS,
)
PITCH, WIDTH, HEIGHT = 110, 100, 72
DEVICE_ROW, HOST_ROW = 138, 228


def stages() -> str:
    """docs/stages.svg: a row for each compiler, equal stages in one column."""
    rows = (
        ("Triton", 28, TRITON),
        ("CUDA by nvcc: pybind.*", DEVICE_ROW, NVCC),
        ("", HOST_ROW, HOST),
        ("CUDA by NVRTC: cupy.*", 342, NVRTC),
    )
    boxes: list[Box] = []
    arrows: list[Arrow] = []
    texts: list[Text] = [("heading", 10, y - 10, heading) for heading, y, _ in rows if heading]
    for _, y, row in rows:
        middle = y + HEIGHT // 2
        for column, name, tool, holds in row:
            lines = (
                ("name", name),
                *((("tool", tool),) if tool else ()),
                *(("note", line) for line in holds),
            )
            wide = WIDTH + (26 if name == "host-preprocessed" else 0)
            boxes.append(Box(10 + PITCH * column, y, wide, HEIGHT, "plain", lines))
        for left, right in zip(boxes[-len(row) :], boxes[-len(row) + 1 :], strict=False):
            start, end = left.x + left.width, right.x
            forth = not right.lines[0][1].startswith("fatbin")
            arrows.append(Arrow(f"M{start} {middle}H{end}" if forth else f"M{end} {middle}H{start}"))
    source, cubin = 10 + WIDTH // 2, 10 + 6 * PITCH + WIDTH // 2
    arrows += [
        Arrow(f"M{source} {DEVICE_ROW + HEIGHT}V{HOST_ROW + HEIGHT // 2}H{10 + 2 * PITCH}"),
        Arrow(f"M{cubin} {DEVICE_ROW + HEIGHT}V{HOST_ROW}"),
    ]
    return svg.drawn(
        "flow",
        title="The stages of Triton, nvcc and NVRTC from source to SASS, each with the tool that makes it",
        boxes=boxes,
        arrows=arrows,
        texts=texts,
        width=890,
        height=424,
    )


PICTURES: dict[Path, Callable[[], str]] = {
    Path("docs/processes.svg"): processes,
    Path("docs/stages.svg"): stages,
}
