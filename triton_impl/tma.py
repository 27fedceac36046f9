"""Host code of kernels that load and store by TMA (Tensor Memory Accelerator)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from triton_impl.counts import cdiv, grid_1d

MOST = (1 << 31) - 512
"""Of a dimension: coordinates, up to the end of the last tile, are 32-bit."""


def check_coordinates(**sizes: int) -> None:
    """
    Raises:
        NotImplementedError: a size is too large for TMA.
    """
    if max(sizes.values()) > MOST:
        listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise NotImplementedError(f"{listed}: at most {MOST} of each")


def for_tma(x: torch.Tensor) -> torch.Tensor:
    """``x`` if its rows are contiguous, 16-byte aligned and apart, as TMA requires; else such a copy."""
    vector, columns = 16 // x.element_size(), x.size(-1)
    apart = all(stride >= columns and stride % vector == 0 for stride in x.stride()[:-1])
    if apart and x.stride(-1) == 1 and x.data_ptr() % 16 == 0:
        return x
    return x.new_empty((*x.shape[:-1], cdiv(columns, vector) * vector))[..., :columns].copy_(x)


@triton.jit(do_not_specialize=["stride_ym"])
def copy_rows_kernel(x_ptr, y_ptr, N, stride_xm, stride_ym, BLOCK: tl.constexpr):
    """Copies x[M,N] to y[M,N].  Grid: one program per BLOCK elements of a row, row by row.

    stride_ym is not specialised, because the compiler would see that rows of y are aligned.  A thread would
    then have eight neighbours for one store, but load them one by one, uncoalesced: 67 us, not 21.
    """
    parts = tl.cdiv(N, BLOCK)
    m = (tl.program_id(0) // parts).to(tl.int64)
    n = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + m * stride_ym + n, tl.load(x_ptr + m * stride_xm + n, mask=n < N), mask=n < N)


def rows_for_tma(x: torch.Tensor, align_bytes: int = 16) -> torch.Tensor:
    """``x[M,N]`` as `for_tma`; rows of a copy start on lines of 128 bytes, the fewest lines for a TMA box.

    ``align_bytes``: with 128, so do those of what it returns.  The kernel takes half as long as ``copy_``
    where rows start anywhere: 21 us, not 42, for 16-bit elements, 4099 x 4097, on an H200.
    """
    M, N = x.shape
    vector, line = align_bytes // x.element_size(), 128 // x.element_size()
    if x.stride(1) == 1 and x.stride(0) >= N and x.stride(0) % vector == 0 and x.data_ptr() % 16 == 0:
        return x
    y = x.new_empty((M, cdiv(N, line) * line))[:, :N]
    if x.stride(1) != 1 or x.numel() == 0:
        return y.copy_(x)
    copy_rows_kernel[grid_1d(M * cdiv(N, 1024))](x, y, N, x.stride(0), y.stride(0), BLOCK=1024)
    return y


def allocate_descriptors_on(device: torch.device) -> None:
    """Have kernels that build their own TMA descriptors do so in memory of this device."""
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))
