"""A Triton kernel stage by stage: Python, AST, TTIR, TTGIR, LLVM IR, PTX, cubin."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import re
import textwrap
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from compare.model.op import TritonLaunch
from compare.pipeline import reading, triton_adapter
from compare.pipeline.records import CompilerStage, Opened, StageFailure
from compare.pipeline.triton_adapter import MARK, Watched, cache_entry, watched
from compare.resources.compiler import compile_triton

STAGES = ("source", "ast", *triton_adapter.STAGES, "sass")

_MADE_BY = {
    "frontend": "Triton's code generator",
    "ttir": "make_ttir",
    "ttgir": "make_ttgir",
    "llir": "make_llir",
    "ptx": "make_ptx (LLVM)",
    "cubin": "make_cubin (ptxas)",
}

_fresh = itertools.count()


def compiled(launch: TritonLaunch, blank: Opened, dump: bool) -> Opened:
    """Every stage of Triton for a launch; the stage that fails is the failure.

    Args:
        launch: as captured.
        blank: op, label, case and architecture.
        dump: with every pass, which takes longer.
    """
    text = "".join(launch.kernel.raw_src)
    begin = time.perf_counter()
    tree = ast.parse(textwrap.dedent(text))
    parsing_ms = (time.perf_counter() - begin) * 1e3
    file, line = launch.kernel.fn.__code__.co_filename, launch.kernel.starting_line_number
    source = CompilerStage("source", "Python", text.encode(), file=file, first_line=line)
    parsed = CompilerStage("ast", "ast.parse", ast.dump(tree, indent=1).encode(), parsing_ms)
    failure, cached = None, []
    with watched(dump) as seen:
        try:
            # Triton prints what it raises as well.
            with contextlib.redirect_stdout(io.StringIO()):
                kernel, _ = compile_triton(launch, blank.arch, device=f"{blank.arch} {next(_fresh)}")
            cached.append(cache_entry(kernel))
        except Exception as error:
            failure = error
    name = launch.kernel.fn.__name__
    return replace(
        blank,
        kernel=name,
        symbol=name,
        stages=(source, parsed, *map(_stage, seen.results)),
        passes=reading.passes(seen.noise) if dump else (),
        cached=tuple(cached),
        failure=_failure(failure, seen, launch.kernel) if failure else None,
    )


def each_compiled(seen: Watched, blank: Opened, dump: bool) -> list[Opened]:
    """The kernels in ``seen``; those of one name, which are configurations of one kernel, are numbered."""
    kernels: list[Opened] = []
    for stage in map(_stage, seen.results):
        if stage.name == "frontend":
            name = re.search(r"tt\.func public @(\w+)", stage.text)
            kernels.append(replace(blank, symbol=name[1] if name else ""))
        kernels[-1] = kernels[-1].plus(stage)
    of_name, numbers = Counter(one.symbol for one in kernels), Counter[str]()
    noises = re.split(rf"(?m)^{re.escape(MARK)}frontend$", seen.noise)[1:]
    for i, (one, noise) in enumerate(zip(kernels, noises, strict=True)):
        numbers[one.symbol] += 1
        several = f" ({numbers[one.symbol]} of {of_name[one.symbol]})" if of_name[one.symbol] > 1 else ""
        passes = reading.passes(noise) if dump else ()
        kernels[i] = replace(one, kernel=one.symbol + several, passes=passes)
    return kernels


def _stage(result: tuple[str, str | bytes, float]) -> CompilerStage:
    name, content, seconds = result
    binary = content if isinstance(content, bytes) else content.encode()
    return CompilerStage(name, _MADE_BY[name], binary, seconds * 1e3)


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
    messages = [row for row in seen.noise.splitlines() if re.search(r"\b(error|fatal)\b", row)]
    return StageFailure(seen.began, "\n".join([f"{type(error).__name__}: {error}", *messages]).strip(), line)
