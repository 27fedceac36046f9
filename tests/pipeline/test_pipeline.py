"""Every op through every compiler, stage by stage, and what is read from their texts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import case_sets
from compare import registry
from compare.cli import main
from compare.device import lacks
from compare.pipeline import caches, cuda_way, opening, triton_way
from compare.pipeline.opening import open_op
from compare.pipeline.records import CompilerStage, Opened, OpenedOp, OpenRequest
from compare.resources.sass import disassembly as sass
from compare.resources.sass.disassembly import nvdisasm
from cuda_impl import build
from loops import for_each
from processes import command, python

ARCH = "sm_80"
"""Softmax's and matmul's kernels differ most from Hopper's here, and everything but theirs is served."""

STAGES = {
    "triton": triton_way.STAGES,
    "cupy": ("source", "ptx", "cubin", "sass"),
    "pybind": cuda_way.NVCC_STAGES,
}


Ran = subprocess.CompletedProcess[str]
pipeline = partial(command, "pipeline")


@dataclass(frozen=True)
class Everything:
    """Implementations of an op, opened up."""

    ran: Ran
    kernels: list[dict[str, Any]]
    files: Path
    arch: str


def labels_of(op: str) -> list[str]:
    return case_sets.watched(op, case_sets.in_turn(op))


def arch_of(op: str) -> str:
    """`ARCH`, or Hopper where none of them is for that."""
    impls = registry.implementations(op, labels_of(op))
    return ARCH if any(not impl.requires or not lacks(impl.requires, ARCH) for impl in impls) else "sm_90"


