"""What host code a program can stand for, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from compare import registry
from compare.aot.plan import Pointer, ProgramPlan, plan
from compare.model.op import Implementation
from cuda_impl.loader import kernel as cuda_kernel
from loops import for_each
from processes import python

ADD = registry.get_op("vector_add")


@triton.jit
def twice_kernel(x_ptr, y_ptr, z_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    tl.store(z_ptr + n, tl.load(x_ptr + n, mask=n < N), mask=n < N)


def planned_of(run: Callable[..., Any]) -> ProgramPlan:
    impl = Implementation("vector_add", "triton.mine", "tiled", run)
    return plan(ADD, impl, ADD.cases.smoke[0], "sm_80")


def launch_twice(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    twice_kernel[(1,)](x, y, z, x.numel(), BLOCK=4096, num_warps=4)
    return z


def with_a_text(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.empty_like(x)
    twice_kernel[(1,)](x, y, z, "many", BLOCK=4096)
    return z


def with_a_tensor_map(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.empty_like(x)
    by_value = np.zeros(1, "V128")[0]
    cuda_kernel("vector_add", "f", x.device)((1,), (1,), (x.data_ptr(), by_value, z.data_ptr()))
    return z


@for_each(
    "run, why",
    [
        (
            lambda x, y: launch_twice(x, y, launch_twice(x, y, torch.empty_like(x))),
            r"launches 2 kernels \(twice_kernel, twice_kernel\)",
        ),
        (
            lambda x, y: launch_twice(x, y, torch.zeros_like(x)),
            "calls PyTorch's zeros_like beside the launch",
        ),
        (
            lambda x, y: launch_twice(x, y, torch.empty_like(x)) + y,
            "calls PyTorch's add beside the launch",
        ),
        (
            lambda x, y: launch_twice(x, torch.empty(4, device=x.device), torch.empty_like(x)),
            "memory besides inputs and output",
        ),
        (with_a_text, "argument N of its kernel is a str"),
        (lambda x, y: torch.empty_like(x), "launches nothing on N=4096,fp32"),
        (with_a_tensor_map, "argument arg1 of its kernel is 128 bytes by value, a tensor map"),
    ],
)
def test_what_a_program_cannot_do_is_refused(run: Callable[..., Any], why: str) -> None:
    with pytest.raises(NotImplementedError, match=why) as error:
        planned_of(run)
    assert "\n" not in str(error.value)


def test_an_argument_is_known_by_the_memory_it_points_into() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.empty(2 * x.numel(), device=x.device)[8 : 8 + x.numel()]
        return launch_twice(y[4:], x, z)

    found = planned_of(run)
    pointers = [a for a in found.arguments.values() if isinstance(a, Pointer)]
    assert pointers == [Pointer(1, 16), Pointer(0, 0), Pointer(2, 32)]
    assert found.memory[-1].bytes == 2 * 4096 * 4
    assert [memory.name for memory in found.memory] == ["x", "y", "z"]


OPTIONS = """
import json, torch, triton, triton.language as tl
from compare import registry
from compare.aot.building import compiled
from compare.aot.plan import plan
from compare.model.op import Implementation

@triton.jit
def scaled_kernel(x_ptr, z_ptr, factor, N, BLOCK: tl.constexpr, HOW: tl.constexpr = 0):
    n = tl.arange(0, BLOCK)
    tl.store(z_ptr + n, tl.load(x_ptr + n, mask=n < N) * factor, mask=n < N)

op = registry.get_op("vector_add")
asked = (2.5, {}), (1, {"num_warps": 8}), (3, {"num_ctas": 2}), (3, {"HOW": True, "maxnreg": 64})
for factor, options in asked:
    def run(x, y):
        z = torch.empty_like(x)
        scaled_kernel[(1,)](x, z, factor, x.numel(), BLOCK=4096, **options)
        return z
    try:
        impl = Implementation("vector_add", "triton.mine", "tiled", run)
        found = compiled(plan(op, impl, op.cases.smoke[0], "sm_90"))
        print(json.dumps([found.ctypes, found.block, found.hidden >= 0]))
    except NotImplementedError as error:
        print(error)
"""


@pytest.mark.thorough
def test_a_triton_kernel_s_arguments_are_those_left_at_run_time(tmp_path: Path) -> None:
    """An argument that is 1 is a constant; a kernel without options takes four warps."""
    script = tmp_path / "scaled.py"
    script.write_text(OPTIONS)
    folders = {"PYTHONPATH": str(registry.ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = python(script, ready="triton", **folders)
    assert done.returncode == 0, done.stderr
    by_value, one, clusters, options = done.stdout.splitlines()
    rest = {"x_ptr": "CUdeviceptr", "z_ptr": "CUdeviceptr", "N": "int32_t"}
    assert json.loads(by_value) == [rest | {"factor": "float"}, [128, 1, 1], True]
    assert json.loads(one) == [rest, [256, 1, 1], True]
    assert re.search("it is launched in clusters", clusters)
    assert json.loads(options) == [rest | {"factor": "int32_t"}, [128, 1, 1], True]
