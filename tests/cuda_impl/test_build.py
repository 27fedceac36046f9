"""Finding compilers, the cache of builds, and the machine code that the two CUDA routes make."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import case_sets
from compare import capture, device, registry
from compare.model.op import DTYPES
from compare.resources.sass import disassembly
from compare.worker import memory
from cuda_impl import build, flags, host_flags, loader
from loops import for_each

ARCHS = ("sm_75", "sm_80", "sm_90")
CUOBJDUMP = build.triton_nvidia() / "bin" / "cuobjdump"
BROKEN = "__global__ void broken() { no such thing; }"


@pytest.fixture
def no_compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine with an empty PATH and nothing from PyPI."""
    for name in ("CUDA_HOME", "CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build.pathfinder, "find_nvidia_binary_utility", lambda _: None)
    monkeypatch.setattr(build.pathfinder, "find_nvidia_header_directory", lambda _: None)
    finders = (build.nvcc, build.gxx, build.gcc, build.make_tool, build.cuda_include)
    for finder in finders:
        finder.cache_clear()
    yield
    for finder in finders:
        finder.cache_clear()


@pytest.mark.usefixtures("no_compilers")
def test_a_missing_compiler_is_one_clear_line() -> None:
    for finder, next_step in (
        (build.nvcc, "pip install 'cuda-toolkit"),
        (build.gxx, "apt-get install g++"),
        (build.gcc, "apt-get install gcc"),
        (build.make_tool, "apt-get install make"),
        (build.cuda_include, "pip install 'cuda-toolkit"),
    ):
        with pytest.raises(build.BuildError) as error:
            finder()
        assert next_step in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.usefixtures("no_compilers")
def test_compilers_are_taken_from_cuda_home_then_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "cuda"
    for compiler in (home / "bin" / "nvcc", tmp_path / "nvcc"):
        compiler.parent.mkdir(exist_ok=True, parents=True)
        compiler.touch(0o755)
    assert build.nvcc() == tmp_path / "nvcc"
    build.nvcc.cache_clear()
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert build.nvcc() == home / "bin" / "nvcc"
    build.nvcc.cache_clear()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(build.BuildError, match="set CUDA_HOME"):
        build.nvcc()


@pytest.mark.usefixtures("cache")
def test_the_cache_knows_headers_and_builds_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flags, "KERNELS", tmp_path)
    (tmp_path / "made_up.cuh").write_text('#include "deeper.cuh"\n')
    (tmp_path / "deeper.cuh").write_text("// one\n")
    (tmp_path / "unrelated.cuh").write_text("// one\n")
    monkeypatch.setattr(build.included, "__defaults__", ((tmp_path,),))
    before = build.headers_digest("made_up")
    (tmp_path / "unrelated.cuh").write_text("// two\n")
    assert build.headers_digest("made_up") == before
    (tmp_path / "deeper.cuh").write_text("// two\n")
    assert build.headers_digest("made_up") != before

    made = []

    def make(product: Path) -> None:
        made.append(product)
        product.write_text("done")

    paths = {build._cached("thing", make) for _ in range(2)}
    assert len(made) == 1
    assert [build._unsealed(path) for path in paths] == [b"done"]


@for_each("damage", [lambda seen: seen[:-1], lambda seen: b"", lambda seen: b"D" + seen[1:]])
def test_a_damaged_product_is_built_again(damage: Callable[[bytes], bytes], cache: Path) -> None:
    def make(product: Path) -> None:
        product.write_text("done")

    path = build._cached("thing", make)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert build._cached("thing", make).read_bytes() == whole


