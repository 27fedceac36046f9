"""Kernels as programs without Python: built for every op, and run here by a driver that has no GPU."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import case_sets
from compare import registry
from compare.capture import captured_route
from compare.checking.check import CheckOptions, check
from compare.checking.guarded_memory import memory_of
from compare.cli import main
from compare.device import arch, supports
from compare.records.encoding import decode
from compare.spec import CudaLaunch, Estimate, Implementation, Op
from compare.toolchain.aot import building, jit, running
from compare.toolchain.aot import report as programs
from compare.toolchain.aot.plan import Plan, Pointer, Scalar, candidates, plan
from compare.toolchain.aot.records import Kernel, Outcome, Program, Ran, Report, Started
from compare.toolchain.aot.show import exit_status
from cuda_impl import build
from cuda_impl.loader import kernel as cuda_kernel
from processes import NO_PROGRAM, command, python

ARCH = "sm_80"
CPU = torch.device("cpu")
Done = subprocess.CompletedProcess[str]
ADD = registry.get_op("vector_add")


def aot(*words: object, **environment: str) -> Done:
    """Run ``python -m compare aot`` in a process that sees no GPU."""
    return command("aot", *words, **{"CUDA_VISIBLE_DEVICES": ""} | environment)


@dataclass(frozen=True)
class Built:
    """Programs of an op."""

    op: Op
    done: Done
    outcomes: list[dict[str, Any]]
    folder: Path

    def programs(self) -> list[Program]:
        return [decode(Program, one["program"]) for one in self.outcomes if one["program"]]

    def plan_of(self, program: Program) -> Plan:
        (impl,) = registry.implementations(self.op.name, [program.label])
        return plan(self.op, impl, self.op.cases.smoke[0], program.arch)


def labels_of(op: str) -> list[str]:
    return case_sets.watched(op, case_sets.in_turn(op, ("triton", "pybind")))


@pytest.fixture(scope="module", params=case_sets.every(3))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp(request.param)
    file = folder / "found.json"
    only = [word for label in labels_of(request.param) for word in ("--only", label)]
    done = aot(request.param, *only, "--arch", ARCH, "--out", folder / "programs", "--json", file)
    outcomes = json.loads(file.read_text())["outcomes"] if file.exists() else []
    return Built(registry.get_op(request.param), done, outcomes, folder)


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


def runs_as(
    program: Program,
    planned: Plan,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    played: Callable[[torch.Tensor], bytes] | None = None,
    to: str = "",
) -> None:
    """Let a launch of the program do its work without a GPU.

    A CUDA kernel runs as its host build, which looks at the size and kind of every argument.  Of a Triton
    kernel, which no CPU runs, an output is played back: the right one to its own place, if not told else.
    """
    launch = planned.launch
    if isinstance(launch, CudaLaunch):
        kinds = [_kind(argument) for argument in planned.arguments.values()]
        monkeypatch.setenv("FAKE_CUDA_KERNEL", str(build.host_kernel(launch.source, launch.kernel)))
    else:
        known = {"CUdeviceptr": "P", "int32_t": "i4", "int64_t": "i8", "float": "f4"}
        kinds = [known[kind] for kind, _ in declared(program)]
        play_back(planned, program, monkeypatch, tmp_path, played or right, to or pointer_to_output(planned))
    monkeypatch.setenv("FAKE_CUDA_ARGUMENTS", " ".join(kinds))


def _kind(argument: Pointer | Scalar) -> str:
    if isinstance(argument, Pointer):
        return "P"
    dtype = _dtype(argument)
    return f"{'f' if dtype.kind == 'f' else 'i'}{dtype.itemsize}"


def _dtype(argument: Scalar) -> np.dtype[Any]:
    named = {"float": "float32", "double": "float64"}
    return np.dtype(named.get(argument.ctype, argument.ctype.removesuffix("_t")))


def logged(argument: Scalar) -> int:
    """As the driver writes it down: a number that is not whole by its bits."""
    value = np.array(argument.value, _dtype(argument))
    return int(value.view(f"u{value.itemsize}") if value.dtype.kind == "f" else value)


def declared(program: Program) -> list[tuple[str, str]]:
    """C type and name of the parameters that a Triton kernel still has at run time."""
    (header,) = program.folder.glob(f"{program.kernel.name}.*.h")
    found = re.search(r"^CUresult \w+\(CUstream stream, (.*)\);", header.read_text(), re.MULTILINE)
    assert found
    return [(kind, name) for kind, name in (words.split() for words in found[1].split(", "))]


def right(output: torch.Tensor) -> bytes:
    return output.reshape(-1).view(torch.uint8).numpy().tobytes()


def play_back(
    planned: Plan,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    as_bytes: Callable[[torch.Tensor], bytes],
    to: str,
) -> None:
    """Let the fake driver write what PyTorch's own implementation makes of the inputs of every seed."""
    (eager,) = registry.implementations(planned.op.name, [planned.op.baseline])
    at = [name for _, name in declared(program)].index(to)
    file = tmp_path / "played"
    place = running.OnFiles.place

    def placed(self: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        file.write_bytes(as_bytes(eager.run(*inputs)))
        return place(self, inputs)

    monkeypatch.setattr(running.OnFiles, "place", placed)
    monkeypatch.setenv("FAKE_CUDA_OUTPUT", f"{file}:{at}")


def pointer_to_output(planned: Plan) -> str:
    last = len(planned.inputs)
    return next(n for n, a in planned.arguments.items() if isinstance(a, Pointer) and a.memory == last)


def checked(
    program: Program, planned: Plan, tmp_path: Path, device: torch.device = CPU
) -> tuple[Any, running.OnFiles]:
    (impl,) = registry.implementations(planned.op.name, [program.label])
    stage = running.OnFiles(program, planned, tmp_path, device)
    return check(planned.op, impl, planned.case, device, (0, 1), CheckOptions(stage)), stage


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
            r"needs|launches|calls|argument|refuse|autotuned|fp32|outputs", one["cannot"]
        )
    if not programs:  # each needs what a program of one kernel does not have
        assert all(re.search(NO_PROGRAM, one["cannot"]) for one in built.outcomes)
        return
    for route in {label.partition(".")[0] for label in labels} & {"triton", "pybind"}:
        assert any(program.label.startswith(route) for program in programs), route
    for program in programs:
        folder = built.folder / "programs" / built.op.name / program.label / ARCH
        assert program.folder == folder
        assert program.executable.read_bytes()[:4] == b"\x7fELF"
        assert program.program_bytes == program.executable.stat().st_size > program.kernel.code_bytes > 0
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
        seen = set(launched.read_text().splitlines())
        assert seen == {expected_launch(program, planned)}, program.label
        ran += 1
    assert ran


