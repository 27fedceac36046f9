"""The tolerance follows the baseline's error, the accumulator and the size of the terms."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from compare import registry
from compare.checking.check import check
from compare.checking.reference import Reference
from compare.checking.stage import LocalStage
from compare.checking.tolerance import ToleranceFromBaseline
from compare.spec import Case, Implementation, Op, case
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


def as_tf32(x: torch.Tensor) -> torch.Tensor:
    """Truncated to 10 bits of mantissa, as tensor cores read fp32."""
    return (x.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)


@pytest.mark.parametrize("k", [80, 2048, 16384])
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
