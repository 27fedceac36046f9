"""Task 3: c = a @ b in Triton, 16-bit elements.  The kernel is right; it does not use tensor cores."""

import torch
import triton
import triton.language as tl

from compare.registry import implementation


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """a[M,K] @ b[K,N] -> c[M,N], row-major.  Grid: one program per tile of c of BLOCK_M x BLOCK_N."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0).to(tl.int64)
    m = (tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = (tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, K, BLOCK_K):
        k_a, k_b = (begin + k)[None, :], (begin + k)[:, None]
        a = tl.load(a_ptr + m * K + k_a, mask=(m < M) & (k_a < K), other=0.0)
        b = tl.load(b_ptr + k_b * N + n, mask=(k_b < K) & (n < N), other=0.0)
        # Step 2: which operands does tl.dot get, and what became of it? See "matrix" in the instruction mix.
        # Step 3: give it operands that tensor cores multiply. Its sums are in fp32 anyhow.
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    tl.store(c_ptr + m * N + n, total, mask=(m < M) & (n < N))


@implementation("matmul", "triton.mine", level="tensor_core")
def mine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of 16-bit ``a[M,K]`` and ``b[K,N]``, in a new tensor."""
    # Step 1: delete the next line. The tests pass, and the one about the machine code says what to change.
    raise NotImplementedError("not written yet: delete this line, then look at the machine code")
    if a.dtype == torch.float32:
        raise NotImplementedError("this kernel multiplies 16-bit elements")
    a, b = a.contiguous(), b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    if c.numel() > 0:
        # Step 4: larger tiles load each element less often. What does HGMMA's name say of its shape?
        BLOCK_M, BLOCK_N, BLOCK_K, num_warps = 32, 32, 32, 4
        grid = (triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N),)
        matmul_kernel[grid](
            a, b, c, M, N, K, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=num_warps
        )
    return c
