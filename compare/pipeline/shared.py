"""The last step of both languages: from the cubin to SASS."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from compare.pipeline.records import CompilerStage, Opened, StageFailure
from compare.resources.sass import disassembly as sass

_cores = threading.BoundedSemaphore(os.cpu_count() or 1)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """A core for one tool: at most one tool runs on each core, so that wall times are comparable."""
    with _cores:
        yield


def with_sass(opened: Opened, mangled: str) -> Opened:
    """The same with its cubin disassembled, if there is one; ``mangled`` is the kernel's name in it."""
    for result in disassembly(opened.stages) if opened.failure is None else ():
        if isinstance(result, StageFailure):
            return replace(opened, failure=result)
        return with_instructions(opened, result, mangled)
    return opened


def disassembly(made: Sequence[CompilerStage | StageFailure]) -> list[CompilerStage | StageFailure]:
    """The stage that follows from the cubin among ``made``; none where there is no cubin."""
    for stage in made:
        if isinstance(stage, CompilerStage) and stage.name == "cubin":
            with one_core():
                begin = time.perf_counter()
                try:
                    text = sass.disassembled(stage.content)
                except sass.NoDisassembler as error:
                    return [StageFailure("sass", str(error))]
                took_ms = (time.perf_counter() - begin) * 1e3
            return [CompilerStage("sass", "nvdisasm", text.encode(), took_ms)]
    return []


def with_instructions(opened: Opened, stage: CompilerStage, mangled: str) -> Opened:
    """The same with its own kernel's part of the disassembly ``stage``."""
    text = sass.of_kernel(stage.text, mangled)
    found = sass.instructions(text)
    if not found:
        return replace(
            opened, failure=StageFailure("sass", f"nvdisasm shows no code of {mangled or opened.kernel}")
        )
    own = replace(stage, content=text.encode(), ops=sass.counted(found))
    return replace(opened, stages=(*opened.stages, own), instructions=found)
