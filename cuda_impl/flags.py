"""The one list of compiler flags for NVRTC and nvcc, with reasons; `cuda_impl.host_flags` has g++'s.

NVRTC and nvcc get the same device flags, so both routes make the same machine code from the same kernel.
"""

from __future__ import annotations

from pathlib import Path

KERNELS = Path(__file__).resolve().parent / "kernels"

DEVICE = (
    "-std=c++17",
    "-ftz=true",  # cupy always adds it; without it the two routes would round subnormals differently
    "-lineinfo",  # line numbers for profilers and compute-sanitizer; does not change the instructions
)

SHARED_ADDRESSES_AS_NVRTC = ("-Xcicc", "--sharedmem32", "-Xcicc", "0")
"""nvcc computes addresses in shared memory in 32 bits and NVRTC in 64, which changes instructions and
registers.  NVRTC has no option for it; nvcc's front end has this one."""

PTXAS_REMARKS_THAT_ARE_ERRORS = tuple(f"C{number}" for number in range(7504, 7516))
"""ptxas only remarks that it ignored ``setmaxnreg`` or serialised ``wgmma``; the kernel is then slow."""


def target(arch: str) -> str:
    """The target that enables all features of ``arch``: wgmma and setmaxnreg need ``sm_90a``."""
    return "sm_90a" if arch == "sm_90" else arch


def nvrtc(arch: str, cuda_include: Path) -> tuple[str, ...]:
    """Options for NVRTC, passed both by cupy's ``RawModule`` and by offline compilation."""
    return (*DEVICE, f"-I{KERNELS}", f"-I{cuda_include}", f"-arch={target(arch)}")


def nvcc(archs: tuple[str, ...]) -> tuple[str, ...]:
    """Options for nvcc: native code for each of ``archs``."""
    codes = [target(arch).removeprefix("sm_") for arch in archs]
    generate = [f"-gencode=arch=compute_{code},code=sm_{code}" for code in codes]
    parallel = ("--threads=0", "--split-compile=0")
    checks = ("-Werror=all-warnings", "-Xptxas=-v")
    return (*DEVICE, *SHARED_ADDRESSES_AS_NVRTC, f"-I{KERNELS}", *generate, *parallel, *checks)
