"""A user's file for all tests of code size."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare import registry
from compare.model.op import Implementation

USERS_FILE = '''
import torch
import triton
import triton.language as tl

from compare.registry import implementation
from cuda_impl.loader import kernel
from helpers import blocks

WIDTH = tl.constexpr(64)


@triton.jit
def double(x):
    """Twice."""
    return x + x


@triton.jit
def unused(x):
    return x


@triton.jit
def my_kernel(x_ptr, N):
    # a comment

    n = tl.arange(0, WIDTH)
    tl.store(x_ptr + n, double(tl.load(x_ptr + n, mask=n < N)), mask=n < N)


@implementation("vector_add", "triton.mine", level="tiled")
def in_triton(x, y):
    """Text."""
    my_kernel[blocks(x)](x, x.numel(), num_warps=4)
    return x


SOURCE = r"""
// Twice.
__device__ float twice(float x) { return 2 * x; }
__device__ float thrice(float x) { return 3 * x; }

template <typename T>
__global__ void my_kernel(T* x, long long N) {
    int n = threadIdx.x;  // of one block
    if (n < N) x[n] = twice(x[n]);
}
"""


@implementation("vector_add", "cupy.mine", level="tiled")
def in_cuda(x, y):
    kernel(SOURCE, "my_" + "kernel<float>", x.device)((1,), (64,), (x.data_ptr(), x.numel()))
    return x
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_registry: None) -> dict[str, Implementation]:
    """A user's file, loaded into the test's own registry."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "helpers.py").write_text("def blocks(x):\n    return (1,)\n")
    file = tmp_path / "mine.py"
    file.write_text(USERS_FILE)
    registry.load(str(file))
    found = registry.implementations("vector_add")
    return {impl.label: impl for impl in found if impl.variant == "mine"}
