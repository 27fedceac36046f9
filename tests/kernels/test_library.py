"""A library's own kernels as a reference: shown in the table, never named the fastest way."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import made_up
from beside import cold_speeds
from compare import registry
from compare.device import supports
from compare.history import crossover
from compare.history.map import Point, with_front
from compare.model.op import DTYPES, LIBRARY, WAYS, Implementation
from compare.report.sentences import sentences
from compare.timing.rounds import Plan
from cuda_impl import build, flags, pybind
from loops import for_each

pytestmark = pytest.mark.thorough

YARDSTICKS = [
    impl for op in registry.op_names() for impl in registry.implementations(op) if impl.route == LIBRARY
]
every_yardstick = for_each("impl", YARDSTICKS, ids=lambda impl: f"{impl.op} {impl.label}")

AGAINST = {
    "reduce_sum": ("cupy.last_block", ("N=268435456,fp32", "N=268435456,bf16")),
    "compact": ("cupy.ring", ("N=268435456,K=134217728,fp32", "N=268435456,K=134217728,bf16")),
    "scan": ("cupy.lookback", ("M=1,N=268435456,fp32", "M=1,N=268435456,fp16")),
    "histogram": ("cupy.lanes", ("N=1073741824,SKEW=0,uint8", "N=1073741824,SKEW=90,uint8")),
}
"""By op: the implementation that must be as fast, and its cases, larger than any cache."""


def test_those_that_are_promised_are_there() -> None:
    assert {(impl.op, impl.label) for impl in YARDSTICKS} == {(op, "library.cub") for op in AGAINST}


@every_yardstick
def test_it_is_none_of_the_ways_and_on_a_cpu_its_row_says_why_it_is_not_there(impl: Implementation) -> None:
    assert impl.level == "vendor"
    assert impl.way not in WAYS
    assert registry.implementations(impl.op)[-1] == impl
    reason = supports(impl, torch.device("cpu"))
    assert reason is not None
    assert "needs a GPU" in reason
    assert pybind.building([impl], torch.device("cpu"), DTYPES) == {}


@every_yardstick
def test_g_plus_plus_is_never_asked_for_it(impl: Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(build, "pybind_module", lambda *_: pytest.fail("a module was asked for"))
    for argument in (torch.ones(4), [1.0], 3.0):
        with pytest.raises(TypeError, match=f"{impl.op}: tensors are on cpu; it takes tensors on cuda$"):
            impl.run(argument)  # type: ignore[arg-type]


def test_without_its_headers_the_row_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("compare.device.arch", lambda device: "sm_90")
    monkeypatch.setattr(build.pathfinder, "find_nvidia_header_directory", lambda name: None)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.touch()
    monkeypatch.setattr(build, "nvcc", lambda: nvcc)
    build.cccl_include.cache_clear()
    try:
        reason = supports(YARDSTICKS[0], torch.device("cuda"))
        assert reason is not None
        assert "cuda-toolkit[cccl]" in reason
        assert "\n" not in reason
        (tmp_path / "include" / "cub").mkdir(parents=True)
        (tmp_path / "include" / "cub" / "cub.cuh").touch()
        assert supports(YARDSTICKS[0], torch.device("cuda")) is None
    finally:
        build.cccl_include.cache_clear()


@every_yardstick
def test_the_compiler_finds_all_that_it_includes(impl: Implementation) -> None:
    """The compiler lists the included files: a full compilation takes half a minute, and GPU tests do it."""
    name = f"{LIBRARY}/{impl.op}"
    command = [*build._nvcc_module_command(name, ("sm_90",)), "-M", build.PYBIND / f"{name}.cu"]
    words = [str(word) for word in command if str(word) not in ("-shared", "-Xptxas=-v")]
    listed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    files = {Path(word).name for word in listed.stdout.replace("\\\n", " ").split()}
    assert {f"{impl.op}.cu", "cub.h", "tensor.h"} <= files
    assert any(f.startswith("device_") and f.endswith(".cuh") for f in files)
    assert flags.target("sm_90") in " ".join(words)


APART = {"torch.eager": ("vendor", 90.0), "triton.onepass": ("tiled", 60.0), "cupy.onepass": ("tiled", 50.0)}


def test_the_fastest_way_is_one_that_is_written_here() -> None:
    (case,) = made_up.comparison().cases[:1]
    case = replace(case, rows=made_up.rows({**APART, "library.cub": ("vendor", 30.0)}))
    assert [row.label for row in crossover.best_of_ways(case).values()] == [
        "cupy.onepass",
        "triton.onepass",
        "torch.eager",
    ]
    said = " ".join(sentences(made_up.comparison(case)))
    assert "cupy.onepass is the fastest" in said
    assert "cupy.onepass: speedup 0.60x (0.58-0.62) vs library.cub" in said


def test_it_is_no_step_of_the_front() -> None:
    def point(label: str, tokens: int, share: float) -> Point:
        return Point("op", label, 9, tokens, share, share, share, 1, 1, 0.01, False, False)

    found = with_front([point("library.cub", 10, 0.9), point("triton.a", 20, 0.5), point("cupy.a", 30, 0.8)])
    assert [(p.label, p.front) for p in found] == [
        ("library.cub", False),
        ("triton.a", True),
        ("cupy.a", True),
    ]


EQUAL = 1 - Plan().tight
"""Least speedup that counts as equal: rounds end when a ratio is known to this precision."""


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize(("op", "text"), [(op, text) for op, (_, texts) in AGAINST.items() for text in texts])
def test_ours_is_as_fast(op: str, text: str) -> None:
    ours, _ = AGAINST[op]
    speed = cold_speeds(op, ours, "library.cub", text, budget_s=20)[ours]
    said = f"speedup {speed.median:.3f} vs. CUB, {speed.low:.3f} to {speed.high:.3f}"
    assert speed.median >= EQUAL, said
