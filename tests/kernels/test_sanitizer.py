"""NVIDIA's compute-sanitizer reports nothing for any kernel, and does report a planted error."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import every_kernel
from compare import registry
from compare.device import supports
from loops import for_each
from sanitizers import COMPUTE_SANITIZER, watched

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

OUT_OF_BOUNDS = """
import torch, numpy as np
from cuda_impl.loader import kernel
source = 'extern "C" __global__ void past_the_end(float* ptr) { ptr[1 << 28] = 1.0f; }'
x = torch.zeros(16, device="cuda")
kernel(source, "past_the_end", x.device)((1,), (1,), (x.data_ptr(),))
torch.cuda.synchronize()
"""


def on_a_gpu(test: Callable[..., None]) -> Callable[..., None]:
    missing = pytest.mark.skipif(
        COMPUTE_SANITIZER is None, reason="compute-sanitizer is not on PATH (it is part of CUDA)"
    )
    return pytest.mark.gpu(missing(test))


@for_each("op", registry.op_names())
def test_every_kernel_is_among_those_that_are_watched(op: str) -> None:
    """pybind's kernels are those of cupy."""
    seen = {impl.label for impl in every_kernel.watched(op)}
    unseen = {i.label for i in registry.implementations(op) if i.has_own_kernels} - seen
    assert {label.replace("pybind.", "cupy.") for label in unseen} <= seen
    assert {label.partition(".")[0] for label in seen} == {"triton", "cupy"}


def test_what_takes_no_small_case_is_run_on_a_larger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = registry.get_op("vector_add").cases
    monkeypatch.setattr(every_kernel, "pick", lambda word: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(every_kernel, "small", lambda op: [])
    monkeypatch.setattr(every_kernel, "larger", lambda op: iter([cases.smoke[0], cases.default]))
    every_kernel.main(["vector_add"], ["triton.blocked"])
    assert capsys.readouterr().out == "vector_add triton.blocked: 1 cases\n"


@on_a_gpu
@pytest.mark.parametrize("op", registry.op_names())
@pytest.mark.parametrize("tool", TOOLS)  # one after another, so that the others find what the first has built
def test_nothing_is_found_in_any_kernel(tool: str, op: str) -> None:
    device = torch.device("cuda")
    labels = [impl.label for impl in every_kernel.watched(op) if supports(impl, device) is None]
    assert {label.partition(".")[0] for label in labels} == {"triton", "cupy"}
    done = watched(tool, every_kernel.__file__, op)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for label in labels:
        assert re.search(rf"^{op} {re.escape(label)}: [1-9]", done.stdout, re.MULTILINE), done.stdout[-2000:]


@on_a_gpu
def test_a_write_out_of_bounds_is_found() -> None:
    done = watched("memcheck", "-c", OUT_OF_BOUNDS)
    assert done.returncode != 0
    assert "Invalid __global__ write" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
