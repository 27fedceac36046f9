"""fp8_block_matmul: the product of two fp8 matrices with a scale for each 1 x 128 of a and 128 x 128 of b.

The layout of DeepSeek-V3's linear layers: activations are quantized by groups of a row, weights by square
blocks.  So no scale can wait for the end of a sum: ``c[m,n]`` is the sum, over blocks of 128 of K, of a
partial sum of products times ``scale_a[m,block] * scale_b[n/128,block]``.  b is stored by its columns,
``b[N,K]``, as Hopper's 8-bit tensor cores read it.

Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 3.3.2, and their DeepGEMM.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, laid_out, of_input, stored_bytes, stored_shape, tensor
from compare.model.op import FP8, LAYOUTS, Case, Cases, Cost, Op, SensitiveInputs, Tolerance, case
from ops.matmul import few_terms

BLOCK = 128
"""Columns of a, and rows and columns of b, that share a scale."""

_SPECIAL = (math.inf, 0.0, 1e-40)


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor, ...]:
    """``a[M,K]``, ``b[N,K]``, ``scale_a[M,K/128]`` and ``scale_b[N/128,K/128]``, both rounded up.

    Scales are spread over six powers of two, so that one of a neighbour shows.  A special fill applies to a
    alone; with NaN in a, some rows have an infinite scale, 0 or a subnormal one.
    """
    M, N, K = case.shape
    a = tensor((M, K), of_input(case, "a"), generator, device)
    b = tensor((N, K), of_input(replace(case, fill="normal"), "b"), generator, device)
    scale_a = _scales((M, _blocks(K)), of_input(case, "scale_a"), generator, device)
    scale_b = _scales((_blocks(N), _blocks(K)), of_input(case, "scale_b"), generator, device)
    if case.fill == "nan" and device.type != "meta":
        for row, special in enumerate(_SPECIAL):
            scale_a[row::7, :1] = special
    return a, b, scale_a, scale_b


def _scales(
    shape: tuple[int, int], case: Case, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    drawn = stored_shape(shape, case.layout)
    if device.type == "meta":
        return laid_out(torch.empty(drawn, device=device), shape, case.layout)
    exponents = torch.rand(drawn, device=generator.device, generator=generator) * 6 - 3
    values = torch.empty(drawn, device=device)
    return laid_out(values.copy_(2.0**exponents / 100), shape, case.layout)


def oracle(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    c = torch.zeros((a.shape[0], b.shape[0]), dtype=a.dtype, device=a.device)
    for block in range(scale_a.shape[1]):
        k = slice(block * BLOCK, (block + 1) * BLOCK)
        of_column = scale_b[:, block].repeat_interleave(BLOCK)[: b.shape[0]]
        c += (a[:, k] @ b[:, k].T) * (scale_a[:, block, None] * of_column)
    return c


def magnitude(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """The sum of the terms' magnitudes: where terms cancel, their rounding errors do not."""
    return oracle(a.abs(), b.abs(), scale_a.abs(), scale_b.abs())


def cost(case: Case) -> Cost:
    """A multiplication and an addition for each of M * N * K terms."""
    M, N, K = case.shape
    scales = stored_bytes((M, _blocks(K)), of_input(case, "scale_a"), 4)
    scales += stored_bytes((_blocks(N), _blocks(K)), of_input(case, "scale_b"), 4)
    operands = stored_bytes((M, K), of_input(case, "a")) + stored_bytes((N, K), of_input(case, "b"))
    return Cost(2 * M * N * K, operands + scales, M * N * ITEM_BYTES["bf16"])


def tolerance(case: Case) -> Tolerance:
    """Error of partial sums of 128 products on Hopper's tensor cores, relative to the products' magnitudes.

    The tensor cores align the products of 32 of K and the sum so far to the largest of these, and cut off
    what lies below 2^-13 of it.  If one product is as large as all others together, four such steps lose
    4 * 32 * 2^-14 of it at worst, always downwards; a sixteenth of that is allowed: 2^-11, 2^13 roundings
    of fp32.  Partial sums are then added in fp32.
    """
    return Tolerance(least=2.0**13)


_LAYOUTS = (*LAYOUTS, "a_transposed", "b_transposed", "scale_a_transposed", "scale_b_padded")
_EMPTY = ((0, 16, 128), (16, 0, 128), (16, 8, 0))
_ODD = ((1, 1, 1), (1, 48, 128), (7, 130, 300), (17, 33, 127), (130, 131, 129), (129, 64, 272))


def product(M: int, N: int, K: int, layout: str = "contiguous", fill: str = "normal") -> Case:
    return case(FP8, layout, fill, M=M, N=N, K=K)


CASES = Cases(
    default=product(4096, 4096, 4096),
    smoke=(product(24, 129, 127), product(48, 40, 272)),
    edge=(
        *(product(*sizes) for sizes in (*_EMPTY, *_ODD)),
        *(product(66, 136, 272, layout) for layout in _LAYOUTS if layout != "contiguous"),
        # One operand's rows are no whole 16-byte vectors, and the other has no such rows.
        *(product(66, 136, 264, layout) for layout in ("a_transposed", "b_transposed")),
        *(product(40, 36, 264, fill=fill) for fill in ("huge", "nan")),
        # More blocks of K than scales are loaded ahead of.
        product(24, 72, 1160),
        # Several tiles in both dimensions, for kernels that choose them by size.
        product(300, 260, 512),
        # Few rows and many columns: the widest tiles, on a CPU too.
        product(24, 1016, 272),
        # More than 2^31 elements in a, in b and in c.
        product(65537, 48, 32768),
        product(48, 65537, 32768),
        product(65537, 32768, 128),
    ),
    sweep=(
        *(product(size, size, size) for size in (1024, 2048, 4096, 8192)),
        product(4096, 7168, 16384),
        product(128, 7168, 16384),
        *(product(M, 8192, 8192) for M in (64, 128)),
        product(4096, 4096, 4224),
        product(4095, 4097, 4099),
    ),
)

OP = Op(
    name="fp8_block_matmul",
    summary="c = a @ b.T of fp8 matrices, with a scale for each 1 x 128 of a and 128 x 128 of b",
    signature="a[M,K], b[N,K], scale_a[M,K/128], scale_b[N/128,K/128] -> c[M,N]",
    dims=("M", "N", "K"),
    dtypes=(FP8,),
    layouts=_LAYOUTS,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    cost=cost,
    tolerance=tolerance,
    sensitive_inputs=SensitiveInputs(few_terms),
    cases=CASES,
    output_dtype="bf16",
    independent="M",
)
