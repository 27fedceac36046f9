"""The pipeline's first screen: a line for each implementation, the most important in 25 lines."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from compare.pipeline import screen
from compare.pipeline.records import CacheEntry, CompilerStage, Opened, StageFailure
from compare.pipeline.summary import MOST_LINES, summary
from compare.resources.sass.disassembly import Instruction
from loops import for_each

STAGES = (CompilerStage("source", "Python", b"x"), CompilerStage("cubin", "ptxas", b"\0", took_ms=12.0))


def opened(label: str, *opcodes: str, arch: str = "sm_90") -> Opened:
    rows = tuple(Instruction(i, opcode, opcode, "", 0) for i, opcode in enumerate(opcodes))
    return Opened("op", label, "N=1,fp32", arch, "f", STAGES, instructions=rows)


def row(text: str, label: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"{label} "))
    return line.split()


def test_a_line_has_what_the_machine_code_does() -> None:
    every = [
        opened("triton.a", "LDG.E.128", "FFMA", "STG.E", "LDL", "EXIT"),
        opened("triton.a", "LDG.E", "HMMA.16816.F32"),  # its second kernel
        opened("cupy.b", "UBLKCP.S.G", "FMUL"),
    ]
    text = summary(every, "x[N] -> y[N]", 100)
    assert " ".join(row(text, "triton.a")) == "triton.a 24.0 7 128, 32 32 1 LDL, 0 STL - FFMA, HMMA.16816"
    assert row(text, "cupy.b")[:4] == ["cupy.b", "12.0", "2", "TMA"]


def test_both_routes_are_one_line_while_their_machine_code_is_equal() -> None:
    every = [
        opened("cupy.a", "FFMA"),
        opened("pybind.a", "FFMA"),
        opened("cupy.b"),
        opened("pybind.b", "FMUL"),
    ]
    labels = re.findall(r"(?m)^\w+\.\w+", summary(every, "x[N] -> y[N]", 100))
    assert labels == ["cuda.a", "cupy.b", "pybind.b"]


@for_each("width", [60, 80, 100_000])
def test_it_is_at_most_25_lines_however_much_there_is(width: int) -> None:
    many = [opened(f"triton.variant{i}", "FFMA", arch=arch) for arch in ("sm_80", "sm_90") for i in range(40)]
    message = "\n".join(f"line {i} of what the compiler wrote" for i in range(50))
    failed = [replace(many[i], failure=StageFailure("ptx", message)) for i in range(5)]
    left = [replace(many[-1], label=f"torch.n{i}", stages=(), unavailable="no source") for i in range(9)]
    text = summary([*failed, *many, *left], "x[N] -> y[N]", width)
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= width
    assert "FAILED  triton.variant0 for sm_80 at ptx" in text
    assert "and 3 more failed (--all)" in text
    shown = len(re.findall(r"(?m)^triton\.variant", text))
    assert f"and {40 - shown} more: --all" in text
    assert "not compiled: 9; --all says why" in text
    assert "compiled for sm_90 (sm_80: --all)" in text


@pytest.mark.parametrize("width", [60, 80])
def test_caches_begin_with_how_much_each_keeps(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", f"/home/{'a' * 60}")
    monkeypatch.setenv("COMPARE_CACHE_DIR", f"/home/{'a' * 60}/kept")
    monkeypatch.setenv("CUDA_CACHE_PATH", f"/home/{'a' * 10}")
    entry = CacheEntry("cupy", "kernel", "a" * 40, "/cache/a", {"a.cubin": 2000})
    every = [replace(opened(f"cupy.variant{i}"), cached=(entry,)) for i in range(40)]
    text = screen.on_disk(every, width, whole=False)
    assert len(text.splitlines()) <= MOST_LINES
    assert max(map(len, text.splitlines())) <= width
    assert {"~/kept", "/home/aaaaaaaaaa"} <= set(text.split())
    assert "cupy.variant0: cupy 1 files, 2 KB" in text
    assert re.search(r"and \d+ more\nNEXT  --caches --all", text)
    assert "a" * 40 in screen.on_disk(every, width)


def test_a_missing_compiler_is_one_sentence_beside_what_compiled() -> None:
    why = "no NVRTC: pip install 'nvidia-cuda-nvrtc==13.0.*'\nwhat its loader printed"
    without = [replace(opened(f"cupy.{name}"), stages=(), unavailable=why) for name in "ab"]
    other = replace(opened("cupy.c"), stages=(), unavailable="needs sm_90, this is sm_80")
    text = summary([opened("triton.a", "FFMA"), *without, other], "x[N] -> y[N]", 100)
    assert row(text, "triton.a")[2] == "1"
    assert f"\nnot compiled: cupy.a, cupy.b: {why.splitlines()[0]}\n" in text
    assert "its loader" not in text
    assert "\nnot compiled: 1 (cupy.c); --all says why\n" in text
