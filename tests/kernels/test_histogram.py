"""histogram beyond its values: its cases have the declared skew, and the check finds one wrong count."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from compare import registry
from compare.model.op import Case, Implementation, case
from compare.resources.static import Request
from compare.run.compiling import from_cubins
from mutants import failed, spoiled
from on_device import each_of
from rows import labelled

pytestmark = pytest.mark.thorough

OP = registry.get_op("histogram")


def inputs_of(c: Case) -> torch.Tensor:
    (x,) = OP.make_inputs(c, torch.Generator().manual_seed(0), torch.device("cpu"))
    return x


@pytest.mark.parametrize("SKEW", [0, 50, 90, 100])
def test_a_case_says_how_many_are_equal(SKEW: int) -> None:
    counts = inputs_of(case("uint8", N=100000, SKEW=SKEW)).bincount(minlength=256)
    most = int(counts.max()) / 1000
    assert abs(most - (SKEW + (100 - SKEW) / 256)) < 1
    rest = counts[counts < counts.max()] if SKEW else counts
    assert (int(rest.max()) < 4 * int(rest.min())) if SKEW < 100 else (int(rest.sum()) == 0)


@pytest.mark.parametrize("N", [4096, 2**20])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda y: y[9:10].add_(1),
        lambda y: y[-1:].sub_(1),
        lambda y: y.copy_(y.roll(1)),
        lambda y: (y[3:4].add_(1), y[4:5].sub_(1)),
    ],
    ids=["one too many", "one lost", "off by a bin", "one in another bin"],
)
def test_a_single_wrong_count_is_caught(N: int, spoil: Callable[[torch.Tensor], None]) -> None:
    agreement = spoiled(OP, case("uint8", N=N, SKEW=90), spoil)
    assert failed(agreement) == {"values"}
    assert agreement.within < 1


@each_of("histogram")
def test_any_end_at_any_alignment(impl: Implementation, device: torch.device) -> None:
    for N, offset in itertools.product((0, 1, 14, 16, 31, 2049), (0, 1, 15)):
        # Surrounded by a value that none of its elements has.
        memory = torch.full((N + 48,), 255, dtype=torch.uint8, device=device)
        x = memory[offset : offset + N]
        x.copy_(torch.arange(N) % 255)
        assert torch.equal(impl.run(x), x.bincount(minlength=256)), (N, offset)


@pytest.mark.gpu
@pytest.mark.parametrize("value", [0, 255])
@each_of("histogram")
def test_all_at_one_counter(impl: Implementation, value: int, device: torch.device) -> None:
    x = torch.full((2**26 + 3,), value, dtype=torch.uint8, device=device)
    y = impl.run(x)
    assert int(y[value]) == x.numel() == int(y.sum())


def test_gluons_counters_are_all_that_lies_in_shared_memory() -> None:
    """Inline PTX addresses them from the beginning of shared memory."""
    impl = labelled("histogram", "triton.gluon")
    ((kernel,),) = from_cubins([Request(OP, impl, OP.cases.default, "sm_90")])  # type: ignore[misc]
    assert kernel.dynamic_shared_bytes == 256 * 64 * 4
    assert kernel.static_shared_bytes == 0
    assert kernel.spilled_bytes == 0
