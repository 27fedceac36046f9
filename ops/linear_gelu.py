"""linear_gelu: a layer of a transformer's MLP: matmul, bias and GELU, accumulated in fp32."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, stored_bytes, tensor
from compare.model.op import LAYOUTS, ROUNDOFF, Case, Cases, Cost, Op, Tolerance, case
from ops.matmul import of_sum


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``x[M,K]``, ``w[K,N]`` and ``bias[N]``; a special fill applies to x alone.

    w is about K^(1/2) times smaller than x, like a trained layer's weights: the sums are near 0, where GELU
    is nonlinear.  Where x is huge, w is smaller still: the sums must fit the dtype, because PyTorch rounds
    them before GELU.
    """
    x = tensor((case["M"], case["K"]), _of(case, "x"), generator, device)
    plain = replace(case, fill="normal")
    w = tensor((case["K"], case["N"]), _of(plain, "w"), generator, device)
    bias = tensor((case["N"],), _of(plain, "bias"), generator, device)
    # In place, which keeps every layout; by powers of two, which is exact.
    smaller = round(math.log2(max(case["K"], 1)) / 2) + (6 if case.fill == "huge" else 0)
    for values, power in ((w, smaller), (bias, 2)):
        one_row = values.stride(0) == 0  # expanded
        (values[:1] if one_row else values).mul_(2.0**-power)
    return x, w, bias


def _of(case: Case, name: str) -> Case:
    """The case as one input sees it: ``w_transposed`` is ``transposed`` for w and nothing for the others."""
    which, _, layout = case.layout.rpartition("_")
    mine = which in ("", name) and (name != "bias" or layout not in ("padded", "transposed"))
    return replace(case, layout=layout if mine else "contiguous")


def oracle(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU by its tanh approximation, as ``torch.nn.functional.gelu(v, approximate="tanh")``."""
    v = x @ w + bias
    return 0.5 * v * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (v + 0.044715 * v**3)))


def intermediate(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The sum, before or after the bias, times GELU's slope there.

    PyTorch rounds between its two kernels, as every unfused implementation does.  GELU's second derivative is
    less than 1, so the slope changes by less than one rounding of the sum.
    """
    product = x @ w
    v = product + bias
    size = torch.maximum(product.abs(), v.abs())
    t = torch.tanh(math.sqrt(2.0 / math.pi) * (v + 0.044715 * v**3))
    inner = math.sqrt(2.0 / math.pi) * (1.0 + 3 * 0.044715 * v**2)
    slope = 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t**2) * inner
    return size * (slope.abs() + ROUNDOFF["bf16"] * size)


def magnitude(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The sum of the terms' magnitudes: GELU's slope is nowhere much above 1."""
    return x.abs() @ w.abs() + bias.abs()


EPILOGUE_FLOPS = 8
"""Bias: an addition. GELU: a square, a multiply-add (two), a product, an exponential, a sum, a division."""


def cost(case: Case) -> Cost:
    """A multiplication and an addition for each of M * N * K terms, and the epilogue of M * N sums."""
    M, N, K = case["M"], case["N"], case["K"]
    return Cost(
        flops=2 * M * N * K + EPILOGUE_FLOPS * M * N,
        read_bytes=stored_bytes((M, K), _of(case, "x"))
        + stored_bytes((K, N), _of(case, "w"))
        + stored_bytes((N,), _of(case, "bias")),
        written_bytes=M * N * ITEM_BYTES[case.dtype],
    )


def tolerance(case: Case) -> Tolerance:
    """Error of an fp32 sum of K products, relative to the sum of the terms' magnitudes."""
    return Tolerance(least=of_sum(case["K"], case.dtype))


DTYPES = ("bf16", "fp16")
_LAYOUTS = (*LAYOUTS, "x_transposed", "w_transposed", "bias_sliced")
_ODD = ((1, 1, 1), (1, 3, 300), (5, 1, 17), (127, 129, 33), (33, 70, 1), (130, 66, 131), (1, 256, 40))
_EMPTY = ((0, 0, 8), (0, 16, 8), (16, 0, 8), (16, 8, 0))


def layer(dtype: str, M: int, size: int, layout: str = "contiguous") -> Case:
    """A square layer applied to M rows."""
    return case(dtype, layout, M=M, N=size, K=size)


CASES = Cases(
    default=layer("bf16", 8192, 8192),
    smoke=(
        case("fp16", M=64, N=48, K=80),
        case("bf16", M=80, N=66, K=70),
    ),
    edge=(
        *(case(dtype, M=m, N=n, K=k) for dtype in DTYPES for m, n, k in (*_EMPTY, *_ODD)),
        *(
            case(dtype, layout, M=66, N=40, K=56)
            for dtype in DTYPES
            for layout in _LAYOUTS
            if layout != "contiguous"
        ),
        *(case(dtype, "transposed", M=33, N=35, K=37) for dtype in DTYPES),
        *(case(dtype, fill=fill, M=40, N=36, K=48) for dtype in DTYPES for fill in ("neg_inf", "nan")),
        # The largest numbers of fp16; those of bf16 have squares beyond fp32.
        case("fp16", fill="huge", M=40, N=36, K=48),
        # Larger than a GPU's tiles but no multiple of them: kernels are chosen by size.
        *(case("bf16", layout, M=1500, N=1528, K=200) for layout in ("contiguous", "transposed")),
        case("bf16", M=250, N=1016, K=72),  # the largest tile also on four multiprocessors, the CPU's
        # More than 2^31 elements in x, in w and in y.
        case("bf16", M=65537, N=48, K=32768),
        case("bf16", M=48, N=65537, K=32768),
        case("bf16", M=65537, N=32768, K=64),
    ),
    sweep=(
        *(layer("bf16", M, 8192) for M in (128, 512, 2048, 8192)),
        layer("bf16", 4096, 4096),
        layer("bf16", 8192, 8192, "w_transposed"),
        case("bf16", M=4096, N=4096, K=16384),
        case("bf16", M=4095, N=4097, K=4099),
    ),
)

OP = Op(
    name="linear_gelu",
    summary="y = gelu(x @ w + bias), with fp32 sums: what it saves to finish y before it is written",
    signature="x[M,K], w[K,N], bias[N] -> y[M,N]",
    dims=("M", "N", "K"),
    dtypes=DTYPES,
    layouts=_LAYOUTS,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    intermediate=intermediate,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    independent="M",
)
