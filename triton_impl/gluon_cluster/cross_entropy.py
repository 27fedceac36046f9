"""cross_entropy, each row in the registers of a cluster: ``logits[M,V], targets[M] -> loss[M]``."""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from compare.registry import implementation
from triton_impl.cross_entropy import checked, loss_of
from triton_impl.gluon_cluster.rows import load_row, share_row, tile
from triton_impl.gluon_cluster.running import reduce_row
from triton_impl.parts import start_of_body


@gluon.jit
def cross_entropy_gluon_cluster_kernel(
    logits_ptr, targets_ptr, loss_ptr, V, stride_lm, slice_columns, stride_tm,
    VEC: gl.constexpr, ALIGNED: gl.constexpr, BLOCK_N: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """Grid: one cluster of CLUSTER blocks per row, each with ``slice_columns`` columns of its body.

    CUDA's blocks read their slices tile by tile, and send partial results to the first block.  Here a slice
    is one tile, and all blocks have all partial results.
    """
    TILE: gl.constexpr = tile(CLUSTER, VEC, gl.num_warps())
    m = gl.program_id(0).to(gl.int64)
    row_ptr, start = logits_ptr + m * stride_lm, m * stride_lm
    head = start_of_body(start, VEC) - start
    target = gl.load(targets_ptr + m * stride_tm)
    _, _, _, _, x, edge = load_row(
        logits_ptr, start, head, V, slice_columns, -float("inf"), VEC, ALIGNED, BLOCK_N, TILE, CLUSTER
    )
    _, _, _, row_max, row_sum = reduce_row(x, edge, CLUSTER)
    gl.store(loss_ptr + m, loss_of(row_ptr, V, target, row_max, row_sum))


@implementation(
    "cross_entropy", "triton.gluon_cluster", level="hopper", requires="sm_90", triton="3.8", without_gpu=False
)
def gluon_cluster(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The blocks of a cluster share a row in their registers: up to 262144 columns."""
    logits = checked(logits, targets)
    loss = torch.empty(logits.size(0), dtype=torch.float32, device=logits.device)
    if loss.numel() > 0:
        logits = logits if logits.data_ptr() % 16 == 0 else logits.clone()
        share_row(cross_entropy_gluon_cluster_kernel, (logits, targets, loss), targets.stride(0))
    return loss
