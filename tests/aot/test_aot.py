"""Kernels as programs without Python: built for every op, and run here by a driver that has no GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import case_sets
from compare import registry
from compare.aot import building, running, screen
from compare.aot.plan import Pointer, ProgramPlan, candidates, plan
from compare.aot.running import ProgramOutcome, ProgramReport
from compare.checking.check import CheckOptions, check
from compare.commands.aot import _exit_status
from compare.device import arch, supports
from compare.model.op import CudaLaunch, Op
from compare.records.encoding import decode
from cuda_impl import build
from processes import NO_PROGRAM, command

ARCH = "sm_80"
CPU = torch.device("cpu")
ADD = registry.get_op("vector_add")


def aot(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m compare aot`` in a process that sees no GPU."""
    return command("aot", *words, **{"CUDA_VISIBLE_DEVICES": ""} | environment)


@dataclass(frozen=True)
class Built:
    """Programs of an op."""

    op: Op
    done: subprocess.CompletedProcess[str]
    outcomes: list[dict[str, Any]]
    folder: Path

    def programs(self) -> list[building.Program]:
        return [decode(building.Program, one["program"]) for one in self.outcomes if one["program"]]

    def plan_of(self, program: building.Program) -> ProgramPlan:
        (impl,) = registry.implementations(self.op.name, [program.label])
        return plan(self.op, impl, self.op.cases.smoke[0], program.arch)

    def one(self, label: str) -> tuple[building.Program, ProgramPlan]:
        program = next(program for program in self.programs() if program.label == label)
        return program, self.plan_of(program)


def built_of(op: str, folder: Path, *words: str) -> Built:
    file = folder / "all.json"
    done = aot(op, *words, "--out", folder / "programs", "--json", file)
    outcomes = json.loads(file.read_text())["outcomes"] if file.exists() else []
    return Built(registry.get_op(op), done, outcomes, folder)


def labels_of(op: str) -> list[str]:
    return case_sets.watched(op, case_sets.in_turn(op, ("triton", "pybind")))


@pytest.fixture(scope="module", params=case_sets.every(3))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    only = [word for label in labels_of(request.param) for word in ("--only", label)]
    return built_of(request.param, tmp_path_factory.mktemp(request.param), *only, "--arch", ARCH)


