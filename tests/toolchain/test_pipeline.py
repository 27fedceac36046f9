"""Every op through every compiler, stage by stage, and what is read from their texts."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import case_sets
from compare import registry
from compare.cli import main
from compare.device import lacks
from compare.resources.sass.disassembly import Instruction, instructions, nvdisasm
from compare.resources.sass.instruction_mix import mix
from compare.spec import CudaLaunch
from compare.toolchain.pipeline import caches, cuda_way, passes, triton_way
from compare.toolchain.pipeline.differences import differences
from compare.toolchain.pipeline.records import Opened, Stage
from compare.toolchain.pipeline.report import stages as report
from compare.toolchain.pipeline.source_map import ptx_lines, source_map
from compare.toolchain.pipeline.tracing import traced
from cuda_impl import build
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
    ran = pipeline(request.param, *only, "--arch", arch, "--json", file, "--out", files)
    assert file.is_file(), ran.stderr
    return Everything(ran, json.loads(file.read_text()), files, arch)


def test_every_implementation_passes_through_every_stage(everything: Everything):
    assert everything.ran.returncode == 0, everything.ran.stderr
    op = everything.kernels[0]["op"]
    assert {kernel["label"] for kernel in everything.kernels} == set(labels_of(op))
    impls = {impl.label: impl for impl in registry.implementations(op)}
    for kernel in everything.kernels:
        assert kernel["failure"] is None, kernel["label"]
        impl = impls[kernel["label"]]
        if kernel["unavailable"]:
            compiled = impl.way not in ("torch", "library")
            reason = kernel["unavailable"]
            assert not compiled or impl.requires or "is autotuned" in reason or "at most" in reason, kernel
            continue
        gluon = impl.way == "triton" and not impl.without_gpu  # which begins where layouts are known
        expected = tuple(name for name in STAGES[impl.route] if not (gluon and name == "ttir"))
        assert tuple(stage["name"] for stage in kernel["stages"]) == expected, kernel["label"]
        for stage in kernel["stages"]:
            assert stage["size_bytes"], (kernel["label"], stage["name"])
            assert stage["took_ms"] is not None or stage["name"] == "source"


def test_every_stage_is_on_the_screen(everything: Everything):
    shown = re.sub(r"\s", "", everything.ran.stdout)  # long names go over several lines
    for kernel in everything.kernels:
        assert kernel["label"] in shown
        assert kernel["kernel"].replace(" ", "") in shown
    assert "Instructions on" in everything.ran.stdout


def test_instructions_are_counted_as_the_disassembler_lists_them(everything: Everything):
    """By its JSON, which nothing of ours reads otherwise."""
    checked = 0
    for kernel in everything.kernels:
        if kernel["unavailable"]:
            continue
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
        checked += 1
    assert checked


def test_most_machine_code_is_traced_to_a_line_of_the_source(everything: Everything):
    for kernel in everything.kernels:
        if not kernel["unavailable"]:
            own = [row for row in kernel["instructions"] if row["opcode"] != "NOP"]
            placed = [row for row in own if row["line"] and Path(row["file"]).is_file()]
            assert len(placed) >= 0.9 * len(own), kernel["label"]


def test_nvccs_commands_are_its_own(everything: Everything):
    for kernel in everything.kernels:
        if kernel["label"].startswith("pybind") and not kernel["unavailable"]:
            commands = {stage["name"]: stage["command"] for stage in kernel["stages"]}
            for name, tool in (("ptx", "cicc"), ("cubin", "ptxas"), ("fatbin", "fatbinary")):
                assert tool in commands[name].split()[0]


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


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, dict[str, dict[str, Any]], Path]:
    folder = tmp_path_factory.mktemp("broken")
    file = folder / "broken.py"
    file.write_text(BROKEN)
    labels = ("*.undefined", "*.assembler", "*.raising", "*.broken")
    only = [word for label in labels for word in ("--only", label)]
    ran = pipeline("vector_add", "--load", file, *only, "--arch", ARCH, "--json", folder / "all.json")
    kernels = json.loads((folder / "all.json").read_text())
    return ran, {kernel["label"]: kernel for kernel in kernels}, file


@pytest.mark.thorough
def test_a_kernel_that_does_not_compile_shows_the_stages_before(broken):
    ran, kernels, file = broken
    assert ran.returncode == 1
    undefined, assembler, raising, cuda = (
        kernels[label] for label in ("triton.undefined", "triton.assembler", "triton.raising", "cupy.broken")
    )
    assert [stage["name"] for stage in undefined["stages"]] == ["source", "ast"]
    assert undefined["failure"]["stage"] == "frontend"
    assert undefined["failure"]["line"] == f"{file}:8"
    assert [stage["name"] for stage in assembler["stages"]][-1] == "ptx"
    assert assembler["failure"]["stage"] == "cubin"
    assert "bogus" in assembler["failure"]["message"]
    assert raising["failure"]["stage"] == "launch"
    assert "ZeroDivisionError" in raising["failure"]["message"]
    assert [stage["name"] for stage in cuda["stages"]] == ["source"]
    assert "nowhere" in cuda["failure"]["message"]
    assert cuda["failure"]["line"].endswith(":2")
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
        os.write(descriptor, b'{"found": {"signature": "x", "opened": [{"kernel": 7}]}}\\n')
    except OSError:
        pass
"""
TAKEN = ABORTING.replace("triton.aborting", "triton.blocked")
ELSEWHERE = ABORTING.replace("vector_add", "softmax")
NO_TUPLE = """
from dataclasses import replace
from compare import registry
op = registry.get_op("vector_add")
registry.register_op(replace(op, name="another", make_inputs=lambda *_: []))
""" + ABORTING.replace("vector_add", "another")


