"""Limits that a worker sets on itself before it runs user code.  `isolation` does the rest."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
from contextlib import suppress
from pathlib import Path

from compare.sandbox import kernel

FILE_BYTES = 1 << 30
"""Largest file that a worker may write; compilers write up to about 50 MB."""

HOST_BYTES = 16 << 30
"""Address space that a worker on a CPU may add to its initial one.  None on a GPU: CUDA reserves more."""


def confine(connection: int, output: int, lifeline: int, host_bytes: int | None) -> None:
    """Confine this process and its children.

    Args:
        connection: to the judge.
        output: file descriptor for stdout and stderr.
        lifeline: the read end of a pipe that closes when the judge exits.
        host_bytes: address space to add to the present one; None: no limit.
    """
    os.setsid()  # its own process group, killed as a whole, without a controlling terminal
    end_with(lifeline)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    close_all_but(0, 1, 2, connection, lifeline)
    restrict(host_bytes)


def restrict(host_bytes: int | None) -> None:
    """Limit a process with user code: memory, core dumps, file size, privileges."""
    if host_bytes is not None:
        limit(resource.RLIMIT_AS, _address_space() + host_bytes)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, FILE_BYTES)
    with suppress(OSError):  # out of memory, the kernel kills this process first, not the judge
        Path("/proc/self/oom_score_adj").write_text("1000")
    kernel.no_new_privileges()


def end_with(lifeline: int) -> None:
    """Have the kernel kill this process group when a pipe closes (SIGIO).

    Args:
        lifeline: the pipe's read end; the parent holds the write end and never writes.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it was closed already
        os._exit(1)


def close_all_but(*kept_open: int) -> None:
    """Close inherited descriptors: a write into the server's pipes would end it, and all workers with it."""
    begin = 0
    for descriptor in sorted(kept_open):
        if begin < descriptor:  # closerange(0, 0) closes all
            os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, 1 << 16)


def limit(kind: int, value: int) -> None:
    """Set a resource limit, soft and hard, to ``value`` or the present hard limit if that is less."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
