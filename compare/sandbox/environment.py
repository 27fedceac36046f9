"""Which environment variables reach processes with user code."""

from __future__ import annotations

import os
import re
import sys

_KEPT = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TMPDIR|TEMP|TMP|"
    r"TERM|COLORTERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|"
    r"CC|CXX|CPATH|C_INCLUDE_PATH|CPLUS_INCLUDE_PATH|LIBRARY_PATH|COMPILER_PATH|LD_LIBRARY_PATH|LD_PRELOAD|"
    r"VIRTUAL_ENV|CONDA_PREFIX|NIX_\w+|XDG_\w+|PYTHON\w*|"
    r"(CUDA|CUPY|NVIDIA|NVCC|NVRTC|TRITON|TORCH|TORCHINDUCTOR|PYTORCH|NCCL|NVSHMEM|GLOO|COMPARE|HOST|"
    r"OMP|MKL|KMP|OPENBLAS|GOMP|ASAN|UBSAN|LSAN)_\w+"
)
"""Environment variables that building, running and showing may need.  Others may hold secrets."""

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL")
"""``NVIDIA_API_KEY``"""


def kept(name: str) -> bool:
    """Whether a process with user code keeps this environment variable."""
    return _KEPT.fullmatch(name) is not None and not _SECRET.search(name)


def kept_variables() -> dict[str, str]:
    """This process's variables that a process with user code keeps."""
    return {name: value for name, value in os.environ.items() if kept(name)}


def begin_again_without_others() -> None:
    """Start this command's program again without the other variables, if it has any.

    Workers are forks of this process: what it has read once stays in their memory.
    """
    found = kept_variables()
    begun_by = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    if len(found) < len(os.environ) and "".join(begun_by).endswith("-mcompare"):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], found)
