"""The error of quantization itself, as a table for documents: products of quantized matrices in fp64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from compare import registry
from compare.report import markdown
from compare.report.tables import Table

BLOCK, LARGEST = 128, 448.0
"""Columns or rows that share a scale in fp8_block_matmul, and the largest number of e4m3."""

M, N, K = 256, 256, 1024
OUTLIERS = slice(5, None, 256)
"""Columns of a that have them: in every second block of 128."""

FACTORS = (1, 16, 64, 65536)

Quantized = tuple[torch.Tensor, torch.Tensor]
"""Values and scales."""


def block() -> str:
    """The relative error of each op's product, in the Frobenius norm, by how large outliers are."""
    title = f"Relative error of the product of quantized matrices in fp64, M={M}, N={N}, K={K}"
    few = len(range(*OUTLIERS.indices(K)))
    headers = ("op", "codes", "one scale for", "normal", *(f"{few} columns x {f}" for f in FACTORS[1:]))
    rows = [
        (f"`{op}`", codes, share, *(f"{error(op, factor):.1%}" for factor in FACTORS))
        for op, codes, share in (
            ("int8_matmul", "int8", "a row"),
            ("fp8_matmul", "e4m3", "a row"),
            ("fp8_block_matmul", "e4m3", "1 x 128 of a, 128 x 128 of b"),
        )
    ]
    return markdown.table(Table(title, headers, tuple(rows), text_columns=headers[:3]))


def error(op: str, factor: int) -> float:
    """Of normal matrices, where outliers in a are ``factor`` times as large, and b there as much smaller."""
    draw = np.random.RandomState(0).standard_normal  # the same numbers in every version
    a, b = (torch.from_numpy(draw((rows, K))).float() for rows in (M, N))
    a[:, OUTLIERS] *= factor
    b[:, OUTLIERS] /= factor
    wanted = a.double() @ b.double().T
    (a, scale_a), (b, scale_b) = (quantize(x) for quantize, x in zip(QUANTIZERS[op], (a, b), strict=True))
    found = registry.get_op(op).oracle(*(x.double() for x in (a, b, scale_a, scale_b)))
    return float((found - wanted).norm() / wanted.norm())


def to_int8(x: torch.Tensor) -> Quantized:
    scales = x.abs().amax(1) / 127
    return (x / scales[:, None]).round(), scales


def to_fp8(x: torch.Tensor, group: int = 0) -> Quantized:
    op = registry.get_op("quantize_fp8")
    return op.oracle(x, group), op.further[0].oracle(x, group)


def to_fp8_by_groups(x: torch.Tensor) -> Quantized:
    return to_fp8(x, BLOCK)


def to_fp8_by_squares(x: torch.Tensor) -> Quantized:
    rows, columns = x.shape
    squares = x.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scales = squares.abs().amax((1, 3)) / LARGEST
    values = (squares / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    return values.view(rows, columns), scales


QUANTIZERS: dict[str, tuple[Callable[[torch.Tensor], Quantized], Callable[[torch.Tensor], Quantized]]] = {
    "int8_matmul": (to_int8, to_int8),
    "fp8_matmul": (to_fp8, to_fp8),
    "fp8_block_matmul": (to_fp8_by_groups, to_fp8_by_squares),
}
"""Of a and of b."""