@pytest.mark.parametrize(
    ("text", "timeout_s", "said"),
    [
        ("while True: pass", 0.5, "loading {}: it took longer than 0.5 s, the limit (--timeout)"),
        pytest.param(
            *("import os; os._exit(0)", 60, "loading {}: its process exited with exit code 0"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *(ABORTING, 60, "triton.aborting launches for sm_80: its process was killed by SIGABRT (abort)"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(FORGING, 60, "it wrote into the pipe to this process", marks=pytest.mark.thorough),
    ],
    ids=["endless", "leaving", "aborting", "forging"],
)
@pytest.mark.usefixtures("decorated")
def test_a_file_that_ends_its_process_or_never_ends_is_said_in_one_sentence(
    text: str, timeout_s: float, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    file = tmp_path / "mine.py"
    file.write_text(text)
    words = ["--load", str(file), "--only", "*.aborting", "--arch", ARCH, "--timeout", str(timeout_s)]
    assert main(["pipeline", "vector_add", *words]) == 2
    (sentence,) = capfd.readouterr().err.splitlines()
    assert said.format(file) in sentence
    assert sentence.endswith("Fix the file given with --load")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("op", "text", "said"),
    [
        ("vector_add", ELSEWHERE, "--load {}: it has nothing of vector_add, but of softmax"),
        ("vector_add", TAKEN, "--load {}, line 5: vector_add has a triton.blocked already"),
        ("another", NO_TUPLE, "another: make_inputs returned a list, not a tuple of tensors"),
    ],
    ids=["of another op", "a label that is taken", "an op that is wrong"],
)
@pytest.mark.usefixtures("decorated")
def test_a_file_is_refused_as_a_comparison_refuses_it(
    op: str, text: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert main(["pipeline", op, "--load", str(file), "--arch", ARCH]) == 2
    assert said.format(file) in capfd.readouterr().err


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing_add"], "no op"),
        (["vector_add", "--timeout", "0"], "above 0"),
        (["vector_add", "--timeout", "1e20"], "a day, 86400, at most"),
        (["vector_add", "--arch", "sm_99"], "'sm_99' is not known"),
        (["vector_add", "--arch", "hopper"], "reads like sm_90"),
        (["vector_add", "--passes", "--stage", "ptx"], "give one"),
        (["vector_add", "--json", "/nowhere/at/all.json"], "no directory"),
        (["vector_add", "--html", "/nowhere/at/all.html"], "no directory"),
        (["vector_add", "--html", "tests"], "is a directory"),
        (["vector_add", "--html", "one.file", "--json", "one.file"], "give each its own"),
    ],
)
@pytest.mark.usefixtures("decorated")
def test_a_mistake_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["pipeline", *words]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert said in sentence


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stage", "ttgr"], "did you mean ttgir"),
        (["--only", "torch.eager", "--stage", "ptx"], "no such stage"),
        (["--only", "cupy.*", "--passes"], "no Triton kernel"),
    ],
)
def test_so_is_one_that_shows_once_kernels_are_compiled(words: list[str], said: str):
    ran = pipeline("vector_add", *words)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_pass_that_does_not_exist_offers_the_nearest():
    ran = pipeline("vector_add", "--only", "triton.*", "--arch", ARCH, "--pass", "tritongpu-coalesc")
    assert ran.returncode == 2
    assert "did you mean tritongpu-coalesce" in ran.stderr


