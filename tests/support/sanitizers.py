"""How the tests run the sanitizers: those of the host build, and NVIDIA's on a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

from compare import registry
from cuda_impl import build

COMPUTE_SANITIZER = shutil.which("compute-sanitizer") or shutil.which(
    "compute-sanitizer", path="/usr/local/cuda/bin:/opt/cuda/bin"
)
FOUND, LATE = 86, 87
LIMIT_S = 270
"""Less than a test has, so that it can say how far it came."""

NOT_UNDERSTOOD = {
    "initcheck": (
        # Memory that the copy engine has written counts as never written.
        *("matmul_persistent_kernel", "linear_gelu_fused_kernel", "linear_gelu_unfused_kernel"),
        # An asynchronous copy of a part of 16 bytes counts as a read of all: what a copied operand's rows are
        # longer than they need be is never written.
        *("matmul_register_kernel", "matmul_tensor_core_kernel", "linear_gelu_tensor_core_kernel"),
    ),
    # Triton hands work to warps of other roles through shared memory of its own, by barriers for some.
    "racecheck": ("matmul_gluon_kernel",),
}
"""Kernels of which a tool reports what is no mistake, and which it leaves out for that reason."""


def host_environment() -> dict[str, str]:
    """What a process needs so that its host builds run under AddressSanitizer and UBSan."""
    library = subprocess.run(
        [build.gxx(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    return {
        "HOST_SANITIZE": "1",
        "LD_PRELOAD": library.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": os.pathsep.join((str(registry.ROOT), str(Path(__file__).parent))),
    }


def leave_compilers_alone() -> None:
    """What this process starts from now on, as g++, is not slowed down by the sanitizer in `LD_PRELOAD`."""
    os.environ.pop("LD_PRELOAD", None)


def watched(
    tool: str, *command: str, cwd: Path = registry.ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python under one of compute-sanitizer's tools.

    The exit status is `FOUND` where it found any, and `LATE` where it was not done in time.
    """
    assert COMPUTE_SANITIZER is not None
    # Libraries ask the driver for functions that it may not have; their asking is no fault of a kernel.
    quiet = ("--report-api-errors", "no") if tool == "memcheck" else ()
    options: tuple[str, ...] = ("--tool", tool, "--error-exitcode", str(FOUND))
    # Compilers, which a process starts by the dozen, are left alone.
    options += ("--target-processes", "application-only")
    for kernel in NOT_UNDERSTOOD.get(tool, ()):
        options += ("--kernel-name-exclude", f"kernel_substring={kernel}")
    line = (COMPUTE_SANITIZER, *options, *quiet, sys.executable, *command)
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        try:
            done = subprocess.run(
                line,
                cwd=cwd,
                # Every tensor is memory of its own, and new: none lies in what another had.
                env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", **(environment or {})},
                stdout=out,
                stderr=err,
                timeout=LIMIT_S,
                check=False,
            )
            status, late = done.returncode, ""
        except subprocess.TimeoutExpired:
            status, late = LATE, f"\nnot done after {LIMIT_S} s\n"
        said = [file.seek(0) or file.read() for file in (out, err)]
    return subprocess.CompletedProcess(line, status, said[0], said[1] + late)
