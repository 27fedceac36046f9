"""`compare.check` and the fixture ``check_op``: the screen's verdict in a user's own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import compare
from compare import check
from compare.model.op import UsageError, case
from compare.registry import ROOT
from loops import for_each


def right(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def without_maximum(x: torch.Tensor) -> torch.Tensor:
    e = x.float().exp()
    return (e / e.sum(1, keepdim=True)).to(x.dtype)


def test_a_right_function_passes_on_all_inputs(device: torch.device) -> None:
    agreement = check("softmax", right, device=device)
    (hard,) = (finding for finding in agreement.findings if finding.name == "hard inputs")
    assert agreement.passed
    assert "5 layouts" in hard.detail


def test_a_wrong_one_raises_what_the_screen_says(device: torch.device) -> None:
    with pytest.raises(AssertionError) as error:
        check("softmax", without_maximum, device=device)
    text = str(error.value)
    assert text.startswith("WRONG  without_maximum on M=")
    for words in (",huge: ", "is the row maximum subtracted", "first at (0, ", "got nan, expected "):
        assert words in text, text


def test_the_cases_asked_for_come_first(device: torch.device) -> None:
    assert check("softmax", without_maximum, cases=["M=2,N=5,fp16"], hard_inputs=False, device=device).passed
    with pytest.raises(AssertionError, match=r"WRONG  triton.mine on M=2,N=5,fp32: values: .* 10 of 10"):
        check("softmax", torch.zeros_like, cases=[case(M=2, N=5)], label="triton.mine", device=device)


def test_what_a_function_does_not_support_does_not_count(device: torch.device) -> None:
    def half_only(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float16:
            raise NotImplementedError("fp16 only")
        return right(x)

    assert check("softmax", half_only, device=device).passed
    with pytest.raises(NotImplementedError, match="fp16 only"):
        check("softmax", half_only, cases=["M=2,N=5,fp32"], device=device)


def test_an_error_on_a_hard_input_is_wrong(device: torch.device) -> None:
    def narrow(x: torch.Tensor) -> torch.Tensor:
        if not x.is_contiguous():
            raise RuntimeError("contiguous only")
        return right(x)

    with pytest.raises(AssertionError, match="RuntimeError: contiguous only; wrong on "):
        check("softmax", narrow, device=device)


@for_each(
    "arguments, says",
    [
        ({"op": "sofmax"}, "no op 'sofmax': did you mean softmax?"),
        ({"op": "SOFTMAX"}, "did you mean softmax?"),
        ({"cases": ["M=2"]}, "N is missing"),
        ({"accumulator": "fp8"}, "no accumulator 'fp8': did you mean fp"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as error:
        check(**{"op": "softmax", "fn": right, **arguments})
    assert says in str(error.value)


def test_a_compiled_triton_kernel_on_cpu_tensors_is_refused_in_one_sentence() -> None:
    kernel = triton.runtime.jit.JITFunction(_copy)

    def mine(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel[(1,)](x, y)
        return y

    with pytest.raises(UsageError, match=r"_copy got CPU tensors.*set TRITON_INTERPRET=1 before triton"):
        check("softmax", mine, device="cpu")


def _copy(x_ptr, y_ptr):  # type: ignore[no-untyped-def]
    pass


def test_the_package_has_no_other_name() -> None:
    with pytest.raises(AttributeError, match="module 'compare' has no attribute 'chek'"):
        compare.chek  # noqa: B018


USER_TESTS = """
import sys

def test_start():
    assert "torch" not in sys.modules  # a run without the fixture does not pay for it

def test_right(check_op):
    import torch
    check_op("softmax", lambda x: torch.softmax(x, -1), hard_inputs=False)

def test_wrong(check_op):
    import torch
    check_op("softmax", lambda x: torch.zeros_like(x))
"""


@pytest.mark.thorough
def test_the_fixture_is_a_plugin_that_costs_nothing_unused(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(USER_TESTS)
    plugins = ("-p", "compare.pytest_plugin", "-p", "no:cacheprovider")
    words = (sys.executable, "-m", "pytest", "-W", "error", *plugins, "test_mine.py")
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "AssertionError: WRONG  <lambda> on M=8,N=1024,fp32: " in done.stdout
    assert "compare/api.py" not in done.stdout