def test_without_nvcc_the_other_routes_are_shown(tmp_path: Path):
    only = ("--only", "pybind.scalar", "--only", "cupy.scalar")
    ran = pipeline("vector_add", *only, "--arch", ARCH, CUDA_HOME=str(tmp_path))
    assert ran.returncode == 0
    assert "cupy.scalar: vector_add_scalar_kernel<float>" in ran.stdout
    assert "pybind.scalar: no nvcc at" in ran.stdout


@pytest.mark.thorough
def test_without_a_host_compiler_the_other_routes_are_shown():
    only = ("--only", "pybind.scalar", "--only", "cupy.scalar")
    ran = pipeline("vector_add", *only, "--arch", ARCH, CXX="/nowhere/g++")
    assert ran.returncode == 0
    assert "cupy.scalar: vector_add_scalar_kernel<float>" in ran.stdout
    assert "pybind.scalar: no C++ compiler" in ran.stdout


def test_tool_names_stand_for_their_stages():
    ran = pipeline("vector_add", "--only", "cupy.scalar", "--arch", ARCH, "--stage", "nvdisasm")
    assert ran.returncode == 0
    assert "LDG.E" in ran.stdout
    assert "EXIT" in ran.stdout


# --------------------------------------------------------------------------- reading


SASS = """
.text.f:
\t//## File "/k.py", line 3
        /*0000*/                   LDG.E.64 R2, [R4] ;
        /*0010*/              @!P0 HMMA.16816.F32 R0, R4, R8, R0 ;
\t//## File "/k.py", line 4
        /*0020*/                   LDGSTS.E.BYPASS.128 [R2], [R4.64] ;
        /*0030*/                   UTMALDG.2D [UR8], [UR4] ;
        /*0040*/                   STL.64 [R1], R2 ;
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0060*/                   MUFU.EX2 R0, R1 ;
        /*0070*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0080*/                   STS.128 [R2], R4 ;
        /*0090*/                   NOP;
"""


def test_the_mix_groups_what_the_machine_does():
    assert {group: dict(kinds) for group, kinds in mix(instructions(SASS)).items()} == {
        "global loads": {"64 bits": 1, "128 bits by LDGSTS": 1, "TMA": 1},
        "shared stores": {"128 bits": 1},
        "local stores": {"64 bits": 1},
        "matrix": {"HMMA.16816": 1, "HGMMA.64x128x16": 1},
        "MUFU": {"EX2": 1},
        "barriers": {"BAR": 1},
        "padding": {"NOP": 1},
    }


def made_up(label: str, *opcodes: str, ttir: str = "") -> Opened:
    stages = (Stage("ttir", "make_ttir", ttir.encode()),)
    rows = tuple(Instruction(16 * i, opcode, opcode) for i, opcode in enumerate(opcodes))
    return Opened("op", label, "N=1,fp32", ARCH, "f", stages, instructions=rows)


def test_differences_name_their_evidence():
    ttir = "tt.func public @f(%x_ptr: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %N: i32) attributes {"
    narrow = made_up("triton.a", "LDG.E", "FFMA", "FMUL", "FMUL", "STL", ttir=ttir)
    wide = made_up("cupy.a", "LDG.E.128", "HMMA.16816.F32", "LDG.E", "LDGSTS.E.BYPASS.128")
    tiles = made_up("cupy.b", "LDG.E", "UTMALDG.2D", "FFMA", "FMUL", "FMUL", "STL", ttir=ttir)
    found = {one.what: one.evidence for one in differences([narrow, wide, tiles])}
    assert found == {
        "widest load from global memory": (
            "triton.a: 4 bytes (1 LDG.E), and its TTIR does not say that N is a multiple of 16",
            "cupy.a: 16 bytes (1 LDG.E.128, 1 LDGSTS.E.BYPASS.128)",
            "cupy.b: by TMA (1 UTMALDG.2D)",
        ),
        "multiplies with": ("triton.a, cupy.b: 1 FFMA, 2 FMUL", "cupy.a: 1 HMMA.16816"),
        "local memory (spills)": ("triton.a, cupy.b: 0 LDL, 1 STL", "cupy.a: none"),
        "asynchronous copies": ("triton.a: none", "cupy.a: 1 LDGSTS", "cupy.b: 1 UTMALDG"),
    }
    assert differences([wide, wide]) == []


