"""Task 1: many small products c[p] = a[p] @ b[p] in Triton, one matrix per program."""

import torch
import triton
import triton.language as tl

from compare.registry import implementation


@triton.jit
def small_matmul_kernel(a_ptr, b_ptr, c_ptr, N, BLOCK_N: tl.constexpr):
    """a[B,N,N] @ b[B,N,N] -> c[B,N,N], contiguous.  Grid: one program per matrix; N <= BLOCK_N."""
    first = tl.program_id(0).to(tl.int64) * N * N
    i = tl.arange(0, BLOCK_N)[:, None]
    j = tl.arange(0, BLOCK_N)[None, :]
    # Step 1: load a[BLOCK_N, BLOCK_N] and b of this matrix: element [i, j] is at first + i * N + j.
    # Step 2: total = tl.dot(a, b)
    # Step 3: store total at the same places of c.
    # Step 4: run the tests. Then mask what is outside, in both loads (which other?) and in the store.


@implementation("batched_matmul", "triton.mine", level="tensor_core")
def mine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The products of ``a[B,N,N]`` and ``b[B,N,N]``, in a new tensor."""
    raise NotImplementedError("not written yet: write small_matmul_kernel, then delete this line")
    B, N, _ = a.shape
    if a.dtype == torch.float32 or N > 64:
        raise NotImplementedError("this kernel multiplies 16-bit matrices of up to 64 rows")
    a, b = a.contiguous(), b.contiguous()
    c = torch.empty_like(a)
    if c.numel() > 0:
        BLOCK_N = max(16, triton.next_power_of_2(N))  # tl.dot takes 16 rows at least
        small_matmul_kernel[(B,)](a, b, c, N, BLOCK_N=BLOCK_N, num_warps=2)
    return c
