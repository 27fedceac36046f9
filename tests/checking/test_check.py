"""The checker catches every kind of wrong result, for every op and dtype, and accepts right ones.

A mutant is the op's baseline with one thing made wrong.  Nothing here knows an op by name but the few
mutants at the end that only make sense for one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch

from compare import registry
from compare.checking.check import CheckOptions, check
from compare.checking.guarded_memory import POISON, GuardedMemory, untouched
from compare.checking.reference import Reference
from compare.checking.stage import LocalStage
from compare.checking.tolerance import ToleranceFromBaseline
from compare.inputs import TORCH_DTYPES
from compare.spec import (
    CONDUCT,
    DTYPES,
    WHOLE,
    Agreement,
    Case,
    Finding,
    Implementation,
    Invariant,
    Op,
    case,
    nothing_open,
)

Run = Callable[..., torch.Tensor]
Mutant = Callable[..., torch.Tensor]

LONG = {"softmax": tuple(case(dtype, M=2, N=2**17) for dtype in ("fp32", "fp16", "bf16"))}
"""Cases whose elements are so small that a sloppy tolerance would accept anything."""


def ops_and_cases(long: bool) -> list[object]:
    return [
        pytest.param(registry.get_op(name), c, id=f"{name}-{c}")
        for name in registry.op_names()
        for c in (*registry.get_op(name).cases.smoke, *(LONG.get(name, ()) if long else ()))
    ]


every_op = pytest.mark.parametrize(
    "op", [pytest.param(registry.get_op(n), id=n) for n in registry.op_names()]
)
every_op_and_case = pytest.mark.parametrize(("op", "c"), ops_and_cases(long=False))
every_op_and_long_case = pytest.mark.parametrize(("op", "c"), ops_and_cases(long=True))


def baseline(op: Op) -> Run:
    return next(impl.run for impl in registry.implementations(op.name) if impl.label == op.baseline)


def checked(op: Op, c: Case, device: torch.device, run: Run, seeds: tuple[int, ...] = (0,)) -> Agreement:
    mutant = Implementation(op.name, "triton.mutant", "tiled", run)
    return check(op, mutant, c, device, seeds)


def skip_where_the_end_is_open(op: Op) -> None:
    if op.settle is not nothing_open:
        pytest.skip("what the last element holds is left open; the op's own tests have cases where it is not")


def skip_whole_numbers(op: Op) -> None:
    if op.output_dtype in WHOLE:
        pytest.skip("it gives whole numbers, which are never NaN and not rounded")


def failed(agreement: Agreement) -> set[str]:
    assert agreement.passed is not bool(agreement.reason)
    return {finding.name for finding in agreement.findings if not finding.passed}


# ----------------------------------------------------------------------- wrong values


def zeros(right: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(right)


def shuffled_along_the_row(right: torch.Tensor) -> torch.Tensor:
    return right[..., torch.randperm(right.shape[-1], device=right.device)]


def rolled_by_one(right: torch.Tensor) -> torch.Tensor:
    return right.roll(1, -1)


def two_neighbours_swapped(right: torch.Tensor) -> torch.Tensor:
    right[..., [2, 3]] = right[..., [3, 2]]
    return right


def shuffled_rows(right: torch.Tensor) -> torch.Tensor:
    return right.roll(1, 0)


def last_element_lost(right: torch.Tensor) -> torch.Tensor:
    (right if right.dim() > 0 else right[None])[..., -1] = 0
    return right


def one_element_not_a_number(right: torch.Tensor) -> torch.Tensor:
    right.view(-1)[min(5, right.numel() - 1)] = math.nan
    return right


def one_element_infinite(right: torch.Tensor) -> torch.Tensor:
    right.view(-1)[min(5, right.numel() - 1)] = math.inf
    return right


def slightly_scaled(right: torch.Tensor) -> torch.Tensor:
    """By 1/16000 in fp32, and by two units in the last place in the others."""
    return right * (1 + max(2 * torch.finfo(right.dtype).eps, 2**-14))


WRONG_VALUES = (
    zeros,
    shuffled_along_the_row,
    rolled_by_one,
    two_neighbours_swapped,
    shuffled_rows,
    last_element_lost,
    slightly_scaled,
)
OF_MANY = (shuffled_along_the_row, rolled_by_one, two_neighbours_swapped, shuffled_rows)


@pytest.mark.parametrize("mutate", WRONG_VALUES)
@every_op_and_long_case
def test_wrong_values_are_caught(op: Op, c: Case, mutate: Mutant, device: torch.device) -> None:
    right = baseline(op)
    if mutate is last_element_lost:
        skip_where_the_end_is_open(op)
    if mutate is slightly_scaled:
        skip_whole_numbers(op)
    if mutate in OF_MANY and op.signature.endswith("[]"):
        pytest.skip("a single number has no order")
    agreement = checked(op, c, device, lambda *inputs: mutate(right(*inputs)).clone())
    assert "values" in failed(agreement)
    assert agreement.error > agreement.limit
    assert agreement.within < 1


@pytest.mark.parametrize("mutate", [one_element_not_a_number, one_element_infinite])
@every_op_and_long_case
def test_nan_and_infinity_are_caught(op: Op, c: Case, mutate: Mutant, device: torch.device) -> None:
    skip_whole_numbers(op)
    right = baseline(op)
    agreement = checked(op, c, device, lambda *inputs: mutate(right(*inputs)))
    assert "NaN and infinity" in failed(agreement)
    assert agreement.within < 1


ROUNDED_ONCE_ULP = 0.27
"""The median of an error that is anything up to half a unit in the last place is a quarter."""


@every_op_and_long_case
def test_one_rounding_more_on_the_way_is_caught(op: Op, c: Case, device: torch.device) -> None:
    """As if a factor of the result had been stored in the narrow dtype, before the last rounding."""
    skip_whole_numbers(op)
    wide = TORCH_DTYPES[op.output_dtype or c.dtype]
    narrow = torch.bfloat16 if wide is torch.float32 else wide
    if narrow is wide and checked(op, c, device, baseline(op)).ulp_p50 > ROUNDED_ONCE_ULP:
        pytest.skip("PyTorch's own rounds on the way as well, and what it does is allowed")

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        exact = op.oracle(*(x.double() for x in inputs))
        return ((exact * 3).to(narrow).double() / 3).to(wide)

    assert "values" in failed(checked(op, c, device, run))


NARROWER = {
    "fp32": (torch.float16, torch.bfloat16),
    "fp16": (torch.bfloat16,),
    "bf16": (torch.float8_e4m3fn,),
}


@pytest.mark.parametrize("which", [0, 1])
@every_op_and_long_case
def test_inputs_rounded_to_a_lower_precision_are_caught(
    op: Op, c: Case, which: int, device: torch.device
) -> None:
    if c.dtype in WHOLE:
        pytest.skip("whole numbers are not rounded")
    if which >= len(NARROWER[c.dtype]):
        pytest.skip("only fp32 has two next lower precisions")
    narrow = NARROWER[c.dtype][which]
    right = baseline(op)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x.to(narrow).to(x.dtype) if x.is_floating_point() else x

    agreement = checked(op, c, device, lambda *inputs: right(*map(rounded, inputs)))
    assert "values" in failed(agreement)


# ----------------------------------------------------------------------- memory


@every_op_and_long_case
def test_one_unwritten_element_is_caught(op: Op, c: Case, device: torch.device) -> None:
    skip_where_the_end_is_open(op)
    right = baseline(op)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        values = right(*inputs).flatten()
        output = torch.empty_like(values)
        output[:-1] = values[:-1]
        return output.view_as(right(*inputs))

    agreement = checked(op, c, device, run)
    special = "values" if op.output_dtype in WHOLE else "NaN and infinity"
    assert {"all written", special} <= failed(agreement)


def test_an_unwritten_element_is_caught_even_where_nan_belongs(device: torch.device) -> None:
    op = registry.get_op("softmax")

    def run(x: torch.Tensor) -> torch.Tensor:
        values = torch.softmax(x, -1)
        output = torch.empty_like(x)
        output[1:] = values[1:]  # row 0 is NaN anyway
        return output

    assert failed(checked(op, case(fill="neg_inf", M=6, N=33), device, run)) == {"all written"}


@pytest.mark.parametrize("offset", [-1, 0, 100])
@every_op_and_case
def test_a_write_out_of_bounds_is_caught(op: Op, c: Case, offset: int, device: torch.device) -> None:
    right = baseline(op)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        values = right(*inputs)
        output = torch.empty_like(values)
        output.copy_(values)
        at = output.storage_offset() + (offset if offset < 0 else output.numel() + offset)
        output.as_strided((1,), (1,), at).fill_(1.0)
        return output

    agreement = checked(op, c, device, run)
    assert failed(agreement) == {"guard zones"}
    assert ("before" if offset < 0 else "past") in agreement.reason


@pytest.mark.parametrize("layout", ["contiguous", "sliced"])
@every_op_and_case
def test_a_mutated_input_is_caught(op: Op, c: Case, layout: str, device: torch.device) -> None:
    right = baseline(op)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        output = right(*inputs)
        # In a gap between the elements where there is one.
        last = inputs[-1].untyped_storage().nbytes() // inputs[-1].itemsize - 1
        inputs[-1].as_strided((1,), (1,), last).fill_(77)
        return output

    agreement = checked(op, dataclasses.replace(c, layout=layout), device, run)
    assert failed(agreement) == {"inputs unchanged"}


@every_op_and_case
def test_an_output_in_an_inputs_memory_is_caught(op: Op, c: Case, device: torch.device) -> None:
    right, changed = baseline(op), set[bool]()

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        values = right(*inputs)
        memory = inputs[0].flatten()[: values.numel() * values.itemsize // inputs[0].itemsize]
        output, before = memory.view(values.dtype), memory.clone()
        output.copy_(values.flatten()[: output.numel()])
        changed.add(not torch.equal(memory, before))  # a copy of the input is what lies there
        # One element for all, where there is not room for more.
        return (output if output.numel() == values.numel() else output[:1].expand(values.numel())).view(
            values.shape
        )

    agreement = checked(op, c, device, run)
    assert failed(agreement) >= {"output is fresh"} | ({"inputs unchanged"} if True in changed else set())
    assert True in changed or op.only_moves


@every_op_and_case
def test_an_output_buffer_kept_between_calls_is_caught(op: Op, c: Case, device: torch.device) -> None:
    right = baseline(op)
    kept: list[torch.Tensor] = []

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        if not kept:
            kept.append(torch.empty_like(right(*inputs)))
        return kept[0].copy_(right(*inputs))

    assert failed(checked(op, c, device, run, seeds=(0, 1))) == {"output is fresh"}


def test_an_output_remembered_for_an_address_is_caught(device: torch.device) -> None:
    op = registry.get_op("softmax")
    remembered: dict[torch.Size, torch.Tensor] = {}

    def run(x: torch.Tensor) -> torch.Tensor:
        return remembered.setdefault(x.shape, torch.softmax(x, -1)).clone()

    assert failed(checked(op, op.cases.smoke[0], device, run, seeds=(0, 1))) >= {"values"}


# ----------------------------------------------------------------------- work of its own

COPIES: dict[str, Run] = {
    "clone": lambda x: x.clone(),
    "copy_": lambda x: torch.empty_like(x).copy_(x),
    "cat": lambda x: torch.cat((x,)),
}


@pytest.mark.parametrize("kind", COPIES)
@every_op
def test_to_have_pytorch_copy_is_work_where_there_is_no_other(
    op: Op, kind: str, device: torch.device
) -> None:
    impl = Implementation(op.name, "triton.mutant", "tiled", lambda *inputs: COPIES[kind](inputs[0]))
    agreement = check(op, impl, op.cases.smoke[0], device, (0,), CheckOptions(own_work=True))
    assert ("own work" in failed(agreement)) == op.only_moves
    assert (f"moving data is all that {op.name} does" in agreement.reason) == op.only_moves


# ----------------------------------------------------------------------- the wrong kind of output

WRONG_KINDS: dict[str, Mutant] = {
    "no tensor": lambda right: right.tolist(),
    "nothing": lambda right: None,
    "subclass": lambda right: torch.nn.Parameter(right, requires_grad=right.is_floating_point()),
    "wider": lambda right: right.double(),
    "narrower": lambda right: right.to(torch.float8_e4m3fn),
    "one row more": lambda right: right[None],
    "short": lambda right: right.flatten()[:-1],
    "flat": lambda right: right.new_zeros(right.numel() + 1),
    "elsewhere": lambda right: right.to("meta"),
    "sparse": lambda right: right.to_sparse(),
}


@pytest.mark.parametrize("kind", WRONG_KINDS)
@every_op_and_case
def test_the_wrong_kind_of_output_is_caught(op: Op, c: Case, kind: str, device: torch.device) -> None:
    right = baseline(op)
    agreement = checked(op, c, device, lambda *inputs: WRONG_KINDS[kind](right(*inputs)))
    assert failed(agreement) == {"output"}
    assert agreement.error == math.inf
    assert agreement.within == 0
    assert_unmeasured(agreement)


def assert_unmeasured(agreement: Agreement) -> None:
    """There is no error to show, which is not an error of 0."""
    shown = (agreement.max_abs, agreement.max_rel, agreement.ulp_p50, agreement.ulp_p99, agreement.ulp_max)
    assert all(map(math.isnan, shown))


def test_where_nothing_is_a_number_there_is_no_error_to_show(device: torch.device) -> None:
    op = registry.get_op("vector_add")
    c = op.cases.smoke[0]
    agreement = checked(op, c, device, lambda x, y: torch.full_like(x, math.nan))
    assert "NaN and infinity" in failed(agreement)
    assert_unmeasured(agreement)


# ----------------------------------------------------------------------- the yardstick


def allowed_by(op: Op, c: Case, device: torch.device, mutate: Mutant) -> tuple[float, float]:
    """What a baseline allows whose outputs are changed so; and what the op allows in any case."""
    right = baseline(op)
    impl = Implementation(op.name, op.baseline, "vendor", lambda *inputs: mutate(right(*inputs)))
    inputs = op.make_inputs(c, torch.Generator(device).manual_seed(0), device)
    limit = ToleranceFromBaseline(op, LocalStage(impl, device)).limit(c, Reference(op, inputs))
    return limit, op.tolerance(c).least


@pytest.mark.parametrize("mutate", [zeros, lambda right: -2 * right], ids=["zeros", "another op"])
@every_op
def test_a_baseline_that_is_wrong_allows_nothing(op: Op, mutate: Mutant, device: torch.device) -> None:
    skip_where_the_end_is_open(op)
    limit, least = allowed_by(op, op.cases.smoke[0], device, mutate)
    assert limit == least


def test_a_baseline_of_a_lower_precision_allows_twice_its_error(device: torch.device) -> None:
    op = registry.get_op("vector_add")
    limit, least = allowed_by(op, case("fp32", N=1000), device, lambda right: right.half().float())
    assert least < limit < 2 / 2**-24 * 2**-11


# ----------------------------------------------------------------------- right outputs pass


@every_op_and_long_case
def test_the_correctly_rounded_oracle_passes(op: Op, c: Case, device: torch.device) -> None:
    def run(*inputs: torch.Tensor) -> torch.Tensor:
        return op.oracle(*(x.double() for x in inputs)).to(TORCH_DTYPES[op.output_dtype or c.dtype])

    agreement = checked(op, c, device, run, seeds=(0, 1))
    assert agreement.passed, agreement.reason
    assert agreement.error < 1
    # Of many that are rounded, one lies nearly in the middle; what is only moved is not rounded.
    whole = op.output_dtype in WHOLE
    rounded = op.cost(c).flops > 0 and not op.signature.endswith("[]") and not whole
    assert (
        (0.4 if rounded else 0) <= agreement.ulp_max <= 0.5 + 1e-4
    )  # the GPU does not sum twice in the same order
    assert agreement.ulp_p50 <= agreement.ulp_p99 <= agreement.ulp_max
    assert agreement.within == 1
    assert agreement.seeds == 2


def test_every_seed_counts(device: torch.device) -> None:
    op = registry.get_op("vector_add")
    calls: list[int] = []

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        return x + y if len(calls) < 3 else x - y

    agreement = checked(op, op.cases.smoke[0], device, run, seeds=(0, 1, 7))
    assert "values: seed 7" in agreement.reason
    assert agreement.within < 1


def test_a_broken_invariant_is_caught(device: torch.device) -> None:
    op = registry.get_op("vector_add")
    never = Invariant("never holds", lambda inputs, output: "as announced")
    op = dataclasses.replace(op, invariants=(never,))
    agreement = checked(op, op.cases.smoke[0], device, lambda x, y: x + y)
    assert agreement.reason == "never holds: seed 0: as announced"


def test_what_an_implementation_raises_is_passed_on(device: torch.device) -> None:
    op = registry.get_op("softmax")

    def run(x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("rows are too long")

    with pytest.raises(NotImplementedError, match="rows are too long"):
        checked(op, op.cases.smoke[0], device, run)


def test_a_small_case_takes_one_thread_of_a_cpu_and_gives_the_others_back() -> None:
    op, cpu = registry.get_op("vector_add"), torch.device("cpu")
    threads = torch.get_num_threads()
    seen = []

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        if len(seen) == 3:
            raise RuntimeError("boom")
        return baseline(op)(*inputs)

    try:
        torch.set_num_threads(2)
        for c in (op.cases.smoke[0], case("fp32", N=2**20)):
            assert checked(op, c, cpu, run).passed
            assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="boom"):
            checked(op, op.cases.smoke[0], cpu, run)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert seen == [1, 2, 1]


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_a_case_is_compared_whole_whatever_the_pieces(
    rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the last element is found, and the figures are the same, with pieces of any size."""
    op = registry.get_op("softmax")
    c = case("fp32", M=7, N=100)

    def run(x: torch.Tensor) -> torch.Tensor:
        output = torch.softmax(x, -1)
        output[-1, -1] *= 1.5
        return output

    whole = checked(op, c, device, run)
    monkeypatch.setattr("compare.checking.reference._PIECE_ELEMENTS", rows * 33)
    pieces = checked(op, c, device, run)
    assert pieces.findings == whole.findings
    assert (pieces.error, pieces.within, pieces.max_abs) == (whole.error, whole.within, whole.max_abs)
    assert whole.within == 699 / 700


