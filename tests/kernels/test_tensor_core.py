"""ldmatrix, mma and cp.async: as the PTX manual lays their matrices out, on a GPU and in its emulation alike.

What is expected is computed by plain loops and matrix products, not by the kernels' own formulas.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compare.device import arch, capability
from cuda_impl.loader import kernel

pytestmark = pytest.mark.thorough

SOURCE = """
#include "tensor_core.cuh"

// Lane l of 32 gives the address of row l of x[32][8], and gets y[l][4][2].
template <bool TRANS>
__global__ void four_matrices(const unsigned short* x, unsigned* y) {
    __shared__ __align__(16) unsigned short rows[32 * 8];
    const int lane = threadIdx.x;
    for (int i = 0; i < 8; ++i) rows[lane * 8 + i] = x[lane * 8 + i];
    __syncthreads();
    unsigned matrix[4];
    if (TRANS) {
        ldmatrix_x4_trans(matrix, rows + lane * 8);
    } else {
        ldmatrix_x4(matrix, rows + lane * 8);
    }
    for (int i = 0; i < 4; ++i) y[lane * 4 + i] = matrix[i];
}

// c[16][8] += a[16][16] b[16][8], each lane with its elements as the manual numbers them.
template <typename T>
__global__ void one_product(const T* a, const T* b, float* c) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    T a_own[8], b_own[4];
    for (int i = 0; i < 8; ++i) {
        const int row = (i < 2 || (4 <= i && i < 6)) ? g : g + 8;
        const int column = t * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        a_own[i] = a[row * 16 + column];
    }
    for (int i = 0; i < 4; ++i) b_own[i] = b[(t * 2 + (i & 1) + (i >= 2 ? 8 : 0)) * 8 + g];
    float c_own[4];
    for (int i = 0; i < 4; ++i) c_own[i] = c[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)];
    unsigned a_words[4], b_words[2];
    memcpy(a_words, a_own, sizeof(a_words));
    memcpy(b_words, b_own, sizeof(b_words));
    mma_m16n8k16<T>(c_own, a_words, b_words[0], b_words[1]);
    for (int i = 0; i < 4; ++i) c[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)] = c_own[i];
}

// Two groups of copies of `bytes` bytes of each 16; y gets what is there after waiting for the first.
template <int PENDING>
__global__ void two_groups(const unsigned short* x, unsigned short* y, int bytes) {
    __shared__ __align__(16) unsigned short first[32 * 8], second[32 * 8];
    const int at = threadIdx.x * 8;
    for (int i = 0; i < 8; ++i) first[at + i] = second[at + i] = 7;
    cp_async_16(first + at, x + at, bytes);
    cp_async_commit();
    cp_async_16(second + at, x + 256 + at, bytes);
    cp_async_commit();
    cp_async_wait<PENDING>();
    for (int i = 0; i < 8; ++i) {
        y[at + i] = first[at + i];
        y[256 + at + i] = second[at + i];
    }
}

// The same of one group, of 4 bytes a thread; every other thread reads nothing.
template <int PENDING>
__global__ void copies_of_4(const float* x, float* y) {
    __shared__ float there[33];
    there[threadIdx.x] = 7.0f;
    if (threadIdx.x == 0) there[32] = 7.0f;
    __syncthreads();
    cp_async_4(there + threadIdx.x, x + threadIdx.x, threadIdx.x % 2 == 0 ? 4 : 0);
    cp_async_commit();
    cp_async_wait<PENDING>();
    __syncthreads();
    y[threadIdx.x] = there[threadIdx.x];
    if (threadIdx.x == 0) y[32] = there[32];
}
"""


def launch(device: torch.device, name: str, *args: object) -> None:
    kernel(SOURCE, name, device)((1,), (32,), args)


@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix(trans: bool, device: torch.device) -> None:
    x = torch.arange(32 * 8, dtype=torch.int16, device=device)
    y = torch.zeros(32, 4, 2, dtype=torch.int16, device=device)
    launch(device, f"four_matrices<{str(trans).lower()}>", x.data_ptr(), y.data_ptr())
    matrices = x.view(4, 8, 8).mT if trans else x.view(4, 8, 8)
    for lane in range(32):
        for i in range(4):
            column = 2 * (lane % 4)
            assert y[lane, i].tolist() == matrices[i, lane // 4, column : column + 2].tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mma(dtype: torch.dtype, device: torch.device) -> None:
    name = arch(device)
    if dtype is torch.bfloat16 and name is not None and capability(name) < 80:
        pytest.skip("tensor cores multiply bf16 from sm_80 on")
    generator = torch.Generator().manual_seed(0)
    # Whole numbers, whose sums are exact in any order.
    a, b, c = (torch.randint(-9, 10, shape, generator=generator) for shape in ((16, 16), (16, 8), (16, 8)))
    ctype = "__half" if dtype is torch.float16 else "__nv_bfloat16"
    given = [a.to(device, dtype), b.to(device, dtype), c.to(device, torch.float32)]
    launch(device, f"one_product<{ctype}>", *(x.data_ptr() for x in given))
    assert torch.equal(given[2].cpu().long(), c + a @ b)


@pytest.mark.parametrize("bytes_copied", [16, 10, 2, 0])
def test_cp_async_fills_up_with_zeros(bytes_copied: int, device: torch.device) -> None:
    x = torch.arange(1, 513, dtype=torch.int16, device=device)
    y = torch.zeros(512, dtype=torch.int16, device=device)
    launch(device, "two_groups<0>", x.data_ptr(), y.data_ptr(), np.int32(bytes_copied))
    expected = x.clone().view(64, 8)
    expected[:, bytes_copied // 2 :] = 0
    assert torch.equal(y.view(64, 8), expected)


def test_cp_async_of_4_bytes(device: torch.device) -> None:
    x, y = torch.arange(1, 33, dtype=torch.float32, device=device), torch.zeros(33, device=device)
    launch(device, "copies_of_4<0>", x.data_ptr(), y.data_ptr())
    expected = x.clone()
    expected[1::2] = 0
    assert torch.equal(y[:32], expected)
    assert y[32] == 7  # what lies behind is left alone


def test_the_emulation_copies_no_sooner_than_waited_for() -> None:
    """Else a kernel that does not wait would be right on the host, and wrong on a GPU."""
    x = torch.arange(1, 513, dtype=torch.int16)
    y = torch.zeros(512, dtype=torch.int16)
    launch(torch.device("cpu"), "two_groups<1>", x.data_ptr(), y.data_ptr(), np.int32(16))
    assert torch.equal(y[:256], x[:256])
    assert (y[256:] == 7).all()
    launch(torch.device("cpu"), "two_groups<2>", x.data_ptr(), y.data_ptr(), np.int32(16))
    assert (y == 7).all()
    floats, there = torch.arange(1, 33, dtype=torch.float32), torch.zeros(33)
    launch(torch.device("cpu"), "copies_of_4<1>", floats.data_ptr(), there.data_ptr())
    assert (there == 7).all()