@pytest.fixture(scope="module")
def add(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """vector_add for two architectures."""
    found = built_of("vector_add", tmp_path_factory.mktemp("add"), "--arch", "sm_75,sm_90")
    assert found.done.returncode == 0, found.done.stderr
    return found


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that needs no GPU."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parents[1] / "support" / "fake_cuda" / "fake_cuda.c"
    include = f"-I{build.driver_include()}"
    words = [build.gcc(), "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", include, str(source), "-ldl"]
    subprocess.run([*words, "-o", str(folder / "libcuda.so.1")], check=True)
    return folder


@pytest.fixture
def launched(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver in place; the file to which it adds a line for each launch."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    log = tmp_path / "launches"
    monkeypatch.setenv("FAKE_CUDA_LOG", str(log))
    return log


def declared(program: building.Program) -> dict[str, str]:
    """The C types of the kernel's parameters, by name."""
    header = (program.folder / f"{program.kernel}.h").read_text()
    found = re.search(rf"^CUresult {program.kernel}\(CUstream stream, (.*)\);", header, re.MULTILINE)
    assert found
    return {name: ctype for ctype, name in (words.split() for words in found[1].split(", "))}


def runs_as(
    program: building.Program,
    planned: ProgramPlan,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    as_bytes: Callable[[torch.Tensor], bytes] | None = None,
    to: str = "",
) -> None:
    """Let a launch of the program do its work without a GPU.

    A CUDA kernel runs as its host build, which looks at the size and kind of every argument.  Of a Triton
    kernel, which no CPU runs, an output is played back: the right one to its own place, if not told else.
    """
    launch, ctypes = planned.launch, declared(program)
    if isinstance(launch, CudaLaunch):
        monkeypatch.setenv("FAKE_CUDA_KERNEL", str(build.host_kernel(launch.source, launch.kernel)))
        monkeypatch.setenv("FAKE_CUDA_CLUSTER", str(launch.cluster))
    else:
        (eager,) = registry.implementations(planned.op.name, [planned.op.baseline])
        to = to or next(
            name
            for name, argument in planned.arguments.items()
            if isinstance(argument, Pointer) and argument.memory == len(planned.memory) - 1
        )
        file = tmp_path / "played"
        place = running.OnFiles.place

        def placed(self: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            file.write_bytes((as_bytes or right)(eager.run(*inputs)))
            return place(self, inputs)

        monkeypatch.setattr(running.OnFiles, "place", placed)
        monkeypatch.setenv("FAKE_CUDA_OUTPUT", f"{file}:{list(ctypes).index(to)}")
    kinds = ("P" if c == "CUdeviceptr" else f"{dtype(c).kind}{dtype(c).itemsize}" for c in ctypes.values())
    monkeypatch.setenv("FAKE_CUDA_ARGUMENTS", " ".join(kinds).replace("u", "i"))


def dtype(ctype: str) -> np.dtype[Any]:
    return np.dtype({"float": "float32", "double": "float64"}.get(ctype, ctype.removesuffix("_t")))


def right(output: torch.Tensor) -> bytes:
    return output.reshape(-1).view(torch.uint8).numpy().tobytes()


def checked(
    program: building.Program, planned: ProgramPlan, tmp_path: Path, device: torch.device = CPU
) -> tuple[Any, running.OnFiles]:
    (impl,) = registry.implementations(planned.op.name, [program.label])
    stage = running.OnFiles(program, planned, tmp_path, device)
    return check(planned.op, impl, planned.case, device, (0, 1), CheckOptions(stage, repeated=False)), stage


# --------------------------------------------------------------------------- building


def test_every_implementation_is_built_or_says_why_not(built: Built) -> None:
    programs = built.programs()
    assert built.done.returncode == (0 if programs else 3), built.done.stderr + built.done.stdout
    labels = labels_of(built.op.name)
    assert [one["label"] for one in built.outcomes] == [i.label for i in candidates(built.op, labels)]
    for one in built.outcomes:
        assert not one["failed"]
        assert bool(one["program"]) != bool(one["cannot"])
        assert one["label"] in built.done.stdout
        assert not one["cannot"] or re.search(
            r"needs|launches|launched|calls|argument|autotuned|fp32|outputs", one["cannot"]
        )
    if not programs:  # each needs what a program of one kernel does not have
        assert all(re.search(NO_PROGRAM, one["cannot"]) for one in built.outcomes)
        return
    for route in {label.partition(".")[0] for label in labels} & {"triton", "pybind"}:
        assert any(program.label.startswith(route) for program in programs), route
    for program in programs:
        assert program.folder == built.folder / "programs" / built.op.name / program.label / ARCH
        assert program.executable.read_bytes()[:4] == b"\x7fELF"
        assert program.program_bytes == program.executable.stat().st_size > program.code_bytes > 0
    assert "There is no GPU here" in built.done.stdout


@pytest.mark.thorough
def test_the_programs_agree_on_files(
    built: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in, files out, by way of the driver: the kernel gets what its own host code gives it."""
    ran = 0
    if not built.programs():
        pytest.skip("there can be none of this op")
    for program in built.programs():
        planned = built.plan_of(program)
        if not runs_here(program.label, built.op.name):
            continue
        launched.unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            runs_as(program, planned, patch, tmp_path)
            agreement, _ = checked(program, planned, tmp_path)
        assert agreement.passed, f"{program.label}: {agreement.reason}"
        assert next(f for f in agreement.findings if f.name == "guard zones").detail == "around the output"
        assert set(launched.read_text().splitlines()) == {expected_launch(program, planned)}, program.label
        ran += 1
    assert ran


def runs_here(label: str, op: str) -> bool:
    """Whether a CPU has what the kernel takes."""
    (impl,) = registry.implementations(op, [label])
    return supports(impl, CPU) is None


def expected_launch(program: building.Program, planned: ProgramPlan) -> str:
    """Kernel, grid, block, shared memory and the numbers, as the captured launch has them."""
    launch = planned.launch
    if isinstance(launch, CudaLaunch):
        name = build.fatbin(launch.source, launch.kernel, planned.arch)[1]
        block, shared = launch.block, launch.dynamic_shared_bytes
    else:  # how much shared memory it takes only its compiler knows
        name, block = launch.kernel.fn.__name__, (32 * launch.options["num_warps"], 1, 1)
        text = (program.folder / f"{program.kernel}.c").read_text()
        shared = int(re.findall(r"(\d+), stream, arguments, NULL", text)[0])
    numbers = []
    for parameter, ctype in declared(program).items():
        argument = planned.arguments[parameter]
        if not isinstance(argument, Pointer):  # the driver writes down one that is not whole by its bits
            value = np.array(argument, dtype(ctype))
            numbers.append(int(value.view(f"u{value.itemsize}") if value.dtype.kind == "f" else value))
    return " ".join(map(str, (name, *launch.grid, *block, shared, *numbers)))


@pytest.mark.thorough
def test_a_folder_builds_once_more_by_itself_for_its_architecture(add: Built) -> None:
    tool = build.triton_nvidia() / "bin" / "cuobjdump"
    for program in add.programs():
        subprocess.run(["make", "-C", program.folder, "clean"], check=True, capture_output=True)
        assert not program.executable.exists()
        subprocess.run(["make", "-C", program.folder], check=True, capture_output=True)
        assert program.executable.stat().st_size == program.program_bytes
        text = (program.folder / f"{program.kernel}.c").read_text()
        (numbers,) = re.findall(r"char code\[\d+\][^=]*= \{([^}]*)\}", text)
        image = program.folder / "image"
        image.write_bytes(bytes(int(number, 16) for number in re.findall(r"0x\w\w", numbers)))
        assert image.stat().st_size == program.code_bytes
        listed = [
            subprocess.run([tool, option, image], capture_output=True, text=True, check=False).stdout
            for option in ("-lelf", "-elf")
        ]
        assert re.search(rf"\b{program.arch}a?\b", "".join(listed)), listed


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["misaligned", "padded"])
@pytest.mark.parametrize("op", case_sets.every(2))
def test_offsets_and_strides_reach_the_kernel(
    op: str, layout: str, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA programs of cases whose inputs do not begin where their memory does, or have gaps."""
    found = registry.get_op(op)
    laid_out = [
        each for each in found.cases.edge if each.layout == layout and found.cost(each).bytes < 1 << 20
    ]
    ran: list[str] = []
    for case in laid_out[:1]:
        for impl in case_sets.typical(op, "pybind"):
            if not runs_here(impl.label, op):
                continue
            try:
                planned = plan(found, impl, case, ARCH)
            except NotImplementedError:
                continue
            program = building.make(planned, tmp_path / impl.label)
            with monkeypatch.context() as patch:
                runs_as(program, planned, patch, tmp_path)
                agreement, _ = checked(program, planned, tmp_path)
            assert agreement.passed, f"{impl.label}: {agreement.reason}"
            ran.append(impl.label)
    if not ran:
        pytest.skip("no implementation takes such inputs as they are")


# --------------------------------------------------------------------------- running, with a driver of ours


def test_a_wrong_output_is_caught(
    add: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = add.one("triton.blocked")
    ends = {
        "values": lambda output: right(torch.cat([output[:-1], output[-1:] * 1.0001])),
        "all written": lambda output: right(output[:-1]),
        "guard zones": lambda output: right(torch.cat([output, output[:1]])),
    }
    for finding, as_bytes in ends.items():
        with monkeypatch.context() as patch:
            runs_as(program, planned, patch, tmp_path, as_bytes)
            agreement, _ = checked(program, planned, tmp_path)
        failed = [f.name for f in agreement.findings if not f.passed]
        assert finding in failed, (finding, agreement.findings)
    runs_as(program, planned, monkeypatch, tmp_path, to="y_ptr")
    agreement, _ = checked(program, planned, tmp_path)
    assert "it wrote to its input y" in agreement.reason


def test_a_program_is_checked_and_timed(
    add: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = add.one("pybind.scalar")
    runs_as(program, planned, monkeypatch, tmp_path)
    monkeypatch.setenv("FAKE_CUDA_ONCE", "1")
    monkeypatch.setattr(running, "SEEDS", (0,))
    (impl,) = registry.implementations("vector_add", ["pybind.scalar"])
    ran = running.run(program, planned, impl, CPU)
    assert ran.agreement.passed, ran.agreement.reason
    assert len(ran.cold_ms.samples) == running.STARTS
    assert 0 < ran.cold_ms.median < 60_000
    assert len(ran.launch_us.samples) == len(ran.graph_us.samples) == 50
    # Each start launches once; the timed one once, and 51 times 100 launches of either kind.
    assert len(launched.read_text().splitlines()) > running.STARTS + 1 + 2 * 51 * 100
    outcome = ProgramOutcome("pybind.scalar", "sm_75", program, ran)
    text = screen.render(ProgramReport("vector_add", ADD.signature, "N=4096,fp32", (outcome,), "a GPU"), 200)
    assert re.search(r"From start to first result, on a GPU\n.*\n.*\n.*\npybind.scalar +yes +[\d.]+ \(", text)
    wrong = replace(ran, agreement=replace(ran.agreement, passed=False))
    check_exit_codes(program, ran, wrong)


def check_exit_codes(program: building.Program, right: running.ProgramRun, wrong: running.ProgramRun) -> None:
    for expected, *fields in (
        (0, {"program": program}),
        (0, {"program": program}, {"cannot": "it needs more"}),
        (0, {"program": program, "ran": right}),
        (3, {"cannot": "it needs more"}),
        (1, {"program": program}, {"failed": "nvcc"}),
        (1, {"program": program, "ran": wrong}, {"failed": "nvcc"}),
    ):
        outcomes = tuple(ProgramOutcome("triton.x", ARCH, **each) for each in fields)
        assert _exit_status(ProgramReport("op", "x[N] -> y[N]", "N=1", outcomes)) == expected


def test_a_graph_gives_the_same_output(
    add: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = add.one("pybind.vectorized")
    runs_as(program, planned, monkeypatch, tmp_path)
    _, stage = checked(program, planned, tmp_path)
    plain = stage.files[-1].read_bytes()
    stage.files[-1].unlink()
    subprocess.run([program.executable, "--graph", *stage.files], check=True, capture_output=True)
    assert stage.files[-1].read_bytes() == plain


def test_what_goes_wrong_in_a_program_is_one_sentence(
    add: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = add.one("pybind.scalar")
    runs_as(program, planned, monkeypatch, tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_CUDA_FAILS", "cuModuleLoadData")
        with pytest.raises(running.RunError, match=r"cuModuleLoadData.*no kernel image is available"):
            checked(program, planned, tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_CUDA_ARGUMENTS", "P P P i4")
        with pytest.raises(running.RunError, match="launch"):
            checked(program, planned, tmp_path)
    checked(program, planned, tmp_path)
    files = [str(tmp_path / name) for name in program.files]
    Path(files[0]).write_bytes(b"short")
    for words, said in ((files[:1], "usage: program"), (files, "not a file of the input's bytes")):
        done = subprocess.run([program.executable, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
def test_without_a_driver_a_program_says_what_it_needs(add: Built, tmp_path: Path) -> None:
    program = add.programs()[0]
    words = [str(tmp_path / name) for name in program.files]
    done = subprocess.run([program.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "no libcuda.so.1: running needs a machine with an NVIDIA GPU and its driver\n"


# --------------------------------------------------------------------------- mistakes


@pytest.mark.thorough
def test_what_is_missing_is_said(tmp_path: Path) -> None:
    done = aot("vector_add", "--arch", ARCH, "--out", tmp_path / "out", CC="no-such-compiler")
    assert done.returncode == 2
    assert "no C compiler 'no-such-compiler' on PATH: apt-get install gcc" in done.stderr
    done = aot("vector_add", "--arch", ARCH, "--out", tmp_path / "out", CUDA_HOME=str(tmp_path))
    assert done.returncode == 1, done.stdout
    assert "set CUDA_HOME to a CUDA toolkit, or unset it" in " ".join(done.stdout.split())
    assert "triton.blocked  sm_80" in done.stdout, "what needs no nvcc is built"
    folder = tmp_path / "vector_add" / "triton.blocked" / ARCH
    folder.mkdir(parents=True)
    (folder / "thesis.c").write_text("mine")
    done = aot("vector_add", "--only", "triton.*", "--arch", ARCH, "--out", tmp_path)
    assert done.returncode == 2
    assert "holds files that are not of an earlier program" in done.stderr
    assert (folder / "thesis.c").read_text() == "mine"


# --------------------------------------------------------------------------- with a GPU


def _programs() -> list[Any]:
    """Those of which no test builds any are left to all tests."""
    return [
        pytest.param(op, impl.label, marks=[] if impl.label in labels_of(op) else [pytest.mark.exhaustive])
        for op in registry.op_names()
        for impl in candidates(registry.get_op(op), ())
    ]


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "label"), _programs())
def test_a_program_runs_and_agrees_on_this_gpu(op: str, label: str, tmp_path: Path) -> None:
    gpu = torch.device("cuda", torch.cuda.current_device())
    (impl,) = registry.implementations(op, [label])
    for case in registry.get_op(op).cases.smoke:  # the first that it takes
        try:
            planned = plan(registry.get_op(op), impl, case, str(arch(gpu)))
            program = building.make(planned, tmp_path / "program")
            break
        except NotImplementedError as error:
            reason = str(error)
    else:
        pytest.skip(reason)
    ran = running.run(program, planned, impl, gpu)
    assert ran.agreement.passed, ran.agreement.reason
    assert 0 < ran.launch_us.median < 1000 * ran.cold_ms.median
    assert ran.graph_us.median > 0


@pytest.mark.gpu
@pytest.mark.parametrize("label", ["triton.online", "pybind.online"])
def test_the_command_runs_what_it_built(label: str, tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    words = ("--only", label, "--out", tmp_path / "programs", "--json", file)
    done = aot("softmax", *words, CUDA_VISIBLE_DEVICES=seen)
    assert done.returncode == 0, done.stderr + done.stdout
    (outcome,) = json.loads(file.read_text())["outcomes"]
    assert outcome["ran"]["agreement"]["passed"]
    assert "From start to first result" in done.stdout
