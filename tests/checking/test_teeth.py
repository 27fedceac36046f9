"""Wrong outputs fail at the sizes that are timed, where one term of millions is easily lost.

Each is the oracle's output with one thing made wrong, rounded to the output's dtype.  A CPU runs fewer rows,
and shorter sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from compare import registry
from compare.checking.check import CheckOptions, check
from compare.checking.probes import Probes
from compare.checking.tolerance import ToleranceFromBaseline
from compare.inputs import TORCH_DTYPES
from compare.spec import Case, Implementation, Op, by_output, case

Change = Callable[[torch.Tensor], torch.Tensor]
Wrong = Callable[..., torch.Tensor]
"""Of an op of one output, and the inputs in fp64: that output in fp64."""

FIRST, INNER, LAST = 0, 77, -1
PLACES = {"first": FIRST, "inner": INNER, "last": LAST}
BLOCK = slice(4096, 5120)
TINY = torch.finfo(torch.float32).smallest_normal


def on(*changes: Change) -> Wrong:
    """The right output of other inputs."""
    return lambda op, *inputs: op.oracle(*(f(x) for f, x in zip(changes, inputs, strict=False)), *inputs[len(changes) :])


def after(change: Change) -> Wrong:
    """The right output, changed."""
    return lambda op, *inputs: change(op.oracle(*inputs))


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def times(factor: float, where: int | slice) -> Change:
    """Columns multiplied by ``factor``."""

    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[..., where] *= factor
        return x

    return change


def rounded(dtype: torch.dtype) -> Change:
    return lambda x: x.to(dtype).double()


def digits(count: int) -> Change:
    """Rounded to so many binary digits."""

    def change(x: torch.Tensor) -> torch.Tensor:
        mantissa, exponent = torch.frexp(x)
        return torch.ldexp((mantissa * 2**count).round() / 2**count, exponent)

    return change


def subnormal(factor: float) -> Change:
    return lambda x: torch.where(x.abs() < TINY, factor * x, x)


def sums_in(dtype: torch.dtype, length: int) -> Wrong:
    """Sums of ``length`` terms, each rounded to ``dtype``."""

    def wrong(op: Op, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for begin in range(0, x.shape[-1], length):
            part = torch.zeros_like(x)
            part[..., begin : begin + length] = x[..., begin : begin + length]
            total = total + op.oracle(part, *others).to(dtype).double()
        return total

    return wrong


def of_vector(dtype: torch.dtype) -> Wrong:
    return lambda op, x: torch.stack([part.sum() for part in x.split(1024)]).to(dtype).double().sum()


def lost(*places: str) -> dict[str, Wrong]:
    """A term of a sum of products."""
    return {f"{place} term lost": on(times(0.0, PLACES[place])) for place in places or PLACES}


def column_lost(column: int) -> Wrong:
    """Left out of softmax's sum."""

    def wrong(op: Op, x: torch.Tensor) -> torch.Tensor:
        y = op.oracle(x)
        return y / (1 - y[:, column, None])

    return wrong


def logit_lost(column: int) -> Wrong:
    return lambda op, x, targets: op.oracle(x, targets) + torch.log1p(-x.softmax(1)[:, column])