def test_a_shared_cache_that_cannot_be_read_is_left_out(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMPARE_CACHE_SHARED", str(tmp_path / "file"))
    assert build._cached("thing", Path.touch).is_relative_to(cache)


def test_a_lock_that_is_held_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPARE_LOCK_S", "0.1")
    cache.mkdir(exist_ok=True)
    with (
        build.FileLock(cache / "thing.lock"),
        pytest.raises(build.BuildError, match=r"thing\.lock has been held for 0\.1 s"),
    ):
        build._cached("thing", Path.touch)


def test_a_build_that_fails_leaves_nothing_behind(cache: Path) -> None:
    with pytest.raises(build.BuildError, match="no such thing"):
        build.cubin(BROKEN, ["broken"], "sm_80")
    with pytest.raises(build.BuildError, match="broken: nvcc failed"):
        build.nvcc_cubin(BROKEN, ["broken"], "sm_80")
    assert {path.suffix for path in cache.iterdir()} == {".lock"}


def test_a_cache_that_cannot_be_made_says_so(cache: Path) -> None:
    cache.touch()
    with pytest.raises(build.BuildError, match="set COMPARE_CACHE_DIR"):
        build.cache_dir()


@pytest.mark.usefixtures("cache")
def test_a_read_only_cache_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(number: int) -> None:
        lock = mock.Mock(side_effect=OSError(number, os.strerror(number)))
        monkeypatch.setattr(build, "FileLock", lock)
        build._cached("thing", Path.touch)

    with pytest.raises(build.BuildError, match=r"^cannot write .* \(Read-only .*\): set COMPARE_CACHE_DIR"):
        refused(errno.EROFS)
    with pytest.raises(OSError, match="Exec format"):  # another folder would not fix that
        refused(errno.ENOEXEC)


def test_a_folder_of_cupy_s_that_cannot_be_made_says_so(impossible_cupy_folder: Path) -> None:
    gpu = torch.device("cuda:0")
    for needs_cupy in (
        build.cupy,
        lambda: loader.kernel("vector_add", "a_kernel", gpu),
        lambda: memory.SharedMemory(1, gpu),
    ):
        with pytest.raises(build.BuildError, match=r"^cannot write .*/file/cupy \(.*\): set CUPY_CACHE_DIR"):
            needs_cupy()


def test_remarks_of_ptxas_that_mean_a_slow_kernel_are_errors() -> None:
    build._refuse_remarks("ptxas info : Used 8 registers", "x")
    with pytest.raises(build.BuildError, match="C7508"):
        build._refuse_remarks("ptxas info : (C7508) Potential Performance Loss: 'setmaxnreg' ignored", "x")


# --------------------------------------------------------------------------- machine code


def kernels(
    op_name: str, arch: str, *, dynamic_shared: bool | None = None, dtype: str | None = None
) -> list[str]:
    """Every kernel that the op's cupy implementations launch on ``arch`` for the default and smoke cases.

    Args:
        dynamic_shared: only those with dynamic shared memory, only those without, or (None) all.
        dtype: of the cases; None: each case's own.
    """
    op = registry.get_op(op_name)
    cases = [op.cases.default, *op.cases.smoke]
    if dtype is not None:
        cases = [replace(case, dtype=dtype) for case in cases]
    found: dict[str, None] = {}
    for impl in registry.implementations(op_name):
        if impl.route != "cupy" or device.capability(impl.requires or "sm_75") > device.capability(arch):
            continue
        for case in cases:
            try:
                launches = capture.capture(impl, op, case, arch)
            except NotImplementedError:
                continue
            for launch in launches:
                if launch.source == op_name and dynamic_shared in (None, launch.dynamic_shared_bytes > 0):
                    found[launch.kernel] = None
    return list(found)


MOVES = ("NOP", "MOV", "UMOV", "LDC", "ULDC", "R2UR", "S2R", "S2UR")
SHIFTS = ("SHF", "USHF")


def instructions(cubin: bytes) -> dict[str, Counter[str]]:
    """How often each kernel of a cubin has each opcode with its modifiers.

    Registers, order, moves between registers and kinds of shifts are left out: these depend on the module's
    other kernels and, under nvcc, on the file's path as well.
    """
    text = disassembly.disassembled(cubin)
    names = re.findall(r"(?m)^\.text\.(\S+):$", text)
    found = {name: disassembly.instructions(disassembly.of_kernel(text, name)) for name in names}
    return {name: Counter(filter(None, map(comparable, code))) for name, code in found.items()}


def comparable(instruction: disassembly.Instruction) -> str:
    """Its opcode; empty for a move."""
    name = instruction.opcode.partition(".")[0]
    if instruction.opcode == "IMAD.SHL.U32":  # a left shift: ptxas's scheduler chooses between the two units
        return "SHF"
    return "" if name in MOVES else name if name in SHIFTS else instruction.opcode


def dtype_for(op: str, arch: str) -> str:
    """One dtype for each architecture, because compiling takes seconds a kernel.

    Turing has no bfloat16: CUDA's header converts in C++, and the two front ends optimise that differently.
    """
    wanted = {"sm_75": "fp16", "sm_80": "fp32", "sm_90": "bf16"}[arch], "fp16"
    dtypes = registry.get_op(op).dtypes
    return next((dtype for dtype in wanted if dtype in dtypes), dtypes[0])


def together(op: str, arch: str, dtype: str) -> list[list[str]]:
    """Groups of kernels compiled together, so that several tests share a compilation.

    The offset of dynamic shared memory depends on the other kernels of the compilation: kernels with dynamic
    shared memory are compiled one by one, as cupy does.
    """
    static = kernels(op, arch, dynamic_shared=False, dtype=dtype)
    alone = [[name] for name in kernels(op, arch, dynamic_shared=True, dtype=dtype)]
    return [names for names in (static, *alone) if names]


def machine_code() -> list[Any]:
    """Each op's first kernels on Hopper; all, on every architecture, are exhaustive but for one op."""
    first = [
        pytest.param(op, ARCHS[-1], 1, id=op, marks=[pytest.mark.thorough] * (op != case_sets.FIRST))
        for op in registry.op_names()
    ]
    return first + [
        pytest.param(op, arch, None, id=f"{op}-{arch}-all", marks=marks)
        for op in registry.op_names()
        for marks in [pytest.mark.thorough if op == case_sets.WHOLE else pytest.mark.exhaustive]
        for arch in ARCHS
    ]


def in_a_new_process(op: str, names: list[str], arch: str, tmp_path: Path) -> bytes:
    """`build.cubin` by a process that has compiled nothing yet, without the cache."""
    code = "import sys; from cuda_impl import build; to, op, arch, *names = sys.argv[1:]; " + (
        "open(to, 'wb').write(build.cubin(op, names, arch)[0])"
    )
    product = tmp_path / "new.cubin"
    environment = {**os.environ, "COMPARE_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(registry.ROOT)}
    subprocess.run([sys.executable, "-c", code, str(product), op, arch, *names], env=environment, check=True)
    return product.read_bytes()


@pytest.mark.parametrize(("op", "arch", "most"), machine_code())
def test_both_routes_make_the_same_instructions(op: str, arch: str, most: int | None, tmp_path: Path) -> None:
    groups = together(op, arch, dtype_for(op, arch))[:most]
    if not groups:
        pytest.skip("it has no kernels for this architecture")
    for names in groups:
        cubin, mangled = build.cubin(op, names, arch)
        nvrtc, nvcc = (instructions(image) for image in (cubin, build.nvcc_cubin(op, names, arch)))
        assert set(mangled.values()) <= set(nvrtc)
        if nvrtc != nvcc:  # NVRTC 13.0 in a process that ran many tests was seen to share 64-bit divisions
            nvrtc = instructions(in_a_new_process(op, names, arch, tmp_path))
        assert nvrtc == nvcc, names


def in_one_dtype(op: str, arch: str) -> list[list[str]]:
    """Groups of kernels of one dtype, and those that another dtype has instead."""
    groups = together(op, arch, dtype_for(op, arch))
    found = {name.partition("<")[0] for names in groups for name in names}
    others = {
        name: [name]
        for names in in_every_dtype(op, arch)
        for name in names
        if name.partition("<")[0] not in found
    }
    return [*groups, *others.values()]


def in_every_dtype(op: str, arch: str) -> list[list[str]]:
    return [names for dtype in registry.get_op(op).dtypes for names in together(op, arch, dtype)]


@pytest.mark.parametrize(
    "arch", [pytest.param(arch, marks=[pytest.mark.thorough] * (arch != ARCHS[-1])) for arch in ARCHS]
)
@pytest.mark.parametrize("op", case_sets.one_op())
def test_no_kernel_spills(op: str, arch: str) -> None:
    """Every kernel on every architecture that supports it."""
    groups = in_one_dtype(op, arch)
    if not groups and arch != "sm_90":
        pytest.skip("its kernels are for later architectures")
    spill_nothing(op, arch, groups)


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", registry.op_names())
def test_no_kernel_spills_in_any_dtype(op: str) -> None:
    spill_nothing(op, "sm_90", in_every_dtype(op, "sm_90"))


MOST_SPILLED_BYTES = {"layer_norm": 40, "rms_norm": 16, "rms_norm_backward": 44}
"""Blocks of 1024 threads have 64 registers each: too few for unaligned rows, and for both gradients."""


def spill_nothing(op: str, arch: str, groups: list[list[str]]) -> None:
    assert groups
    for names in groups:
        log = build.ptxas_log(op, names, arch)
        spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
        assert len(spills) >= len(names)
        assert max(int(stored) for stored, _ in spills) <= MOST_SPILLED_BYTES.get(op, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for op in registry.op_names() for dtype in registry.get_op(op).dtypes],
)
def test_nvcc_builds_every_module(op: str, dtype: str) -> None:
    """A name in host code may clash with one that only the GPU's build of the kernels declares; and a module
    for one dtype has no use for what the others need."""
    assert build.pybind_module(op, f"sm_90-{dtype}" if dtype in DTYPES else "sm_90").exists()


@pytest.mark.usefixtures("cache")
def test_a_module_for_one_dtype_is_built_with_its_kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: dict[str, list[str]] = {}

    def make(source: Path, command: list[str], libraries: list[str | Path], product: Path) -> None:
        commands[product.name] = [word for word in command if word.startswith(("-DONLY", "-gencode"))]
        product.write_text("a module")

    monkeypatch.setattr(build, "_make_module", make)
    every = build.pybind_module("vector_add", "sm_90").name
    half = build.pybind_module("vector_add", "sm_90-fp16").name
    native = "-gencode=arch=compute_90a,code=sm_90a"
    assert commands == {every: [native], half: [native, "-DONLY=FP16"]}


# --------------------------------------------------------------------------- ahead of time


def prebuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A module for two architectures, as setup.py builds it."""
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    return build.prebuild("vector_add", ("sm_80", "sm_90a"), build.PREBUILT)


@pytest.mark.usefixtures("cache")
def test_a_module_built_ahead_of_time_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[str] = []

    def make(source: Path, command: list[str], libraries: list[str | Path], product: Path) -> None:
        made.append(product.name)
        product.write_text("a module")

    monkeypatch.setattr(build, "_make_module", make)
    product = prebuilt(monkeypatch, tmp_path)
    assert build.pybind_module("vector_add", "sm_80") == product
    assert build.pybind_module("vector_add", "sm_90") == product
    assert build.pybind_module("vector_add", "sm_90-bf16") == product
    assert made == [product.name]
    assert build.pybind_module("vector_add", "sm_75").name == made[1]
    monkeypatch.setattr(build, "_pybind_sources", lambda op: "changed since")
    assert build.pybind_module("vector_add", "sm_90").name == made[2]
    assert len({*made}) == 3


@pytest.mark.exhaustive
@pytest.mark.usefixtures("cache")
def test_a_module_built_ahead_of_time_has_code_for_each_architecture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    product = prebuilt(monkeypatch, tmp_path)
    listing = subprocess.run([CUOBJDUMP, "-lelf", product], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"sm_\w+(?=\.cubin)", listing)) == {"sm_80", "sm_90a"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"CUDA_HOME": "/nowhere"}, "set CUDA_HOME to a CUDA toolkit"),
        ({"CUDA_ARCHS": "80;hopper"}, "'hopper' is no architecture"),
    ],
)
def test_setup_fails_with_one_clear_line(settings: dict[str, str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=registry.ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith("setup.py: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("cache")
def test_a_project_whose_path_has_a_quote_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernels = tmp_path / "student's" / "kernels"
    shutil.copytree(flags.KERNELS, kernels)
    monkeypatch.setattr(flags, "KERNELS", kernels)
    names = ["vector_add_scalar_kernel<float>"]
    assert build.nvcc_cubin("vector_add", names, "sm_80")
    assert build.cubin("vector_add", names, "sm_80")[0]
    assert build.host_kernel("vector_add", names[0]).is_file()
    command, folders = build._without_apostrophes(["nvcc", "-isystem", "a's", "-Ib's", "-Ic", "d's.cu"])
    assert (command, folders) == (["nvcc", "-Ic", "d's.cu"], ["a's", "b's"])


@pytest.mark.thorough
@pytest.mark.usefixtures("cache")
def test_precompiled_headers_fit_what_includes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """g++ is silent about one that does not fit, and parses CUDA's headers for each kernel again."""
    monkeypatch.setattr(
        host_flags, "HOST_CXX", (*host_flags.HOST_CXX, "-Winvalid-pch", "-Werror=invalid-pch")
    )
    for watched in (False, True):
        assert build.host_kernel("vector_add", "vector_add_scalar_kernel<float>", watched).is_file()


@pytest.mark.usefixtures("cache")
def test_what_a_killed_build_left_is_removed_by_the_next() -> None:
    left = build.cache_dir() / "thing.part" / "thing"
    left.parent.mkdir()
    left.touch()
    build._cached("thing", lambda product: product.write_text("done") and None)
    assert not left.parent.exists()