DUMP = """\
// ===== compare: ttir
// -----// IR Dump Before Inliner (inline) ('builtin.module' operation) //----- //
#loc = loc("a.py":1:0)
module {
  tt.func @f(%x: i32 loc("x"(#loc))) {
    %0 = tt.a %x : i32 loc(#loc1)
  } loc(#loc)
} loc(#loc)
// -----// IR Dump Before CSE (cse) ('builtin.module' operation) //----- //
#loc = loc("a.py":2:0)
module {
  tt.func @f(%x: i32 loc("x"(#loc))) {
    %0 = tt.a %x : i32 loc(#loc2)
  } loc(#loc)
} loc(#loc)
// ===== compare: llir
// ===== compare: end
module {
  tt.func @f(%x: i32) {
    %0 = llvm.a %x : i32 loc(#loc2)
  }
}
"""


def test_a_pass_that_moved_locations_only_changed_nothing():
    inline, cse = passes.read(DUMP)
    assert (inline.name, inline.stage, inline.changed) == ("inline", "ttir", False)
    assert (cse.name, cse.changed) == ("cse", True)
    assert "-    %0 = tt.a %x : i32\n+    %0 = llvm.a %x : i32" in passes.diff(cse)
    assert passes.diff(inline) == ""


@pytest.mark.thorough
def test_kernels_that_others_let_triton_compile_are_told_apart():
    """As Inductor does: one after the other, and some in several configurations."""
    script = """
import io, contextlib, sys, json
from concurrent.futures import ThreadPoolExecutor
from compare import registry
from compare.capture import capture
from compare.toolchain.pipeline import triton_way
from compare.toolchain.pipeline.records import Opened
from compare.toolchain.pipeline.triton_adapter import watched
from compare.resources.compiler_process import compile_triton
op = registry.get_op("softmax")
impls = registry.implementations("softmax", ["triton.online", "triton.onepass"])
launches = [launch for impl in impls for launch in capture(impl, op, op.cases.default, "sm_80")]
with watched(True) as seen, contextlib.redirect_stdout(io.StringIO()):
    for i, launch in enumerate([launches[0], *launches]):
        compile_triton(launch, "sm_80", device=str(i))
with ThreadPoolExecutor() as pool:
    found = triton_way.each_compiled(seen, Opened("softmax", "torch.compile", "", "sm_80"), True, pool)
print(json.dumps([(one.kernel, [stage.name for stage in one.stages], len(one.instructions), len(one.passes),
    one.failure is None) for one in found]))
"""
    done = python("-c", script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [name for name, *_ in found] == [
        "softmax_online_kernel (1 of 2)",
        "softmax_online_kernel (2 of 2)",
        "softmax_onepass_kernel",
    ]
    for _, stages, instructions_, passes_, whole in found:
        assert stages == list(triton_way.STAGES[2:])
        assert instructions_
        assert passes_ > 40
        assert whole
    assert found[0][2:] == found[1][2:]


# --------------------------------------------------------------------------- what is kept on disk


def test_what_is_kept_is_found_under_the_key_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Triton's key is that of a compilation without this command; cupy's and ours hold the kernel."""
    variables = {name: str(tmp_path / name) for name in caches.FOLDERS.values()}
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
from compare.resources.compiler_process import compile_triton
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
    cupy, ours = (Path(variables[caches.FOLDERS[name]]) for name in ("cupy", "this project"))
    cupy.mkdir()
    (cupy / f"{'a' * 40}.cubin").write_bytes(b"b" * 40 + image)
    (cupy / f"{'c' * 40}.cubin").write_bytes(b"b" * 40 + b"another's")
    for name in (in_use, older):
        (ours / name).touch()

    ran = pipeline(*words, "--caches", "--passes", **variables)
    assert ran.returncode == 2
    ran = pipeline(*words, "--caches", **variables)
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


TRACED = {
    "ttir": (
        '#loc = loc("/k.py":1:0)\n#loc1 = loc("/k.py":3:2)\n'
        '#loc2 = loc("/lib.py":9:2)\n#loc3 = loc("/k.py":7:2)\n#loc4 = loc("x"(#loc1))\n'
        "#loc5 = loc(callsite(#loc2 at #loc3))\n"
        "%0 = tt.a loc(#loc4)\n%1 = tt.b loc(#loc5)\n",
        [("%0 = tt.a", (3,)), ("%1 = tt.b", (7,))],
    ),
    "llir": (
        "define void @f() !dbg !2 {\n  %1 = add i32 1, 2, !dbg !5\n  ret void, !dbg !4\n}\n"
        '!1 = !DIFile(filename: "k.py", directory: "/")\n'
        '!2 = distinct !DISubprogram(name: "f", file: !1, line: 1)\n'
        '!3 = !DIFile(filename: "lib.py", directory: "/")\n!6 = !DISubprogram(name: "g", file: !3, line: 9)\n'
        "!4 = !DILocation(line: 3, column: 2, scope: !2)\n"
        "!5 = !DILocation(line: 9, column: 2, scope: !6, inlinedAt: !7)\n"
        "!7 = !DILocation(line: 7, scope: !2)\n",
        [("define void @f() {", ()), ("  %1 = add i32 1, 2", (7,)), ("  ret void", (3,)), ("}", ())],
    ),
    "ptx": (
        '.file 1 "/k.py"\n.loc 1 3 2, function_name $a, inlined_at 1 7 2\nadd.s32 %r1, %r2, %r3;\n'
        "{ mov.b32 %f1, {0,%rs1};}\n.loc 1 7 2\nret; // here\n.section .debug_info\n{\n.b8 1\n}\n",
        [("add.s32 %r1, %r2, %r3;", (3, 7)), ("{ mov.b32 %f1, {0,%rs1};}", (3, 7)), ("ret; // here", (7,))],
    ),
    "sass": (
        '\t//## File "/k.py", line 3 inlined at "/k.py", line 7\n\t//## File "/k.py", line 7\n'
        '        /*0000*/                   MOV R1, R2 ;\n\t//## File "/lib.py", line 9\n'
        "        /*0010*/                   EXIT ;\n",
        [
            ("/*0000*/      MOV R1, R2 ;", (3, 7)),
            ("/*0010*/      EXIT ;", ()),
        ],
    ),
}
"""Of each stage a text, and its lines with the lines of ``/k.py`` that they come from."""


@pytest.mark.parametrize("name", TRACED)
def test_a_line_is_traced_through_what_was_inlined(name: str):
    text, expected = TRACED[name]
    stage = Stage(name, "", text.encode())
    source = Stage("source", "Python", b"first\nsecond\n", file="/k.py", first_line=3)
    opened = Opened("op", "triton.a", "N=1", ARCH, "f", (source, stage))
    assert [(line.text, line.lines) for line in traced(opened, stage)] == expected
    assert [line.lines for line in traced(opened, source)] == [(3,), (4,)]


def test_the_source_is_the_file_that_defines_the_kernel():
    launch = CudaLaunch("matmul", "matmul_wgmma_kernel<__half, true, true, 3>", (1, 1, 1), (128, 1, 1))
    stage = cuda_way._source(launch)
    assert stage.file.endswith("kernels/matmul/09_wgmma.cuh")
    assert b"void matmul_wgmma_kernel(" in stage.content


def test_ptx_is_traced_to_its_source():
    ptx = '.file 1 "/a" "k.py"\n\t.loc 1 7 3\n\tadd.s32 %r1, %r2, %r3; // here\n\tret;\n'
    assert ptx_lines(ptx) == [("/a/k.py", 7, "add.s32 %r1, %r2, %r3;"), ("/a/k.py", 7, "ret;")]


def test_one_source_line_beside_what_it_became(tmp_path: Path):
    source = tmp_path / "k.py"
    source.write_text("first\nsecond\n")
    ptx = f'.file 1 "{source}"\n.loc 1 2 0\nadd.s32 %r1, %r2, %r3;\n'
    row = Instruction(0, "IADD3", "IADD3 R1, R2", str(source), 2)
    opened = Opened(
        "op", "cupy.a", "N=1", ARCH, "f", (Stage("ptx", "NVRTC", ptx.encode()),), instructions=(row,)
    )
    (line,) = source_map(opened)
    assert (line.text, line.ptx, line.sass) == ("second", ["add.s32 %r1, %r2, %r3;"], ["IADD3 R1, R2"])
    assert "k.py:2  second" in report.mapped(opened).text


@pytest.mark.parametrize("module", ["counts", "cuda_way", "passes", "tracing", "triton_adapter"])
def test_the_examples_in_the_sources_hold(module: str):
    result = doctest.testmod(importlib.import_module(f"compare.toolchain.pipeline.{module}"))
    assert result.attempted
    assert not result.failed
