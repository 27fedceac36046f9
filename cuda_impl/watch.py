"""Kernels on the CPU with every access to memory checked: alignment, bounds, and races in shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import re
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

from cuda_impl import build
from cuda_impl.source import place

Span = tuple[int, int]
"""Addresses: of the first byte, and of the one behind the last."""

watching: ContextVar[bool] = ContextVar("watching", default=False)
"""Whether kernels are launched in the build that checks them."""


launched: deque[tuple[Path, str]] = deque(maxlen=1)
"""The build and the source of the last launch."""


@contextlib.contextmanager
def watched(arenas: Sequence[Span], tensors: Sequence[Span]) -> Iterator[None]:
    """Check the kernels launched meanwhile.

    Args:
        arenas: memory that holds tensors, with gaps between them.
        tensors: what a kernel may access of it; other memory is not checked.
    """
    watch = ctypes.CDLL(str(build.host_runtime())).host_watch
    arrays = [
        (ctypes.c_size_t * (2 * len(spans)))(*(each for span in spans for each in span))
        for spans in (arenas, tensors)
    ]
    watch(arrays[0], ctypes.c_size_t(len(arenas)), arrays[1], ctypes.c_size_t(len(tensors)))
    token = watching.set(True)
    try:
        yield
    finally:
        watching.reset(token)
        watch(None, ctypes.c_size_t(0), None, ctypes.c_size_t(0))


class Access(ctypes.Structure):
    """``host::Recorded`` of host/watch.cpp: an access of a thread of the first warp."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("address", "code")),
        *((name, ctypes.c_uint32) for name in ("thread", "bytes", "write", "shared")),
    )


@contextlib.contextmanager
def recording(accesses: list[Access]) -> Iterator[None]:
    """Within `watched`: append what the first warp of the first launch accesses, in each thread's order."""
    runtime = ctypes.CDLL(str(build.host_runtime()))
    runtime.host_record(1)
    try:
        yield
    finally:
        runtime.host_record(0)
        runtime.host_recorded.restype = ctypes.c_size_t
        records = (Access * runtime.host_recorded(None, ctypes.c_size_t(0)))()
        runtime.host_recorded(records, ctypes.c_size_t(len(records)))
        accesses += records


def with_lines(problem: str, library: Path, text: str) -> str:
    """``problem`` with the lines of a user's ``text`` in place of addresses in ``library``: ``at +1234``."""
    problem = re.sub(r"at \+(\d+)", lambda found: _line(int(found[1]), library, text), problem)
    return re.sub(r"at line (\d+)$", lambda found: f"at {place(text, int(found[1]))}", problem)


def _line(address: int, library: Path, text: str) -> str:
    command = ["addr2line", "--inlines", "--exe", str(library), hex(address)]
    try:
        frames = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return "at an unknown line"
    for frame in frames:
        file, _, line = frame.partition(" ")[0].rpartition(":")
        if file.endswith(".cpp") and line.isdigit():
            return f"at {place(text, int(line))}"
    return "in a function of CUDA's"
