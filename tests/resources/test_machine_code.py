"""Registers, shared memory and spills of cubins whose figures are known, and their instructions."""

from __future__ import annotations

import doctest
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from compare.resources import machine_code, profiler
from compare.resources.sass import disassembly, instruction_mix
from compare.resources.sass.disassembly import Instruction, disassembled, instructions, of_kernel
from compare.resources.sass.instruction_mix import mix, multiplications
from cuda_impl import build
from loops import for_each

KNOWN = """
// 256 bytes of static shared memory, no spills, an array indexed at run time.
__global__ void indexed(float* x, int i) {
    float kept[16];
    for (int j = 0; j < 16; ++j) kept[j] = x[j * 32];
    kept[i] += 1;
    float sum = 0;
    for (int j = 0; j < 16; ++j) sum += kept[j] * kept[(j * i) % 16];
    __shared__ float shared[64];
    shared[threadIdx.x] = sum;
    __syncthreads();
    x[i] = shared[i];
}

// More live values than its 32 registers.
template <int N>
__global__ void __launch_bounds__(1024, 2) spilling(float* x) {
    float kept[N], sum = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) kept[j] = x[j * 32 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < N; ++j) sum += kept[j] * kept[N - 1 - j] * x[j];
#pragma unroll
    for (int j = 0; j < N; ++j) x[j * 32 + threadIdx.x] = kept[j] * sum;
}
"""


@for_each("module", [machine_code, profiler, disassembly, instruction_mix])
def test_examples_in_docstrings(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@for_each("arch", ["sm_75", "sm_80", "sm_90"])
def test_the_figures_are_those_of_cudas_own_tools(arch: str, tmp_path: Path) -> None:
    names = ["indexed", "spilling<64>"]
    cubin, mangled = build.cubin(KNOWN, names, arch)
    report = machine_code.read_report(build.ptxas_log(KNOWN, names, arch))
    indexed, spilling = (report[mangled[name]] for name in names)
    assert indexed.static_shared_bytes == 256
    assert indexed.stack_bytes == 64
    assert indexed.spilled_bytes == 0
    assert spilling.registers == (64 if arch == "sm_75" else 32), "what its launch bounds leave"
    assert spilling.spilled_bytes > 0
    assert spilling.stack_bytes > 0

    file = tmp_path / "known.cubin"
    file.write_bytes(cubin)
    used = nvidia_tool("cuobjdump", "--dump-resource-usage", file)
    for name in names:
        figures = report[mangled[name]]
        line = re.search(rf"Function {mangled[name]}:\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", used)
        registers, stack, shared = map(int, line.groups())
        assert (figures.registers, figures.stack_bytes) == (registers, stack)
        # On sm_90 the file's own figure includes what CUDA reserves, where there is any shared memory.
        assert shared - figures.static_shared_bytes in ({0, 1024} if arch == "sm_90" else {0})
        sass = nvidia_tool("cuobjdump", "-sass", "-fun", mangled[name], file)
        offsets = [int(offset, 16) for offset in re.findall(r"/\*([0-9a-f]{4,})\*/  ", sass)]
        assert machine_code.code_bytes(cubin, mangled[name]) == max(offsets) + 16


def nvidia_tool(name: str, *arguments: object) -> str:
    tool = build.triton_nvidia() / "bin" / name
    return subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def test_what_is_no_cubin_or_no_report_is_refused() -> None:
    with pytest.raises(ValueError, match="not a cubin"):
        machine_code.code_bytes(b"\x7fELF\x01\x01", "f")
    with pytest.raises(ValueError, match="no kernel other"):
        machine_code.code_bytes(build.cubin(KNOWN, ["indexed"], "sm_80")[0], "other")
    with pytest.raises(ValueError, match="does not read as expected"):
        machine_code.read_report("Compiling entry function 'f' for 'sm_90'\n")
    assert machine_code.read_report("") == {}


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


@for_each("arch", ["sm_75", "sm_80", "sm_90"])
def test_a_constant_written_by_hfma2_is_a_move_and_fmul_a_multiplication(arch: str) -> None:
    found = compiled(SCALED, "scaled", arch)
    assert any(one.opcode == "HFMA2.MMA" for one in found) == (arch == "sm_80"), (
        "ptxas moves a constant otherwise"
    )
    groups = mix(found)
    assert "fp16" not in groups
    assert groups["fp32"] == {"FMUL": 1}
    assert multiplications(found) == {"FMUL": 1}


@for_each(
    "source,kernel,loads,stores",
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


@for_each(
    "texts,expected",
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
