"""int8_matmul: the product of two int8 matrices with a scale for each row of a and each row of b.

The layout of quantized linear layers (LLM.int8, SmoothQuant): activations have a scale per token, weights one
per output channel.  Both are constant along K, so they are applied once, to the finished sum.  b is stored by
its columns, ``b[N,K]``, as Hopper's 8-bit tensor cores read it.

Source: Dettmers et al., "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale" (2022).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, laid_out, of_input, stored_bytes, stored_shape, tensor
from compare.model.op import LAYOUTS, Case, Cases, Cost, Op, Tolerance, case

_SPECIAL = (math.inf, 0.0, 1e-40)


def matrices_and_scales(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """``a[M,K]``, ``b[N,K]``, ``scale_a[M]`` and ``scale_b[N]``.

    Scales are spread over six powers of two, so that one of a neighbour shows.  A special fill applies to a
    alone; with NaN in a, some rows have an infinite scale, 0 or a subnormal one.
    """
    M, N, K = case.shape
    a = tensor((M, K), of_input(case, "a"), generator, device)
    b = tensor((N, K), of_input(replace(case, fill="normal"), "b"), generator, device)
    scale_a = _scales((M,), of_input(case, "scale_a", 1), generator, device)
    scale_b = _scales((N,), of_input(case, "scale_b", 1), generator, device)
    if case.fill == "nan" and device.type != "meta":
        for row, special in enumerate(_SPECIAL):
            scale_a[row::7] = special
    return a, b, scale_a, scale_b


def _scales(shape: tuple[int], case: Case, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    drawn = stored_shape(shape, case.layout)
    if device.type == "meta":
        return laid_out(torch.empty(drawn, device=device), shape, case.layout)
    exponents = torch.rand(drawn, device=generator.device, generator=generator) * 6 - 3
    values = torch.empty(drawn, device=device)
    return laid_out(values.copy_(2.0**exponents / 100), shape, case.layout)


def oracle(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return (a @ b.T) * scale_a[:, None] * scale_b


def cost(case: Case) -> Cost:
    """A multiplication and an addition for each of M * N * K terms."""
    M, N, K = case.shape
    scales = stored_bytes((M,), of_input(case, "scale_a", 1), 4)
    scales += stored_bytes((N,), of_input(case, "scale_b", 1), 4)
    operands = stored_bytes((M, K), of_input(case, "a")) + stored_bytes((N, K), of_input(case, "b"))
    return Cost(2 * M * N * K, operands + scales, M * N * ITEM_BYTES["bf16"])


def tolerance(case: Case) -> Tolerance:
    """Sums are exact: what rounds is their conversion to fp32 and two multiplications, relative to each."""
    return Tolerance(least=3.0)


LAYOUTS_TAKEN = (*LAYOUTS, "a_transposed", "b_transposed", "scale_a_sliced", "scale_b_misaligned")
_EMPTY = ((0, 0, 8), (0, 16, 128), (16, 0, 128), (16, 8, 0))
_ODD = ((1, 1, 1), (1, 48, 128), (7, 130, 300), (17, 33, 127), (130, 131, 129), (129, 64, 272))


def cases_of(dtype: str, fills: tuple[str, ...]) -> Cases:
    """The cases of a product of 8-bit matrices with rowwise scales."""

    def product(M: int, N: int, K: int, layout: str = "contiguous", fill: str = "normal") -> Case:
        return case(dtype, layout, fill, M=M, N=N, K=K)

    return Cases(
        default=product(4096, 4096, 4096),
        smoke=(product(48, 40, 272), product(24, 129, 127)),
        edge=(
            *(product(*sizes) for sizes in (*_EMPTY, *_ODD)),
            *(product(66, 136, 272, layout) for layout in LAYOUTS_TAKEN if layout != "contiguous"),
            *(product(40, 36, 264, fill=fill) for fill in fills),
            # Several tiles in both dimensions, for kernels that choose them by size.
            product(300, 264, 512),
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
            product(4095, 4097, 4099),
        ),
    )


OP = Op(
    name="int8_matmul",
    summary="c = a @ b.T of int8 matrices with exact sums, and a scale for each row of a and of b",
    signature="a[M,K], b[N,K], scale_a[M], scale_b[N] -> c[M,N]",
    dims=("M", "N", "K"),
    dtypes=("int8",),
    layouts=LAYOUTS_TAKEN,
    make_inputs=matrices_and_scales,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    cases=cases_of("int8", fills=()),
    output_dtype="bf16",
    independent="M",
)
