"""Machine code as text, and what its instructions multiply by."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from compare.resources.sass import disassembly, instruction_mix
from compare.resources.sass.disassembly import Instruction, disassembled, instructions, of_kernel
from compare.resources.sass.instruction_mix import mix, multiplications
from cuda_impl import build


@pytest.mark.parametrize("module", [disassembly, instruction_mix])
def test_examples_in_docstrings(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


SCALED = """
__global__ void scaled(float* y, const float* x, int N, float factor) {
    int first = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = first; i < N; i += gridDim.x * blockDim.x) y[i] = x[i] * factor;
}
"""
COPIED = """
__global__ void copied(float4* y, const float4* x) {
    __shared__ float4 tile[128];
    unsigned to = __cvta_generic_to_shared(&tile[threadIdx.x]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(x + threadIdx.x) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    y[threadIdx.x] = tile[127 - threadIdx.x];
}
"""
BULK = """
__global__ void bulk(float* y, const float* x) {
    __shared__ alignas(128) float tile[1024];
    __shared__ unsigned long long barrier;
    unsigned to = __cvta_generic_to_shared(tile), phase = __cvta_generic_to_shared(&barrier);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 4096, [%2];"
        :: "r"(to), "l"(x), "r"(phase) : "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 4096;"
        :: "l"(y), "r"(to) : "memory");
}
"""


def compiled(source: str, kernel: str, arch: str) -> tuple[Instruction, ...]:
    cubin, mangled = build.cubin(source, [kernel], arch)
    return instructions(of_kernel(disassembled(cubin), mangled[kernel]))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_a_constant_written_by_hfma2_is_a_move_and_fmul_a_multiplication(arch: str) -> None:
    found = compiled(SCALED, "scaled", arch)
    assert any(one.opcode == "HFMA2.MMA" for one in found) == (arch == "sm_80"), (
        "ptxas moves a constant otherwise"
    )
    groups = mix(found)
    assert "fp16" not in groups
    assert groups["fp32"] == {"FMUL": 1}
    assert multiplications(found) == {"FMUL": 1}


@pytest.mark.parametrize(
    ("source", "kernel", "loads", "stores"),
    [
        (COPIED, "copied", {"128 bits by LDGSTS": 1}, {"128 bits": 1}),
        (BULK, "bulk", {"TMA": 1}, {"TMA": 1}),
    ],
)
def test_asynchronous_copies_count_as_loads_and_stores(
    source: str, kernel: str, loads: dict[str, int], stores: dict[str, int]
) -> None:
    groups = mix(compiled(source, kernel, "sm_90a"))
    assert (groups["global loads"], groups["global stores"]) == (loads, stores)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["HGMMA.64x256x16.F32.BF16 R24", "HMMA.16816.F32 R0", "FFMA R0"], {"HGMMA.64x256x16": 1}),
        (["HMMA.16816.F32 R0", "HMMA.1688.F32 R0", "HMMA.16816.F32 R0"], {"HMMA.16816": 2, "HMMA.1688": 1}),
        (["FFMA.FTZ R0", "FMUL R0", "HFMA2.MMA R3, R2, R4, R5"], {"FFMA": 1, "FMUL": 1}),
        (["HFMA2.MMA R3, R2, R4, -RZ", "HMUL2 R0", "HFMA2.MMA R3, -RZ, RZ, 0, 0"], {"HFMA2": 1, "HMUL2": 1}),
        (["IMAD.MOV.U32 R0", "MOV R0, R1", "@P0 HFMA2 R3, -RZ.H0_H0, RZ.H0_H0, 1, 1"], {}),
    ],
)
def test_the_fastest_multiplication_counts(texts: list[str], expected: dict[str, int]) -> None:
    listing = "\n".join(f"/*{16 * i:04x}*/ {text} ;" for i, text in enumerate(texts))
    assert multiplications(instructions(listing)) == expected
