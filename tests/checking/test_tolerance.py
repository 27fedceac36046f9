"""The tolerance follows the baseline's error, the accumulator and the size of the terms."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from compare import registry
from compare.checking.check import CheckOptions, check
from compare.checking.probes import Probes
from compare.checking.reference import Reference
from compare.checking.stage import LocalStage
from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.op import Case, Implementation, Op, case
from compare.model.result import Agreement
from compare.records import archive
from loops import for_each
from mutants import Run, baseline, checked, every_op, failed, skip_where_the_end_is_open


def allowed_by(op: Op, c: Case, device: torch.device, mutate: Run) -> tuple[float, float]:
    """The limit set by a baseline whose outputs are changed by ``mutate``, and the op's floor."""
    right = baseline(op)
    impl = Implementation(op.name, op.baseline, "vendor", lambda *inputs: mutate(right(*inputs)))
    inputs = op.make_inputs(c, torch.Generator(device).manual_seed(0), device)
    limit = ToleranceFromBaseline(op, LocalStage(impl, device)).limit(c, Reference(op, inputs))
    return limit, op.tolerance(c).least


@pytest.mark.parametrize("mutate", [torch.zeros_like, lambda right: -2 * right], ids=["zeros", "another op"])
@every_op
def test_a_baseline_that_is_wrong_allows_nothing(op: Op, mutate: Run, device: torch.device) -> None:
    skip_where_the_end_is_open(op)
    limit, least = allowed_by(op, op.cases.smoke[0], device, mutate)
    assert limit == least


def test_a_baseline_of_a_lower_precision_allows_twice_its_error(device: torch.device) -> None:
    op = registry.get_op("vector_add")
    limit, least = allowed_by(op, case("fp32", N=1000), device, lambda right: right.half().float())
    assert least < limit < 2 / 2**-24 * 2**-11


@for_each("name", registry.op_names())
def test_recorded_errors_are_allowed_with_room_to_spare(name: str) -> None:
    """Of an op of one output: an error is of whichever output used most of its limit."""
    op = registry.get_op(name)
    if op.further or op.intermediate is not None:
        pytest.skip("errors were recorded as of the worst output, or before intermediate results counted")
    errors: dict[str, dict[str, float]] = {}  # by case, whose rows may be of several runs
    for run in archive.runs_of(name):
        for found in run.cases:
            of = {row.label: row.agreement.error for row in found.rows if row.agreement}
            errors.setdefault(found.case, {}).update(of)
    for text, of in errors.items():
        least = op.tolerance(Case.parse(text, op)).least
        for label, error in of.items():
            assert label == op.baseline or 1.4 * error <= max(least, 2 * of.get(op.baseline, 0.0))


def as_tf32(x: torch.Tensor) -> torch.Tensor:
    """Truncated to 10 bits of mantissa, as tensor cores read fp32."""
    return (x.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)


@for_each("k", [80, 2048, 16384])
def test_tf32_is_not_taken_for_fp32(k: int, device: torch.device) -> None:
    op = registry.get_op("matmul")
    c = case("fp32", M=24, N=32, K=k)
    mutant = Implementation(op.name, "triton.mutant", "tiled", lambda a, b: as_tf32(a) @ as_tf32(b))
    agreement = check(op, mutant, c, device, (0,))
    assert failed(agreement) == {"values"}
    assert agreement.error > 4 * agreement.limit
    # An implementation declared as TF32 gets TF32's tolerance, and no more.
    named = dataclasses.replace(mutant, accumulator="tf32")
    assert failed(check(op, named, c, device, (0,))) == set()
    less = dataclasses.replace(named, run=lambda a, b: a.bfloat16().float() @ b.bfloat16().float())
    assert failed(check(op, less, c, device, (0,))) == {"values"}


def test_the_error_of_terms_that_cancel_is_relative_to_their_size(device: torch.device) -> None:
    """A sum near zero has the rounding errors of its terms, in any order."""
    op = registry.get_op("matmul")
    inputs = torch.ones(1, 4096, device=device), torch.linspace(-1, 1, 4096, device=device)[:, None]
    cancelling = dataclasses.replace(op, make_inputs=lambda *_: inputs)
    c = case("fp32", M=1, N=1, K=4096)
    for error, findings in ((2e-5, set()), (2e-2, {"values"})):
        agreement = checked(cancelling, c, device, lambda a, b, e=error: (a @ b + a[:, :1] * e).clone())
        assert failed(agreement) == findings


