"""softmax over rows, each in the registers of a cluster: ``x[M,N] -> y[M,N]``.

``cuda_impl/kernels/softmax/04_cluster.cuh`` keeps the row in the cluster's shared memory.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.libdevice import fast_expf

from compare.registry import implementation
from triton_impl.gluon_cluster.rows import as_output, load_row, share_row, tile
from triton_impl.gluon_cluster.running import reduce_row
from triton_impl.parts import start_of_body
from triton_impl.softmax import checked, finite_shift


@gluon.jit
def softmax_gluon_cluster_kernel(
    x_ptr, y_ptr, N, stride_xm, slice_columns,
    VEC: gl.constexpr, ALIGNED: gl.constexpr, BLOCK_N: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """Grid: one cluster of CLUSTER blocks per row, each with ``slice_columns`` columns of its body.

    Exponentials stay in registers.  They are relative to the block's maximum, and scaled to the row's when
    the blocks have exchanged theirs.  Rows of x start as far from a 16-byte boundary as y's.
    """
    TILE: gl.constexpr = tile(CLUSTER, VEC, gl.num_warps())
    m = gl.program_id(0).to(gl.int64)
    head = start_of_body(m * N, VEC) - m * N
    n, inside, e, at_edge, x, edge = load_row(
        x_ptr, m * stride_xm, head, N, slice_columns, -float("inf"), VEC, ALIGNED, BLOCK_N, TILE, CLUSTER
    )
    x, edge, block_max, row_max, row_sum = reduce_row(x, edge, CLUSTER)
    scale = (fast_expf(block_max - finite_shift(row_max)) * (1.0 / row_sum))[:, None]
    gl.store(y_ptr + start_of_body(m * N, VEC) + n, x * scale, mask=inside)
    gl.store(y_ptr + m * N + e, edge * scale, mask=at_edge)


@implementation(
    "softmax", "triton.gluon_cluster", level="hopper", requires="sm_90", triton="3.8", without_gpu=False
)
def gluon_cluster(x: torch.Tensor) -> torch.Tensor:
    """The blocks of a cluster share a row in their registers: up to 262144 columns."""
    x = checked(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel() > 0:
        share_row(softmax_gluon_cluster_kernel, (as_output(x), y))
    return y
