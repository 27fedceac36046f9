"""Registers, shared memory and spills of cubins whose figures are known."""

from __future__ import annotations

import doctest
import re
import subprocess
from pathlib import Path

import pytest

from compare.resources import machine_code
from cuda_impl import build

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


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(machine_code)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
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
        assert line is not None
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
