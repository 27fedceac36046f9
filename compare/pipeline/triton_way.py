"""A Triton kernel stage by stage: Python, AST, TTIR, TTGIR, LLVM IR, PTX, cubin, SASS."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import re
import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

from compare.model.op import TritonLaunch
from compare.pipeline import counts, passes
from compare.pipeline.records import CompilerStage, Opened, StageFailure
from compare.pipeline.shared import with_sass
from compare.pipeline.triton_adapter import MARK, Watched, key_of, watched
from compare.resources.compiler import compile_triton

STAGES = ("source", "ast", "frontend", "ttir", "ttgir", "llir", "ptx", "cubin", "sass")

_MADE_BY = {
    "frontend": "Triton's code generator",
    "ttir": "make_ttir",
    "ttgir": "make_ttgir",
    "llir": "make_llir",
    "ptx": "make_ptx (LLVM)",
    "cubin": "make_cubin (ptxas)",
}

_fresh = itertools.count()


def compiled(launch: TritonLaunch, blank: Opened, dump: bool, later: Executor) -> Future[list[Opened]]:
    """Every stage of Triton for a launch; the stage that fails is the failure.

    Args:
        launch: as captured.
        blank: op, label, case and architecture.
        dump: with every pass, which takes longer.
        later: disassembles, and reads what the passes printed, while this thread compiles the next kernel.
    """
    text = "".join(launch.kernel.raw_src)
    begin = time.perf_counter()
    tree = ast.parse(textwrap.dedent(text))
    parsing_ms = (time.perf_counter() - begin) * 1e3
    file, line = launch.kernel.fn.__code__.co_filename, launch.kernel.starting_line_number
    first = [
        CompilerStage("source", "Python", text.encode(), file=file, first_line=line),
        CompilerStage("ast", "ast.parse", ast.dump(tree, indent=1).encode(), parsing_ms, counts.python(tree)),
    ]
    failure, made = None, None
    with watched(dump) as seen:
        try:
            # Triton prints what it raises as well.
            with contextlib.redirect_stdout(io.StringIO()):
                made, _ = compile_triton(launch, blank.arch, device=f"{blank.arch} {next(_fresh)}")
        except Exception as error:
            failure = error
    key, parts = key_of(made) if made else ("", {})
    opened = replace(
        blank,
        kernel=launch.kernel.fn.__name__,
        stages=(*first, *(_stage(*step) for step in seen.made)),
        cache_key=key,
        key_parts=parts,
        failure=_failure(failure, seen, launch.kernel) if failure else None,
    )
    return later.submit(_finished, [opened], [seen.noise], dump)


def _finished(opened: Sequence[Opened], noises: Sequence[str], dump: bool) -> list[Opened]:
    return [
        replace(with_sass(one, one.kernel), passes=passes.read(noise) if dump else ())
        for one, noise in zip(opened, noises, strict=False)
    ]


def each_compiled(seen: Watched, blank: Opened, dump: bool) -> list[Opened]:
    """The kernels in ``seen``, compiled on behalf of Inductor, each from its TTIR on."""
    made: list[list[CompilerStage]] = []
    for step in seen.made:
        stage = _stage(*step)
        if stage.name == "frontend" or not made:
            made.append([])
        made[-1].append(stage)
    kernels = []
    for stages in made:
        texts = (stage.text for stage in stages)
        name = next((match[1] for text in texts if (match := re.search(r"tt\.func public @(\w+)", text))), "")
        kernels.append(replace(blank, kernel=name, stages=tuple(stages)))
    noises = re.split(rf"(?m)^{re.escape(MARK)}frontend$", seen.noise)[1:]
    return _told_apart(_finished(kernels, noises, dump))


def _told_apart(found: Sequence[Opened]) -> list[Opened]:
    """The same, those of one name numbered: configurations of a kernel that is tuned."""
    names = [one.kernel for one in found]
    numbers = [f" ({names[:i].count(name) + 1} of {names.count(name)})" for i, name in enumerate(names)]
    several = [number if names.count(name) > 1 else "" for name, number in zip(names, numbers, strict=True)]
    return [replace(one, kernel=one.kernel + more) for one, more in zip(found, several, strict=True)]


def _stage(name: str, made: str | bytes, seconds: float) -> CompilerStage:
    content = made if isinstance(made, bytes) else made.encode()
    ops = {} if isinstance(made, bytes) else counts.of(name, made)
    return CompilerStage(name, _MADE_BY.get(name, f"make_{name}"), content, seconds * 1e3, ops)


def _failure(error: Exception, seen: Watched, kernel: Any) -> StageFailure:
    line = ""
    node = getattr(error, "node", None)
    if node is not None and hasattr(node, "lineno"):
        file = kernel.fn.__code__.co_filename
        # Triton parses the kernel from "def" on, without its decorators.
        rows = kernel.raw_src
        above = next((i for i, row in enumerate(rows) if row.lstrip().startswith("def ")), 0)
        line = f"{file}:{kernel.starting_line_number + above + node.lineno - 1}"
    elif place := re.search(r'"?([^\s":(]+\.py)"?:(\d+)', seen.noise):
        line = f"{place[1]}:{place[2]}"
    # MLIR's messages are on stderr; the exception says only that it failed.
    said = [row for row in seen.noise.splitlines() if re.search(r"\b(error|fatal)\b", row)]
    return StageFailure(seen.began, "\n".join([f"{type(error).__name__}: {error}", *said]).strip(), line)
