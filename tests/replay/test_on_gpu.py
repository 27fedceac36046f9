"""Calls recorded, compiled again and replayed on a GPU: what is replayed, and what is unverified and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from compare import registry
from compare.model.op import Case, case
from compare.model.result import Timing
from compare.timing.rounds import Plan, Result
from compare.worker import user_files
from compare.worker.timing import REPLAYED
from in_workers import settings_on, timed
from loaded_files import own_registry

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

SOFTMAX = """
from compare.registry import implementation
from triton_impl.softmax import onepass


@implementation("softmax", "triton.own", level="tiled")
def own(x):
    return onepass(x)
"""

VECTOR_ADD = '''
import ctypes

import cupy
import numpy as np
import torch
import triton

from compare.registry import implementation
from cuda_impl.loader import kernel
from triton_impl.vector_add import blocked, vector_add_blocked_kernel

STAGED = """
extern "C" __global__ void staged(const float* x, const float* y, float* z, long long n) {
    extern __shared__ float tile[];
    float* own = tile + 15 * 1024 + threadIdx.x;
    for (long long i = blockIdx.x * 256 + threadIdx.x; i < n; i += 256 * gridDim.x) {
        *own = x[i];
        z[i] = *own + y[i];
    }
}
"""
CLUSTER = """
__global__ __cluster_dims__(2, 1, 1) void added(const float* x, const float* y, float* z, long long n) {
    unsigned blocks;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i < n) z[i] = blocks == 2 ? x[i] + y[i] : 0.0f;
}
"""
SCALED = """
__global__ void scaled(const float* x, const float* y, float* z, long long n, float by) {
    const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i < n) z[i] += by * (x[i] + y[i]);
}
"""
staged_kernel = cupy.RawKernel(STAGED, "staged")


def launched(source, name, x, y, z, *more, **options):
    n = x.numel()
    arguments = x.data_ptr(), y.data_ptr(), z.data_ptr(), np.int64(n), *more
    kernel(source, name, x.device)(((n + 511) // 512 * 2,), (256,), arguments, **options)
    return z


@implementation("vector_add", "triton.plain", level="tiled")
def plain(x, y):
    return blocked(x, y)


@implementation("vector_add", "triton.ctas", level="tiled", requires="sm_90")
def ctas(x, y):
    z = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 2048),)
    vector_add_blocked_kernel[grid](x, y, z, x.numel(), BLOCK_SIZE=2048, num_ctas=2)
    return z


@implementation("vector_add", "cupy.dynamic", level="tiled")
def dynamic(x, y):
    z = torch.empty_like(x)
    staged_kernel.max_dynamic_shared_size_bytes = 65536
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        arguments = x.data_ptr(), y.data_ptr(), z.data_ptr(), np.int64(x.numel())
        staged_kernel((256,), (256,), arguments, shared_mem=65536)
    return z


@implementation("vector_add", "cupy.in_cluster", level="tiled", requires="sm_90")
def in_cluster(x, y):
    return launched(CLUSTER, "added", x, y, torch.empty_like(x))


@implementation("vector_add", "cupy.two_kernels", level="tiled")
def two_kernels(x, y):
    workspace, z = torch.zeros_like(x), torch.zeros_like(x)
    launched(SCALED, "scaled", x, y, workspace, np.float32(0.5))
    return launched(SCALED, "scaled", workspace, workspace, z, np.float32(1.0))


kept = []


@implementation("vector_add", "cupy.kept", level="tiled")
def keeps_zeros(x, y):
    """Needs zeros that were allocated in an earlier call, and leaves them."""
    if not kept:
        kept.append(torch.zeros(256, device=x.device))
    z = torch.zeros_like(x)
    launched(SCALED, "scaled", x, y, z, np.float32(1.0))
    launched(SCALED, "scaled", kept[0], kept[0], z[:256], np.float32(1.0))
    return z


@implementation("vector_add", "cupy.library", level="tiled")
def library(x, y):
    return torch.add(x, y)


LIBCUDA = ctypes.CDLL("libcuda.so.1")
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)


@implementation("vector_add", "cupy.callback", level="tiled")
def callback(x, y):
    z = blocked(x, y)
    stream = torch.cuda.current_stream().cuda_stream
    LIBCUDA.cuLaunchHostFunc(ctypes.c_void_p(stream), CALLBACK, None)
    return z


@implementation("vector_add", "cupy.data", level="tiled")
def depends_on_data(x, y):
    if not torch.cuda.is_current_stream_capturing():
        depends_on_data.first = float(x[1])  # x[0] is a planted outlier
    launched(SCALED, "scaled", x, y, torch.zeros_like(x), np.float32(depends_on_data.first))
    return blocked(x, y)


@implementation("vector_add", "cupy.side_stream", level="tiled")
def side_stream(x, y):
    here, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        z = blocked(x, y)
    w = blocked(x, y)
    here.wait_stream(side)
    return blocked(z, w - w)


@implementation("vector_add", "cupy.variable", level="tiled")
def variable(x, y):
    source = "__device__ float one = 1.0f;\\n" + SCALED.replace("by *", "one * by *")
    return launched(source, "scaled", x, y, torch.zeros_like(x), np.float32(1.0))
'''

MATMUL = """
import torch

