"""Outputs of 8-bit elements: each code is right or wrong, and unwritten ones are found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch

from compare.checking.check import check
from compare.checking.probes import Probe, with_one_element_changed
from compare.inputs import tensor
from compare.model.op import Case, Cases, Cost, Implementation, Op, Tolerance, case
from compare.model.result import Agreement
from loops import for_each
from mutants import failed

E4M3 = torch.float8_e4m3fn
EVERY = torch.arange(256, dtype=torch.uint8).view(E4M3)
"""Every code: 127 and 255 are NaN."""

Spoil = Callable[[torch.Tensor], object]


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448, 448).to(E4M3)


def op_of(dtype: str, inputs: Callable[..., tuple[torch.Tensor, ...]]) -> Op:
    """Rounds ``x[N]`` to fp8, or takes it to int8."""
    cases = Cases(case(N=512), (case(N=512),), (case(N=512),), (case(N=512),))
    return Op(
        name="to_bytes",
        summary="y = x as bytes",
        signature="x[N] -> y[N]",
        dims=("N",),
        dtypes=("fp32",),
        make_inputs=inputs,
        oracle=lambda x: rounded(x).double() if dtype == "fp8" else x.round(),
        cost=lambda c: Cost(c["N"], 4 * c["N"], c["N"]),
        tolerance=lambda c: Tolerance(least=0.0, exact=dtype == "fp8"),
        cases=cases,
        output_dtype=dtype,
    )


def drawn(c: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    return (tensor((c["N"],), c, generator, device),)


def codes(c: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """Every value of e4m3, twice."""
    return (EVERY.float().repeat(2).to(device),)


def midpoints(c: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
    """The middle between each two neighbours, and the values themselves."""
    positive = EVERY[:127].double()
    middle = ((positive[1:] + positive[:-1]) / 2).float()
    both = torch.cat((middle, -middle, positive.float()))
    return (torch.nn.functional.pad(both, (0, 512 - len(both))).to(device),)


def spoiled(op: Op, spoil: Spoil, right: Callable[..., torch.Tensor]) -> Agreement:
    def run(x: torch.Tensor) -> torch.Tensor:
        output = torch.empty(x.shape, dtype=right(x).dtype)
        values = right(x)
        spoil(values)
        output.copy_(values)
        return output

    return agreement_of(op, run)


def agreement_of(op: Op, run: Callable[[torch.Tensor], torch.Tensor]) -> Agreement:
    impl = Implementation(op.name, "triton.mutant", "tiled", run)
    return check(op, impl, op.cases.default, torch.device("cpu"), seeds=(0, 1))


@for_each("inputs", [drawn, codes, midpoints])
def test_right_codes_pass(inputs: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    agreement = spoiled(op_of("fp8", inputs), lambda y: None, rounded)
    assert agreement.passed, agreement.reason
    assert agreement.ulp_max == 0


def neighbour(y: torch.Tensor, at: int, step: int) -> None:
    y.view(torch.uint8)[at] += step


@for_each("at, step", list(itertools.product((8, 9, 17, 120, 126), (-1, 1))))
def test_a_neighbouring_code_is_wrong(at: int, step: int) -> None:
    """Below a power of two the neighbour is half as far: as far as correct rounding may be off."""
    if (at, step) == (126, 1):
        step = -2  # 127 is NaN
    agreement = spoiled(op_of("fp8", codes), lambda y: neighbour(y, at, step), rounded)
    assert failed(agreement) == {"values"}
    assert agreement.limit == 0


def test_a_tie_rounded_away_is_wrong() -> None:
    def away(x: torch.Tensor) -> torch.Tensor:
        return rounded(x * (1 + 2.0**-20))

    assert failed(spoiled(op_of("fp8", midpoints), lambda y: None, away)) == {"values"}


def test_nan_belongs_where_the_reference_has_it() -> None:
    agreement = spoiled(op_of("fp8", codes), lambda y: y[127].fill_(448.0), rounded)
    assert failed(agreement) == {"NaN and infinity"}
    agreement = spoiled(op_of("fp8", codes), lambda y: y[5].fill_(math.nan), rounded)
    assert failed(agreement) == {"NaN and infinity"}


@for_each("dtype, value", list(itertools.product(("fp8", "int8"), (0x7F, 0xDE, 0xFF, 0xB7))))
def test_an_unwritten_byte_is_found_where_its_poison_belongs(dtype: str, value: int) -> None:
    """One call cannot tell: each value is a byte of one of the poisons, and the right one everywhere."""
    byte = torch.tensor([value], dtype=torch.uint8).view(E4M3 if dtype == "fp8" else torch.int8)

    def constant(c: Case, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor]:
        return (byte.float().repeat(c["N"]),)

    def run(x: torch.Tensor) -> torch.Tensor:
        output = torch.empty(x.shape, dtype=byte.dtype)
        output[:-2] = byte
        return output

    op = op_of(dtype, constant)
    agreement = agreement_of(op, run)
    assert "all written" in failed(agreement)
    assert "2 of 512 elements were not written" in agreement.reason
    assert "all written" not in failed(agreement_of(op, lambda x: byte.repeat(len(x))))


def test_a_byte_changes_to_another_of_its_tensor() -> None:
    for values in ([0, 1, 1, 3], [-128, 5, 127, 5]):
        x = torch.tensor(values, dtype=torch.int8)
        for changed in with_one_element_changed(Probe("seed 0", (x,), ())):
            (other,) = changed.inputs
            assert int((other != x).sum()) == 1
            assert set(other.tolist()) <= set(values)
    assert [*with_one_element_changed(Probe("seed 0", (torch.ones(9, dtype=torch.int8),), ()))] == []


def test_an_fp8_element_changes_visibly() -> None:
    x = EVERY.clone()
    for _ in range(50):
        changed, _ = with_one_element_changed(Probe("seed 0", (x,), ()))
        (other,) = changed.inputs
        assert int((other.view(torch.uint8) != x.view(torch.uint8)).sum()) == 1
