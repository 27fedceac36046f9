"""A CUDA file given to ``--load``: a line in it launches the kernel; a wrong line says what to write."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

import made_up
from compare import registry, run
from compare.api import check
from compare.code_size.count import CountedKernel, Launched, code_size
from compare.model.op import UsageError
from compare.model.result import Options
from compare.worker import user_files
from cuda_impl.source import advice
from loaded_files import SMALL, rows_of
from loops import for_each

pytestmark = pytest.mark.usefixtures("imported", "own_registry")

ADD = """// compare: add(x, y, z, N) grid (N + 63) / 64 block 64
__global__ void add(const float* x, const float* y, float* z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] + y[i];
}
"""
SOFTMAX = """
#include <cuda_fp16.h>
template <typename T, int THREADS>
__global__ __launch_bounds__(THREADS) void softmax(const T* __restrict__ x, T* y, long row, long step, int N)
{
    extern __shared__ float sums[];
    x += blockIdx.x * row;
    float most = -INFINITY, sum = 0.0f;
    for (int n = 0; n < N; ++n) most = fmaxf(most, (float)x[n * step]);
    for (int n = threadIdx.x; n < N; n += THREADS) sum += expf((float)x[n * step] - most);
    sums[threadIdx.x] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int t = 0; t < THREADS; ++t) sum += sums[t];
    for (int n = threadIdx.x; n < N; n += THREADS)
        y[blockIdx.x * (long long)N + n] = (T)(expf((float)x[n * step] - most) / sum);
}
// compare: softmax<float, 32>(x, y, x.stride0, x.stride1, N) grid M block 32 shared 4*32
// compare softmax: softmax<dtype, 8>(x, y, x.stride0, x.stride1, N) grid M block 8 shared 32 as wide
"""
SUM = """
// compare reduce_sum: total(x, y, N) zero y grid (N + 31) / 32, 1 block 8, 4
extern "C" __global__ void total(const float* x, float* y, int N) {
    int n = blockIdx.x * 32 + threadIdx.y * 8 + threadIdx.x;
    if (n < N) atomicAdd(y, x[n]);
}
"""
SCALED = """
// compare layer_norm: norm(x, weight, bias, y, N, 1e-5f) grid M block 1
__global__ void norm(const float* x, const float* weight, const float* bias, float* y, int N, float eps) {
    x += blockIdx.x * N; y += blockIdx.x * N;
    float mean = 0, var = 0;
    for (int n = 0; n < N; ++n) mean += x[n] / N;
    for (int n = 0; n < N; ++n) var += (x[n] - mean) * (x[n] - mean) / N;
    for (int n = 0; n < N; ++n) y[n] = (x[n] - mean) * rsqrtf(var + eps) * weight[n] + bias[n];
}
"""


@pytest.fixture(scope="module")
def imported() -> None:
    """The project's own rows are registered before a test's registry, which is put back after it."""
    for op in ("softmax", "reduce_sum", "layer_norm"):
        registry.implementations(op)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("op", "text", "label"),
    [
        ("vector_add", "\ufeff" + ADD, "cupy.add"),  # a byte-order mark
        ("softmax", SOFTMAX, "cupy.softmax"),
        ("softmax", SOFTMAX, "cupy.wide"),
        ("reduce_sum", SUM, "cupy.total"),
        ("layer_norm", SCALED, "cupy.norm"),
    ],
)
def test_a_line_launches_a_kernel(
    op: str, text: str, label: str, tmp_path: Path, device: torch.device
) -> None:
    registry.load(str(written(tmp_path / "mine.cu", text)), op)
    (impl,) = registry.implementations(op, [label])
    assert check(op, impl.run, device=device, hard_inputs=op in ("vector_add", "softmax")).passed


def test_dtype_in_a_template_needs_its_header(tmp_path: Path, device: torch.device) -> None:
    registry.load(str(written(tmp_path / "mine.cu", SOFTMAX)), "softmax")
    (impl,) = registry.implementations("softmax", ["cupy.wide"])
    assert check("softmax", impl.run, cases=["M=4,N=5,fp16"], hard_inputs=False, device=device).passed
    with pytest.raises(NotImplementedError, match=r"needs #include <cuda_bf16.h>"):
        check("softmax", impl.run, cases=["M=4,N=5,bf16"], device=device)


def test_a_kernel_of_another_dtype_is_not_supported(tmp_path: Path, device: torch.device) -> None:
    registry.load(str(written(tmp_path / "mine.cu", ADD)), "vector_add")
    (impl,) = registry.implementations("vector_add", ["cupy.add"])
    with pytest.raises(NotImplementedError, match=r"mine.cu:1: add takes x as float, not float16"):
        check("vector_add", impl.run, cases=["N=64,fp16"], device=device)


@for_each(
    "text, says",
    [
        (ADD.replace("// compare", "// "), "write one such as // compare: add(x, y, z, N) grid N block 256"),
        ("int x;", "it has no __global__ function"),
        (ADD.replace("add(x, y, z, N)", "add(x, y, z, M)"), "line 1: no size of vector_add 'M': there are N"),
        (
            ADD.replace("add(x, y, z, N)", "add(x, y, z)"),
            "takes 4 arguments (x, y, z, n), and the line has 3",
        ),
        (ADD.replace("add(x, y, z, N)", "add(x, y, N, z)"), "parameter float* z takes a tensor of the op"),
        (ADD.replace("add(x, y, z, N)", "addd(x, y, z, N)"), "__global__ function 'addd': did you mean add"),
        (ADD.replace("grid (N + 63) / 64", "grid len(N)"), "'len(N)' is no expression of sizes"),
        (ADD.replace("grid (N + 63) / 64", "grid N.real"), "'N.real' is no expression of sizes"),
        (ADD.replace("grid (N + 63) / 64", "grid x.stride1"), "no size of vector_add 'x.stride1'"),
        (ADD.replace("grid (N + 63) / 64", "grid 2 ** N"), "'2 ** N' is no expression of sizes"),
        (ADD.replace("grid (N + 63) / 64", "grid N, 1, 1, 1"), "grid N, 1, 1, 1: give 3 at most"),
        (ADD.replace("block 64", ""), "does not read like my_kernel(x, y, M, N) grid M block 256"),
        (ADD.replace("block 64", "block 64 zero x"), "zero x: outputs of vector_add are z"),
        (ADD.replace("block 64", "block 64 level fast"), "level 'fast' is none of naive"),
        (ADD.replace("compare:", "compare softmax:"), "nothing of vector_add, but of softmax"),
        (ADD.splitlines()[0] + "\n" + ADD, "has a cupy.add already"),
    ],
    ids=lambda case: case[1],
)
def test_a_line_that_does_not_fit_says_what_to_write(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        user_files.load([str(written(tmp_path / "mine.cu", text))], "vector_add")
    assert says in str(error.value)
    assert str(error.value).startswith(f"--load {tmp_path}/mine.cu")


def test_without_an_op_the_line_names_it(tmp_path: Path) -> None:
    file = str(written(tmp_path / "mine.cu", ADD))
    with pytest.raises(UsageError, match="line 1: name the op, // compare OP: add"):
        user_files.load([file])
    written(tmp_path / "mine.cu", ADD.replace("compare:", "compare vector_add:"))
    user_files.load([file])
    assert registry.implementations("vector_add", ["cupy.add"])


def test_its_code_is_the_kernel_s(tmp_path: Path) -> None:
    text = "\ufeff" + ADD + "int main() { return 0; }\n"
    user_files.load([str(written(tmp_path / "mine.cu", text))], "vector_add")
    (impl,) = registry.implementations("vector_add", ["cupy.add"])
    size = code_size(impl, Launched((CountedKernel("add", ADD),)))
    assert (size.kernel.lines, size.lines) == (4, 4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("i < n", "i < n", ""),
        ("x[i] + y[i]", "x[i] - y[i]", "elements are wrong"),
        ("i < n", "i < m", "mine.cu:4: "),
    ],
)
def test_a_worker_runs_it(old: str, new: str, says: str, tmp_path: Path) -> None:
    user_files.load([str(written(tmp_path / "mine.cu", ADD.replace(old, new)))], "vector_add")
    options = Options(cases=(SMALL,), only=("cupy.add",), device="cpu", hard_inputs=False)
    with made_up.compiled_by(made_up.NoCompilation):
        row = rows_of(run.run(registry.get_op("vector_add"), options, results=tmp_path))["cupy.add"]
    assert (row.status == "ok") == (not says), row.reason
    assert says in row.reason


def test_the_pasted_file_of_the_page_is_a_row_after_its_diff(tmp_path: Path, device: torch.device) -> None:
    page = (registry.ROOT / "docs" / "your-own-kernel.md").read_text()
    pasted, diff = (re.search(rf"(?ms)^```{kind}\n(.*?)^```$", page) for kind in ("cuda", "diff"))
    file = written(tmp_path / "my.cu", pasted[1])
    with pytest.raises(UsageError, match=re.escape("// compare: softmax_kernel(x, y, N) grid M block 256")):
        user_files.load([str(file)], "softmax")
    patch = f"--- a/my.cu\n+++ b/my.cu\n{diff[1]}"
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    registry.load(str(file), "softmax")
    (impl,) = registry.implementations("softmax", ["cupy.softmax_kernel"])
    assert check("softmax", impl.run, device=device).passed
    assert advice(file.read_text()) == ""