def runs_here(label: str, op: str) -> bool:
    """Whether a CPU has what the kernel takes: Hopper's own units no host build has."""
    (impl,) = registry.implementations(op, [label])
    return supports(impl, CPU) is None


def expected_launch(program: Program, planned: Plan) -> str:
    """Kernel, grid, block, shared memory and the numbers, as the captured launch has them."""
    launch = planned.launch
    if isinstance(launch, CudaLaunch):
        image = build.fatbin(launch.source, launch.kernel, planned.arch)
        shape = (*launch.grid, *launch.block, launch.dynamic_shared_bytes)
        numbers = [logged(a) for a in planned.arguments.values() if isinstance(a, Scalar)]
        return " ".join(map(str, (image[1], *shape, *numbers)))
    (source,) = program.folder.glob(f"{program.kernel.name}.*.c")
    shared = re.search(r"int shared = (\d+);", source.read_text())
    assert shared
    threads = 32 * launch.options["num_warps"]
    given = [(kind, planned.arguments[name]) for kind, name in declared(program)]
    numbers = [logged(replace(a, ctype=kind)) for kind, a in given if isinstance(a, Scalar)]
    name = launch.kernel.fn.__name__
    return " ".join(map(str, (name, *launch.grid, threads, 1, 1, int(shared[1]), *numbers)))


