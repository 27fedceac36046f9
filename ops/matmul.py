"""matmul: the product of two matrices, accumulated in fp32."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compare.inputs import ITEM_BYTES, keep_few, stored_bytes, tensor
from compare.model.op import LAYOUTS, Case, Cases, Cost, Op, SensitiveInputs, Tolerance, case


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """``a[M,K]`` and ``b[K,N]``; a special fill applies to a alone, so it spoils rows of c, not all."""
    a = tensor((case["M"], case["K"]), _of(case, "a"), generator, device)
    b = tensor((case["K"], case["N"]), replace(_of(case, "b"), fill="normal"), generator, device)
    return a, b


def _of(case: Case, name: str) -> Case:
    """The case as one operand sees it: ``b_transposed`` is ``transposed`` for b and nothing for a."""
    which, _, layout = case.layout.rpartition("_")
    return replace(case, layout=layout if which in ("", name) else "contiguous")


def oracle(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def magnitude(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum of the terms' magnitudes: where terms cancel, their rounding errors do not."""
    return a.abs() @ b.abs()


def cost(case: Case) -> Cost:
    """A multiplication and an addition for each of M * N * K terms."""
    M, N, K = case["M"], case["N"], case["K"]
    return Cost(
        flops=2 * M * N * K,
        read_bytes=stored_bytes((M, K), _of(case, "a")) + stored_bytes((K, N), _of(case, "b")),
        written_bytes=M * N * ITEM_BYTES[case.dtype],
    )


def of_sum(K: int, dtype: str) -> float:
    """Roundings that an fp32 sum of K products may lose, of the sum of the products' magnitudes.

    With round-to-nearest, K additions make a random walk of K^1/2 steps.  Each step rounds a partial sum that
    is itself K^1/2 times smaller than the sum of magnitudes: a few roundings, however long the sum, and up to
    5.2 where K is small and the first product large.  Tensor cores truncate once per 4 to 16 products, always
    in the same direction: on a GPU K^1/2 / 7 at most.  fp32 products do not use tensor cores.
    """
    return 7.5 if dtype == "fp32" else max(7.5, 2.0 + math.sqrt(K) / 5)


def tolerance(case: Case) -> Tolerance:
    """Error of an fp32 sum of K products, relative to the sum of the products' magnitudes."""
    # A truncated input is off by at most two roundings, a product by four; over many terms the signs cancel.
    rounded = min(2.0, 20 / math.sqrt(max(case["K"], 1)))
    return Tolerance(least=of_sum(case["K"], case.dtype), least_rounded=rounded)


def few_terms(inputs: tuple[torch.Tensor, ...]) -> None:
    """Sums of four products: the digits that inputs lose do not average out."""
    keep_few(inputs[0], inputs[0].shape[-1] // 4)


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = (*LAYOUTS, "a_transposed", "b_transposed")
_NARROW = ("fp16", "bf16")
_ODD = ((1, 1, 1), (1, 3, 300), (5, 1, 17), (127, 129, 33), (33, 70, 1), (130, 66, 131), (1, 257, 40))
_EMPTY = ((0, 16, 8), (16, 0, 8), (16, 8, 0))


def cube(dtype: str, size: int, layout: str = "contiguous") -> Case:
    return case(dtype, layout, M=size, N=size, K=size)


# N and K of the products in layers of transformers: queries, keys and values (qkv), output, up, down.
_GPT2 = ((2304, 768), (768, 768), (3072, 768), (768, 3072))
_LLAMA_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
_LLAMA_13B = ((15360, 5120), (5120, 5120))
_LLAMA_70B = ((8192, 8192), (8192, 28672), (1280, 8192), (7168, 2048))  # the last two: on 8 GPUs
_LAYERS = {
    1: (_GPT2[0], _GPT2[3], _LLAMA_8B[0], _LLAMA_8B[3], _LLAMA_13B[1], _LLAMA_70B[0]),
    16: (_GPT2[3], _LLAMA_8B[1], *_LLAMA_70B),
    64: (_GPT2[2], _LLAMA_8B[0], _LLAMA_70B[2]),
    128: (_GPT2[3], _LLAMA_8B[1], _LLAMA_8B[2], _LLAMA_70B[2]),
    512: (_GPT2[0], _GPT2[2], _LLAMA_8B[1], _LLAMA_13B[1], _LLAMA_70B[3]),
    2048: (_GPT2[1], _GPT2[2], _LLAMA_8B[0], _LLAMA_8B[3], _LLAMA_13B[0], _LLAMA_13B[1]),
    8192: (_GPT2[0], _LLAMA_8B[1], _LLAMA_70B[2], _LLAMA_70B[3]),
}
# Others: cubes, sizes that are no multiples of a tile, and rows that do not start on 16 bytes.
_OTHERS = (
    *((size, size, size) for size in (1000, 1024, 2048, 4096, 8192)),
    *((3000, 5000, 2056), (777, 4096, 4096), (300, 1304, 5000), (5000, 200, 3000)),
    *((4095, 4097, 4099), (4096, 4096, 1001), (2048, 50257, 768)),
)

CASES = Cases(
    default=cube("bf16", 4096),
    smoke=(
        case("fp32", M=64, N=48, K=80),
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
        # Only fp16: fp32 sums hold the products of its largest numbers.
        case("fp16", fill="huge", M=40, N=36, K=48),
        # Larger than a GPU's tiles but no multiple of them: kernels are chosen by size.
        *(case("bf16", layout, M=1500, N=1528, K=200) for layout in ("contiguous", "transposed")),
        case("bf16", M=5, N=24, K=2600),  # few tiles with many terms, which kernels split
        # More than 2^31 elements in a, in b and in c.
        case("bf16", M=65537, N=48, K=32768),
        case("bf16", M=48, N=65537, K=32768),
        case("bf16", M=65537, N=32768, K=64),
    ),
    sweep=(
        *(cube("bf16", size) for size in (1024, 2048, 4096, 8192)),
        *(case("bf16", M=4096, N=4096, K=k) for k in (512, 14336)),
        case("bf16", M=4095, N=4097, K=4099),
        *(cube("bf16", 4096, layout) for layout in ("b_transposed", "misaligned")),
        cube("fp16", 8192),
        *(cube("fp32", size) for size in (1024, 4096)),
    ),
    shapes=(
        *(case("bf16", M=m, N=n, K=k) for m, layers in _LAYERS.items() for n, k in layers),
        *(case("bf16", M=m, N=n, K=k) for m, n, k in _OTHERS),
    ),
)

OP = Op(
    name="matmul",
    summary="c = a @ b, with fp32 sums: each element read is used thousands of times",
    signature="a[M,K], b[K,N] -> c[M,N]",
    dims=("M", "N", "K"),
    dtypes=DTYPES,
    layouts=_LAYOUTS,
    make_inputs=make_inputs,
    oracle=oracle,
    magnitude=magnitude,
    cost=cost,
    tolerance=tolerance,
    sensitive_inputs=SensitiveInputs(few_terms),
    cases=CASES,
    independent="M",
)
