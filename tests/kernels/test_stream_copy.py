"""The claims of stream_copy's page: each variant's memory instructions in machine code, and its speed."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from beside import cold_speeds
from compare import capture, registry
from compare.model.architecture import limits
from compare.model.op import CudaLaunch, Implementation, case
from compare.resources.machine_code import read_report
from compare.resources.sass.disassembly import disassembled, instructions, of_kernel
from cuda_impl import build
from on_device import assert_correct

pytestmark = pytest.mark.thorough

OP = registry.get_op("stream_copy")
CUDA = {impl.variant: impl for impl in registry.implementations(OP.name) if impl.route == "cupy"}
OWN = [impl for impl in registry.implementations(OP.name) if impl.route in ("triton", "cupy")]


def opcodes(impl: Implementation) -> dict[str, int]:
    (launch,) = capture.capture(impl, OP, OP.cases.default, "sm_90")
    assert isinstance(launch, CudaLaunch)
    image, mangled = build.cubin(launch.source, [launch.kernel], "sm_90")
    listing = instructions(of_kernel(disassembled(image), mangled[launch.kernel]))
    return dict(Counter(instruction.opcode for instruction in listing))


@pytest.mark.parametrize(
    ("variant", "has"),
    [
        ("naive", {"LDG.E.CONSTANT", "STG.E"}),
        ("vectorized", {"LDG.E.128.CONSTANT", "STG.E.128"}),
        ("hinted", {"LDG.E.128.STRONG.GPU", "STG.E.128"}),
        ("prefetch", {"LDG.E.128.CONSTANT", "STG.E.128"}),
        ("cp_async", {"LDGSTS.E.BYPASS.128", "LDS.128", "STG.E.128"}),
        ("tma", {"UBLKCP.S.G", "UBLKCP.G.S", "UTMACMDFLUSH"}),
    ],
)
def test_each_variant_has_its_memory_instructions(variant: str, has: set[str]) -> None:
    found = opcodes(CUDA[variant])
    assert has <= found.keys()
    assert not [opcode for opcode in found if opcode.startswith(("LDL", "STL"))], "nothing is spilled"
    assert not [opcode for opcode in found if opcode.startswith("BAR.")], "no barriers"


@pytest.mark.parametrize(
    ("load", "store", "has"),
    [
        (0, 0, {"LDG.E.128.CONSTANT", "STG.E.128"}),
        (1, 1, {"LDG.E.EF.128", "STG.E.EF.128"}),
        (2, 2, {"LDG.E.128.STRONG.GPU", "STG.E.128.STRONG.GPU"}),
        (3, 0, {"LDG.E.NA.128"}),
    ],
)
def test_hints_reach_the_machine_code(load: int, store: int, has: set[str]) -> None:
    hinted = registry.with_parameters(CUDA["hinted"], "cupy.asked", {"LOAD_HINT": load, "STORE_HINT": store})
    assert has <= opcodes(hinted).keys()


def with_value(impl: Implementation, name: str, value: int) -> Implementation:
    return registry.with_parameters(impl, f"{impl.label}[{name}={value}]", {name: value})


@pytest.mark.gpu
@pytest.mark.parametrize(
    "impl",
    [
        with_value(i, name, value)
        for i in OWN
        for name, values in i.tunable
        for value in values[:: len(values) - 1]
    ],
    ids=lambda impl: impl.label,
)
def test_it_agrees_with_the_least_and_the_most_of_all_that_can_be_chosen(impl: Implementation) -> None:
    device = torch.device("cuda")
    assert_correct(impl, case("bf16", N=2**24 + 5), device)


@pytest.mark.parametrize("impl", CUDA.values(), ids=lambda impl: impl.label)
def test_any_choice_can_be_launched(impl: Implementation) -> None:
    """No static shared memory beside dynamic: 48 KB hold both, and what asks for more sees only one."""
    (launch,) = capture.capture(impl, OP, OP.cases.default, "sm_90")
    assert isinstance(launch, CudaLaunch)
    (figures,) = read_report(build.ptxas_log(launch.source, [launch.kernel], "sm_90")).values()
    for values in itertools.product(*(values for _, values in impl.tunable)):
        chosen = dict(zip((name for name, _ in impl.tunable), values, strict=True))
        (launch,) = capture.capture(
            registry.with_parameters(impl, impl.label, chosen), OP, OP.cases.default, "sm_90"
        )
        assert isinstance(launch, CudaLaunch)
        assert 1 <= launch.grid[0] < 2**31, chosen
        assert 1 <= launch.block[0] <= 1024, chosen
        assert launch.dynamic_shared_bytes <= limits("sm_90").block_shared_bytes, chosen
        assert not (launch.dynamic_shared_bytes and figures.static_shared_bytes), chosen


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("way", ["triton", "cupy"])
@pytest.mark.parametrize("case", [f"N={2**26},fp32", f"N={2**27},bf16"])
def test_the_best_variant_is_as_fast_as_torch_s_copy(way: str, case: str) -> None:
    """512 MiB are moved: more than any cache."""
    speeds = cold_speeds(OP.name, f"{way}.*", "torch.eager", case, budget_s=10)
    label, speed = max(speeds.items(), key=lambda each: each[1].median)
    assert speed.median >= 0.985, f"{label}: speedup {speed.median:.3f} vs. copy_"
