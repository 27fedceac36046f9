"""The second verdict on users' rows: hard inputs, memory accesses, thread orders; and its hints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from compare import registry
from compare.checking.check import check
from compare.checking.hard_inputs import by_kind, hard_cases, is_small, is_valid, neighbour, variants
from compare.checking.hints import hint_of
from compare.device import supports
from compare.model.op import Case, case
from compare.model.result import Agreement
from compare.worker import hard_inputs
from compare.worker.hard_inputs import each_hard_input
from compare.worker.process import Ended, Raised
from tests.support import case_sets, made_up
from tests.support.loaded_files import compared, rows_of
from tests.support.loops import for_each

every_op = pytest.mark.parametrize("name", registry.op_names())


@every_op
def test_every_op_has_hard_cases_neighbours_and_turned_options(name: str) -> None:
    op = registry.get_op(name)
    cases = hard_cases(op)
    assert {c.dtype for c in cases} == set(op.dtypes)
    assert {c.layout for c in cases} > {"contiguous"}
    # A kernel may take a single dtype: each has every layout.
    layouts = {(c.dtype, c.layout) for c in cases}
    assert layouts == {(dtype, c.layout) for dtype in op.dtypes for c in cases}
    assert all(is_small(op, c) and is_valid(op, c) for c in cases)
    assert neighbour(op, op.cases.default) != op.cases.default
    small = op.cases.smoke[0]
    for name in op.options(small):
        assert len({op.options(c)[name] for c in cases}) > 1, name
        assert any(op.options(c) != op.options(small) for c in variants(op, small))


@for_each(
    "op, wrong, hint",
    [
        ("topk", lambda c: c.fill in ("zero", "neg_inf") or c["K"] > c["N"] // 2, ""),
        ("topk", lambda c: c["K"] > 64, "all with K above 64: "),
        ("scan", lambda c: c["N"] > 4096, "all with N above 4096: is a tile behind the first one wrong"),
    ],
)
def test_a_hint_is_of_what_most_correct_cases_lack(op: str, wrong: object, hint: str) -> None:
    cases, _ = by_kind(registry.get_op(op), "fp32")
    failed = [c for c in cases if wrong(c)]  # type: ignore[operator]
    found = hint_of(registry.get_op(op), [c for c in cases if c not in failed], failed)
    assert hint in found
    assert "is this option read" not in found  # three others of its values are right


@for_each(
    "op, wrong, hint",
    [
        ("topk", lambda c: c.fill == "zero", "equal elements: is one lost"),
        ("topk", lambda c: c.fill == "huge", "is padding, or an initial value,"),
        ("matmul", lambda c: c.fill == "huge", "an overflow: are sums kept in fp32?"),
        ("quantize_fp8", lambda c: c.fill == "zero", "a division by 0"),
        ("quantize_fp8", lambda c: c["group"] not in (0, 128), "is this option read?"),
    ],
)
def test_a_hint_fits_the_op(op: str, wrong: object, hint: str) -> None:
    cases = hard_cases(registry.get_op(op))
    failed = [c for c in cases if wrong(c)]  # type: ignore[operator]
    assert hint in hint_of(registry.get_op(op), [c for c in cases if c not in failed], failed)


@for_each(
    "wrong, hint",
    [
        (lambda c: c.fill == "huge", "all with huge values: an overflow"),
        (lambda c: c.layout in ("transposed", "sliced"), "is the stride of the last dimension taken for 1?"),
        (lambda c: c.layout == "misaligned", "all with misaligned inputs"),
        (lambda c: c["N"] % 128 and c.dtype == "fp32", "N that is no multiple of 128"),
        (lambda c: c.layout != "contiguous" and c["N"] % 128, "no multiple of 128: are all strides read?"),
        (lambda c: 0 in c.shape, "all with empty sizes"),
        (lambda c: c.dtype == "bf16", "all with bf16"),
        (lambda c: hash((c["M"] * 7 + c["N"] * 13) % 5) == 0, ""),
    ],
)
def test_a_hint_names_what_the_wrong_cases_have_in_common(wrong: object, hint: str) -> None:
    op = registry.get_op("softmax")
    cases = hard_cases(op)
    failed = [c for c in cases if wrong(c)]  # type: ignore[operator]
    found = hint_of(op, [c for c in cases if c not in failed], failed)
    assert hint in found, found
    assert bool(hint) == bool(found), found
    assert hint_of(op, cases, []) == ""


@for_each(
    "op, text, empty",
    [
        ("histogram", "N=16,SKEW=0,uint8", False),
        ("compact", "N=16,K=0,fp32", False),
        ("compact", "N=0,K=0,fp32", True),
        ("decode_attention", "B=2,S=0,Hq=4,Hk=2,D=64,PAGE=16,fp32", True),
    ],
)
def test_a_case_is_empty_where_a_tensor_is(op: str, text: str, empty: bool) -> None:
    described = registry.get_op(op)
    assert described.is_empty(Case.parse(text, described)) == empty


@for_each("watched, passed", [(True, True), (False, False)])
def test_a_kernel_that_is_slow_only_while_watched_is_not_wrong(
    watched: bool, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, orders = Ended("it took longer than 20 s"), []
    late.late = True

    def checked(*_: object, **how: object) -> Agreement:
        orders.append(how["order"])
        if how["watched"] == watched:
            raise late
        return made_up.AGREEMENT

    monkeypatch.setattr(hard_inputs, "_checked", checked)
    probes = SimpleNamespace(op=registry.get_op("compact"))
    cases = [Case.parse(f"N={N},K=16,fp32", probes.op) for N in (32, 64)]
    found = hard_inputs.in_thread_orders(None, cases, lambda: None, probes)  # type: ignore[arg-type]
    assert found.passed == passed
    assert orders == (["", *["apart", "reverse"] * 2] if passed else ["", "apart"])


def test_an_option_of_0_makes_no_case_empty() -> None:
    """An error on it is a mistake: only without elements an error is a refusal."""
    op, right = registry.get_op("attention"), made_up.AGREEMENT

    def raises(each: Case) -> Agreement:
        if each["causal"] == 0 or op.is_empty(each):
            raise Raised("ValueError", "causal only")
        return right

    result = each_hard_input(op, [op.cases.default], raises, 60.0)
    assert result.failed
    assert not any(op.is_empty(each) for each in result.failed)


@every_op
def test_few_hard_cases_have_every_kind(name: str) -> None:
    op = registry.get_op(name)
    cases = hard_cases(op)
    for dtype in op.dtypes:
        first, others = by_kind(op, dtype)
        assert sorted(map(str, (*first, *others))) == sorted(map(str, cases))
        assert len(first) <= 25
        for trait in (lambda c: c.fill, lambda c: c.layout, lambda c: c.dtype, lambda c: str(op.options(c))):
            assert set(map(trait, first)) == set(map(trait, cases))
        # Of this dtype: a kernel may take no other.
        assert {c.layout for c in first if c.dtype == dtype} == {c.layout for c in cases}


HEAD = """import numpy as np
import torch
from compare.registry import implementation
from cuda_impl.loader import kernel
"""

CUDA = '''
SOURCE = r"""
__global__ void add(const float* x, const float* y, float* z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
%s
}
"""

@implementation("vector_add", "cupy.mine", level="naive")
def mine(x, y):
    if x.dtype != torch.float32:
        raise NotImplementedError("fp32 only")
    x, y, z = x.contiguous(), y.contiguous(), torch.empty(x.shape)
    n = x.numel()
    if n:
        kernel(SOURCE, "add", x.device)((-(-n // 64),), (64,), (x.data_ptr(), y.data_ptr(), z.data_ptr(), n))
    return z
'''


CRASHING = """    volatile __shared__ float part[64];
    part[threadIdx.x + (n %s ? 1 << 30 : 0)] = 0;
    if (i < n) z[i] = x[i] + y[i];"""


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("    if (i < n) z[i] = x[i] + y[i];", "ok", ""),
        (
            "    if (i < n) z[i] = x[i] + y[i] + (x[i + 1] == 12345.0f ? 1.0f : 0.0f);",
            "disagrees",
            "outside of every tensor",
        ),
        ("    if (i < n && i < 300) z[i] = x[i] + y[i];", "ordinary", "elements"),
        (CRASHING % "> 300", "ordinary", "is outside of its array at mine.py:23; its process was killed"),
        (CRASHING % "> 0", "failed", "is outside of its array at mine.py:23; its process was killed"),
    ],
)
@pytest.mark.usefixtures("own_registry")
def test_a_cuda_row_is_held_to_hard_inputs(body: str, status: str, says: str, tmp_path: Path) -> None:
    found = compared(tmp_path / "mine.py", HEAD + CUDA % body, "cupy.mine", hard_inputs=True)
    row = rows_of(found)["cupy.mine"]
    assert row.status == status, row.reason
    assert says in row.reason
    if not says and row.agreement:
        (finding,) = [each for each in row.agreement.findings if each.name == "hard inputs"]
        assert "not supported" in finding.detail
        assert "3 layouts, 4 fills, 7 odd sizes, 1 dtype," in finding.detail


@pytest.mark.usefixtures("own_registry")
def test_without_hard_inputs_only_the_case_counts(tmp_path: Path) -> None:
    body = "    if (i < n && i < 300) z[i] = x[i] + y[i];"
    found = compared(tmp_path / "mine.py", HEAD + CUDA % body, "cupy.mine", cases=(case("fp32", N=128),))
    assert rows_of(found)["cupy.mine"].status == "ok"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(op, marks=[pytest.mark.exhaustive] * (op not in ("softmax", "reduce_sum")))
        for op in registry.op_names()
    ],
)
def test_the_projects_rows_pass_the_cases_that_their_op_lacks(name: str) -> None:
    op, cpu = registry.get_op(name), torch.device("cpu")
    own = {*op.cases.smoke, *op.cases.edge}
    impls = [each for way in ("torch", "triton", "cupy") for each in case_sets.typical(name, way)]
    for impl in (each for each in impls if supports(each, cpu) is None):
        for each in (each for each in hard_cases(op) if each not in own):
            try:
                found = check(op, impl, each, cpu, (0,))
            except NotImplementedError:
                continue
            assert found.passed, f"{impl.label} on {each}: {found.reason}"
