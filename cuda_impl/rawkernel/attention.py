"""attention through cupy: ``q, k, v -> o, lse``, with the kernels of ``kernels/attention/``."""

from __future__ import annotations

import math

import numpy as np
import torch

from compare.arguments import check_queries
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.heads_map import for_tma, heads_map
from cuda_impl.loader import kernel

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
Outputs = tuple[torch.Tensor, torch.Tensor]
MOST = (1 << 31) - (1 << 16)
"""Maximum Sq and Skv: positions, up to the end of the last tile, are 32-bit."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def checked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[tuple[int, int, int, int, int, int], Outputs]:
    """B, Sq, Skv, Hq, Hk and D; uninitialised o and lse."""
    check_queries("attention", q, k, v, (64, 128))
    B, Sq, Hq, D = q.shape
    _, Skv, Hk, _ = k.shape
    if max(Sq, Skv) > MOST:
        raise NotImplementedError(f"Sq={Sq}, Skv={Skv}: at most {MOST} of each")
    o = torch.empty((B, Sq, Hq, D), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, Hq, Sq), dtype=torch.float32, device=q.device)
    return (B, Sq, Skv, Hq, Hk, D), (o, lse)


def without_keys(o: torch.Tensor, lse: torch.Tensor) -> Outputs:
    return o.zero_(), lse.fill_(-math.inf)


# --------------------------------------------------------------------------- Hopper's own units

GROUP_M = 64
"""Rows of q of a warpgroup."""
WARPGROUP = 128
SWIZZLED_BYTES = 1024
"""Alignment of swizzled tiles; dynamic shared memory may lack it."""


def launch_hopper(
    variant: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    *,
    BLOCK_N: int,
    STAGES: int,
    specialized: bool = True,
    persistent: bool = False,
) -> Outputs:
    """``attention_<variant>_kernel``, with tiles fetched by TMA.

    Args:
        variant: of the kernel. q, k, v, causal: as of every implementation. BLOCK_N: keys of a tile.
        STAGES: tiles of k or v in flight.
        specialized: a producer and two or three consumer warpgroups; else two that do both, and a stage is
            a tile of k and one of v.
        persistent: one block per multiprocessor.
    """
    (B, Sq, Skv, Hq, Hk, D), (o, lse) = checked(q, k, v)
    if q.dtype is torch.float32:
        raise NotImplementedError("fp32: tensor cores would multiply it as TF32")
    if o.numel() == 0 or Skv == 0:
        return without_keys(o, lse)
    if D == 64 and BLOCK_N > 128:
        raise NotImplementedError(f"BLOCK_N={BLOCK_N}: with D=64, registers hold 128")
    CONSUMERS = 3 if specialized and D == 64 else 2  # registers hold three times 64 rows of D=64
    tile = f"{CONSUMERS}, {BLOCK_N}, {STAGES}" if specialized else f"{BLOCK_N}, {STAGES}"
    run = kernel("attention", f"attention_{variant}_kernel<{CTYPES[q.dtype]}, {D}, {tile}>", q.device)
    BLOCK_M = CONSUMERS * GROUP_M
    q, k, v = for_tma(q), for_tma(k), for_tma(v)
    maps = (heads_map(q, BLOCK_M), heads_map(k, BLOCK_N), heads_map(v, BLOCK_N))
    sizes = [np.int32(size) for size in ((B,) if persistent else ()) + (Sq, Skv, Hq, Hk, causal)]
    tiles = B * Hq * ceil_div(Sq, BLOCK_M)
    blocks = min(tiles, multiprocessors(q.device)) if persistent else tiles
    threads = (CONSUMERS + specialized) * WARPGROUP
    rows = BLOCK_M + STAGES * BLOCK_N * (1 if specialized else 2)
    pointers = (o.data_ptr(), lse.data_ptr())
    run((blocks,), (threads,), (*maps, *pointers, *sizes), shared_mem=rows * D * 2 + SWIZZLED_BYTES)
    return o, lse


@implementation("attention", "cupy.wgmma", level="hopper", requires="sm_90a", emulated=True)
def wgmma(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    """TMA and wgmma; two warpgroups per block."""
    BLOCK_N = 64 if q.shape[-1] == 64 else 128
    return launch_hopper("wgmma", q, k, v, causal, BLOCK_N=BLOCK_N, STAGES=2, specialized=False)


TILES = {"BLOCK_N": (64, 128, 192), "STAGES": (3, 4)}


@implementation(
    "attention", "cupy.specialized", level="hopper", requires="sm_90a", emulated=True, tunable=TILES
)
def specialized(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, BLOCK_N: int = 128, STAGES: int = 4
) -> Outputs:
    """A producer warpgroup, and consumers that multiply in turn."""
    return launch_hopper("specialized", q, k, v, causal, BLOCK_N=BLOCK_N, STAGES=STAGES)


@implementation(
    "attention", "cupy.overlapped", level="hopper", requires="sm_90a", emulated=True, tunable=TILES
)
def overlapped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, BLOCK_N: int = 128, STAGES: int = 4
) -> Outputs:
    """Softmax of a tile runs while the previous tile's p @ v does."""
    return launch_hopper("overlapped", q, k, v, causal, BLOCK_N=BLOCK_N, STAGES=STAGES)


@implementation(
    "attention", "cupy.persistent", level="hopper", requires="sm_90a", emulated=True, tunable=TILES
)
def persistent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, BLOCK_N: int = 128, STAGES: int = 4
) -> Outputs:
    """One block per multiprocessor; longest tiles first."""
    return launch_hopper("persistent", q, k, v, causal, BLOCK_N=BLOCK_N, STAGES=STAGES, persistent=True)
