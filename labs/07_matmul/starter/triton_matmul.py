"""Task 3: c = a @ b in Triton, with ``tl.dot``: tensor cores for 16-bit elements."""

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
    # Step 1: the tile's rows m[BLOCK_M, 1] and columns n[1, BLOCK_N]. Tiles are numbered row by row:
    #         tile // tiles_n is the tile's row. A column vector: tl.arange(0, BLOCK_M)[:, None]
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, K, BLOCK_K):
        # Step 2: a[BLOCK_M, BLOCK_K] and b[BLOCK_K, BLOCK_N]: load elements [m, begin + k] of a and
        #         [begin + k, n] of b. Write k[None, :] where k runs along columns, k[:, None] along rows.
        # Step 3: total = tl.dot(a, b, total, input_precision="ieee")
        pass
    # Step 4: store total at [m, n] of c. tl.store rounds it to c's dtype.
    # Step 5: run the tests, then add the masks that they ask for: other=0.0 on loads. Think of m, n and k.


@implementation("matmul", "triton.mine", level="tensor_core")
def mine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of ``a[M,K]`` and ``b[K,N]``, in a new tensor."""
    raise NotImplementedError("not written yet: write matmul_kernel, then delete this line")
    a, b = a.contiguous(), b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    if c.numel() > 0:
        BLOCK_M, BLOCK_N, BLOCK_K = (64, 64, 16) if a.dtype == torch.float32 else (128, 128, 32)
        grid = (triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N),)
        matmul_kernel[grid](
            a, b, c, M, N, K, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=4, num_stages=4
        )
    return c
