"""w4a16_matmul: 16-bit activations times 4-bit weights, with a scale and a zero point for each 128 of K.

The layout of weight-only quantization (GPTQ, AWQ): ``y[m,n] = sum_k a[m,k] * (q[n,k] - zeros[n,k/128]) *
scales[n,k/128]``.  Nibble ``k % 8`` of word ``packed[n,k/8]`` is q[n,k], 0 to 15.  At few rows of a it is
memory bound, and the weights are a quarter of the bytes of fp16.

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from compare.inputs import ITEM_BYTES, laid_out, of_input, stored_bytes, stored_shape, tensor
from compare.model.op import LAYOUTS, Case, Cases, Cost, Op, Tolerance, case
from ops.matmul import of_sum

GROUP = 128
"""Of K, that share a scale and a zero point."""
NIBBLES = 8
"""In a word of packed."""

_ROWS = 4096
_SUBNORMAL = {"fp16": 2.0**-24, "bf16": 1e-40}
_INPUTS = ("a", "packed", "scales", "zeros")


def _shapes(case: Case) -> dict[str, tuple[int, int]]:
    M, N, K = case.shape
    groups = -(-K // GROUP)
    return {"a": (M, K), "packed": (N, -(-K // NIBBLES)), "scales": (N, groups), "zeros": (N, groups)}


def make_inputs(case: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor, ...]:
    """``a[M,K]``, ``packed[N,K/8]`` in int32, ``scales[N,K/128]`` like a, ``zeros[N,K/128]`` in uint8.

    A scale has so few digits that each weight is exact in a's dtype: a library's product of dequantized
    weights has the same terms.  Scales are spread over six powers of two, so that one of a neighbour shows.
    Nibbles behind K hold anything.  A special fill applies to a alone; with NaN in a, some rows of the first
    group have an infinite scale, 0 or a subnormal one, and a is finite and positive there.
    """
    shapes = _shapes(case)
    a = tensor(shapes["a"], of_input(case, "a"), generator, device)
    packed = _whole(
        shapes["packed"], (-(2**31), 2**31), torch.int32, of_input(case, "packed"), generator, device
    )
    scales = _scales(shapes["scales"], of_input(case, "scales"), generator, device, a.dtype)
    zeros = _whole(shapes["zeros"], (0, 16), torch.uint8, of_input(case, "zeros"), generator, device)
    if case.fill == "nan" and device.type != "meta":
        first = a[:, :GROUP]
        first.copy_(torch.where(first.isfinite() & (first != 0), first.abs(), 1.0))
        for row, special in enumerate((math.inf, 0.0, _SUBNORMAL[case.dtype])):
            scales[row::7, :1] = special
        packed[0::7, : GROUP // NIBBLES], zeros[0::7, :1] = -1, 0  # q - zero is 15: no infinities cancel
    return a, packed, scales, zeros


def _whole(
    shape: tuple[int, int],
    limits: tuple[int, int],
    dtype: torch.dtype,
    case: Case,
    generator: torch.Generator,
    device: torch.device,
) -> torch.Tensor:
    values = torch.empty(stored_shape(shape, case.layout), dtype=dtype, device=device)
    if device.type != "meta":
        drawn = torch.randint(*limits, values.shape, device=generator.device, generator=generator)
        values.copy_(drawn)
    return laid_out(values, shape, case.layout)


def _scales(
    shape: tuple[int, int],
    case: Case,
    generator: torch.Generator,
    device: torch.device,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Four significant bits: with the four of q - zero they are the eight of bf16."""
    values = torch.empty(stored_shape(shape, case.layout), dtype=dtype, device=device)
    if device.type != "meta":
        drawn = torch.randint(48, values.shape, device=generator.device, generator=generator)
        values.copy_(2.0 ** (drawn // 8 - 10) * (1 + drawn % 8 / 8))
    return laid_out(values, shape, case.layout)


def weights(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, K: int) -> torch.Tensor:
    """``w[N,K]`` in fp64."""
    shifts = 4 * torch.arange(NIBBLES, device=packed.device)
    q = (packed.to(torch.int64)[:, :, None] >> shifts & 15).flatten(1)[:, :K].double()
    of_group = (x.double().repeat_interleave(GROUP, dim=1)[:, :K] for x in (zeros, scales))
    return (q - next(of_group)) * next(of_group)


def _product(
    a: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    change: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The product with ``change`` of the weights, some rows at a time: in fp64 they are 16 times as large."""
    parts = zip(packed.split(_ROWS), scales.split(_ROWS), zeros.split(_ROWS), strict=True)
    return torch.cat([a @ change(weights(*part, a.shape[1])).T for part in parts], dim=1)


def oracle(a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    return _product(a, packed, scales, zeros, lambda w: w)


def magnitude(
    a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """The sum of the terms' magnitudes: where terms cancel, their rounding errors do not."""
    return _product(a.abs(), packed, scales, zeros, torch.abs)


def cost(case: Case) -> Cost:
    """A multiplication and an addition for each of M * N * K terms."""
    M, N, K = case.shape
    item = ITEM_BYTES[case.dtype]
    bytes_of = {"a": item, "packed": 4, "scales": item, "zeros": 1}
    read = sum(stored_bytes(_shapes(case)[x], of_input(case, x), bytes_of[x]) for x in _INPUTS)
    return Cost(2 * M * N * K, read, M * N * item)


def tolerance(case: Case) -> Tolerance:
    """Error of an fp32 sum of K exact products, relative to the sum of the products' magnitudes.

    A tenth above a matmul's: on an H100 torch.compile's form loses up to K^1/2 / 6.2.
    """
    return Tolerance(least=1.1 * of_sum(case["K"], case.dtype))


DTYPES = ("fp16", "bf16")
_LAYOUTS = (
    *LAYOUTS,
    "a_transposed",
    "packed_transposed",
    "packed_misaligned",
    "scales_transposed",
    "zeros_sliced",
)
_EMPTY = ((0, 16, 128), (16, 0, 128), (4, 8, 0))
_ODD = (
    (1, 1, 1),
    (1, 48, 128),
    (2, 3, 8),
    (5, 66, 300),
    (16, 33, 127),
    (17, 131, 129),
    (9, 129, 264),
    (65, 40, 384),
)


def product(
    M: int, N: int, K: int, dtype: str = "fp16", layout: str = "contiguous", fill: str = "normal"
) -> Case:
    return case(dtype, layout, fill, M=M, N=N, K=K)


CASES = Cases(
    default=product(16, 8192, 8192),
    smoke=(product(16, 48, 272), product(3, 129, 391, "bf16"), product(24, 40, 127)),
    edge=(
        *(product(*sizes, dtype) for dtype in DTYPES for sizes in (*_EMPTY, *_ODD)),
        *(product(18, 70, 272, "fp16", layout) for layout in _LAYOUTS if layout != "contiguous"),
        *(product(3, 40, 264, dtype, fill=fill) for dtype in DTYPES for fill in ("neg_inf", "nan")),
        # Only fp16: fp32 sums hold the products of its largest numbers.
        product(5, 36, 264, fill="huge"),
        # Blocks of a stream-K division that begin and end within tiles.
        *(product(M, 600, 1500, dtype) for M in (1, 70) for dtype in DTYPES),
        # More than 2^31 elements in a, in the weights and in y.
        product(65537, 16, 32768),
        product(2, 65537, 32776),
        product(65537, 32768, 8),
    ),
    sweep=(
        *(product(M, 8192, 8192) for M in (1, 4, 8, 16, 64, 256)),
        *(product(M, 8192, 8192, "bf16") for M in (1, 16)),
        product(128, 7168, 16384),
    ),
)

OP = Op(
    name="w4a16_matmul",
    summary="y = a @ w.T of weights in int4 with a scale and a zero point for each 128 of K",
    signature="a[M,K], packed[N,K/8], scales[N,K/128], zeros[N,K/128] -> y[M,N]",
    dims=("M", "N", "K"),
    dtypes=DTYPES,
    layouts=_LAYOUTS,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    cost=cost,
    tolerance=tolerance,
    cases=CASES,
    baseline="torch.fp16",
    independent="M",
    weights=("packed", "scales", "zeros"),
)