# ----------------------------------------------------------------------- softmax's own mutants


def exp_in_the_inputs_dtype(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(1, keepdim=True)).exp()
    return (e.float() / e.float().sum(1, keepdim=True)).to(x.dtype)


def sum_in_the_inputs_dtype(x: torch.Tensor) -> torch.Tensor:
    """128 lanes, each of which adds up its share of the row in the narrow dtype."""
    wide = x.float()
    e = (wide - wide.amax(1, keepdim=True)).exp()
    lanes = torch.zeros(x.shape[0], 128, dtype=x.dtype, device=x.device)
    for part in e.split(128, dim=1):
        lanes[:, : part.shape[1]] += part.to(x.dtype)
    return (e / lanes.float().sum(1, keepdim=True)).to(x.dtype)


def without_the_tail(x: torch.Tensor) -> torch.Tensor:
    """The last few columns left out of the sum."""
    wide = x.float()
    e = (wide - wide.amax(1, keepdim=True)).exp()
    return (e / e[:, :-3].sum(1, keepdim=True)).to(x.dtype)


def without_the_shift(x: torch.Tensor) -> torch.Tensor:
    e = x.float().exp()
    return (e / e.sum(1, keepdim=True)).to(x.dtype)


@pytest.mark.parametrize("run", [exp_in_the_inputs_dtype, sum_in_the_inputs_dtype])
@pytest.mark.parametrize("c", [case(d, M=2, N=n) for d in ("fp16", "bf16") for n in (781, 2**18)], ids=str)
def test_softmax_in_low_precision_is_caught(c: Case, run: Run, device: torch.device) -> None:
    assert "values" in failed(checked(registry.get_op("softmax"), c, device, run))


