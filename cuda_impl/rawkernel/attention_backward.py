"""attention_backward through cupy: ``q, k, v, o, lse, do -> dq, dk, dv``."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import torch

from compare.arguments import check_gradients
from compare.device import shared_bytes_of_a_block
from compare.registry import implementation
from cuda_impl.loader import kernel
from cuda_impl.rawkernel.matmul import CTYPES, ceil_div, check_tensor_cores

OP = "attention_backward"
HEAD_SIZES = (64, 128)
THREADS = 256
BLOCK_M = BLOCK_N = 128
"""A block's queries (in the kernel for dq) or keys (for dk and dv), 16 a warp."""
BLOCK = 64
"""Rows of the tiles that its loop fetches."""

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Call:
    """Checked arguments, new gradients, and what delta's kernel has computed."""

    q: torch.Tensor
    k: torch.Tensor
    problem: np.void
    """``Problem`` of kernels/attention_backward/rows.cuh."""
    inputs: tuple[int, ...]
    """Addresses of q, k, v, do, lse2 and delta, as every kernel takes them first."""
    gradients: Gradients
    held: tuple[torch.Tensor, ...]
    """What has those addresses."""

    def launch(self, name: str, blocks: int, *arguments: int | np.generic, shared_bytes: int = 0) -> None:
        """With ``T`` and ``D`` in front of the template's arguments."""
        if blocks > 0:
            instance = f"{OP}_{name.replace('<', f'_kernel<{CTYPES[self.q.dtype]}, {self.q.size(3)}, ')}>"
            run = kernel(OP, instance, self.q.device)
            arguments = (*self.inputs, *arguments, self.problem)
            run((blocks,), (THREADS,), arguments, shared_mem=shared_bytes)


def readable(x: torch.Tensor, alignment: int) -> torch.Tensor:
    """x, or a contiguous copy unless heads are contiguous and aligned to so many elements."""
    steps = (*x.stride()[:3], x.data_ptr() // x.element_size())
    return x if x.stride(3) == 1 and all(step % alignment == 0 for step in steps) else x.contiguous()


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
    tensor_cores: bool = True,
) -> Call:
    """Check the arguments, and compute delta and lse2 if there is any row."""
    check_gradients(OP, q, k, v, o, lse, do, HEAD_SIZES)
    if tensor_cores:
        check_tensor_cores(q)
    B, Sq, Hq, D = q.shape
    Skv, Hk = k.shape[1], k.shape[2]
    gradients = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    alignment = 8 if tensor_cores else 1
    q, k, v, o, do = (readable(x, alignment) for x in (q, k, v, o, do))
    lse = lse.contiguous()
    pitch = ceil_div(Sq, BLOCK_M) * BLOCK_M
    delta, lse2 = (torch.empty(B * Hq * pitch, dtype=torch.float32, device=q.device) for _ in range(2))
    strides = [step for x in (q, k, v, o, do) for step in x.stride()[:3]]
    diagonal = Skv - Sq if causal else Skv
    packed = struct.pack("15q6if4x", *strides, Sq, Skv, Hq, Hk, diagonal, pitch, 1 / math.sqrt(D))
    problem = np.frombuffer(packed, dtype=f"V{len(packed)}")[0]
    if delta.numel() > 0:
        run = kernel(OP, f"{OP}_delta_kernel<{CTYPES[q.dtype]}, {D}, {THREADS}>", q.device)
        pointers = (o.data_ptr(), do.data_ptr(), lse.data_ptr(), delta.data_ptr(), lse2.data_ptr())
        blocks = ceil_div(delta.numel(), THREADS // 32)
        run((blocks,), (THREADS,), (*pointers, np.int64(delta.numel()), problem))
    held = (q, k, v, do, lse2, delta)
    return Call(q, k, problem, tuple(x.data_ptr() for x in held), gradients, held)


@implementation(OP, "cupy.naive", level="naive")
def naive(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    """A warp per row of dq, then one per row of dk and dv."""
    call = prepare(q, k, v, o, lse, do, causal, tensor_cores=False)
    dq, dk, dv = call.gradients
    queries, keys = dq.numel() // q.size(3), dk.numel() // k.size(3)
    call.launch(f"naive_dq<{THREADS}", ceil_div(queries, THREADS // 32), dq.data_ptr(), np.int64(queries))
    pointers = (dk.data_ptr(), dv.data_ptr())
    call.launch(f"naive_dkdv<{THREADS}", ceil_div(keys, THREADS // 32), *pointers, np.int64(keys))
    return call.gradients


def shared_bytes_of(call: Call, more: int = 0) -> int:
    """Of a block's own tiles, two stages and two stages of lse2 and delta."""
    D = call.q.size(3)
    shared_bytes = (2 * BLOCK_N + 4 * BLOCK) * D * 2 + 4 * BLOCK * 4 + more
    most = shared_bytes_of_a_block(call.q.device)
    if shared_bytes > most:
        raise NotImplementedError(
            f"D={D}: {shared_bytes} bytes of shared memory a block, and this GPU has {most}; "
            "torch.eager takes any"
        )
    return shared_bytes


@implementation(OP, "cupy.split", level="tensor_core")
def split(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    """A kernel for dk and dv, and one for dq."""
    call = prepare(q, k, v, o, lse, do, causal)
    dq, dk, dv = call.gradients
    shared_bytes = shared_bytes_of(call)
    key_blocks = ceil_div(k.size(1), BLOCK_N) * k.size(0) * k.size(2)
    if dq.numel() == 0:
        return dq, dk.zero_(), dv.zero_()
    tile = f"{BLOCK}, {BLOCK_N}"
    call.launch(f"split_dkdv<{tile}", key_blocks, dk.data_ptr(), dv.data_ptr(), shared_bytes=shared_bytes)
    query_blocks = ceil_div(q.size(1), BLOCK_M) * q.size(0) * q.size(2)
    call.launch(f"split_dq<{BLOCK_M}, {BLOCK}", query_blocks, dq.data_ptr(), shared_bytes=shared_bytes)
    return call.gradients


@implementation(OP, "cupy.fused", level="tensor_core", deterministic=False)
def fused(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
) -> Gradients:
    """One kernel; dq is summed in fp32 by atomics and rounded by another."""
    call = prepare(q, k, v, o, lse, do, causal)
    dq, dk, dv = call.gradients
    shared_bytes = shared_bytes_of(call, more=BLOCK * BLOCK_N * 2)
    if dq.numel() == 0:
        return dq, dk.zero_(), dv.zero_()
    dq_sum = torch.zeros(dq.shape, dtype=torch.float32, device=dq.device)
    pointers = (dq_sum.data_ptr(), dk.data_ptr(), dv.data_ptr())
    key_blocks = ceil_div(k.size(1), BLOCK_N) * k.size(0) * k.size(2)
    call.launch(f"fused<{BLOCK}, {BLOCK_N}", key_blocks, *pointers, shared_bytes=shared_bytes)
    run = kernel(OP, f"{OP}_round_kernel<{CTYPES[q.dtype]}, {THREADS}>", q.device)
    sizes = (np.int64(dq.numel()), np.float32(1 / math.sqrt(q.size(3))))
    run((ceil_div(dq.numel(), THREADS * 4),), (THREADS,), (dq_sum.data_ptr(), dq.data_ptr(), *sizes))
    return call.gradients
