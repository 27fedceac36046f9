"""Compiler flags for g++, which builds the kernels for a CPU.  No recorded time depends on them."""

from __future__ import annotations

from pathlib import Path

from cuda_impl.flags import KERNELS

HOST = KERNELS.parent / "host"

HOST_CXX = (
    "-std=c++17",
    "-O1",  # half the compile time of -O2; these kernels are checked, not timed
    "-fPIC",
    "-pthread",
    "-DHOST_BUILD",
    "-fno-strict-aliasing",  # kernels make 16-byte accesses through pointers, as CUDA allows
    "-fno-gnu-unique",  # a kernel's __shared__ belongs to its own shared object
)

SANITIZE = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",  # "#pragma unroll"
)


def host(cuda_include: Path, sanitize: bool) -> tuple[str, ...]:
    """Options for g++: the kernels as C++ for the CPU, with CUDA's own headers for its data types."""
    includes = (f"-I{HOST}", f"-I{KERNELS}", "-isystem", str(cuda_include))
    return (*HOST_CXX, *(SANITIZE if sanitize else ()), *includes)
