"""w4a16_matmul in plain PyTorch.

a[M,K], packed[N,K/8], scales[N,K/128], zeros[N,K/128] -> y[M,N]

    naive    dequantizes all weights to memory, in a's dtype, then multiplies
    compile  torch.compile: one kernel dequantizes
    fp16     weights dequantized offline: the product of 16-bit matrices, by cuBLAS, that int4 is to beat
"""

import functools
from collections.abc import Callable

import torch

from compare.arguments import check_quantized_linear
from compare.registry import implementation
from torch_impl.matmul import on_terms

OP = "w4a16_matmul"
GROUP = 128


def dequantize(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """The weights w[N,K] in the dtype of scales, K rounded up to whole words."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    q = (packed[:, :, None] >> shifts & 15).flatten(1)
    K = q.shape[1]
    of_group = scales.repeat_interleave(GROUP, dim=1)[:, :K]
    return (q - zeros.repeat_interleave(GROUP, dim=1)[:, :K].to(torch.int32)).to(scales.dtype) * of_group


def _product(
    a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    return a @ dequantize(packed, scales, zeros)[:, : a.shape[1]].t()


@implementation(OP, "torch.naive", level="naive")
def naive(a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    check_quantized_linear(OP, a, packed, scales, zeros)
    on_terms(tf32=False)
    return _product(a, packed, scales, zeros)


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    # No CUDA graphs: they would return the same output memory from every call.
    return torch.compile(_product, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs")


@implementation(OP, "torch.compile", level="vendor", untuned="torch.naive")
def compiled(
    a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    check_quantized_linear(OP, a, packed, scales, zeros)
    on_terms(tf32=False)
    if a.numel() * packed.shape[0] == 0:
        return a.new_zeros((a.shape[0], packed.shape[0]))
    return _compiled()(a, packed, scales, zeros)


def dequantized(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What `fp16` takes as prepared."""
    return (dequantize(packed, scales, zeros),)


@implementation(OP, "torch.fp16", level="vendor", prepare=dequantized)
def fp16(
    a: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    *,
    prepared: tuple[torch.Tensor, ...] | None = None,
) -> torch.Tensor:
    check_quantized_linear(OP, a, packed, scales, zeros)
    on_terms(tf32=False)
    (w,) = dequantized(packed, scales, zeros) if prepared is None else prepared
    return a @ w[:, : a.shape[1]].t()
