"""An endless loop ends when its time is over, and its row names the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare.labs.running import HandedIn, run

CASE = "N=1000,fp32"
HEAD = """
import numpy as np, torch, triton, triton.language as tl
from compare.registry import implementation
from cuda_impl.loader import kernel
"""
PYTHON = """
@implementation("vector_add", "torch.mine", level="naive")
def mine(x, y):
    while True:  # / here
        z = x + y  # / here
"""
DEAF = """
import signal

@implementation("vector_add", "torch.mine", level="naive")
def mine(x, y):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    while True:
        pass
"""
TRITON = """
@triton.jit
def add_kernel(x_ptr, y_ptr, z_ptr, N, BLOCK: tl.constexpr):
    start = 0
    while start < N:  # / here
        tl.store(z_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + tl.arange(0, BLOCK)))  # / here

@implementation("vector_add", "triton.mine", level="tiled")
def mine(x, y):
    z = torch.empty_like(x)
    add_kernel[(1,)](x, y, z, len(x), BLOCK=128, num_warps=1)
    return z
"""
CUDA = '''
SOURCE = r"""
extern "C" __global__ void add(const float* x, const float* y, float* z, int n) {
    int i = threadIdx.x;
    while (i < n) { z[i] = x[i] + y[i]; i += z[i] > 1e30f; }  // here
}
"""

@implementation("vector_add", "cupy.mine", level="naive")
def mine(x, y):
    z = torch.empty_like(x)
    pointers = x.data_ptr(), y.data_ptr(), z.data_ptr()
    kernel(SOURCE, "add", x.device)((1,), (64,), (*pointers, np.int32(x.numel())))
    return z
'''


@pytest.mark.thorough
@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(PYTHON, id="Python", marks=pytest.mark.exhaustive),
        pytest.param(DEAF, id="deaf", marks=pytest.mark.exhaustive),
        pytest.param(TRITON, id="Triton", marks=pytest.mark.exhaustive),
        pytest.param(CUDA, id="CUDA"),
    ],
)
def test_an_endless_loop_ends_with_its_line(code: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEAD + code)
    done = run("vector_add", [CASE], ["*.mine"], "cpu", 8.0, HandedIn(file))
    row = done.row(CASE, "*.mine")
    assert row is not None, done.error
    assert row.status == "failed"
    assert "took longer than 8 s, the limit for building and the first call" in row.reason
    lines = enumerate(file.read_text().split("\n"), 1)
    here = {f"; it was at mine.py:{number}" for number, line in lines if line.endswith("/ here")}
    assert row.reason.partition("(--timeout)")[2] in (here or {""})
