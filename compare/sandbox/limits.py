"""What a worker gives up before it runs a line of anybody's code.

Nothing here needs root, and none of it is a sandbox: what a process with the user's own rights can still
do, and what a grader should add, is said in docs/trust.md.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import select
import signal
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

_NO_NEW_PRIVILEGES = 38  # <linux/prctl.h>

FILE_BYTES = 4 << 30
"""The largest file that a worker may write; compilers included, the largest known is some 50 MB."""

HOST_BYTES = 16 << 30
"""Address space beyond what a worker starts with, on a CPU.  CUDA itself reserves more, so on a GPU there
is no such limit."""

_KEPT = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TMPDIR|TERM|NO_COLOR|CC|CXX|LD_LIBRARY_PATH|LD_PRELOAD|"
    r"VIRTUAL_ENV|CONDA_PREFIX|XDG_\w+|PYTHON\w*|"
    r"(CUDA|CUPY|NVIDIA|NVCC|NVRTC|TRITON|TORCH|TORCHINDUCTOR|PYTORCH|COMPARE|HOST|OMP|MKL|KMP|OPENBLAS|"
    r"GOMP|ASAN|UBSAN|LSAN)_\w+"
)
"""Environment variables that building and running a kernel may need.  Others hold tokens and agents."""


def confine(connection: int, output: int, lifeline: int, host_bytes: int | None) -> None:
    """Confine this process and all that it starts.

    Args:
        connection: to the judge.
        output: a file that takes what is printed.
        lifeline: the read end of a pipe that closes when the judge is gone.
        host_bytes: address space it may take beyond what it has; None: any.
    """
    os.setsid()  # a group of its own, which is killed as a whole, and no terminal to read from or to signal
    end_with(lifeline)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _close_all_but(0, 1, 2, connection, lifeline)
    restrict()
    if host_bytes is not None:
        _limit(resource.RLIMIT_AS, _address_space() + host_bytes)


def restrict() -> None:
    """The part of it that any process can do without which runs a user's code."""
    for name in [name for name in os.environ if not kept(name)]:
        del os.environ[name]
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, FILE_BYTES)
    with suppress(OSError):  # where memory runs out, the kernel is to end this process and not the judge
        Path("/proc/self/oom_score_adj").write_text("1000")
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def end_with(lifeline: int) -> None:
    """Have the kernel end this group when a pipe closes, whatever the group is busy with.

    Args:
        lifeline: the pipe's read end; nothing is ever written to the other, which whoever started this keeps.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it closed before that
        os._exit(1)


def kept(name: str) -> bool:
    """Whether a worker may see the environment variable of that name."""
    return _KEPT.fullmatch(name) is not None


def _close_all_but(*kept_open: int) -> None:
    """What is written into the server's own pipes would end the server, and with it all other workers."""
    resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined]  # one of its own, if need be
    for descriptor in map(int, (path.name for path in Path("/proc/self/fd").iterdir())):
        if descriptor not in kept_open:
            with suppress(OSError):  # the one that this list was read by
                os.close(descriptor)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
