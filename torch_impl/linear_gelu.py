"""linear_gelu in plain PyTorch.

x[M,K], w[K,N], bias[N] -> y[M,N]

    eager    the library calls: cuBLAS's matmul with bias, then GELU, which reads and writes y again
    compile  torch.compile with max-autotune, which times two candidates: cuBLAS followed by a fused
             pointwise kernel, and its own Triton matmuls with bias and GELU in the epilogue

GELU is the tanh approximation everywhere.
"""

import functools
from collections.abc import Callable

import torch
from torch.nn.functional import gelu

from compare.arguments import check_linear
from compare.registry import implementation
from torch_impl.matmul import on_terms

MOST_WEIGHTS = (1 << 31) - 1
"""Past this, PyTorch 2.11 made an illegal memory access on an H100, and the process lost the GPU."""


def layer(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return gelu(torch.addmm(bias, x, w), approximate="tanh")


@implementation("linear_gelu", "torch.eager", level="vendor")
def eager(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    check_linear("linear_gelu", x, w, bias)
    on_terms(tf32=False)
    return layer(x, w, bias)


@functools.cache
def _compiled() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    # No CUDA graphs: they would return the same output memory from every call.
    return torch.compile(layer, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs")


@implementation("linear_gelu", "torch.compile", level="vendor", untuned="torch.eager")
def compiled(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    check_linear("linear_gelu", x, w, bias)
    if w.numel() > MOST_WEIGHTS:
        raise NotImplementedError(
            f"K*N={w.numel()}: products that torch.compile tries read outside of weights of 2^31 elements"
        )
    on_terms(tf32=False)
    return _compiled()(x, w, bias)
