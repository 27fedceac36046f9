"""The last step, which is the same for both languages: from the cubin to machine code as text."""

from __future__ import annotations

import time
from dataclasses import replace

from compare.pipeline import sass
from compare.pipeline.records import Failure, Opened, Stage


def with_sass(opened: Opened, mangled: str) -> Opened:
    """The same with its cubin disassembled, if it has come that far.

    Args:
        opened: what the compiler made.
        mangled: the kernel as the cubin names it.
    """
    cubin = opened.stage("cubin")
    if cubin is None or opened.failure is not None:
        return opened
    begin = time.perf_counter()
    try:
        text = sass.disassembled(cubin.content)
    except sass.NoDisassembler as error:
        return replace(opened, failure=Failure("sass", str(error)))
    took_ms = (time.perf_counter() - begin) * 1e3
    found = sass.instructions(sass.of_kernel(text, mangled))
    stage = Stage("sass", "nvdisasm", text.encode(), took_ms, sass.counted(found))
    return replace(opened, stages=(*opened.stages, stage), instructions=found)
