"""decode_attention: block tables, lengths and split counts beyond what every op's tests cover."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import cuda_impl.launches.decode_attention
import triton_impl.decode_attention
from compare import registry
from compare.model.op import Implementation, case
from loops import for_each
from on_device import each_of

pytestmark = pytest.mark.thorough

OP = "decode_attention"

B, S, Hq, Hk, D, PAGE = 2, 40, 4, 2, 64, 16
PAGES = 3


def made(device: torch.device) -> tuple[torch.Tensor, ...]:
    inputs = registry.get_op(OP).make_inputs(
        case("fp16", B=B, S=S, Hq=Hq, Hk=Hk, D=D, PAGE=PAGE),
        torch.Generator().manual_seed(0),
        torch.device("cpu"),
    )
    return tuple(x.to(device) for x in inputs)


def oracle(*inputs: torch.Tensor) -> torch.Tensor:
    return registry.get_op(OP).oracle(*(x.double() for x in inputs))


@each_of(OP)
def test_sequences_may_share_pages(impl: Implementation, device: torch.device) -> None:
    """A common prefix is in the cache once, and one sequence ends within it."""
    q, k, v, table, _ = made(device)
    table[1, :2] = table[0, :2]
    lengths = torch.tensor([S, PAGE + 5], dtype=torch.int32, device=device)
    o = impl.run(q, k, v, table, lengths)
    torch.testing.assert_close(o.double(), oracle(q, k, v, table, lengths), rtol=2e-3, atol=2e-3)


@each_of(OP)
def test_scores_of_minus_infinity_count_as_no_token(impl: Implementation, device: torch.device) -> None:
    """Some tokens of a head, or all of them, whose output is then 0."""
    q, k, v, table, lengths = made(device)
    q[:, :, :, 0], q[:, :, :, 1:] = 1.0, q[:, :, :, 1:].clamp(-1, 1)
    k[table[0, 0], :, 0, 0] = -math.inf
    k[table[1].long(), :, 1, 0] = -math.inf
    o = impl.run(q, k, v, table, lengths)
    if impl.label == "torch.eager" and o.isnan().any():
        pytest.skip("PyTorch's own returns NaN for a row of -inf")
    assert (o[1, 0, Hq // Hk :] == 0).all()
    torch.testing.assert_close(o.double(), oracle(q, k, v, table, lengths), rtol=2e-3, atol=2e-3)


SPOILED: tuple[tuple[Callable[..., Any], str], ...] = (
    (lambda table, lengths: table[1, 1].fill_(B * PAGES), r"block_table\[1, 1\] is 6; it takes 0 to 5"),
    (lambda table, lengths: table[0, 2].fill_(-1), r"block_table\[0, 2\] is -1; it takes 0 to 5"),
    (lambda table, lengths: lengths[0].fill_(49), r"lengths\[0\] is 49; it takes 0 to 48"),
    (lambda table, lengths: lengths[1].fill_(-1), r"lengths\[1\] is -1; it takes 0 to 48"),
)


@each_of(OP)
def test_a_bad_table_is_refused_on_a_cpu(impl: Implementation) -> None:
    for spoil, says in SPOILED:
        q, k, v, table, lengths = made(torch.device("cpu"))
        spoil(table, lengths)
        with pytest.raises(ValueError, match=f"^{OP}: {says}"):
            impl.run(q, k, v, table, lengths)


@each_of(OP)
def test_entries_behind_the_end_are_not_looked_at(impl: Implementation, device: torch.device) -> None:
    q, k, v, table, lengths = made(device)
    expected = impl.run(q, k, v, table, lengths)
    wider = torch.full((B, PAGES + 2), 2**31 - 1, dtype=torch.int32, device=device)
    wider[:, :PAGES] = table
    torch.testing.assert_close(impl.run(q, k, v, wider, lengths), expected, rtol=2e-3, atol=2e-3)


@for_each(
    "units, tiles, blocks, sequences, splits",
    [
        (8, 2048, 528, 1, 63),  # one sequence of 128k tokens, on an H100: 504 of 528 at once
        (8, 2048, 264, 1, 32),
        (128, 512, 264, 16, 10),  # 4.8 waves, which balance sequences of different lengths
        (512, 128, 264, 64, 3),  # 5.8 waves
        (512, 64, 396, 64, 4),  # 5.2 waves
        (512, 31, 528, 64, 1),  # two splits would have less than 16 tiles
        (4096, 128, 528, 512, 1),
        (8, 3, 528, 1, 3),  # a split has a tile at least
        (8, 0, 528, 1, 1),
        (8, 0, 528, 2, 1),
    ],
)
def test_the_fewest_splits_that_fill_the_last_wave(
    units: int, tiles: int, blocks: int, sequences: int, splits: int
) -> None:
    """The same in Triton and CUDA; from C++ the same bits show it."""
    for module in (triton_impl.decode_attention, cuda_impl.launches.decode_attention):
        assert module.splits_of(units, tiles, blocks, sequences) == splits


def test_triton_refuses_offsets_within_a_page_beyond_32_bits() -> None:
    """15 times the first distance of tokens is below 2^31, and 15 times the second is not."""
    q, k, v, table, lengths = (x.to("meta") for x in made(torch.device("cpu")))
    taken, refused = (
        k.new_empty_strided(k.shape, (Hk * D, step, D, 1)) for step in (143_165_576, 143_165_584)
    )
    triton_impl.decode_attention.ready(q, taken, v, table, lengths)
    with pytest.raises(NotImplementedError, match=r"^k_pages: .* 2147483760 elements apart"):
        triton_impl.decode_attention.ready(q, refused, v, table, lengths)
    with pytest.raises(NotImplementedError, match=r"^v_pages: "):
        triton_impl.decode_attention.ready(q, k, refused, table, lengths)