from compare.registry import implementation
from cuda_impl.launches.matmul import multicast, wgmma


@implementation("matmul", "cupy.own_tma", level="hopper", requires="sm_90a")
def own_tma(a, b):
    return wgmma(a, b)


@implementation("matmul", "cupy.own_cluster", level="hopper", requires="sm_90a")
def own_cluster(a, b):
    return multicast(a, b)


@implementation("matmul", "cupy.cublas", level="hopper")
def cublas(a, b):
    return torch.mm(a, b)
"""

SAME = {"triton.own", "triton.plain"}
"""Rows that launch the kernel of the row beside them."""
FEW = Plan(min_rounds=10, max_rounds=10, min_s=0.0)


def measured(folder: Path, text: str, beside: str, on: Case) -> dict[str, Result]:
    """The rows of a file, timed beside one of the project's own."""
    device, op = torch.device("cuda", torch.cuda.current_device()), registry.get_op(on_op(text))
    file = folder / "rows.py"
    file.write_text(text)
    with own_registry():
        user_files.load([str(file)])
        impls = [i for i in registry.implementations(op.name) if i.user_file or i.label == beside]
        first_calls_ms = {impl.label: 1.0 for impl in impls}
        return timed(op, impls, on, settings_on(device, 1.0, FEW), device, first_calls_ms, replayed=True)


def on_op(text: str) -> str:
    found = re.search(r'@implementation\("(\w+)"', text)
    return found[1]


def check(found: dict[str, Result], beside: str, reasons: dict[str, str]) -> None:
    """Every row is replayed, except those with a reason; one that is the same as ``beside`` is as fast."""
    wrong = {}
    for label in found.keys() - {beside}:
        result = found[label]
        if not isinstance(result, Timing):
            wrong[label] = repr(result)
        elif not re.search(reasons.get(label, "^$"), result.unverified) or not (
            (label in reasons) ^ (REPLAYED in result.notes)
        ):
            wrong[label] = f"{result.unverified} | {result.notes}"
        elif result.warm_us or result.graph_us or not result.hot_launch_us:
            wrong[label] = "warm times, or no launch overhead"
    assert wrong == {}
    for label in SAME & found.keys():
        mine, theirs = (cold_us(found[which]) for which in (label, beside))
        assert mine == pytest.approx(theirs, rel=0.05, abs=0.5), label


def cold_us(timing: Result) -> float:
    assert isinstance(timing, Timing)
    return timing.cold_us.median


def test_a_triton_softmax(tmp_path: Path) -> None:
    check(measured(tmp_path, SOFTMAX, "triton.onepass", case("fp32", M=4096, N=4096)), "triton.onepass", {})


def test_kernels_of_every_kind(tmp_path: Path) -> None:
    reasons = {
        "cupy.library": "CUDAFunctor_add.*a library's kernel",
        "cupy.callback": "a host callback: compute on the GPU only",
        "cupy.data": "depend on data: a parameter of",
        "cupy.side_stream": "current stream only",
        "cupy.variable": "__device__",
    }
    found = measured(tmp_path, VECTOR_ADD, "triton.blocked", case("fp32", N=1 << 22))
    check(found, "triton.blocked", reasons)


def test_tensor_maps_clusters_and_a_library(tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90a")
    found = measured(tmp_path, MATMUL, "triton.tiled", case("bf16", M=1024, N=1024, K=1024))
    check(found, "triton.tiled", {"cupy.cublas": "a library's kernel"})