@pytest.mark.parametrize("c", [case(d, M=1, N=2**20) for d in ("fp32", "fp16", "bf16")], ids=str)
def test_softmax_that_loses_its_tail_is_caught(c: Case, device: torch.device) -> None:
    assert "values" in failed(checked(registry.get_op("softmax"), c, device, without_the_tail))


def test_softmax_without_the_shift_is_caught_where_it_overflows(device: torch.device) -> None:
    op = registry.get_op("softmax")
    assert not checked(op, case("fp16", fill="huge", M=6, N=517), device, without_the_shift).passed


def test_softmax_that_hides_nan_is_caught(device: torch.device) -> None:
    op = registry.get_op("softmax")
    for fill in ("nan", "neg_inf"):
        agreement = checked(
            op, case(fill=fill, M=6, N=517), device, lambda x: torch.softmax(x, 1).nan_to_num(0.0)
        )
        assert "NaN and infinity" in failed(agreement)


# ----------------------------------------------------------------------- matmul's own mutants


def summed_in(dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """16 products at a time, as a tensor core adds them; the sum so far in ``dtype``."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=dtype, device=a.device)
    for k in range(0, a.shape[1], 16):
        total = (total.float() + a[:, k : k + 16].float() @ b[k : k + 16].float()).to(dtype)
    return total.to(a.dtype)


def as_tf32(x: torch.Tensor) -> torch.Tensor:
    """Cut to 10 bits of mantissa, as tensor cores read fp32."""
    return (x.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)


LONG_SUMS = [case(dtype, M=24, N=32, K=k) for dtype in ("fp16", "bf16") for k in (70, 2048, 16384)]


@pytest.mark.parametrize("c", LONG_SUMS, ids=str)
def test_products_summed_in_their_own_dtype_are_caught(c: Case, device: torch.device) -> None:
    op = registry.get_op("matmul")
    narrow = checked(op, c, device, lambda a, b: summed_in(a.dtype, a, b))
    assert failed(narrow) == {"values"}
    assert narrow.error > 4 * narrow.limit
    wide = checked(op, c, device, lambda a, b: torch.empty_like(b).set_(summed_in(torch.float32, a, b)))
    assert failed(wide) == set()


@pytest.mark.parametrize("k", [80, 2048, 16384])
def test_tf32_is_not_taken_for_fp32(k: int, device: torch.device) -> None:
    op = registry.get_op("matmul")
    c = case("fp32", M=24, N=32, K=k)
    mutant = Implementation(op.name, "triton.mutant", "tiled", lambda a, b: as_tf32(a) @ as_tf32(b))
    agreement = check(op, mutant, c, device, (0,))
    assert failed(agreement) == {"values"}
    assert agreement.error > 4 * agreement.limit
    # What says that it is TF32 is held to what TF32 can do, and to no less than that.
    named = dataclasses.replace(mutant, accumulator="tf32")
    assert failed(check(op, named, c, device, (0,))) == set()
    less = dataclasses.replace(named, run=lambda a, b: a.bfloat16().float() @ b.bfloat16().float())
    assert failed(check(op, less, c, device, (0,))) == {"values"}


def test_a_lost_product_is_caught(device: torch.device) -> None:
    """The last of K, as where a tile does not divide it."""
    op = registry.get_op("matmul")
    for c in op.cases.smoke:
        agreement = checked(op, c, device, lambda a, b: (a[:, :-1].float() @ b[:-1].float()).to(a.dtype))
        assert failed(agreement) == {"values"}


def test_terms_that_cancel_are_held_against_their_own_size(device: torch.device) -> None:
    """A sum that comes to nearly nothing has the rounding errors of its terms, in any order."""
    op = registry.get_op("matmul")
    inputs = torch.ones(1, 4096, device=device), torch.linspace(-1, 1, 4096, device=device)[:, None]
    cancelling = dataclasses.replace(op, make_inputs=lambda *_: inputs)
    c = case("fp32", M=1, N=1, K=4096)
    agreement = checked(cancelling, c, device, lambda a, b: (a @ b + a[:, :1] * 2e-5).clone())
    assert failed(agreement) == set()
    agreement = checked(cancelling, c, device, lambda a, b: (a @ b + a[:, :1] * 2e-2).clone())
    assert failed(agreement) == {"values"}


# ----------------------------------------------------------------------- guarded memory


ALLOCATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: torch.empty(3, 5, dtype=x.dtype, device=x.device),
    "empty_like": torch.empty_like,
    "empty_strided": lambda x: torch.empty_strided((3, 5), (1, 3), dtype=x.dtype, device=x.device),
    "new_empty": lambda x: x.new_empty(3, 5),
    "new_empty_strided": lambda x: x.new_empty_strided((3, 5), (7, 1)),
    "zero_size": lambda x: x.new_empty(0, 5),
    "channels_last": lambda x: torch.empty(
        2, 3, 4, 5, dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8])
@pytest.mark.parametrize("how", ALLOCATIONS)
def test_every_way_to_allocate_is_guarded(how: str, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.ones(3, 5, dtype=dtype, device=device)
    plain = ALLOCATIONS[how](x)
    guard = GuardedMemory(device)
    with guard:
        guarded = ALLOCATIONS[how](x)
    assert type(guarded) is torch.Tensor
    assert (guarded.shape, guarded.stride(), guarded.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert guarded.device == plain.device
    assert guarded.data_ptr() % 512 == 0 or guarded.numel() == 0 or device.type == "cpu"
    assert guard.owns(guarded)
    assert not guard.owns(plain)
    guarded.fill_(1)
    assert guard.violations() == []


def test_poison_is_nan_and_told_from_other_nan(device: torch.device) -> None:
    for dtype in map(TORCH_DTYPES.__getitem__, DTYPES):
        guard = GuardedMemory(device)
        with guard:
            x = torch.empty(4, dtype=dtype, device=device)
        assert x.isnan().all()
        x[:3] = torch.tensor([math.nan, 0.0, math.inf], dtype=dtype)
        assert untouched(x).tolist() == [False, False, False, True]
    assert POISON < 2**15


def test_memory_elsewhere_is_left_alone(device: torch.device) -> None:
    guard = GuardedMemory(device)
    with guard:
        torch.empty(3, device="meta")
    assert guard.allocations == []


def test_findings_say_what_was_looked_at(device: torch.device) -> None:
    op = registry.get_op("softmax")
    agreement = checked(
        op, op.cases.smoke[0], device, lambda x: torch.empty_like(x).copy_(torch.softmax(x, 1))
    )
    assert Finding("guard zones", True, "around the output") in agreement.findings
    # A worker's check has two more of these.
    assert {*CONDUCT} - {"own work", "other sizes"} <= {finding.name for finding in agreement.findings}
    assert [finding.name for finding in agreement.findings] == [
        "output",
        "inputs unchanged",
        "guard zones",
        "output is fresh",
        "all written",
        "values",
        "NaN and infinity",
        "rows sum to 1",
    ]