def made_up_op(**more: object) -> Op:
    """a * b + c * c - a * c, whose terms cancel."""
    plain = registry.get_op("vector_add")
    vector = plain.make_inputs
    return dataclasses.replace(
        plain,
        name="made_up",
        signature="a[N], b[N], c[N] -> y[N]",
        make_inputs=lambda c, g, d: (*vector(c, g, d), vector(c, g, d)[0]),
        oracle=lambda a, b, c: a * b + c * c - a * c,
        **more,
    )


def in_bf16(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Rounded to the inputs' dtype after every step."""
    return a * b + c * c - a * c


def agreement_of(op: Op, c: Case, run: Run, baseline: Run = in_bf16) -> Agreement:
    cpu = torch.device("cpu")
    yardstick = ToleranceFromBaseline(
        op, LocalStage(Implementation(op.name, op.baseline, "vendor", baseline), cpu)
    )
    options = CheckOptions(probes=Probes(op, c, cpu, yardstick, ()))
    return check(op, Implementation(op.name, "torch.other", "vendor", run), c, cpu, (0, 1), options)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_baseline_that_rounds_in_between_passes_its_own_check(dtype: str) -> None:
    op, c = made_up_op(), case(dtype, N=20000)
    assert agreement_of(op, c, in_bf16).passed
    for wrong in (torch.zeros_like, lambda right: right.flip(0), lambda right: right * 1.5):
        agreement = agreement_of(op, c, lambda *inputs, w=wrong: w(in_bf16(*inputs)).clone())
        assert failed(agreement) == {"values"}
        assert "magnitude" not in agreement.reason


def test_a_magnitude_that_is_wrong_is_named() -> None:
    op = made_up_op(magnitude=lambda a, b, c: a * b + c * c - a * c)
    reason = agreement_of(op, case("bf16", N=20000), in_bf16).reason
    assert "torch.eager itself is wrong here: its error is as large as the result" in reason
    assert "correct the op's magnitude" in reason
    right = made_up_op(magnitude=lambda a, b, c: (a * b).abs() + c * c + (a * c).abs())
    assert agreement_of(right, case("bf16", N=20000), in_bf16).passed


def test_a_fill_under_which_pytorch_overflows_is_named() -> None:
    reason = agreement_of(made_up_op(), case("bf16", fill="huge", N=99), in_bf16).reason
    assert "on the fill 'huge'" in reason
    assert "leave fill='huge' out of the op's cases" in reason


def test_a_baseline_of_another_op_is_said_to_be_one() -> None:
    reason = agreement_of(made_up_op(), case("fp32", N=99), in_bf16, lambda a, b, c: -a).reason
    assert "Either the oracle computes something else, or terms cancel: then add the op's magnitude" in reason


def far_scores(c: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Keys that give each score a size near 1e4, as a finite sentinel in a logit does."""
    q, k, v = (torch.randn(1, size, 2, 64, generator=generator, device=device) for size in (3, 67, 67))
    return torch.ones_like(q), k - 1e5 / 64, v


def in_base_2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: int) -> tuple[torch.Tensor, ...]:
    """Attention as GPU kernels compute it, of the first ``keys`` keys."""
    log2e = 1.4426950408889634
    scores = torch.einsum("bmhd,bnhd->bhmn", q * (log2e / 8), k[:, :keys])
    p = (scores - scores.amax(-1, keepdim=True)).exp2()
    o = torch.einsum("bhmn,bnhd->bmhd", p / p.sum(-1, keepdim=True), v[:, :keys])
    return o, (scores.amax(-1) + p.sum(-1).log2()) / log2e


@for_each("keys, wrong", [(67, set()), (66, {"values"})])
def test_the_rounding_of_a_large_score_is_allowed(keys: int, wrong: set[str], device: torch.device) -> None:
    op = dataclasses.replace(registry.get_op("attention"), make_inputs=far_scores, sensitive_inputs=None)
    c = case("fp32", B=1, Sq=3, Skv=67, Hq=2, Hk=2, D=64, causal=0)
    impl = Implementation(op.name, "triton.mine", "tiled", lambda q, k, v, causal: in_base_2(q, k, v, keys))
    assert failed(check(op, impl, c, device, (0, 1, 2))) == wrong


@for_each("name", ["attention", "cross_entropy", "decode_attention"])
def test_ordinary_scores_get_no_larger_tolerance(name: str, device: torch.device) -> None:
    """What a magnitude adds for large scores is nothing on the op's own smoke cases."""
    op = registry.get_op(name)
    c = op.cases.smoke[0]
    inputs = op.make_inputs(c, torch.Generator(device).manual_seed(0), device)
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    assert op.magnitude
    sizes = op.magnitude(*wide, **op.options(c))
    largest = float(wide[0].max()) / 4 if name == "cross_entropy" else float(wide[2].nan_to_num().abs().max())
    assert float(sizes.max()) <= 1.1 * largest
