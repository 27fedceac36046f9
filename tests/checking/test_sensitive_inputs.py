"""SensitiveInputs inputs: what they hold, and when they are a probe."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from compare import registry
from compare.checking.probes import Probes
from compare.checking.tolerance import ToleranceFromBaseline
from compare.inputs import spared
from compare.model.op import Case, Op, case
from loops import for_each
from mutants import agreement_of_outputs, failed

CPU = torch.device("cpu")


def within_floors(op: Op, c: Case) -> Probes:
    return Probes(op, c, CPU, ToleranceFromBaseline(op, None), (0,))


def names(op: Op, text: str) -> list[str]:
    return [probe.name for probe in within_floors(op, Case.parse(text, op)).of_check((3, 4))]


def test_large_cases_of_usual_values_are_checked_on_them_too() -> None:
    op = registry.get_op("reduce_sum")
    assert names(op, "N=65536,fp32") == ["seed 3", "seed 4", "seed 3, sensitive inputs"]
    assert names(op, "N=65536,fp32,misaligned") == names(op, "N=65536,fp32")
    for small in ("N=65535,fp32", "N=65536,fp32,nan", "N=65536,fp32,expanded"):
        assert names(op, small) == ["seed 3", "seed 4"]
    assert names(registry.get_op("transpose"), "M=256,N=256,fp32") == ["seed 3", "seed 4"]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_whole_numbers_have_the_same_sum_in_every_order(dtype: str) -> None:
    op = registry.get_op("reduce_sum")
    (x,) = op.make_inputs(case(dtype, N=2**20 + 3), torch.Generator().manual_seed(0), CPU)
    op.sensitive_inputs.change((x,))
    assert (x != 0).all()
    exact = x.double().sum()
    running = x.float().cumsum(0)
    assert running.double().equal(x.double().cumsum(0))
    for order in (x.flip(0), x.view(-1)[torch.randperm(len(x))], x.float().sort().values):
        assert order.float().sum() == exact


@for_each("shape, period", list(product([(8, 64), (5, 4, 64), (9, 67), (2, 3), (1, 1)], [1, 4, 1000])))
def test_every_pair_has_its_turn(shape: tuple[int, ...], period: int) -> None:
    x = torch.zeros(shape)
    x.scatter_(-1, spared(x, period), 1.0)
    pairs = shape[-1] // 2
    period = max(1, min(period, pairs))
    counts = x.sum(-1)
    assert (counts == 2 * (pairs // period)).all()
    if x[..., 0].numel() >= period:
        kept = x.view(-1, shape[-1]).amax(0)
        assert kept[: 2 * period * (pairs // period)].all()


def test_an_error_that_shows_there_alone_is_one() -> None:
    """Without sensitive inputs, the loss of one of a million elements passes."""
    op = registry.get_op("reduce_sum")
    c = case("fp32", N=2**20)

    def lost(op: Op, x: torch.Tensor) -> torch.Tensor:
        return op.oracle(x) - x[200_000]

    blunt = replace(op, tolerance=lambda c: replace(op.tolerance(c), least=1e3))
    agreement = agreement_of_outputs(blunt, c, CPU, within_floors(blunt, c), lost)
    assert failed(agreement) == {"values"}
    assert "seed 0, sensitive inputs: 1 of 1 elements are wrong" in agreement.reason
    blunt = replace(blunt, sensitive_inputs=None)
    assert agreement_of_outputs(blunt, c, CPU, within_floors(blunt, c), lost).passed


@for_each("dtype, before_bias", list(product(["bf16", "fp16"], [True, False])))
def test_one_rounding_before_gelu_is_no_error_and_two_are(dtype: str, before_bias: bool) -> None:
    op = registry.get_op("linear_gelu")
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x.to(narrow).double()

    def gelu(v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(v, approximate="tanh")

    def once(op: Op, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return gelu(rounded(x @ w) + bias if before_bias else rounded(x @ w + bias))

    def twice(op: Op, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return rounded(gelu(rounded(rounded(x @ w) + bias)) * 3) / 3

    c = case(dtype, M=64, N=256, K=512)
    probes = within_floors(op, c)
    assert agreement_of_outputs(op, c, CPU, probes, once).error == 0
    assert failed(agreement_of_outputs(op, c, CPU, probes, twice)) == {"values"}
