"""Maximum and sum of exponentials of a cluster's row: common code of softmax and cross_entropy."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.libdevice import fast_expf

from triton_impl.gluon_cluster.rows import exchange, from_word, to_word
from triton_impl.softmax import finite_shift


@gluon.jit
def reduce_row(x, edge, CLUSTER: gl.constexpr):
    """Exponentials of x and edge relative to each block's maximum, these, and the row's maximum and sum."""
    block_max = gl.maximum(gl.max(x, axis=1), gl.max(edge, axis=1))
    shift = finite_shift(block_max)[:, None]
    x, edge = fast_expf(x - shift), fast_expf(edge - shift)
    block_sum = gl.sum(x, axis=1) + gl.sum(edge, axis=1)

    maximum, total = from_word(exchange(to_word(block_max, block_sum), CLUSTER))
    row_max = gl.max(maximum, axis=0)
    row_sum = gl.sum(total * fast_expf(maximum - finite_shift(row_max)), axis=0)
    return x, edge, block_max, row_max, row_sum