@pytest.fixture(scope="module", params=case_sets.every(4))
def everything(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    folder = tmp_path_factory.mktemp(request.param)
    file, files = folder / "all.json", folder / "stages"
    only = [word for label in labels_of(request.param) for word in ("--only", label)]
    arch = arch_of(request.param)
    ran = pipeline(request.param, *only, "--arch", arch, "--all", "--json", file, "--out", files)
    assert file.is_file(), ran.stderr
    return Everything(ran, json.loads(file.read_text()), files, arch)


def test_every_implementation_passes_through_every_stage(everything: Everything):
    assert everything.ran.returncode == 0, everything.ran.stderr
    op = everything.kernels[0]["op"]
    assert {kernel["label"] for kernel in everything.kernels} == set(labels_of(op))
    impls = {impl.label: impl for impl in registry.implementations(op)}
    shown = re.sub(r"\s", "", everything.ran.stdout)  # long names go over several lines
    assert "Instructions on" in everything.ran.stdout
    for kernel in everything.kernels:
        label = kernel["label"]
        assert label in shown
        assert kernel["kernel"].replace(" ", "") in shown
        assert kernel["failure"] is None, label
        impl = impls[label]
        if kernel["unavailable"]:
            compiled = impl.way not in ("torch", "library")
            reason = kernel["unavailable"]
            assert not compiled or impl.requires or "is autotuned" in reason or "at most" in reason, kernel
            continue
        gluon = impl.way == "triton" and not impl.without_gpu  # which begins where layouts are known
        expected = tuple(name for name in STAGES[impl.route] if not (gluon and name == "ttir"))
        assert tuple(stage["name"] for stage in kernel["stages"]) == expected, label
        for stage in kernel["stages"]:
            assert stage["size_bytes"], (label, stage["name"])
            assert stage["took_ms"] is not None or stage["name"] in ("source", "module")
        if impl.route == "pybind":  # nvcc's commands are its own
            commands = {stage["name"]: stage["command"] for stage in kernel["stages"]}
            for name, tool in (("ptx", "cicc"), ("cubin", "ptxas"), ("fatbin", "fatbinary")):
                assert tool in commands[name].split()[0]


def test_instructions_are_those_of_the_disassembler_with_their_lines(everything: Everything):
    """Counted by its JSON, which nothing of ours reads otherwise."""
    compiled = [kernel for kernel in everything.kernels if not kernel["unavailable"]]
    assert compiled
    for kernel in compiled:
        folder = re.sub(r"\W+", "_", kernel["kernel"]).strip("_")
        (cubin,) = everything.files.glob(f"{kernel['label']}/{everything.arch}/{folder}/*.cubin")
        done = subprocess.run([nvdisasm(), "-json", cubin], capture_output=True, text=True, check=True)
        _, functions = json.loads(done.stdout)
        found: list[Counter[str]] = []
        for function in functions:
            # What begins with "$" is called by the kernel before it, and lies in its section.
            if not function["function-name"].startswith("$"):
                found.append(Counter())
            found[-1].update(row["opcode"] for row in function["sass-instructions"])
        ours = Counter(row["opcode"] for row in kernel["instructions"])
        assert ours in found, kernel["label"]
        assert sum(sum(kinds.values()) for kinds in kernel["mix"].values()) == sum(ours.values())
        own = [row for row in kernel["instructions"] if row["opcode"] != "NOP"]
        placed = [row for row in own if row["line"] and Path(row["file"]).is_file()]
        assert len(placed) >= 0.9 * len(own), kernel["label"]


# --------------------------------------------------------------------------- mistakes


BROKEN = """
import torch, triton, triton.language as tl
from compare.registry import implementation
from cuda_impl.loader import kernel

@triton.jit
def undefined_kernel(x_ptr, N):
    tl.store(x_ptr, nowhere)

@triton.jit
def assembler_kernel(x_ptr, N):
    x = tl.load(x_ptr)
    y = tl.inline_asm_elementwise("bogus.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    tl.store(x_ptr, y)

@implementation("vector_add", "triton.undefined", level="tiled")
def undefined(x, y):
    undefined_kernel[(1,)](x, x.numel())
    return x

@implementation("vector_add", "triton.assembler", level="tiled")
def assembler(x, y):
    assembler_kernel[(1,)](x, x.numel())
    return x

@implementation("vector_add", "triton.raising", level="tiled")
def raising(x, y):
    return x / 0 if x.is_cuda else 1 // 0

@implementation("vector_add", "cupy.broken", level="tiled")
def broken(x, y):
    source = "extern \\"C\\" __global__ void broken_kernel(float* x) {\\n  x[0] = nowhere;\\n}\\n"
    kernel(source, "broken_kernel", x.device)((1,), (1,), (x.data_ptr(),))
    return x
"""


@pytest.mark.thorough
def test_a_kernel_that_does_not_compile_shows_the_stages_before(tmp_path: Path):
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    names = ("triton.undefined", "triton.assembler", "triton.raising", "cupy.broken")
    only = [word for label in names for word in ("--only", label)]
    ran = pipeline(
        "vector_add", "--load", file, *only, "--arch", ARCH, "--all", "--json", tmp_path / "all.json"
    )
    assert ran.returncode == 1
    kernels = {kernel["label"]: kernel for kernel in json.loads((tmp_path / "all.json").read_text())}
    ends = {name: [stage["name"] for stage in kernels[name]["stages"]][-1:] for name in names}
    assert ends == dict(zip(names, (["ast"], ["ptx"], [], ["source"]), strict=True))
    undefined, assembler, raising, cuda = (kernels[name]["failure"] for name in names)
    assert (undefined["stage"], undefined["line"]) == ("frontend", f"{file}:8")
    assert assembler["stage"] == "cubin"
    assert "bogus" in assembler["message"]
    assert raising["stage"] == "launch"
    assert "ZeroDivisionError" in raising["message"]
    assert "nowhere" in cuda["message"]
    assert cuda["line"].endswith(":2")
    assert "\nFailed\n" in ran.stdout
    assert "nowhere" in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr


ABORTING = """
import os
from compare.registry import implementation

@implementation("vector_add", "triton.aborting", level="tiled")
def aborting(x, y):
    os.abort()
"""
FORGING = """
import os
for descriptor in range(3, 20):
    try:
        os.write(descriptor, b'{"opened": {"signature": "x", "opened": [{"kernel": 7}]}}')
    except OSError:
        pass
os._exit(0)
"""
TAKEN = ABORTING.replace("triton.aborting", "triton.blocked")
ELSEWHERE = ABORTING.replace("vector_add", "softmax")
NO_TUPLE = """
from dataclasses import replace
from compare import registry
op = registry.get_op("vector_add")
registry.register_op(replace(op, name="another", make_inputs=lambda *_: []))
""" + ABORTING.replace("vector_add", "another")


def complaint(op: str, text: str, words: list[str], folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """The one sentence that a file with this text gets."""
    file = folder / "mine.py"
    file.write_text(text)
    assert main(["pipeline", op, "--load", str(file), "--arch", ARCH, *words]) == 2
    (sentence,) = capfd.readouterr().err.splitlines()
    return sentence.replace(str(file), "FILE")


@pytest.mark.usefixtures("decorated")
def test_a_file_that_never_ends_is_said_in_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    said = complaint("vector_add", "while True: pass", ["--timeout", "0.5"], tmp_path, capfd)
    assert "loading FILE: it took longer than 0.5 s, the limit (--timeout)" in said


@pytest.mark.thorough
@for_each(
    "op, text, said",
    [
        ("vector_add", "import os; os._exit(0)", "loading FILE: its process exited with exit code 0"),
        ("vector_add", ABORTING, "triton.aborting launches for sm_80: its process was killed by SIGABRT"),
        ("vector_add", FORGING, "it wrote into the pipe to this process"),
        ("vector_add", ELSEWHERE, "--load FILE: it has nothing of vector_add, but of softmax"),
        ("vector_add", TAKEN, "--load FILE, line 5: vector_add has a triton.blocked already"),
        ("another", NO_TUPLE, "another: make_inputs returned a list, not a tuple of tensors"),
    ],
)
@pytest.mark.usefixtures("decorated")
def test_a_file_that_ends_its_process_or_is_wrong_is_refused(
    op: str, text: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert said in complaint(op, text, ["--only", "*.a*"], tmp_path, capfd)


@pytest.mark.usefixtures("decorated")
def test_what_cannot_be_written_keeps_no_other_file_from_being(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page = tmp_path / "page.html"
    words = ["vector_add", "--only", "torch.eager", "--arch", ARCH]
    assert main(["pipeline", *words, "--json", "/dev/full", "--html", str(page)]) == 2
    printed = capsys.readouterr()
    assert "torch.eager" in printed.out
    assert "/dev/full could not be written" in printed.err
    assert "vector_add" in page.read_text()


@pytest.mark.thorough
@for_each(
    "words, said",
    [
        (["--stage", "ttgr"], "did you mean ttgir"),
        (["--only", "torch.eager", "--stage", "ptx"], "no such stage"),
        (["--only", "cupy.*", "--passes"], "no Triton kernel"),
        (["--only", "triton.*", "--pass", "tritongpu-coalesc"], "did you mean tritongpu-coalesce"),
    ],
)
def test_a_mistake_that_shows_once_kernels_are_compiled_is_one_sentence(words: list[str], said: str):
    ran = pipeline("vector_add", *words, "--arch", ARCH)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_ctrl_c_starts_no_further_compiler(monkeypatch: pytest.MonkeyPatch):
    op, compiled = registry.get_op("vector_add"), []

    def compiling(_: object, blank: Opened, __: str) -> Opened:
        compiled.append(blank.arch)
        time.sleep(0.1)
        return blank

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(opening, "_by_cuda", compiling)
    impls, archs = registry.implementations(op.name, ["cupy.*"]), [f"sm_{number}" for number in (75, 80, 86)]
    monkeypatch.setattr(opening.os, "cpu_count", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        opening.open_up(op, impls, op.cases.smoke[0], archs, False, lambda *_: None, interrupt)
    assert len(compiled) < len(impls) * len(archs)


@pytest.mark.usefixtures("decorated")
def test_a_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    blank = Opened("vector_add", "cupy.scalar", "N=1,fp32", ARCH)
    missing = replace(blank, unavailable="no NVRTC: pip install it\nits library cannot be opened")
    monkeypatch.setattr(opening, "open_op", lambda *_, **__: OpenedOp("x[N] -> y[N]", (missing,)))
    assert main(["pipeline", "vector_add", "--stage", "ptx"]) == 2
    text = "python -m compare: --stage ptx: no such stage of cupy.scalar: no NVRTC: pip install it\n"
    assert capsys.readouterr().err == text


def test_machine_code_names_kernels_as_readers_know_them(monkeypatch: pytest.MonkeyPatch):
    mangled = "_Z21softmax_online_kernelIfLi4ELi1024EEvPKT_PS0_xx"
    code = f"\t.type {mangled},@function\n        /*0010*/  RET.REL.NODEC R6 `({mangled}) ;\n"
    monkeypatch.setattr(sass, "disassembled", lambda _: f"\n.text.{mangled}:\n{code}")
    cubin = CompilerStage("cubin", "ptxas", b"\0")
    one = Opened("softmax", "cupy.online", "N=1,fp32", ARCH, "k", (cubin,), symbol=mangled)
    disassembled = opening._with_sass(one)
    text = disassembled.stages[-1].text
    assert ".type softmax_online_kernel,@function" in text
    assert [each.text for each in disassembled.instructions] == ["RET.REL.NODEC R6 `(softmax_online_kernel)"]
    assert "_Z" not in text


@pytest.mark.thorough
def test_without_a_compiler_the_other_routes_are_shown(tmp_path: Path):
    only = ("--only", "pybind.scalar", "--only", "cupy.scalar")
    for missing, said in (
        ({"CUDA_HOME": str(tmp_path)}, "no nvcc at"),
        ({"CXX": "/no/g++"}, "no C++ compiler"),
    ):
        ran = pipeline("vector_add", *only, "--arch", ARCH, "--all", **missing)
        assert ran.returncode == 0
        assert "cupy.scalar: vector_add_scalar_kernel<float>" in ran.stdout
        assert f"pybind.scalar: {said}" in ran.stdout


def test_tool_names_stand_for_their_stages():
    ran = pipeline("vector_add", "--only", "cupy.scalar", "--arch", ARCH, "--stage", "nvdisasm")
    assert ran.returncode == 0
    assert "LDG.E" in ran.stdout
    assert "EXIT" in ran.stdout


@pytest.mark.thorough
def test_kernels_that_others_let_triton_compile_are_told_apart():
    """As Inductor does: one after the other, and some in several configurations."""
    script = """
import io, contextlib, sys, json
from compare import registry
from compare.capture import capture
from compare.pipeline import triton_way
from compare.pipeline.records import Opened
from compare.pipeline.triton_adapter import watched
from compare.resources.compiler import compile_triton
op = registry.get_op("softmax")
impls = registry.implementations("softmax", ["triton.online", "triton.onepass"])
launches = [launch for impl in impls for launch in capture(impl, op, op.cases.default, "sm_80")]
with watched(True) as seen, contextlib.redirect_stdout(io.StringIO()):
    for i, launch in enumerate([launches[0], *launches]):
        compile_triton(launch, "sm_80", device=str(i))
found = triton_way.each_compiled(seen, Opened("softmax", "torch.compile", "", "sm_80"), True)
print(json.dumps([(one.kernel, one.symbol, [stage.name for stage in one.stages], len(one.passes))
    for one in found]))
"""
    done = python("-c", script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [name for name, *_ in found] == [
        "softmax_online_kernel (1 of 2)",
        "softmax_online_kernel (2 of 2)",
        "softmax_onepass_kernel",
    ]
    for name, symbol, stages, passes in found:
        assert symbol == name.partition(" ")[0]
        assert stages == list(triton_way.STAGES[2:-1])
        assert passes > 40
    assert found[0][1:] == found[1][1:]


# --------------------------------------------------------------------------- what is kept on disk


def test_what_is_kept_is_found_under_the_key_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Triton's key is that of a compilation without this command; cupy's and ours hold the kernel."""
    names = [cache.variable for cache in caches.caches().values()]
    variables = {name: str(tmp_path / name) for name in names}
    only = ("--only", "triton.blocked", "--only", "cupy.scalar", "--only", "pybind.scalar")
    words = ("vector_add", *only, "--arch", ARCH, "--json", tmp_path / "all.json")
    assert pipeline(*words, **variables).returncode == 0
    kernels = {one["label"]: one for one in json.loads((tmp_path / "all.json").read_text())}
    (entry,) = kernels["triton.blocked"]["cached"]
    assert entry["files"] == {}
    assert entry["made_of"]["target"].startswith("cuda:80")
    assert "BLOCK_SIZE=1024" in entry["made_of"]["constants"]

    script = """
from compare import registry
from compare.capture import capture
from compare.resources.compiler import compile_triton
op = registry.get_op("vector_add")
(impl,) = registry.implementations("vector_add", ["triton.blocked"])
(launch,) = capture(impl, op, op.cases.default, "sm_80")
compile_triton(launch, "sm_80")
"""
    assert python("-c", script, ready="triton", **variables).returncode == 0
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    kernel = "vector_add_scalar_kernel<float>"
    image, _ = build.cubin("vector_add", [kernel], ARCH)
    build.nvcc_cubin("vector_add", [kernel], ARCH)
    build.host_kernel("vector_add", kernel)
    in_use = build.module_name("vector_add", ARCH)
    older = re.sub(r"[0-9a-f]{20}", "0" * 20, in_use)
    cupy, ours = (Path(variables[caches.caches()[name].variable]) for name in ("cupy", "this project"))
    cupy.mkdir()
    (cupy / f"{'a' * 40}.cubin").write_bytes(b"b" * 40 + image)
    (cupy / f"{'c' * 40}.cubin").write_bytes(b"b" * 40 + b"another's")
    for name in (in_use, older):
        (ours / name).touch()

    ran = pipeline(*words, "--caches", "--passes", **variables)
    assert ran.returncode == 2
    ran = pipeline(*words, "--caches", "--all", **variables)
    kernels = {one["label"]: one["cached"] for one in json.loads((tmp_path / "all.json").read_text())}
    (entry,) = kernels["triton.blocked"]
    assert Path(entry["place"]).parent == Path(variables["TRITON_CACHE_DIR"])
    assert {f"vector_add_blocked_kernel.{name}" for name in ("ttir", "ptx", "cubin", "json")} <= set(
        entry["files"]
    )
    assert [one["key"] for one in kernels["cupy.scalar"] if one["cache"] == "cupy"] == ["a" * 40]
    assert {one["what"] for label in ("cupy.scalar", "pybind.scalar") for one in kernels[label]} == {
        "kernel",
        f"kernel by nvrtc for {ARCH}",
        f"kernel by nvcc for {ARCH}",
        "host build of the kernel",
        f"pybind11 module for {ARCH}, the one in use",
        f"pybind11 module for {ARCH}, of older sources",
    }
    for place in (entry["key"], "a" * 40, in_use):
        assert place in ran.stdout
    for variable in variables:
        assert variable in ran.stdout


@pytest.mark.gpu
def test_the_stages_are_those_of_the_kernel_that_runs(tmp_path: Path):
    script = """
import hashlib, json, torch
from unittest import mock
from compare import registry
from triton.runtime.jit import JITFunction
op = registry.get_op("vector_add")
(impl,) = registry.implementations("vector_add", ["triton.blocked"])
inputs = op.make_inputs(op.cases.default, torch.Generator("cuda").manual_seed(0), torch.device("cuda"))
made, run = [], JITFunction.run
with mock.patch.object(JITFunction, "run", lambda *args, **kwargs: made.append(run(*args, **kwargs))):
    impl.run(*inputs)
asm = {name: text if isinstance(text, bytes) else text.encode() for name, text in made[0].asm.items()}
print(json.dumps({name: hashlib.sha256(asm[name]).hexdigest() for name in asm}))
"""
    # A folder of its own: what Triton's cache holds may tell the lines of another copy of this project.
    done = python("-c", script, TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    running = json.loads(done.stdout)
    file = tmp_path / "all.json"
    ran = pipeline("vector_add", "--only", "triton.blocked", "--json", file)
    assert ran.returncode == 0, ran.stderr
    stages = {stage["name"]: stage["sha256"] for stage in json.loads(file.read_text())[0]["stages"]}
    for name in ("ttir", "ttgir", "llir", "ptx", "cubin"):
        assert stages[name] == running[name], name


@pytest.mark.gpu
def test_what_pytorch_compiles_is_opened_up_too(tmp_path: Path):
    file = tmp_path / "all.json"
    ran = pipeline("vector_add", "--only", "torch.*", "--json", file)
    assert ran.returncode == 0, ran.stderr
    eager, source, *kernels = json.loads(file.read_text())
    assert "it launches" in eager["unavailable"]
    assert [stage["name"] for stage in source["stages"]] == ["inductor"]
    assert "@triton.jit" in source["stages"][0]["text"]
    assert kernels
    for kernel in kernels:
        assert kernel["label"] == "torch.compile"
        assert tuple(stage["name"] for stage in kernel["stages"]) == triton_way.STAGES[2:]
        assert kernel["mix"]["branches"]["EXIT"] > 0


@pytest.mark.thorough
def test_without_nvrtc_the_other_compilers_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, float]] = []
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    build.nvrtc_library.cache_clear()
    request = OpenRequest("vector_add", only=("cupy.scalar", "pybind.scalar"), archs=("sm_80",))
    try:
        cupy, pybind = open_op(request, progress=lambda *step: steps.append(step)).opened
    finally:
        build.nvrtc_library.cache_clear()
    assert cupy.unavailable.startswith("no NVRTC, the compiler of cupy's kernels: pip install ")
    assert "vector_add_scalar_kernel" in pybind.symbol
    assert pybind.instructions
    assert steps == [(f"compiling kernels, {count} of 2", count / 2) for count in (0, 1, 2)]