def variance(change: Callable[[torch.Tensor], torch.Tensor]) -> Wrong:
    """A norm whose mean square is multiplied by 1 + ``change`` of the normalised elements."""

    def wrong(op: Op, x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        normal = op.oracle(x, torch.ones_like(weight), *map(torch.zeros_like, bias))
        return normal / (1 + change(normal)).sqrt() * weight + sum(bias)

    return wrong


NORM = {
    "divided by N - 1": variance(lambda y: y.new_tensor(1 / (y.shape[1] - 1))),
    **{
        f"{place} square lost": variance(lambda y, n=n: -y[:, n, None].square() / y.shape[1])
        for place, n in PLACES.items()
    },
}


def by_sigmoid(op: Op, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    v = x @ w + bias
    return v * torch.sigmoid(1.702 * v)


def scaled_sums(op: Op, a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
    """Sums of each block of 128 products in bf16, before they are scaled."""
    parts = []
    for k in range(0, a.shape[1], 128):
        of_block = [scale[:, k // 128, None].contiguous() for scale in scales]
        ones = [torch.ones_like(scale) for scale in of_block]
        sums = op.oracle(a[:, k : k + 128], b[:, k : k + 128], *ones).bfloat16().double()
        scale = of_block[0] * of_block[1].repeat_interleave(128, 0)[: b.shape[0], 0]
        parts.append(sums * scale)
    return torch.stack(parts).sum(0)


def uncounted(where: slice) -> Wrong:
    return lambda op, x: op.oracle(x) - op.oracle(x[where])


def kept(x: torch.Tensor, without: int, dim: int = 1) -> torch.Tensor:
    places = torch.arange(x.shape[dim], device=x.device)
    return x.index_select(dim, places[places != without % len(places)])


def key_lost(place: int) -> Wrong:
    return lambda op, q, k, v: op.oracle(q, kept(k, place), kept(v, place))


def gradient_without(place: int) -> Wrong:
    """A key in the sums of dq, a query in those of dk and dv."""

    def wrong(op: Op, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *saved: torch.Tensor) -> torch.Tensor:
        if op.output == "dq":
            return op.oracle(q, kept(k, place), kept(v, place), *saved)
        o, lse, do = saved
        return op.oracle(kept(q, place), k, v, kept(o, place), kept(lse, place, 2), kept(do, place))

    return wrong


def token_lost(place: int) -> Wrong:
    def wrong(op: Op, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *table: torch.Tensor) -> torch.Tensor:
        pages, lengths = table
        n = (place % lengths).long()
        page, slot = pages.long().gather(1, n[:, None] // k.shape[1])[:, 0], n % k.shape[1]
        alone = torch.zeros_like(v)
        alone[page, slot] = v[page, slot]
        indicator = torch.zeros_like(v)
        indicator[page, slot] = 1
        p = op.oracle(q, k, indicator, *table)
        return (op.oracle(q, k, v, *table) - op.oracle(q, k, alone, *table)) / (1 - p)

    return wrong


MOVED = {"in bf16": after(rounded(torch.bfloat16)), "in 10 digits": after(digits(10))}
BF16_BLOCKS = {"sums of 128 in bf16": sums_in(torch.bfloat16, 128)}

WRONG: dict[str, dict[str, Wrong]] = {
    "attention": {f"{place} key lost": key_lost(n) for place, n in PLACES.items()},
    "attention_backward": {f"{place} term lost": gradient_without(n) for place, n in PLACES.items()},
    "batched_matmul": {"a in 7 digits": on(digits(7)), "first term lost": on(times(0.0, FIRST))},
    "compact": {
        "subnormals flushed": after(subnormal(0.0)),
        "subnormals negated": after(subnormal(-1.0)),
        "subnormals doubled": after(subnormal(2.0)),
    },
    "cross_entropy": {f"{place} column lost": logit_lost(n) for place, n in PLACES.items()},
    "decode_attention": {f"{place} token lost": token_lost(n) for place, n in PLACES.items()},
    "fp8_block_matmul": {**lost(), "sums of 128 in bf16": scaled_sums},
    "fp8_matmul": {**lost(), **BF16_BLOCKS},
    "histogram": {
        "first element lost": uncounted(slice(0, 1)),
        "inner elements lost": uncounted(BLOCK),
        "last element lost": uncounted(slice(-1, None)),
    },
    "int8_matmul": {**lost(), "in 7 digits": after(digits(7))},
    "layer_norm": NORM,
    "linear_gelu": {
        **lost(),
        "outputs below 0.04 set to 0": after(lambda y: torch.where(y.abs() < 0.04, 0.0, y)),
        "outputs in steps of 1/16": after(lambda y: (16 * y).round() / 16),
        "x * sigmoid(1.702 x)": by_sigmoid,
        "bias in fp8": on(same, same, rounded(torch.float8_e4m3fn)),
        "x in 7 digits": on(digits(7)),
    },
    "matmul": {
        **lost(),
        "operands in 16 digits": on(digits(16), digits(16)),
        "operands in 7 digits": on(digits(7), digits(7)),
        "sums of 128 in bf16": sums_in(torch.bfloat16, 128),
    },
    "quantize_fp8": {"in 3 digits": after(digits(3))},
    "reduce_sum": {
        **{
            f"{name} {how}": on(times(factor, where))
            for name, where in {**PLACES, "1024 inner": BLOCK}.items()
            for how, factor in (("lost", 0.0), ("counted twice", 2.0))
        },
        "inputs in 10 digits": on(digits(10)),
        "inputs in fp16": on(rounded(torch.float16)),
        "inputs in bf16": on(rounded(torch.bfloat16)),
        "partial sums in fp16": of_vector(torch.float16),
        "partial sums in bf16": of_vector(torch.bfloat16),
    },
    "rms_norm": NORM,
    "rotary": {
        "cosines in 7 digits": on(same, same, digits(7)),
        "heads in 7 digits": on(digits(7), digits(7)),
    },
    "softmax": {f"{place} column lost": column_lost(n) for place, n in PLACES.items()},
    "stream_copy": {**MOVED, "subnormals flushed": after(lambda x: torch.where(x.abs() < 1e-3, 0.0, x))},
    "transpose": MOVED,
    "vector_add": {"operands in 7 digits": on(digits(7), digits(7))},
    "w4a16_matmul": {**lost(), "a in 7 digits": on(digits(7))},
}

HARMLESS = {
    ("matmul", "fp16", "operands in 16 digits"),
    ("matmul", "bf16", "operands in 16 digits"),
    ("reduce_sum", "fp16", "inputs in fp16"),
    ("reduce_sum", "bf16", "inputs in bf16"),
    ("reduce_sum", "bf16", "inputs in 10 digits"),
    ("reduce_sum", "bf16", "inputs in fp16"),
}
"""What such inputs do not have cannot be lost."""

ON_A_CPU = {
    "attention": [dict(Sq=48, Skv=4096, Hq=2, Hk=2, B=1)],
    "attention_backward": [dict(Sq=512, Skv=512, Hq=1, Hk=1, B=1)],
    "batched_matmul": [dict(B=512)],
    "compact": [dict(N=2**20, K=2**19)],
    "cross_entropy": [dict(M=8), dict(M=16, V=2**21)],
}


def found(op: Op, c: Case, device: torch.device) -> list[str]:
    """The wrong outputs that pass."""
    seeds = (0,)
    probes = Probes(op, c, device, ToleranceFromBaseline(op, None), seeds)
    parts = by_output(op, c)

    def run(wrong: Wrong) -> Callable[..., object]:
        def called(*inputs: torch.Tensor, **options: object) -> object:
            wide = [x.double() for x in inputs]
            outputs = [wrong(part, *wide).to(TORCH_DTYPES[part.output_dtype or c.dtype]) for part in parts]
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        return called

    passed = []
    for name, wrong in WRONG[op.name].items():
        if (op.name, c.dtype, name) in HARMLESS:
            continue
        agreement = check(op, Implementation(op.name, "torch.wrong", "vendor", run(wrong)), c, device, seeds, CheckOptions(probes=probes))
        print(op.name, c, name, agreement.passed, f"{agreement.error:.3g} {agreement.limit:.3g}", agreement.reason[:100])
        if agreement.passed:
            passed.append(name)
    return passed
