"""rms_norm over rows, each in the registers of a cluster: ``x[M,N], weight[N] -> y[M,N]``."""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from compare.registry import implementation
from triton_impl.gluon_cluster.rows import as_output, exchange, load_row, parameter, share_row, tile
from triton_impl.norm import checked
from triton_impl.parts import start_of_body
from triton_impl.rms_norm import EPS


@gluon.jit
def rms_norm_gluon_cluster_kernel(
    x_ptr, weight_ptr, y_ptr, N, stride_xm, slice_columns, eps,
    VEC: gl.constexpr, ALIGNED: gl.constexpr, BLOCK_N: gl.constexpr, CLUSTER: gl.constexpr,
):  # fmt: skip
    """Grid: one cluster of CLUSTER blocks per row, each with ``slice_columns`` columns of its body.

    Weights are loaded late, because registers limit how many blocks are resident; CUDA's clusters load them
    first, once for several rows.  Rows of x start as far from a 16-byte boundary as y's.
    """
    TILE: gl.constexpr = tile(CLUSTER, VEC, gl.num_warps())
    m = gl.program_id(0).to(gl.int64)
    head = start_of_body(m * N, VEC) - m * N
    n, inside, e, at_edge, x, edge = load_row(
        x_ptr, m * stride_xm, head, N, slice_columns, 0.0, VEC, ALIGNED, BLOCK_N, TILE, CLUSTER
    )
    squares = gl.sum(x * x, axis=1) + gl.sum(edge * edge, axis=1)

    scale = gl.rsqrt(gl.sum(exchange(squares, CLUSTER), axis=0) / N + eps)
    weight = parameter(weight_ptr, head, N, slice_columns, VEC, ALIGNED, BLOCK_N, TILE, CLUSTER)
    gl.store(y_ptr + start_of_body(m * N, VEC) + n, x * scale * weight.to(gl.float32), mask=inside)
    weight = gl.load(weight_ptr + e, mask=at_edge, other=0.0).to(gl.float32)
    gl.store(y_ptr + m * N + e, edge * scale * weight, mask=at_edge)


@implementation(
    "rms_norm", "triton.gluon_cluster", level="hopper", requires="sm_90", triton="3.8", without_gpu=False
)
def gluon_cluster(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """The blocks of a cluster share a row in their registers: up to 262144 columns."""
    rows = checked("rms_norm", x, weight=weight)
    if rows.y.numel() > 0:
        tensors = rows._replace(x=as_output(rows.x)).tensors
        share_row(rms_norm_gluon_cluster_kernel, tensors, eps)
    return rows.y
