"""layer_norm over rows, each in the registers of a cluster: ``x[M,N], weight[N], bias[N] -> y[M,N]``."""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from compare.registry import implementation
from triton_impl.gluon_cluster.rows import (
    as_output,
    columns_of_body,
    exchange,
    from_word,
    in_every_block,
    load_row,
    parameter,
    share_row,
    tile,
    to_word,
)
from triton_impl.layer_norm import EPS, combine
from triton_impl.norm import checked
from triton_impl.parts import start_of_body


@gluon.jit
def count_of(rank, N, slice_columns, VEC: gl.constexpr, ALIGNED: gl.constexpr):
    """Elements of a block, edges included."""
    columns = columns_of_body(N, VEC, ALIGNED)
    count = gl.minimum(gl.maximum(columns - rank * slice_columns, 0), slice_columns)
    return gl.where(rank == 0, count + N - columns, count).to(gl.float32)


@gluon.jit
def layer_norm_gluon_cluster_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, N, stride_xm, slice_columns, eps,
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
    own_rank = gl.arange(0, CLUSTER, gl.SliceLayout(1, TILE))
    rank = gl.arange(0, CLUSTER, in_every_block(CLUSTER, gl.num_warps()))

    mean = gl.sum(x, axis=1) + gl.sum(edge, axis=1)
    mean /= gl.maximum(count_of(own_rank, N, slice_columns, VEC, ALIGNED), 1.0)
    deviation = gl.where(inside, x - mean[:, None], 0.0)
    edge_deviation = gl.where(at_edge, edge - mean[:, None], 0.0)
    squares = gl.sum(deviation * deviation, axis=1) + gl.sum(edge_deviation * edge_deviation, axis=1)

    means, squares = from_word(exchange(to_word(mean, squares), CLUSTER))
    mean, squares = combine(means, squares, count_of(rank, N, slice_columns, VEC, ALIGNED), N)
    scale = gl.rsqrt(squares / N + eps)
    weight = parameter(weight_ptr, head, N, slice_columns, VEC, ALIGNED, BLOCK_N, TILE, CLUSTER)
    y = (x - mean) * scale * weight.to(gl.float32)
    bias = parameter(bias_ptr, head, N, slice_columns, VEC, ALIGNED, BLOCK_N, TILE, CLUSTER)
    gl.store(y_ptr + start_of_body(m * N, VEC) + n, y + bias.to(gl.float32), mask=inside)
    weight = gl.load(weight_ptr + e, mask=at_edge, other=0.0).to(gl.float32)
    bias = gl.load(bias_ptr + e, mask=at_edge, other=0.0).to(gl.float32)
    gl.store(y_ptr + m * N + e, (edge - mean) * scale * weight + bias, mask=at_edge)


@implementation(
    "layer_norm", "triton.gluon_cluster", level="hopper", requires="sm_90", triton="3.8", without_gpu=False
)
def gluon_cluster(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = EPS
) -> torch.Tensor:
    """The blocks of a cluster share a row in their registers: up to 262144 columns."""
    rows = checked("layer_norm", x, weight=weight, bias=bias)
    if rows.y.numel() > 0:
        tensors = rows._replace(x=as_output(rows.x)).tensors
        share_row(layer_norm_gluon_cluster_kernel, tensors, eps)
    return rows.y
