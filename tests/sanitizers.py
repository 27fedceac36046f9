"""How the tests run the sanitizers: those of the host build, and NVIDIA's on a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from compare import registry
from cuda_impl import build

COMPUTE_SANITIZER = shutil.which("compute-sanitizer") or shutil.which(
    "compute-sanitizer", path="/usr/local/cuda/bin:/opt/cuda/bin"
)
FOUND = 86


def host_environment() -> dict[str, str]:
    """What a process needs so that its host builds run under AddressSanitizer and UBSan."""
    library = subprocess.run(
        [build.gxx(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    return {
        "HOST_SANITIZE": "1",
        "LD_PRELOAD": library.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(registry.ROOT),
    }


def leave_compilers_alone() -> None:
    """What this process starts from now on, as g++, is not slowed down by the sanitizer in `LD_PRELOAD`."""
    os.environ.pop("LD_PRELOAD", None)


def watched(
    tool: str, *command: str, cwd: Path = registry.ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python under one of compute-sanitizer's tools; the exit status is `FOUND` where it found any."""
    assert COMPUTE_SANITIZER is not None
    # Libraries ask the driver for functions that it may not have; their asking is no fault of a kernel.
    quiet = ("--report-api-errors", "no") if tool == "memcheck" else ()
    options = ("--tool", tool, "--error-exitcode", str(FOUND), *quiet)
    return subprocess.run(
        (COMPUTE_SANITIZER, *options, sys.executable, *command),
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
