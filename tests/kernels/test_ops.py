"""Every op's description is consistent, and its oracle is equal to another formulation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import scipy.special
import torch

import case_sets
from compare import registry
from compare.inputs import TORCH_DTYPES
from compare.model.op import (
    DTYPES,
    FILLS,
    FP8,
    INTEGER_DTYPES,
    NO_INFINITY,
    Case,
    Op,
    by_output,
    fully_specified,
)
from loops import for_each, for_each_of_group
from mutants import TYPICAL
from on_device import argument_names

CPU = torch.device("cpu")
OPS = registry.op_names()


def all_cases(op: Op) -> tuple[Case, ...]:
    return (op.cases.default, *op.cases.smoke, *op.cases.edge, *op.cases.sweep)


def meta_inputs(op: Op, c: Case) -> tuple[torch.Tensor, ...]:
    return op.make_inputs(c, torch.Generator(), torch.device("meta"))


def dtype_of_output(op: Op, c: Case) -> torch.dtype:
    return TORCH_DTYPES[op.output_dtype or c.dtype]


every_op = for_each("op", [registry.get_op(name) for name in OPS], ids=lambda op: op.name)
op_by_op = for_each_of_group(
    "op", {name: [registry.get_op(name)] for name in OPS}, thorough=lambda name: name not in TYPICAL
)
"""For what takes a second for some."""


@every_op
def test_its_signature_names_its_dimensions(op: Op) -> None:
    left, _, right = op.signature.partition("->")
    assert set(re.findall(r"\b[A-Z]\w*", left)) == set(op.dims) - set(op.options(op.cases.default))
    assert set(re.findall(r"\b[A-Z]\w*", right)) <= set(op.dims)
    assert op.independent is None or op.independent in op.dims
    assert op.summary


@every_op
def test_its_cases_are_its_own(op: Op) -> None:
    for c in all_cases(op):
        assert Case.parse(str(c), op) == c
    for cases in (op.cases.smoke, op.cases.edge, op.cases.sweep):
        assert len(set(cases)) == len(cases) > 0


@every_op
def test_its_cases_cover_what_goes_wrong(op: Op) -> None:
    edge = op.cases.edge
    assert {c.dtype for c in op.cases.smoke} == set(op.dtypes)
    assert {c.dtype for c in edge} == set(op.dtypes)
    fills = {"normal"} if set(op.dtypes) <= set(INTEGER_DTYPES) else set(FILLS) - {case_sets.EVERYWHERE}
    if op.dtypes == (FP8,):
        fills &= set(NO_INFINITY)
    assert {c.fill for c in edge} - {case_sets.EVERYWHERE} == fills
    two_dimensional = (
        {"padded", "transposed"} if max(x.dim() for x in meta_inputs(op, edge[0])) > 1 else set()
    )
    assert {c.layout for c in edge} == set(op.layouts) - {"padded", "transposed"} | two_dimensional
    elements = [max(x.numel() for x in meta_inputs(op, c)) for c in edge]
    assert 0 in elements
    # One element, or as few as the op's sizes allow: attention has heads of at least 64.
    some = [c for c in edge if all(x.numel() > 0 for x in meta_inputs(op, c))]
    least = min(some, key=lambda c: op.cost(c).bytes)
    assert 1 in elements or all(size == min(c[dim] for c in some) for dim, size in least.dims)
    assert max(elements) > 2**31


@every_op
def test_its_smoke_cases_are_small(op: Op) -> None:
    for c in op.cases.smoke:
        assert max(x.numel() for x in meta_inputs(op, c)) <= 1 << 14


@op_by_op
def test_its_cost_is_the_bytes_of_its_tensors(op: Op) -> None:
    for c in all_cases(op):
        inputs = meta_inputs(op, c)
        cost = op.cost(c)
        distinct = [x[:1] if c.layout.endswith("expanded") and x.stride(0) == 0 else x for x in inputs]
        assert cost.read_bytes == sum(x.numel() * x.itemsize for x in distinct)
        parts = by_output(op, c)
        outputs = [part.oracle(*(x.double() for x in inputs)) for part in parts]
        output_bytes = sum(
            y.numel() * dtype_of_output(part, c).itemsize for part, y in zip(parts, outputs, strict=True)
        )
        if op.mask_unspecified is fully_specified:
            assert cost.written_bytes == output_bytes
        else:
            assert (output_bytes > 0) <= cost.written_bytes <= output_bytes
        assert cost.flops >= 0
        if all(x.numel() > 0 for x in (*inputs, *outputs)):
            assert (cost.flops == 0) == (op.cost(op.cases.default).flops == 0)  # it computes, or only moves
        if outputs[0].numel() == 0:
            assert cost.flops == 0


@every_op
def test_its_baseline_exists_and_is_the_vendors(op: Op) -> None:
    baseline = next(impl for impl in registry.implementations(op.name) if impl.label == op.baseline)
    assert baseline.level == "vendor"


@op_by_op
def test_its_inputs_are_what_the_case_says(op: Op) -> None:
    for c in case_sets.small(op):
        inputs = op.make_inputs(c, torch.Generator().manual_seed(0), CPU)
        for name, x, meta in zip(argument_names(op), inputs, meta_inputs(op, c), strict=True):
            taken = {TORCH_DTYPES[c.dtype]}
            if name in ("lse", "rstd") or name.startswith("scale"):  # saved sums and factors are not rounded
                taken.add(torch.float32)
            assert x.dtype in taken or not (x.is_floating_point() or x.dtype is torch.int8), c
            assert x.dtype is meta.dtype, c
            assert (x.shape, x.stride()) == (meta.shape, meta.stride()), c
        again = op.make_inputs(c, torch.Generator().manual_seed(0), CPU)
        for x, y in zip(inputs, again, strict=True):
            assert torch.equal(x.double().nan_to_num(3.0), y.double().nan_to_num(3.0)), c
        if (
            len(inputs) > 1
            and inputs[0].dtype is inputs[1].dtype
            and c.fill == "normal"
            and c.dims[0][1] > 1
            and inputs[0].size(-1) > 1  # a single column holds planted outliers alone
            and c.layout != "expanded"
        ):
            assert not torch.equal(inputs[0].double(), inputs[1].double()), c


@every_op
def test_its_invariants_hold_of_the_oracle_and_not_of_its_double(op: Op) -> None:
    for c in case_sets.small(op) if op.invariants else ():
        inputs = op.make_inputs(c, torch.Generator().manual_seed(0), CPU)
        output = by_output(op, c)[0].oracle(*(x.double() for x in inputs)).to(dtype_of_output(op, c))
        for invariant in op.invariants:
            assert invariant.check(inputs, output) is None, c
            if (output.isfinite() & (output != 0)).any():
                assert invariant.check(inputs, output * 2) is not None, c


def add_in_extended_precision(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.add(x.astype(np.longdouble), y.astype(np.longdouble))


def softmax_through_logarithms(x: np.ndarray) -> np.ndarray:
    return np.exp(x - scipy.special.logsumexp(x, axis=1, keepdims=True))


def matmul_by_exact_sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array([[math.fsum(row * column) for column in b.T] for row in a])


def batched_matmul_by_exact_sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.stack([matmul_by_exact_sums(*pair) for pair in zip(a, b, strict=True)])


def cross_entropy_through_logarithms(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    picked = np.take_along_axis(logits, targets.astype(np.int64)[:, None], axis=1)[:, 0]
    return scipy.special.logsumexp(logits, axis=1) - picked


def rotary_by_complex_numbers(q: np.ndarray, k: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    x = np.concatenate((q, k), axis=2)
    half = x.shape[-1] // 2
    turned = (x[..., :half] + 1j * x[..., half:]) * (cos + 1j * sin)[None, :, None]
    return np.concatenate((turned.real, turned.imag), axis=-1)


def reduce_sum_by_exact_sum(x: np.ndarray) -> np.ndarray:
    return np.array(math.fsum(x))


def transpose_by_index(x: np.ndarray) -> np.ndarray:
    return np.array([[x[m, n] for m in range(x.shape[0])] for n in range(x.shape[1])])


def copy_by_index(x: np.ndarray) -> np.ndarray:
    return np.array([x[n] for n in range(x.shape[0])])


def linear_gelu_by_sigmoid(x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> np.ndarray:
    v = matmul_by_exact_sums(x, w) + bias
    return v * scipy.special.expit(2 * math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v))


def layer_norm_in_extended_precision(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    wide = x.astype(np.longdouble)
    variance = wide.var(axis=1, keepdims=True)
    return (wide - wide.mean(axis=1, keepdims=True)) * (
        variance + np.longdouble(1e-5)
    ) ** -0.5 * weight + bias


def rms_norm_by_length(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return x * math.sqrt(x.shape[1]) / np.hypot(length, math.sqrt(x.shape[1] * 1e-5)) * weight


def attention_row_by_row(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Each row's softmax over the keys that it sees, which are counted from the last row."""
    B, Sq, Hq, D = q.shape
    Skv, group = k.shape[1], Hq // k.shape[2]
    o, lse = np.zeros(q.shape), np.full((B, Hq, Sq), -np.inf)
    for b, h, i in np.ndindex(B, Hq, Sq):
        seen = max(0, Skv - (Sq - 1 - i)) if causal else Skv
        if seen > 0:
            scores = k[b, :seen, h // group] @ q[b, i, h] / math.sqrt(D)
            o[b, i, h] = scipy.special.softmax(scores) @ v[b, :seen, h // group]
            lse[b, h, i] = scipy.special.logsumexp(scores)
    return o, lse


def attention_backward_by_jacobian(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    do: np.ndarray,
    causal: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each row's softmax through its Jacobian matrix, diag(p) - p p^T, whose p o is the given o."""
    B, Sq, Hq, D = q.shape
    Skv, group = k.shape[1], Hq // k.shape[2]
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for b, h, i in np.ndindex(B, Hq, Sq):
        seen, of = max(0, Skv - (Sq - 1 - i)) if causal else Skv, h // group
        if seen == 0:
            continue
        keys, values, query, grad = k[b, :seen, of], v[b, :seen, of], q[b, i, h], do[b, i, h]
        p = np.exp(keys @ query / math.sqrt(D) - lse[b, h, i])
        ds = np.diag(p) @ values @ grad - p * (o[b, i, h] @ grad)
        dv[b, :seen, of] += np.outer(p, grad)
        dk[b, :seen, of] += np.outer(ds, query) / math.sqrt(D)
        dq[b, i, h] = ds @ keys / math.sqrt(D)
    return dq, dk, dv


def decode_token_by_token(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, table: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    o, page, group = np.zeros(q.shape), k.shape[1], q.shape[2] // k.shape[2]
    for b, _, h in np.ndindex(q.shape[:3]):
        places = [(int(table[b, n // page]), n % page, h // group) for n in range(int(lengths[b]))]
        if places:
            scores = [k[place] @ q[b, 0, h] / math.sqrt(q.shape[3]) for place in places]
            o[b, 0, h] = scipy.special.softmax(scores) @ [v[place] for place in places]
    return o


def scaled_by_row(a: np.ndarray, b: np.ndarray, scale_a: np.ndarray, scale_b: np.ndarray) -> np.ndarray:
    return (a * scale_a[:, None]) @ (b * scale_b[:, None]).T


def scaled_sums_of_integers(
    a: np.ndarray, b: np.ndarray, scale_a: np.ndarray, scale_b: np.ndarray
) -> np.ndarray:
    return (a.astype(np.int64) @ b.T.astype(np.int64)) * np.outer(scale_a, scale_b)


def scaled_by_block(a: np.ndarray, b: np.ndarray, scale_a: np.ndarray, scale_b: np.ndarray) -> np.ndarray:
    n, k = np.arange(len(b)) // 128, np.arange(b.shape[1]) // 128
    return (a * scale_a[:, k]) @ (b * scale_b[n[:, None], k]).T


def product_of_nibbles(
    a: np.ndarray, packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray
) -> np.ndarray:
    k = np.arange(a.shape[1])
    words = packed.astype(np.int32).view(np.uint32)
    q = words[:, k // 8] >> (k % 8 * 4).astype(np.uint32) & 15
    return a @ ((q.astype(float) - zeros[:, k // 128]) * scales[:, k // 128]).T


def count_by_value(x: np.ndarray) -> np.ndarray:
    return np.array([(x == value).sum() for value in range(256)])


@pytest.mark.parametrize(
    ("name", "formulation"),
    [
        ("attention", attention_row_by_row),
        ("attention_backward", attention_backward_by_jacobian),
        ("decode_attention", decode_token_by_token),
        ("int8_matmul", scaled_sums_of_integers),
        ("fp8_matmul", scaled_by_row),
        ("fp8_block_matmul", scaled_by_block),
        ("w4a16_matmul", product_of_nibbles),
        ("histogram", count_by_value),
        ("cross_entropy", cross_entropy_through_logarithms),
        ("layer_norm", layer_norm_in_extended_precision),
        ("rms_norm", rms_norm_by_length),
        ("linear_gelu", linear_gelu_by_sigmoid),
        ("rotary", rotary_by_complex_numbers),
        ("vector_add", add_in_extended_precision),
        ("softmax", softmax_through_logarithms),
        ("matmul", matmul_by_exact_sums),
        ("batched_matmul", batched_matmul_by_exact_sums),
        ("reduce_sum", reduce_sum_by_exact_sum),
        ("stream_copy", copy_by_index),
        ("transpose", transpose_by_index),
    ],
)
def test_its_oracle_agrees_with_another_formulation(
    name: str, formulation: Callable[..., np.ndarray]
) -> None:
    op = registry.get_op(name)
    dtypes = DTYPES if op.dtypes[0] in DTYPES else op.dtypes
    for c, dtype in product(op.cases.smoke, dtypes):
        inputs = op.make_inputs(Case(c.dims, dtype, c.layout, c.fill), torch.Generator().manual_seed(3), CPU)
        found = formulation(*(x.double().numpy() for x in inputs), **op.options(c))
        for part, theirs in zip(by_output(op, c), found if op.further else (found,), strict=True):
            ours = part.oracle(*(x.double() for x in inputs))
            assert ours.dtype is torch.float64
            atol = 0 if part.magnitude is None else 1e-12
            np.testing.assert_allclose(ours.numpy(), theirs.astype(np.float64), rtol=1e-12, atol=atol)
