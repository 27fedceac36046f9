"""The last step of both languages: from the cubin to SASS."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator
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
    cubin = opened.stage("cubin")
    if cubin is None or opened.failure is not None:
        return opened
    try:
        whole, took_ms = _disassembled(cubin.content)
    except sass.NoDisassembler as error:
        return opened.plus(StageFailure("sass", str(error)))
    text = sass.of_kernel(whole, mangled)
    found = sass.instructions(text)
    if not found:
        return opened.plus(StageFailure("sass", f"nvdisasm shows no code of {mangled or opened.kernel}"))
    stage = CompilerStage("sass", "nvdisasm", text.encode(), took_ms, sass.counted(found))
    return replace(opened.plus(stage), instructions=found)


@functools.lru_cache(maxsize=32)
def _disassembled(cubin: bytes) -> tuple[str, float]:
    """The text and the milliseconds; kernels of one file share it."""
    with one_core():
        begin = time.perf_counter()
        text = sass.disassembled(cubin)
        return text, (time.perf_counter() - begin) * 1e3
