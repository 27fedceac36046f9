"""Kernels on the CPU whose accesses are checked: what is found, with its line, and what is no problem."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compare import registry
from compare.device import supports
from cuda_impl import watch
from cuda_impl.loader import kernel
from tests.support import case_sets
from tests.support.loops import for_each

THREADS = 64


def launched(
    body: str, x: torch.Tensor, y: torch.Tensor, *, n: int = THREADS, shared: int = 0, blocks: int = 1
) -> str:
    """The problem that a kernel with this body has; empty if it has none."""
    text = f"""
__device__ float next(const float* s, int i) {{
    return s[i + 1];
}}
__global__ void k(const float* x, float* y, int n) {{
    const int i = threadIdx.x;
{body}
}}
"""
    spans = [(t.data_ptr(), t.data_ptr() + t.numel() * t.itemsize) for t in (x, y)]
    arena = x.untyped_storage()
    with watch.watched([(arena.data_ptr(), arena.data_ptr() + arena.nbytes())], spans):
        try:
            kernel(text, "k", x.device)(
                (blocks,), (THREADS,), (x.data_ptr(), y.data_ptr(), np.int32(n)), shared_mem=shared
            )
        except RuntimeError as error:
            return str(error)
    return ""


@for_each(
    "body, problem, line",
    [
        ("    y[i] = x[i + 1];", "reads 4 bytes", "y[i] = x[i + 1];"),
        ("    y[i] = next(x, i);", "reads 4 bytes", "return s[i + 1];"),
        ("    y[i + 2] = x[i];", "writes 4 bytes", "y[i + 2] = x[i];"),
        (
            "    __shared__ float s[64];\n    s[i] = x[i];\n    y[i] = s[n - 1 - i];",
            "race in shared memory",
            "y[i] = s[n - 1 - i];",
        ),
        (
            "    __shared__ float s[64];\n    s[i] = x[i];\n    __syncwarp();\n    y[i] = s[n - 1 - i];",
            "race in shared memory",
            "y[i] = s[n - 1 - i];",
        ),
        (
            "    extern __shared__ float d[];\n    d[i] = x[i];\n    y[i] = d[(i + 1) % n];",
            "race in shared memory",
            "y[i] = d[(i + 1) % n];",
        ),
        (  # the thread that writes has read last
            "    __shared__ float s[64];\n    s[i] = x[i];\n    __syncthreads();\n"
            "    for (int h = 32; h > 0; h /= 2)\n        if (i < h) s[i] += s[i + h];\n    y[i] = 0;",
            "race in shared memory",
            "if (i < h) s[i] += s[i + h];",
        ),
        ("    y[0] = y[0] + x[i];", "race in global memory", "y[0] = y[0] + x[i];"),
        ("    atomicAdd(y - 1, x[i]);", "an atomic operation outside of every tensor", ""),
        ("    __shared__ float s[8];\n    s[i] = 0;\n    y[i] = s[i];", "outside of its array", "s[i] = 0;"),
        (
            "    if (i < 8) reinterpret_cast<float4*>(y)[i] = *reinterpret_cast<const float4*>(x + 1);",
            "misaligned address",
            "if (i < 8)",
        ),
    ],
)
def test_a_problem_is_found_with_its_line(body: str, problem: str, line: str) -> None:
    arena = torch.zeros(512)
    found = launched(body, arena[64:128], arena[256:320], shared=256)
    assert problem in found, found
    assert line in found, found


@for_each(
    "body",
    [
        "    y[i] = x[n - 1 - i];",
        "    __shared__ float s[64];\n    s[i] = x[i];\n    __syncthreads();\n    y[i] = s[n - 1 - i];",
        "    __shared__ float s[64];\n    s[i] = x[i];\n    __syncwarp();\n    y[i] = s[i ^ 1];",
        "    __shared__ float s;\n    s = 1.0f;\n    __syncthreads();\n    y[i] = s;",  # all write the same
        "    __shared__ float s;\n    if (i == 0) s = 0;\n    __syncthreads();\n    atomicAdd(&s, x[i]);\n"
        "    __syncthreads();\n    y[i] = s;",
        "    y[i] = x[i] + __shfl_xor_sync(~0u, x[i], 16);",
        "    y[i] = x[i];\n    __syncthreads();\n    if (i > 0) y[i] += y[0];",
        "    y[i] = x[i];\n    __threadfence();\n    if (atomicAdd(y + n - 1, 1.0f) > 0) y[1] = y[0];",
        "    float own[4] = {x[i], 1, 2, 3};\n    y[i] = own[n % 4];",
        "    __shared__ __half s[64];\n    s[i] = x[i];\n    __syncthreads();\n    y[i] = s[n - 1 - i];",
    ],
)
def test_what_is_right_has_no_problem(body: str) -> None:
    arena = torch.zeros(512)
    assert launched(body, arena[64:128], arena[256:320]) == ""


def test_blocks_exchange_words_by_volatile_accesses_on_both_sides() -> None:
    body = """
    if (blockIdx.x == 1) *static_cast<volatile float*>(y) = 1.0f;
    while (blockIdx.x == 0 && *static_cast<{} float*>(y) == 0.0f) __nanosleep(32);"""
    arena = torch.zeros(512)
    assert launched(body.format("const volatile"), arena[64:128], arena[256:320], blocks=2) == ""
    arena.zero_()
    problem = launched(body.format("const"), arena[64:128], arena[256:320], blocks=2)
    assert "of another block writes" in problem


@pytest.mark.thorough
@pytest.mark.parametrize("name", registry.op_names())
def test_no_kernel_of_the_project_has_a_problem(name: str) -> None:
    op, cpu = registry.get_op(name), torch.device("cpu")
    by_size = sorted(op.cases.smoke, key=lambda case: op.cost(case).bytes)
    for case in {case.dtype: case for case in reversed(by_size)}.values():  # the smallest of each dtype
        inputs = op.make_inputs(case, torch.Generator().manual_seed(0), cpu)
        for impl in (impl for impl in case_sets.typical(name, "cupy") if supports(impl, cpu) is None):
            with watch.watched([], []):
                try:
                    impl.given(op.options(case)).call(*inputs)
                except NotImplementedError:
                    continue
