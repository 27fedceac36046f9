"""Ways to launch a kernel: each works in the sandbox, or one sentence says what to write instead."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import made_up
from compare import registry, run
from compare.model.op import UsageError, case
from compare.model.result import Options, Row
from compare.sandbox.words import instead_of
from compare.worker import user_files
from conftest import HAS_GPU
from loaded_files import compared, implemented, rows_of
from loops import for_each

pytestmark = pytest.mark.usefixtures("own_registry")

KERNEL = """
extern "C" __global__ void add(const float* x, const float* y, float* z, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
"""
BEGINNING = f"""
import torch

from compare.registry import implementation

KERNEL = r'''{KERNEL}'''


@implementation("vector_add", "cupy.mine", level="naive")
def mine(x, y):
    x, y = x.contiguous(), y.contiguous()
    z = torch.empty_like(x)
    if x.numel():
        launch(x, y, z, (x.numel() + 255) // 256)
    return z


"""
ROUTES = {
    "RawKernel": """
import cupy

kernel = cupy.RawKernel(KERNEL, "add")


def launch(x, y, z, blocks):
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        kernel((blocks,), (256,), (x.data_ptr(), y.data_ptr(), z.data_ptr(), x.numel()))
""",
    "ElementwiseKernel": """
import cupy

kernel = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x + y", "add")


def launch(x, y, z, blocks):
    x, y, z = map(cupy.from_dlpack, (x, y, z))
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        kernel(x, y, z)
""",
    "numba.cuda": """
from numba import cuda


@cuda.jit
def kernel(x, y, z):
    i = cuda.grid(1)
    if i < z.size:
        z[i] = x[i] + y[i]


def launch(x, y, z, blocks):
    stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
    kernel[blocks, 256, stream](*map(cuda.as_cuda_array, (x, y, z)))
""",
    "cuda.core": """
from cuda.core import Device, LaunchConfig, Program, ProgramOptions
from cuda.core import launch as launch_on

kernels = []


class Stream:
    def __cuda_stream__(self):
        return 0, torch.cuda.current_stream().cuda_stream


def launch(x, y, z, blocks):
    device = Device(x.device.index)
    device.set_current()
    if not kernels:
        program = Program(KERNEL, "c++", ProgramOptions(arch=f"sm_{device.arch}"))
        kernels.append(program.compile("cubin").get_kernel("add"))
    sizes = LaunchConfig(grid=blocks, block=256)
    pointers = (tensor.data_ptr() for tensor in (x, y, z))
    launch_on(device.create_stream(Stream()), sizes, kernels[0], *pointers, x.numel())
""",
    "load_inline": """
from torch.utils.cpp_extension import load_inline

LAUNCH = '''
void launch(torch::Tensor x, torch::Tensor y, torch::Tensor z, int64_t blocks) {
  add<<<blocks, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), z.data_ptr<float>(), x.numel());
}
'''
INCLUDED = "#include <ATen/cuda/CUDAContext.h>\\n"
DECLARED = "void launch(torch::Tensor x, torch::Tensor y, torch::Tensor z, int64_t blocks);"
launch = load_inline("mine", DECLARED, INCLUDED + KERNEL + LAUNCH, functions=["launch"]).launch
""",
}
NEEDED = {
    "RawKernel": "cupy",
    "ElementwiseKernel": "cupy",
    "numba.cuda": "numba",
    "cuda.core": "cuda.core",
}
INSTEAD = "launch CUDA text with cuda_impl.loader.kernel(text, name, x.device), which runs without a GPU too"


def row_of(text: str, device: str, folder: Path) -> Row:
    file = folder / "mine.py"
    file.write_text(BEGINNING + text)
    user_files.load([str(file)])
    options = Options(
        (case("fp32", N=1 << 20),), only=("cupy.mine",), device=device, hard_inputs=False, budget_s=1.0
    )
    with made_up.compiled_by(made_up.NoCompilation):
        comparison = run.run(registry.get_op("vector_add"), options, results=folder)
    return rows_of(comparison)["cupy.mine"]


def is_installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.gpu
@pytest.mark.timeout(400)
@pytest.mark.parametrize("route", ROUTES)
def test_it_works_on_a_gpu(route: str, tmp_path: Path) -> None:
    if not is_installed(NEEDED.get(route, "torch")):
        pytest.skip(f"{NEEDED[route]} is not installed")
    if route == "numba.cuda" and not hasattr(np, "row_stack"):
        pytest.skip("numba needs an older numpy")
    if route == "load_inline" and not (shutil.which("nvcc") and shutil.which("ninja")):
        pytest.skip("load_inline needs nvcc and ninja")
    row = row_of(ROUTES[route], "cuda", tmp_path)
    assert row.status == "ok", row.reason


def raised_by(route: str) -> Exception:
    """What a route raises in this process, without a GPU."""
    names: dict[str, Any] = {"torch": torch, "KERNEL": KERNEL}
    x = torch.ones(4)
    try:
        exec(ROUTES[route], names)
        names["launch"](x, x, torch.empty(4), 1)
    except Exception as error:
        return error
    raise AssertionError("it works")


@pytest.mark.skipif(HAS_GPU, reason="there it works")
@for_each(
    "route, says",
    [
        ("RawKernel", f"torch.cuda needs a GPU: make tensors with device=x.device, and {INSTEAD}"),
        ("ElementwiseKernel", f"cupy needs a GPU: {INSTEAD}"),
        ("numba.cuda", f"numba is not installed: pip install numba-cuda, or {INSTEAD}"),
        ("cuda.core", f"cuda.core is not installed: pip install cuda-core, or {INSTEAD}"),
        (
            "load_inline",
            "load_inline and load need nvcc, ninja and CUDA_HOME: install the CUDA toolkit, or " + INSTEAD,
        ),
    ],
)
def test_without_a_gpu_it_says_what_to_write(route: str, says: str) -> None:
    if "not installed" in says and is_installed(NEEDED[route]):
        pytest.skip(f"{NEEDED[route]} is installed")
    assert instead_of(raised_by(route), gpu=False) == says


def test_other_errors_say_nothing_of_a_gpu() -> None:
    errors = ValueError("CUDA_HOME"), ModuleNotFoundError("mine", name="mine"), UsageError("cupy")
    assert [instead_of(error, gpu=False) for error in errors] == [""] * 3


@pytest.mark.thorough
@pytest.mark.skipif(HAS_GPU, reason="there it works")
def test_a_row_that_needs_a_gpu_is_not_run(tmp_path: Path) -> None:
    row = row_of(ROUTES["RawKernel"], "cpu", tmp_path)
    assert row.status == "unavailable"
    assert row.reason.startswith("torch.cuda needs a GPU: ")


@pytest.mark.thorough
@pytest.mark.skipif(HAS_GPU, reason="there the driver answers")
def test_host_code_that_asks_for_a_gpu_s_properties_runs_without_one(tmp_path: Path) -> None:
    asks = (
        "from triton.runtime import driver\n"
        "COUNT = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count\n"
        "DEVICE = driver.active.get_active_torch_device()\n"
        "assert driver.active.utils.get_device_properties(DEVICE.index)['multiprocessor_count'] == COUNT\n"
        "assert torch.cuda.get_device_capability() == (9, 0)\n"
    )
    code = "with torch.cuda.device(x.device): assert x.device == DEVICE"
    row = rows_of(compared(tmp_path / "asks.py", asks + implemented("asks", code), "triton.asks"))[
        "triton.asks"
    ]
    assert row.status == "ok", row.reason


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja builds extensions")
def test_an_extension_is_built_in_the_sandbox(tmp_path: Path) -> None:
    """On a CPU there is no kernel of its own in C++, which is right."""
    text = """
from torch.utils.cpp_extension import load_inline

CODE = "void launch(torch::Tensor x, torch::Tensor y, torch::Tensor z, int64_t n) { at::add_out(z, x, y); }"
launch = load_inline("mine", CODE, functions=["launch"]).launch
"""
    reason = row_of(text, "cpu", tmp_path).reason
    assert "it called PyTorch's aten::add in place of its own code" in reason
