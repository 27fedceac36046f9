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
"""Less than a test's limit, so that the test can report the progress."""

NOT_UNDERSTOOD = {
    "initcheck": (
        # The tool does not see writes by TMA.
        *("matmul_persistent_kernel", "linear_gelu_fused_kernel", "linear_gelu_unfused_kernel"),
        # The tool counts a partial 16-byte cp.async as a read of all 16 bytes, and the padding of a copied
        # operand's rows is never written.
        *("matmul_cp_async_kernel", "matmul_pipelined_kernel"),
        *("matmul_tensor_core_kernel", "linear_gelu_tensor_core_kernel"),
        *("w4a16_matmul_tensor_core_kernel", "w4a16_matmul_streamk_kernel"),
    ),
    # Triton's warp specialisation passes data through shared memory, with barriers for some warps only.
    # attention's producer hands over a tile with 32 lanes that store the same value, and an mbarrier.
    "racecheck": ("matmul_gluon_kernel", "attention_gluon_kernel"),
}
"""Kernels left out because a tool reports false positives for them."""


def host_environment() -> dict[str, str]:
    """Environment of a process whose host builds run under AddressSanitizer and UBSan."""
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
    """Drop the sanitizer's `LD_PRELOAD`, which would slow down child processes such as g++."""
    os.environ.pop("LD_PRELOAD", None)


def watched(
    tool: str, *command: str, cwd: Path = registry.ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python under one of compute-sanitizer's tools; exit status `FOUND`: a report, `LATE`: a timeout."""
    assert COMPUTE_SANITIZER is not None
    # Libraries query driver functions that may not exist: not a kernel's error.
    quiet = ("--report-api-errors", "no") if tool == "memcheck" else ()
    options: tuple[str, ...] = ("--tool", tool, "--error-exitcode", str(FOUND))
    # Not the compilers that the process starts.
    options += ("--target-processes", "application-only")
    for kernel in NOT_UNDERSTOOD.get(tool, ()):
        options += ("--kernel-name-exclude", f"kernel_substring={kernel}")
    line = (COMPUTE_SANITIZER, *options, *quiet, sys.executable, *command)
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        try:
            done = subprocess.run(
                line,
                cwd=cwd,
                # Every tensor gets its own new allocation.
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
