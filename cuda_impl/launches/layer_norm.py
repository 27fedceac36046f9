"""layer_norm in CUDA: ``x[M,N], weight[N], bias[N] -> y[M,N]``, with ``kernels/layer_norm.cuh``."""

from __future__ import annotations

from cuda_impl.buffers import Tensor
from cuda_impl.launch import CLUSTERED, Plan, variant
from cuda_impl.launches import norm

OP, EPS = "layer_norm", 1e-5
ONLINE, ONEPASS = norm.online_kernel(OP), norm.onepass_kernel(OP)
PACKED, CLUSTER = norm.packed_kernels(OP), norm.cluster_kernels(OP)


@variant(OP, "online", kernels=[ONLINE], level="tiled", algorithm="row read twice: moments, output")
def online(x: Tensor, weight: Tensor, bias: Tensor, eps: float = EPS) -> Plan:
    """A block reads its row twice: any row length."""
    return norm.online(OP, ONLINE, eps, x, weight=weight, bias=bias)


@variant(OP, "onepass", kernels=[ONEPASS], level="tiled")
def onepass(x: Tensor, weight: Tensor, bias: Tensor, eps: float = EPS) -> Plan:
    """The row stays in registers: up to 64 KB."""
    return norm.onepass(OP, ONEPASS, eps, x, weight=weight, bias=bias)


@variant(OP, "packed", kernels=PACKED, level="tiled")
def packed(x: Tensor, weight: Tensor, bias: Tensor, eps: float = EPS) -> Plan:
    """The row stays in registers, and weights are loaded when they are needed: up to 128 KB."""
    return norm.packed_rows(OP, PACKED, eps, x, weight=weight, bias=bias)


@variant(OP, "cluster", kernels=CLUSTER, **CLUSTERED)
def cluster(x: Tensor, weight: Tensor, bias: Tensor, eps: float = EPS) -> Plan:
    """The blocks of a cluster share rows: up to 16 x 208 KB each."""
    return norm.cluster(OP, CLUSTER, eps, x, weight=weight, bias=bias)
