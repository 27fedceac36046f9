"""attention through cupy: ``q, k, v -> o, lse``, with the kernels of ``kernels/attention/``."""

from __future__ import annotations

import math
import struct

import numpy as np
import torch

from compare.arguments import check_queries
from compare.device import multiprocessors
from compare.registry import implementation
from cuda_impl.heads_map import SWIZZLED_BYTES, check_shared, for_tma, heads_map, readable
from cuda_impl.loader import kernel
from cuda_impl.rawkernel.matmul import CTYPES, ceil_div, check_tensor_cores

Outputs = tuple[torch.Tensor, torch.Tensor]
MOST = (1 << 31) - (1 << 16)
"""Maximum Sq and Skv: positions, up to the end of the last tile, are 32-bit."""
MOST_SCORES = 1 << 28  # 1 GB in fp32
THREADS = 256


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


# --------------------------------------------------------------------------- any GPU


def problem_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> np.void:
    """``Problem`` of kernels/attention/problem.cuh."""
    strides = [step for x in (q, k, v) for step in x.stride()[:3]]
    packed = struct.pack("9q5i4x", *strides, q.size(1), k.size(1), q.size(2), k.size(2), causal)
    return np.frombuffer(packed, dtype=f"V{len(packed)}")[0]


@implementation("attention", "cupy.naive", level="naive", algorithm="scores in memory")
def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    """Three kernels: scores, their softmax, and the weighted sum of v."""
    (B, Sq, Skv, Hq, _, D), (o, lse) = checked(q, k, v)
    if o.numel() == 0 or Skv == 0:
        return without_keys(o, lse)
    rows = B * Hq * Sq
    if rows * Skv > MOST_SCORES:
        raise NotImplementedError(f"B*Hq*Sq*Skv={rows * Skv}: scores in memory, at most {MOST_SCORES}")
    q, k, v = readable(q), readable(k), readable(v)
    s = torch.empty((B, Hq, Sq, Skv), dtype=torch.float32, device=q.device)
    T, problem = CTYPES[q.dtype], problem_of(q, k, v, causal)
    tiles = B * Hq * ceil_div(Sq, 16) * ceil_div(Skv, 16)
    run = kernel("attention", f"attention_scores_kernel<{T}, {D}>", q.device)
    run((tiles,), (THREADS,), (q.data_ptr(), k.data_ptr(), s.data_ptr(), problem))
    run = kernel("attention", f"attention_softmax_kernel<{THREADS}>", q.device)
    sizes = (np.int64(rows), np.int32(Skv))
    run((ceil_div(rows, THREADS // 32),), (THREADS,), (s.data_ptr(), lse.data_ptr(), *sizes))
    run = kernel("attention", f"attention_values_kernel<{T}, {D}, {THREADS}>", q.device)
    pointers = (s.data_ptr(), v.data_ptr(), o.data_ptr())
    run((ceil_div(rows, THREADS // D),), (THREADS,), (*pointers, np.int64(rows), problem))
    return o, lse


@implementation("attention", "cupy.online", level="tiled")
def online(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    """One pass over the keys, without tensor cores."""
    (B, Sq, Skv, Hq, _, D), (o, lse) = checked(q, k, v)
    if o.numel() == 0 or Skv == 0:
        return without_keys(o, lse)
    q, k, v = readable(q), readable(k), readable(v)
    BLOCK_M, BLOCK_N = 64, 32
    name = f"attention_online_kernel<{CTYPES[q.dtype]}, {D}, {BLOCK_M}, {BLOCK_N}>"
    run = kernel("attention", name, q.device)
    pointers = (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr())
    shared_bytes = (BLOCK_M + BLOCK_N) * (D + 4) * 4
    blocks = B * Hq * ceil_div(Sq, BLOCK_M)
    run((blocks,), (BLOCK_M * 4,), (*pointers, problem_of(q, k, v, causal)), shared_mem=shared_bytes)
    return o, lse


@implementation(
    "attention",
    "cupy.tensor_core",
    level="tensor_core",
    requires="sm_80",
    tunable={"BLOCK_N": (32, 64, 128)},
)
def tensor_core(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, BLOCK_N: int = 64
) -> Outputs:
    """Both products by mma.sync, probabilities in registers."""
    (B, Sq, Skv, Hq, _, D), (o, lse) = checked(q, k, v)
    check_tensor_cores(q)
    BLOCK_M = 128
    shared_bytes = check_shared(q, (BLOCK_M + 4 * BLOCK_N) * D * 2, f"BLOCK_N={BLOCK_N}")
    if o.numel() == 0 or Skv == 0:
        return without_keys(o, lse)
    q, k, v = readable(q, 8), readable(k, 8), readable(v, 8)
    run = kernel("attention", f"attention_tensor_core_kernel<{CTYPES[q.dtype]}, {D}, {BLOCK_N}>", q.device)
    pointers = (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr())
    blocks = B * Hq * ceil_div(Sq, BLOCK_M)
    run((blocks,), (BLOCK_M,), (*pointers, problem_of(q, k, v, causal)), shared_mem=shared_bytes)
    return o, lse


# --------------------------------------------------------------------------- Hopper's own units

GROUP_M = 64
"""Rows of q of a warpgroup."""
WARPGROUP = 128


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
        variant: of the kernel.
        q, k, v, causal: as of every implementation.
        BLOCK_N: keys of a tile.
        STAGES: tiles of k or v in flight, of D=128; of D=64 twice as many.
        specialized: a producer and two or three consumer warpgroups; else two that do both, and a stage is
            a tile of k and one of v.
        persistent: one block per multiprocessor.
    """
    (B, Sq, Skv, Hq, Hk, D), (o, lse) = checked(q, k, v)
    check_tensor_cores(q)
    if o.numel() == 0 or Skv == 0:
        return without_keys(o, lse)
    if D == 64 and BLOCK_N > 128:
        raise NotImplementedError(f"BLOCK_N={BLOCK_N}: with D=64, registers hold 128")
    if D == 64 and not specialized:
        BLOCK_N = 64  # half the registers, so that two blocks share a multiprocessor
    if specialized:
        STAGES *= 128 // D  # of half the size
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
    rows = (2 if persistent else 1) * BLOCK_M + STAGES * BLOCK_N * (1 if specialized else 2)
    shared_bytes = check_shared(q, rows * D * 2 + SWIZZLED_BYTES, f"BLOCK_N={BLOCK_N}, STAGES={STAGES}")
    pointers = [o.data_ptr(), lse.data_ptr()]
    if persistent:
        next_tile = torch.zeros(1, dtype=torch.int64, device=q.device)
        pointers.append(next_tile.data_ptr())
    run((blocks,), (threads,), (*maps, *pointers, *sizes), shared_mem=shared_bytes)
    return o, lse


@implementation("attention", "cupy.wgmma", level="hopper", requires="sm_90a", emulated=True)
def wgmma(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> Outputs:
    """TMA and wgmma; two warpgroups per block."""
    return launch_hopper("wgmma", q, k, v, causal, BLOCK_N=128, STAGES=2, specialized=False)


TILES = {"BLOCK_N": (128, 192), "STAGES": (3, 4, 5)}


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
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, BLOCK_N: int = 128, STAGES: int = 5
) -> Outputs:
    """One block per multiprocessor; longest tiles first."""
    return launch_hopper("persistent", q, k, v, causal, BLOCK_N=BLOCK_N, STAGES=STAGES, persistent=True)
