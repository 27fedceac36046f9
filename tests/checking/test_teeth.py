"""Wrong outputs fail at the sizes that are timed, where one term of millions is easily lost.

Each is the oracle's output with one thing made wrong, rounded to the output's dtype.  A CPU runs fewer rows,
and shorter sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compare import registry
from compare.checking.probes import Probes
from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.op import Case, Op
from mutants import TYPICAL, agreement_of_outputs

Change = Callable[[torch.Tensor], torch.Tensor]
Wrong = Callable[..., torch.Tensor]
"""As `agreement_of_outputs` takes it."""

PLACES = {"first": 0, "inner": 10, "last": -1}
BLOCK = slice(-1500, -476)
"""1024 inner elements."""


def on(*changes: Change) -> Wrong:
    """The right output of other inputs: of the first ones changed."""

    def wrong(op: Op, *inputs: torch.Tensor) -> torch.Tensor:
        changed = (change(x) for change, x in zip(changes, inputs, strict=False))
        return op.oracle(*changed, *inputs[len(changes) :])

    return wrong


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


def least_times(factor: float) -> Change:
    """The least element above 0, wherever it occurs, multiplied by ``factor``."""
    return lambda x: torch.where(x == x[x > 0].min(), factor * x, x)


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


def partial_sums_in(dtype: torch.dtype) -> Wrong:
    return lambda op, x: torch.stack([part.sum() for part in x.split(1024)]).to(dtype).double().sum()


LOST = {f"{place} term lost": on(times(0.0, k)) for place, k in PLACES.items()}
"""From a sum of products."""


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

    def wrong(
        op: Op, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *saved: torch.Tensor
    ) -> torch.Tensor:
        if op.output == "dq":
            return op.oracle(q, kept(k, place), kept(v, place), *saved)
        o, lse, do = saved
        return op.oracle(kept(q, place), k, v, kept(o, place), kept(lse, place, 2), kept(do, place))

    return wrong


def token_lost(place: int) -> Wrong:
    def wrong(
        op: Op, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *table: torch.Tensor
    ) -> torch.Tensor:
        pages, lengths = (x[table[1] > 0].long() for x in table)
        n = place % lengths
        page, slot = pages.gather(1, n[:, None] // k.shape[1])[:, 0], n % k.shape[1]
        alone = torch.zeros_like(v)
        alone[page, slot] = v[page, slot]
        indicator = torch.zeros_like(v)
        indicator[page, slot] = 1
        p = op.oracle(q, k, indicator, *table)
        return (op.oracle(q, k, v, *table) - op.oracle(q, k, alone, *table)) / (1 - p)

    return wrong


def restarted(change: Change) -> Wrong:
    """A scan whose last 1024 columns add ``change`` of the sum before them."""

    def wrong(op: Op, x: torch.Tensor) -> torch.Tensor:
        head, last = x[:, :-1024], x[:, -1024:]
        before = op.oracle(head)
        return torch.cat((before, op.oracle(last) + change(before[:, -1:])), 1)

    return wrong


def swapped(x: torch.Tensor) -> torch.Tensor:
    """The last two columns in the other order."""
    return torch.cat((x[:, :-2], x[:, -2:].flip(1)), 1)


MOVED = {"in bf16": after(rounded(torch.bfloat16)), "in 10 digits": after(digits(10))}

WRONG: dict[str, dict[str, Wrong]] = {
    "attention": {f"{place} key lost": key_lost(n) for place, n in PLACES.items()},
    "attention_backward": {f"{place} term lost": gradient_without(n) for place, n in PLACES.items()},
    "batched_matmul": LOST | {"a in 7 digits": on(digits(7))},
    "compact": {
        "subnormals flushed": after(least_times(0.0)),
        "subnormals negated": after(least_times(-1.0)),
        "subnormals doubled": after(least_times(2.0)),
    },
    "cross_entropy": {f"{place} column lost": logit_lost(n) for place, n in PLACES.items()},
    "decode_attention": {f"{place} token lost": token_lost(n) for place, n in PLACES.items()},
    "fp8_block_matmul": LOST | {"sums of 128 in bf16": scaled_sums},
    "fp8_matmul": LOST | {"sums of 128 in bf16": sums_in(torch.bfloat16, 128)},
    "histogram": {
        "first element lost": uncounted(slice(0, 1)),
        "1024 inner elements lost": uncounted(BLOCK),
        "last element lost": uncounted(slice(-1, None)),
    },
    "int8_matmul": LOST | {"in 7 digits": after(digits(7))},
    "layer_norm": NORM,
    "linear_gelu": LOST
    | {
        "outputs below 0.04 set to 0": after(lambda y: torch.where(y.abs() < 0.04, 0.0, y)),
        "outputs in steps of 1/16": after(lambda y: (16 * y).round() / 16),
        "x * sigmoid(1.702 x)": by_sigmoid,
        "bias in fp8": on(same, same, rounded(torch.float8_e4m3fn)),
        "x in 7 digits": on(digits(7)),
    },
    "matmul": LOST
    | {
        "operands in 7 digits": on(digits(7), digits(7)),
        "sums of 128 in bf16": sums_in(torch.bfloat16, 128),
    },
    "quantize_fp8": {"in 3 digits": after(digits(3))},
    "reduce_sum": {
        f"{name} {how}": on(times(factor, where))
        for name, where in {**PLACES, "1024 inner": BLOCK}.items()
        for how, factor in (("lost", 0.0), ("counted twice", 2.0))
    }
    | {
        "partial sums in fp16": partial_sums_in(torch.float16),
        "partial sums in bf16": partial_sums_in(torch.bfloat16),
    },
    "rms_norm": NORM,
    "rotary": {
        "cosines in 7 digits": on(same, same, digits(7)),
        "heads in 7 digits": on(digits(7), digits(7)),
    },
    "scan": LOST
    | {
        "exclusive": lambda op, x: op.oracle(x) - x,
        "1024 inner terms lost": on(times(0.0, BLOCK)),
        "carry lost": restarted(torch.zeros_like),
        "carry added twice": restarted(lambda carry: 2 * carry),
        "last columns swapped": on(swapped),
    },
    "softmax": {f"{place} column lost": column_lost(n) for place, n in PLACES.items()},
    "stream_copy": MOVED,
    "transpose": MOVED,
    "vector_add": {"operands in 7 digits": on(digits(7), digits(7))},
    "w4a16_matmul": LOST | {"a in 7 digits": on(digits(7))},
}

WRONG_IN_FP32: dict[str, dict[str, Wrong]] = {
    "matmul": {"operands in 17 digits": on(digits(17), digits(17))},
    "reduce_sum": {
        "inputs in fp16": on(rounded(torch.float16)),
        "inputs in bf16": on(rounded(torch.bfloat16)),
    },
    "vector_add": {"in 16 digits": after(digits(16))},
}

ON_A_CPU = {
    "attention": ["B=1,Sq=32,Skv=4096,Hq=2,Hk=2,D=128,causal=0,bf16"],
    "attention_backward": ["B=1,Sq=512,Skv=512,Hq=1,Hk=1,D=128,causal=0,bf16"],
    "batched_matmul": ["B=128,N=48,fp16", "B=128,N=48,fp32"],
    "compact": ["N=1048576,K=524288,fp32", "N=65536,K=32768,fp16"],
    "cross_entropy": ["M=16,V=2097152,bf16"],
    "decode_attention": ["B=1,S=8192,Hq=8,Hk=2,D=128,PAGE=16,bf16"],
    "fp8_block_matmul": ["M=32,N=256,K=4096,fp8"],
    "fp8_matmul": ["M=64,N=2048,K=4096,fp8"],
    "histogram": ["N=1048576,SKEW=0,uint8"],
    "int8_matmul": ["M=32,N=128,K=4096,int8"],
    "layer_norm": ["M=4,N=262144,bf16", "M=64,N=4096,bf16"],
    "linear_gelu": ["M=64,N=256,K=8192,bf16"],
    "matmul": ["M=64,N=256,K=4096,fp32", "M=64,N=256,K=4096,bf16"],
    "quantize_fp8": ["M=16,K=8192,group=0,bf16"],
    "reduce_sum": ["N=4194304,fp32", "N=1048576,bf16"],
    "rms_norm": ["M=4,N=262144,bf16", "M=64,N=4096,bf16"],
    "rotary": ["B=1,S=128,H=32,Hk=8,D=128,bf16"],
    "scan": ["M=2,N=131072,fp32", "M=1,N=131072,bf16"],
    "softmax": ["M=2,N=1048576,fp32", "M=8,N=131072,bf16"],
    "stream_copy": ["N=65536,fp32"],
    "transpose": ["M=256,N=512,fp32"],
    "vector_add": ["N=65536,fp32", "N=65536,bf16"],
    "w4a16_matmul": ["M=16,N=128,K=8192,fp16"],
}


def passing(op: Op, c: Case, device: torch.device, tolerance: ToleranceFromBaseline) -> list[str]:
    """The wrong outputs that pass the check."""
    wrong = WRONG[op.name] | (WRONG_IN_FP32.get(op.name, {}) if c.dtype == "fp32" else {})
    probes = Probes(op, c, device, tolerance, (0,))
    found = {name: agreement_of_outputs(op, c, device, probes, each) for name, each in wrong.items()}
    return [f"{name}: {each.error:.3g} of {each.limit:.3g}" for name, each in found.items() if each.passed]


@pytest.mark.parametrize(  # not one just made by new-op: it edits no existing file
    "op", [pytest.param(op, marks=[pytest.mark.thorough] * (op not in TYPICAL)) for op in ON_A_CPU]
)
def test_wrong_outputs_of_long_sums_fail(op: str) -> None:
    """Within the floors: PyTorch's own sums on a CPU lose more than those on a GPU."""
    found = registry.get_op(op)
    for c in (Case.parse(text, found) for text in ON_A_CPU[op]):
        assert passing(found, c, torch.device("cpu"), ToleranceFromBaseline(found, None)) == [], c


def timed_cases() -> list[Any]:
    """The default case of each op; those of the sweep are exhaustive."""
    return [
        pytest.param(op, c, id=f"{op.name}-{c}", marks=[pytest.mark.exhaustive] * (c != op.cases.default))
        for op in map(registry.get_op, ON_A_CPU)
        for c in dict.fromkeys((op.cases.default, *op.cases.sweep))
        if not (op.name == "compact" and c["K"] == 0)  # nothing is kept
    ]


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize(("op", "c"), timed_cases())
def test_wrong_outputs_fail_at_the_sizes_that_are_timed(op: Op, c: Case, device: torch.device) -> None:
    torch.cuda.empty_cache()
    assert passing(op, c, device, ToleranceFromBaseline.local(op, c, device)) == []