@pytest.fixture(scope="module")
def add(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """vector_add for two architectures."""
    folder = tmp_path_factory.mktemp("add")
    file = folder / "found.json"
    done = aot("vector_add", "--arch", "sm_75,sm_90", "--out", folder / "programs", "--json", file)
    assert done.returncode == 0, done.stderr
    return Built(ADD, done, json.loads(file.read_text())["outcomes"], folder)


def one_of(built: Built, label: str) -> tuple[Program, Plan]:
    program = next(p for p in built.programs() if p.label == label)
    return program, built.plan_of(program)


@pytest.mark.thorough
def test_a_folder_builds_once_more_by_itself(add: Built) -> None:
    for program in add.programs():
        subprocess.run(["make", "-C", program.folder, "clean"], check=True, capture_output=True)
        assert not program.executable.exists()
        subprocess.run(["make", "-C", program.folder], check=True, capture_output=True)
        assert program.executable.stat().st_size == program.program_bytes


@pytest.mark.thorough
def test_each_program_carries_code_for_its_architecture(add: Built) -> None:
    tool = build.triton_nvidia() / "bin" / "cuobjdump"
    for program in add.programs():
        text = " ".join(file.read_text() for file in program.folder.glob("*.c"))
        arrays = re.findall(r"char (?:CUBIN_NAME|fatbin)\[\d+\][^=]*= \{([^}]*)\}", text)
        image = program.folder / "image"
        (numbers,) = arrays
        image.write_bytes(bytes(int(number, 16) for number in re.findall(r"0x\w\w", numbers)))
        assert image.stat().st_size == program.kernel.code_bytes
        listed = subprocess.run([tool, "-lelf", image], capture_output=True, text=True, check=False).stdout
        seen = (
            listed or subprocess.run([tool, "-elf", image], capture_output=True, text=True, check=True).stdout
        )
        assert re.search(rf"\b{program.arch}a?\b", seen), seen[:500]


# --------------------------------------------------------------------------- running, with a driver of ours


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
                stage = running.OnFiles(program, planned, tmp_path, CPU)
                agreement = check(found, impl, case, CPU, (0,), CheckOptions(stage))
            assert agreement.passed, f"{impl.label}: {agreement.reason}"
            ran.append(impl.label)
    if not ran:
        pytest.skip("no implementation takes such inputs as they are")


def test_a_wrong_output_is_caught(
    add: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = one_of(add, "triton.blocked")
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


def test_a_program_that_writes_to_its_inputs_is_caught(
    add: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = one_of(add, "triton.blocked")
    runs_as(program, planned, monkeypatch, tmp_path, to="y_ptr")
    agreement, _ = checked(program, planned, tmp_path)
    assert "it wrote to its input y" in agreement.reason


def test_first_results_and_launches_are_timed(
    add: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = one_of(add, "pybind.scalar")
    runs_as(program, planned, monkeypatch, tmp_path)
    _, stage = checked(program, planned, tmp_path)
    before = len(launched.read_text().splitlines())
    monkeypatch.setenv("FAKE_CUDA_ONCE", "1")
    found = running.started_ahead(program, stage.files)
    assert found.cold_ms
    assert found.launch_us
    assert found.graph_us
    assert found.compiling_ms is None
    assert len(found.cold_ms.samples) == running.STARTS
    assert 0 < found.cold_ms.median < 60_000
    assert len(found.launch_us.samples) == len(found.graph_us.samples) == 50
    # Each start launches once; the timed one once, and 51 times 100 launches of either kind.
    assert len(launched.read_text().splitlines()) - before == running.STARTS + 1 + 2 * 51 * 100


def test_a_graph_gives_the_same_output(
    add: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = one_of(add, "pybind.vectorized")
    runs_as(program, planned, monkeypatch, tmp_path)
    _, stage = checked(program, planned, tmp_path)
    plain = stage.files[-1].read_bytes()
    stage.files[-1].unlink()
    subprocess.run([program.executable, "--graph", *stage.files], check=True, capture_output=True)
    assert stage.files[-1].read_bytes() == plain


def test_a_program_and_the_call_from_python_make_a_row(
    add: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = one_of(add, "pybind.scalar")
    runs_as(program, planned, monkeypatch, tmp_path)
    monkeypatch.setenv("FAKE_CUDA_ONCE", "1")
    jit = Started(*(Estimate(value, value, value, (value,)) for value in (6000.0, 9000.0, 12.5, 3.5)))
    monkeypatch.setattr(running, "started_jit", lambda *_: jit)
    (impl,) = registry.implementations("vector_add", ["pybind.scalar"])
    ran = running.run(program, planned, captured_route(impl), CPU)
    assert ran.agreement.passed, ran.agreement.reason
    assert ran.jit_label == "cupy.scalar"
    outcome = Outcome("pybind.scalar", "sm_75", program, ran)
    text = programs.render(Report("vector_add", ADD.signature, "N=4096,fp32", (outcome,), "a GPU"), 200)
    assert re.search(r"pybind.scalar +without Python +yes +-", text)
    assert re.search(r"Python: cupy.scalar +- +9000 .* 6000 .* 12.5 .* 3.50", text)


def test_what_goes_wrong_in_a_program_is_one_sentence(
    add: Built, launched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = one_of(add, "pybind.scalar")
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


# --------------------------------------------------------------------------- the call from Python beside it


@pytest.mark.parametrize("op", registry.op_names())
def test_python_reads_the_same_files_as_the_program(op: str, tmp_path: Path) -> None:
    """Inputs come back as they lay in memory, whatever their layout."""
    found = registry.get_op(op)
    cases = [each for each in (*found.cases.smoke, *found.cases.edge) if 0 < found.cost(each).bytes < 1 << 20]
    for case in {each.layout: each for each in cases}.values():
        inputs = found.make_inputs(case, torch.Generator().manual_seed(0), CPU)
        for index, x in enumerate(inputs):
            file = tmp_path / f"{index}.bin"
            memory_of(x).numpy().tofile(file)
            dtype = str(x.dtype).removeprefix("torch.")
            read = jit._read(CPU, str(file), dtype, list(x.shape), list(x.stride()), x.storage_offset())
            assert (read.stride(), read.storage_offset()) == (x.stride(), x.storage_offset())
            assert memory_of(read).equal(memory_of(x)), case


def test_python_is_started_with_empty_caches_and_then_with_full_ones(
    add: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, planned = one_of(add, "pybind.scalar")
    (impl,) = registry.implementations("vector_add", ["cupy.scalar"])
    started = []

    def end_of(words: Any, given: str, environment: dict[str, str]) -> str:
        order = json.loads(given)
        assert getattr(importlib.import_module(order["module"]), order["function"]) is impl.run
        assert [Path(file).name for file, *_ in order["inputs"]] == ["x.bin", "y.bin"]
        assert order["inputs"][0][1:] == ["float32", [4096], [1], 0]
        assert "TRITON_INTERPRET" not in environment
        started.append((environment["CUPY_CACHE_DIR"], environment["TRITON_CACHE_DIR"], order["timed"]))
        return (
            f"first_result_ns {time.monotonic_ns() + 10**9}\n" + "launch_us 12\ngraph_us 3\n" * order["timed"]
        )

    monkeypatch.setattr(running, "_end_of", end_of)
    files = [tmp_path / name for name in program.files]
    found = running.started_jit(planned, impl, files, tmp_path)
    fresh, *full = started[: running.PYTHON_STARTS], *started[running.PYTHON_STARTS :]
    assert len({cupy for cupy, _, _ in fresh}) == running.PYTHON_STARTS
    assert {(cupy, triton) for cupy, triton, _ in full} == {fresh[0][:2]}
    assert [timed for *_, timed in started] == [False] * 2 * running.PYTHON_STARTS + [True]
    assert found.compiling_ms
    assert found.cold_ms
    assert 1000 <= found.cold_ms.median < 1100
    assert found.launch_us == Estimate(12, 12, 12, (12,))
    assert found.graph_us == Estimate(3, 3, 3, (3,))


# --------------------------------------------------------------------------- what there can be no program of


@triton.jit
def twice_kernel(x_ptr, y_ptr, z_ptr, N, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    tl.store(z_ptr + n, tl.load(x_ptr + n, mask=n < N), mask=n < N)


def written(run: Callable[..., Any], label: str = "triton.mine") -> Implementation:
    return Implementation("vector_add", label, "tiled", run)


def planned_of(run: Callable[..., Any]) -> Plan:
    return plan(ADD, written(run), ADD.cases.smoke[0], ARCH)


def launch_twice(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
    twice_kernel[(1,)](x, y, z, x.numel(), BLOCK=4096, num_warps=4)


def with_two_kernels(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.empty_like(x)
    launch_twice(x, y, z)
    launch_twice(x, y, z)
    return z


def with_zeros(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.zeros_like(x)
    launch_twice(x, y, z)
    return z


def with_a_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.empty_like(x)
    launch_twice(x, y, z)
    return z + y


def with_memory_of_its_own(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.empty_like(x)
    launch_twice(x, torch.empty(4, device=x.device), z)
    return z


def with_a_text(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.empty_like(x)
    twice_kernel[(1,)](x, y, z, "many", BLOCK=4096)
    return z


def with_nothing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def with_a_tensor_map(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.empty_like(x)
    by_value = np.zeros(1, "V128")[0]
    cuda_kernel("vector_add", "f", x.device)((1,), (1,), (x.data_ptr(), by_value, z.data_ptr()))
    return z


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (with_two_kernels, r"launches 2 kernels \(twice_kernel, twice_kernel\)"),
        (with_zeros, "calls PyTorch's zeros_like beside the launch"),
        (with_a_sum, "calls PyTorch's add beside the launch"),
        (with_memory_of_its_own, "memory besides inputs and output"),
        (with_a_text, "argument N of its kernel is a str"),
        (with_nothing, "launches nothing on N=4096,fp32"),
        (with_a_tensor_map, "argument 1 of its kernel is 128 bytes by value, a tensor map"),
    ],
)
def test_what_a_program_cannot_do_is_refused(run: Callable[..., Any], why: str) -> None:
    with pytest.raises(NotImplementedError, match=why) as error:
        planned_of(run)
    assert "\n" not in str(error.value)


def test_an_argument_is_known_by_the_memory_it_points_into() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.empty(2 * x.numel(), device=x.device)[8 : 8 + x.numel()]
        launch_twice(y[4:], x, z)
        return z

    found = planned_of(run)
    pointers = [a for a in found.arguments.values() if isinstance(a, Pointer)]
    assert pointers == [Pointer(1, 16), Pointer(0, 0), Pointer(2, 32)]
    assert found.output.bytes == 2 * 4096 * 4
    assert [memory.name for memory in found.memory] == ["x", "y", "z"]


ASKED_TOO_MUCH = """
import re
import sys

import torch
import triton
import triton.language as tl
from pathlib import Path

from compare import registry
from compare.toolchain.aot import triton_tools
from compare.toolchain.aot.plan import plan
from compare.spec import Implementation


@triton.jit
def scaled_kernel(x_ptr, z_ptr, factor, N, BLOCK: tl.constexpr, HOW: tl.constexpr = 0):
    n = tl.arange(0, BLOCK)
    tl.store(z_ptr + n, tl.load(x_ptr + n, mask=n < N) * factor, mask=n < N)


op = registry.get_op("vector_add")
if __name__ == "__main__":  # Triton's tool runs this file once more
    asked = ((2.5, {}), (3, {"num_ctas": 2}), (3, {"HOW": True}), (3, {"maxnreg": 64}), (3, {}))
    for factor, options in asked:

        def run(x, y):
            z = torch.empty_like(x)
            scaled_kernel[(1,)](x, z, factor, x.numel(), BLOCK=4096, **options)
            return z

        try:
            impl = Implementation("vector_add", "triton.mine", "tiled", run)
            made = triton_tools.make(plan(op, impl, op.cases.smoke[0], "sm_90"), Path(sys.argv[1]))
            declared = re.findall(r"float factor", (Path(sys.argv[1]) / made.header).read_text())
            print("made with", *made.arguments, *set(declared))
        except NotImplementedError as error:
            print(error)
"""


@pytest.mark.thorough
def test_triton_s_tools_are_not_asked_for_what_they_get_wrong(tmp_path: Path) -> None:
    """They would take these, and launch something else."""
    script = tmp_path / "scaled.py"
    script.write_text(ASKED_TOO_MUCH)
    folders = {"PYTHONPATH": str(registry.ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = python(script, tmp_path, **folders)
    assert done.returncode == 0, done.stderr
    by_value, clusters, constant, registers, plain = done.stdout.splitlines()
    assert by_value == "made with x_ptr z_ptr factor N float factor"
    assert "launched with num_ctas" in clusters
    assert constant == "made with x_ptr z_ptr factor N"
    assert "launched with maxnreg" in registers
    assert plain == "made with x_ptr z_ptr factor N"


def test_exit_codes() -> None:
    def outcome(**fields: Any) -> Outcome:
        return Outcome("triton.x", ARCH, **fields)

    def status(*outcomes: Outcome) -> int:
        return exit_status(Report("op", "x[N] -> y[N]", "N=1", outcomes))

    some = Program("triton.x", ARCH, Kernel("k", "k", "k.h", (), "t", 1), Path(), Path(), (), 1)
    (impl,) = registry.implementations("vector_add", ["torch.eager"])
    good = check(ADD, impl, ADD.cases.smoke[0], CPU, (0,))
    ran = Ran(good, Started(), Started(), "triton.x")
    assert status(outcome(program=some)) == 0
    assert status(outcome(program=some), outcome(cannot="it needs more")) == 0
    assert status(outcome(program=some, ran=ran)) == 0
    assert status(outcome(cannot="it needs more")) == 3
    assert status(outcome(program=some), outcome(failed="nvcc")) == 3
    wrong = replace(ran, agreement=replace(good, passed=False))
    assert status(outcome(program=some, ran=wrong), outcome(failed="nvcc")) == 1


# --------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("vector_ad", "--out", "OUT"), "did you mean vector_add"),
        (
            ("vector_add", "--out", "OUT", "--arch", "sm_70"),
            "architecture 'sm_70' is not known; there are sm_75",
        ),
        (("vector_add", "--out", "OUT", "--arch", "hopper"), "an architecture reads like sm_90"),
        (
            ("vector_add", "--out", "OUT", "--only", "torch.*"),
            "PyTorch's own kernels cannot be compiled here",
        ),
        (("vector_add", "--out", "OUT", "--only", "cuda.*"), "no implementation of vector_add 'cuda.*'"),
        (("vector_add", "--out", "OUT", "--case", "M=3"), "'M' is no dimension"),
        (("vector_add", "--out", "FILE"), "FILE cannot be written"),
        (("vector_add", "--out", "OUT", "--json", "OUT"), "is a directory"),
        (("vector_add", "--out", "OUT", "--json", "OUT/no/file"), "there is no directory"),
        (("vector_add",), "--out"),
    ],
)
@pytest.mark.usefixtures("decorated")
def test_mistakes_are_one_sentence(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "FILE").touch()
    (tmp_path / "OUT").mkdir()
    names = [re.sub(r"^(OUT|FILE)", lambda found: str(tmp_path / found[1]), word) for word in words]
    try:
        status = main(["aot", *names])
    except SystemExit as ended:  # argparse's own way
        status = ended.code
    assert status == 2
    assert said in capsys.readouterr().err
    assert not any((tmp_path / "OUT").iterdir())


@pytest.mark.thorough
def test_what_is_missing_is_said(tmp_path: Path) -> None:
    done = aot("vector_add", "--arch", ARCH, "--out", tmp_path / "out", CC="no-such-compiler")
    assert done.returncode == 2
    assert "no C compiler 'no-such-compiler' on PATH: apt-get install gcc" in done.stderr
    done = aot("vector_add", "--arch", ARCH, "--out", tmp_path / "out", CUDA_HOME=str(tmp_path))
    assert done.returncode == 3, done.stdout
    assert "set CUDA_HOME to a CUDA toolkit, or unset it" in " ".join(done.stdout.split())
    assert "triton.blocked  sm_80" in done.stdout, "what needs no nvcc is built"


@pytest.mark.thorough
def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
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
    agreement, stage = checked(program, planned, tmp_path, gpu)
    assert agreement.passed, agreement.reason
    timed = running.started_ahead(program, stage.files)
    assert 0 < timed.launch_us.median < 1000 * timed.cold_ms.median
    assert timed.graph_us.median > 0


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.parametrize("label", ["triton.online", "pybind.online"])
def test_a_program_is_sooner_and_its_launch_cheaper_than_python_s(label: str, tmp_path: Path) -> None:
    """By the command, in a process of its own; Python is started several times, which takes long."""
    file = tmp_path / "found.json"
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    arguments = ("--only", label, "--out", tmp_path / "programs", "--json", file)
    done = aot("softmax", *arguments, CUDA_VISIBLE_DEVICES=seen)
    assert done.returncode == 0, done.stderr + done.stdout
    (outcome,) = json.loads(file.read_text())["outcomes"]
    ahead, jit = outcome["ran"]["ahead"], outcome["ran"]["jit"]
    assert outcome["ran"]["agreement"]["passed"]
    assert ahead["cold_ms"]["median"] < jit["cold_ms"]["median"]
    assert ahead["launch_us"]["median"] < jit["launch_us"]["median"]
    assert ahead["graph_us"]["median"] > 0
