"""Host code of kernels that load and store by TMA (Tensor Memory Accelerator)."""

from __future__ import annotations

import torch
import triton

from triton_impl.counts import cdiv

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


def allocate_descriptors_on(device: torch.device) -> None:
    """Have kernels that build their own TMA descriptors do so in memory of this device."""
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))
