"""The steps of a kernel are found in its code, in order, and the same in both languages."""

from __future__ import annotations

import textwrap

import pytest

from compare.code_size import cpp
from compare.code_size.pieces import Piece
from compare.code_size.steps import collapsed, of_triton

HEAD = """
constexpr unsigned ALL = 0xffffffffu;
__device__ __forceinline__ float warp_max(float x) {
    for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, i));
    return x;
}
__device__ __forceinline__ float warp_sum(float x) {
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(ALL, x, i);
    return x;
}
"""
PLAIN = """
template <int N>
__global__ void plain(const float* x, float* y) {
    float v[N], sum = 0.0f, max = -1e30f;
    for (int i = 0; i < N; ++i) v[i] = x[i * 32 + threadIdx.x];
    for (int i = 0; i < N; ++i) max = fmaxf(max, v[i]);
    max = warp_max(max);
    for (int i = 0; i < N; ++i) sum += v[i] = __expf(v[i] - max);
    sum = warp_sum(sum);
    for (int i = 0; i < N; ++i) y[i * 32 + threadIdx.x] = v[i] / sum;
}
"""
CORRECTED = """
template <int N>
__global__ void corrected(const float* x, float* y) {
    float v[N], sum = 0.0f, own = -1e30f;
    for (int i = 0; i < N; ++i) v[i] = x[i * 32 + threadIdx.x];
    for (int i = 0; i < N; ++i) own = fmaxf(own, v[i]);
    for (int i = 0; i < N; ++i) sum += v[i] = __expf(v[i] - own);
    const float max = warp_max(own);
    const float scale = __expf(own - max);
    sum = warp_sum(sum * scale);
    for (int i = 0; i < N; ++i) y[i * 32 + threadIdx.x] = v[i] * scale / sum;
}
"""
TRITON = """
@triton.jit
def plain(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + n, mask=n < N)
    e = tl.exp(x - tl.max(x, axis=0))
    put(y_ptr + n, e / tl.sum(e, axis=0), n < N)
"""
HELPER = """
@triton.jit
def put(ptr, value, mask):
    tl.store(ptr, value, mask=mask)
"""


@pytest.mark.parametrize("size", [1, 4])
def test_the_same_steps_in_both_languages_are_the_same(size: int) -> None:
    of_cuda = cpp.compiled(HEAD + PLAIN, f"plain<{size}>").steps
    assert of_cuda == ("read", "max", "exp", "sum", "write")
    assert of_triton([Piece(TRITON, "python")], [Piece(HELPER, "python")]) == of_cuda


def test_a_correction_is_seen() -> None:
    found = cpp.compiled(HEAD + CORRECTED, "corrected<4>").steps
    assert found == ("read", "exp", "max", "exp", "sum", "write")


def test_a_tile_in_shared_memory_is_not_read_from_global_memory() -> None:
    text = textwrap.dedent(
        """
        @gluon.jit
        def kernel(a_desc, c_desc, bar):
            tile = gl.allocate_shared_memory(gl.float16, [64, 64], LAYOUT)
            tma.async_copy_global_to_shared(a_desc, [0, 0], bar, tile)
            x = tile.load(REGISTERS)
            tile.store(warpgroup_mma(x, x, x))
            tma.async_copy_shared_to_global(c_desc, [0, 0], tile)
        """
    )
    assert of_triton([Piece(text, "python")], []) == ("read", "product", "write")


def test_repeated_runs_count_once() -> None:
    assert collapsed(["read", "read", "sum", "read", "sum", "write"]) == ("read", "sum", "write")
    assert collapsed(["read", "sum", "read", "write"]) == ("read", "sum", "read", "write")
    assert collapsed([]) == ()
