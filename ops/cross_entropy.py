"""cross_entropy: the negative log-likelihood of each row's target.  One pass over long rows."""

from __future__ import annotations

import math

import torch

from compare.inputs import indices, keep_few_exponentials, stored_bytes, tensor
from compare.model.op import Case, Cases, Cost, Op, SensitiveInputs, Tolerance, case

IGNORED = -100
"""PyTorch's ``ignore_index``: the loss of such a row is 0, whatever its logits."""


def make_inputs(
    case: Case, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """``logits[M,V]`` and int64 ``targets[M]``.  With the default fill no target is ignored.

    Each row's outliers, at 6 to 10, lie far above the rest, so nearly every loss is positive.
    """
    logits = tensor(case.shape, case, generator, device)
    return logits, indices((case["M"],), case["V"], case, generator, device, none=IGNORED)


def oracle(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """F.cross_entropy with reduction="none", except that an out-of-range target gives a loss of NaN."""
    targets = targets.long()
    inside = (targets >= 0) & (targets < logits.shape[1])
    loss = torch.full_like(targets, math.nan, dtype=logits.dtype)
    if logits.shape[1] > 0:
        picked = logits.log_softmax(dim=1).gather(1, torch.where(inside, targets, 0)[:, None])
        loss = torch.where(inside, -picked[:, 0], loss)
    return torch.where(targets == IGNORED, 0.0, loss)


def magnitude(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """1: a relative error of the sum of exponentials is an absolute error of its logarithm.

    A quarter of the row's maximum where that is more: log-sum-exp is rounded at that size.
    """
    if logits.shape[1] == 0:
        return torch.ones_like(targets, dtype=logits.dtype)
    row_max = logits.amax(dim=1).abs().nan_to_num(nan=0.0, posinf=0.0)
    return (row_max / 4).clamp(min=1.0)


def cost(case: Case) -> Cost:
    """Maximum, subtraction, exponential and sum: one operation each per element."""
    M, V = case["M"], case["V"]
    return Cost(
        flops=4 * M * V,
        read_bytes=stored_bytes((M, V), case) + stored_bytes((M,), case, torch.int64.itemsize),
        written_bytes=M * torch.float32.itemsize,
    )


def tolerance(case: Case) -> Tolerance:
    """Error of the sum of exponentials, as an absolute error of the loss.

    exp(-t) is off by about 2 t roundings (softmax explains), but errors of many terms average out.  On a GPU
    implementations lose up to 3 where V is 4096, and less than 1 where it is ten times as large.
    """
    return Tolerance(least=2.0 + min(2.5, 160 / math.sqrt(max(case["V"], 1))))


def few_terms(inputs: tuple[torch.Tensor, ...]) -> None:
    """Few logits of a row count in its sum, so that one which is lost shows."""
    keep_few_exponentials(inputs[0])


DTYPES = ("fp32", "fp16", "bf16")
_LAYOUTS = ("padded", "transposed", "sliced", "misaligned", "expanded")
_VOCABULARIES = (4096, 8192, 32768, 131072, 262144)

CASES = Cases(
    # A batch of 4096 tokens and the vocabulary of Llama 2.
    default=case("bf16", M=4096, V=32000),
    smoke=(
        case("fp32", M=8, V=1024),
        case("fp16", M=8, V=781),
        case("bf16", M=6, V=2049),
    ),
    edge=(
        *(
            case(dtype, M=rows, V=columns)
            for dtype in DTYPES
            for rows, columns in ((0, 16), (1, 1), (3, 1), (5, 2), (5, 127), (4, 128), (3, 129), (1, 40011))
        ),
        case("fp32", M=5, V=0),
        *(case(dtype, layout, M=4, V=133) for dtype in DTYPES for layout in _LAYOUTS),
        *(case(dtype, M=9, V=15) for dtype in DTYPES),  # no row has a whole vector
        # Rows at any alignment, each read by a whole block.
        *(case(dtype, layout, M=9, V=9001) for dtype in DTYPES for layout in ("padded", "misaligned")),
        *(case(dtype, fill=fill, M=11, V=517) for dtype in DTYPES for fill in ("huge", "neg_inf", "nan")),
        case("fp32", fill="huge", M=4, V=520),  # rows of whole 16-byte vectors
        case("fp32", "padded", "neg_inf", M=3, V=10007),
        case("bf16", M=65537, V=32768),
        case("fp32", M=16385, V=131072),
        case("bf16", M=2, V=2**30 + 3),
    ),
    sweep=(
        # 512 MiB of logits.
        *(case("bf16", M=2**28 // V, V=V) for V in _VOCABULARIES),
        *(case("fp32", M=2**27 // V, V=V) for V in (4096, 262144)),
        case("fp16", M=4096, V=32000),
        # GPT-2's vocabulary: consecutive rows have different alignments.
        case("bf16", M=4096, V=50257),
        # 64 MiB, where start and end of a launch count.
        *(case("bf16", M=2**25 // V, V=V) for V in (1024, 4096)),
        case("bf16", M=11184, V=3001),
        # Few rows, with Llama 3's vocabulary.
        *(case("bf16", M=M, V=128256) for M in (1, 32)),
        case("bf16", M=128, V=2**21),
    ),
)

OP = Op(
    name="cross_entropy",
    summary="loss = log(sum(exp(logits))) - logits[target] of each row",
    signature="logits[M,V], targets[M] -> loss[M]",
    dims=("M", "V"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    oracle=oracle,
    cost=cost,
    tolerance=tolerance,
    magnitude=magnitude,
    sensitive_inputs=SensitiveInputs(few_terms),
    cases=CASES,
    output_dtype="fp32",
    special=f"targets of {IGNORED}, which are ignored",
    independent="M",
)
