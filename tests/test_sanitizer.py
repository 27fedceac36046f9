"""NVIDIA's compute-sanitizer finds nothing in any kernel, and would find what is there to be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sanitizers import COMPUTE_SANITIZER, watched

from compare import registry

EVERY_KERNEL = Path(__file__).with_name("every_kernel.py")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

OUT_OF_BOUNDS = """
import torch, numpy as np
from cuda_impl.loader import kernel
source = 'extern "C" __global__ void past_the_end(float* ptr) { ptr[1 << 28] = 1.0f; }'
x = torch.zeros(16, device="cuda")
kernel(source, "past_the_end", x.device)((1,), (1,), (x.data_ptr(),))
torch.cuda.synchronize()
"""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        COMPUTE_SANITIZER is None, reason="compute-sanitizer is not on PATH (it is part of CUDA)"
    ),
]


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_is_found_in_any_kernel(tool: str) -> None:
    done = watched(tool, str(EVERY_KERNEL))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for name in registry.op_names():
        assert re.search(rf"^{name} cupy\.\w+: [1-9]", done.stdout, re.MULTILINE), done.stdout[-2000:]
        assert re.search(rf"^{name} triton\.\w+: [1-9]", done.stdout, re.MULTILINE), done.stdout[-2000:]


def test_a_write_out_of_bounds_is_found() -> None:
    done = watched("memcheck", "-c", OUT_OF_BOUNDS)
    assert done.returncode != 0
    assert "Invalid __global__ write" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
