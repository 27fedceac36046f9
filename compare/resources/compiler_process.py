"""The process that captures and compiles: ``python -m compare.resources.compiler_process``, used by `static`.

It reads its orders as a line of JSON from stdin, and ends with all that it has started when that closes.  It
answers each order with a line of JSON, as soon as it is done.  Lines in between tell what it is about to do,
and for which order: whoever waits can tell then what takes too long.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, TextIO

from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import ty_to_cpp
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from compare import registry
from compare.capture import Launch, capture
from compare.device import capability
from compare.model.op import Case, CudaLaunch, TritonLaunch
from compare.model.result import KernelResources
from compare.resources.kernels import merged, with_occupancy
from compare.resources.machine_code import Figures, code_bytes, read_report
from compare.resources.occupancy import WARP, limits
from compare.resources.sass.disassembly import NoDisassembler, disassembled, instructions, of_kernel
from compare.resources.sass.instruction_mix import load_bits, multiplications
from compare.resources.static import Refused
from compare.sandbox.limits import end_with
from compare.sandbox.words import raised_in
from cuda_impl import build


def main(orders_from: TextIO, answers_to: TextIO) -> None:
    """Answer every order; an order that fails is answered with why."""
    message = json.loads(orders_from.readline())
    if not message["load"]:  # else it was launched in isolation, and ends with the judge already
        _end_with(orders_from)
    os.nice(message["nice"])

    def tell(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=answers_to, flush=True)

    for op in {order["op"] for order in message["orders"]} & set(registry.op_names()):
        registry.implementations(op)  # imports, Triton's too, are to be no part of a step that is limited
    for path in message["load"]:
        tell({"step": f"loading {path}", "of": None})
        registry.load(path)
    compiler = Compiler()
    asked = []
    for order in message["orders"]:
        tell({"step": "finding out what it launches", "of": order["key"]})
        asked.append((order, compiler.start(order)))
    for order, launches in asked:
        tell({"step": "compiling it", "of": order["key"]})
        answer: dict[str, Any] = {"key": order["key"]}
        try:
            busy = _is_busy(order)
            found = compiler.finish(
                launches.result(), order["arch"], disassemble=busy or bool(message["load"])
            )
            if not busy:
                found = tuple(replace(kernel, instruction="") for kernel in found)
            answer["kernels"] = list(map(asdict, found))
        except NotImplementedError as error:
            answer["unavailable"] = str(error)
        except Refused as error:
            answer["refused"] = str(error)
        except Exception as error:  # of a user's kernel or of a compiler: anything
            answer["failed"] = f"{type(error).__name__}: {error}"
        tell(answer)


def _end_with(orders_from: TextIO) -> None:
    """Who gives the orders keeps their other end while it lives; nothing more is to be read there."""
    lifeline = os.dup(orders_from.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, orders_from.fileno())
    os.close(nothing)
    end_with(lifeline)


@dataclass(frozen=True)
class Compiled:
    """One kernel's machine code, and what ptxas said of it."""

    name: str
    """Mangled."""
    figures: Figures
    cubin: bytes


@dataclass(frozen=True)
class _Read:
    """What only a disassembly tells: the fields of these names of `KernelResources`."""

    instruction: str = ""
    load_bits: int | None = None


class Compiler:
    """Compiles captured launches, each kernel once however many cases launch it.

    NVRTC compiles on all cores, beside Triton, which compiles on this thread only.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor()
        self._cuda: dict[tuple[str, str, str], Future[Compiled]] = {}
        self._triton: dict[str, Compiled] = {}
        self._instructions: dict[bytes, _Read] = {}

    def start(self, order: dict[str, Any]) -> Future[list[Launch]]:
        """Capture an order's launches, or why they cannot be, and set the CUDA ones off."""
        captured: Future[list[Launch]] = Future()
        try:
            launches = _captured(order)
        except Exception as error:
            captured.set_exception(error)
            return captured
        captured.set_result(launches)
        for launch in launches:
            if isinstance(launch, CudaLaunch):
                key = (launch.source, launch.kernel, order["arch"])
                if key not in self._cuda:
                    self._cuda[key] = self._pool.submit(compile_cuda, *key)
        return captured

    def finish(
        self, launches: Sequence[Launch], arch: str, *, disassemble: bool
    ) -> tuple[KernelResources, ...]:
        """What a call's kernels take; with what only the disassembly tells if asked for."""
        return merged(self._resources(launch, arch, disassemble) for launch in launches)

    def _resources(self, launch: Launch, arch: str, disassemble: bool) -> KernelResources:
        if isinstance(launch, TritonLaunch):
            return self._resources_of_triton(launch, arch, disassemble)
        code = self._cuda[launch.source, launch.kernel, arch].result()
        read = self._read(code) if disassemble else _Read()
        return _described(
            launch.kernel, arch, code, launch.dynamic_shared_bytes, launch.grid, launch.block, read
        )

    def _resources_of_triton(self, launch: TritonLaunch, arch: str, disassemble: bool) -> KernelResources:
        try:
            compiled, log = compile_triton(launch, arch)
        except Exception as error:  # each stage has its own
            name, text, where = raised_in(inspect.getfile(launch.kernel.fn), error)
            raise Refused(f"{launch.kernel.fn.__name__}: {where and f'{where}: '}{name}: {text}") from error
        if compiled.hash not in self._triton:  # Triton compiles a specialisation once, and reports once
            name = compiled.metadata.name
            self._triton[compiled.hash] = Compiled(name, read_report(log)[name], compiled.asm["cubin"])
        code = self._triton[compiled.hash]
        x, y, z = launch.grid
        grid = (x * getattr(compiled.metadata, "num_ctas", 1), y, z)
        block = (compiled.metadata.num_warps * WARP, 1, 1)
        read = self._read(code) if disassemble else _Read()
        name = launch.kernel.fn.__name__
        return _described(name, arch, code, compiled.metadata.shared, grid, block, read)

    def _read(self, code: Compiled) -> _Read:
        """From the disassembly, which takes a third of a second: once a kernel."""
        if code.cubin not in self._instructions:
            self._instructions[code.cubin] = _instructions_of(code)
        return self._instructions[code.cubin]


def _instructions_of(code: Compiled) -> _Read:
    """What the kernel multiplies by, ``HMMA.16816``, and its widest load; neither without a disassembler."""
    try:
        found = instructions(of_kernel(disassembled(code.cubin), code.name))
    except NoDisassembler:
        return _Read()
    multiplies_by = multiplications(found)
    return _Read(multiplies_by.most_common(1)[0][0] if multiplies_by else "", load_bits(found))


def _is_busy(order: dict[str, Any]) -> bool:
    op = registry.get_op(order["op"])
    return op.cost(Case.parse(order["case"], op)).compute_bound


def _captured(order: dict[str, Any]) -> list[Launch]:
    op = registry.get_op(order["op"])
    impl = next(i for i in registry.implementations(op.name) if i.label == order["label"])
    if order["parameters"]:
        impl = registry.with_parameters(impl, impl.label, order["parameters"])
    return capture(impl, op, Case.parse(order["case"], op), order["arch"])


def compile_cuda(source: str, kernel: str, arch: str) -> Compiled:
    """A CUDA kernel as NVRTC makes it.

    Raises:
        Refused: NVRTC does not take it.
        NotImplementedError: the kernel itself does not take the architecture.
    """
    build.cuda_include()  # where CUDA's headers are missing, that is no word of the kernel's
    try:
        cubin, mangled = build.cubin(source, [kernel], arch)
    except build.BuildError as error:
        said = str(error).partition("\n")[0]
        if build.is_asserted(said):
            raise NotImplementedError(said) from error
        raise Refused(said) from error
    name = mangled[kernel]
    return Compiled(name, read_report(build.ptxas_log(source, [kernel], arch))[name], cubin)


@contextlib.contextmanager
def without_gpu(arch: str, device: str = "") -> Iterator[None]:
    """For a while, Triton compiles for ``arch`` and finds no GPU: afterwards it launches as before.

    Args:
        arch: ``sm_90``.
        device: kernels are kept by device; a name not used before compiles anew.
    """

    class NoGpu:
        """What is asked of a driver before it would launch, and by the ahead-of-time tools."""

        @staticmethod
        def map_python_to_cpp_type(kind: str) -> str:
            # Triton's own says double for fp32, and the kernel takes 4 bytes.
            return "float" if kind == "fp32" else ty_to_cpp(kind)

        def get_current_device(self) -> str:
            return device or arch

        def get_current_stream(self, device: str) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", capability(arch), WARP)

    before = driver._active  # the public property would start Triton's driver, and so a CUDA context
    driver.set_active(NoGpu())
    try:
        yield
    finally:
        driver.set_active(before)


def compile_triton(launch: TritonLaunch, arch: str, device: str = "") -> tuple[Any, str]:
    """Compile what Triton would compile for a launch on a GPU of ``arch``; with ptxas's report.

    Triton's own ``run`` does it all, specialisation on alignment and on 1 included: it only finds another
    driver, which has no GPU.

    Args:
        launch: what to compile.
        arch: ``sm_90``.
        device: kernels are kept by device; a name not used before compiles anew.
    """
    bound = inspect.BoundArguments(inspect.signature(launch.kernel.fn), dict(launch.arguments))
    log = io.StringIO()
    with without_gpu(arch, device), contextlib.redirect_stdout(log):
        compiled = JITFunction.run(
            launch.kernel, *bound.args, grid=launch.grid, warmup=True, **bound.kwargs, **launch.options
        )
    return compiled, log.getvalue()


def _described(
    name: str,
    arch: str,
    code: Compiled,
    dynamic_shared_bytes: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    read: _Read,
) -> KernelResources:
    figures = code.figures
    return with_occupancy(
        KernelResources(
            kernel=name,
            arch=arch,
            reader="cubin",
            registers=figures.registers,
            static_shared_bytes=figures.static_shared_bytes,
            dynamic_shared_bytes=dynamic_shared_bytes,
            reserved_shared_bytes=limits(arch).reserved_bytes,
            spilled_bytes=figures.spilled_bytes,
            local_bytes=figures.stack_bytes,
            code_bytes=code_bytes(code.cubin, code.name),
            grid=grid,
            block=block,
            instruction=read.instruction,
            load_bits=read.load_bits,
        )
    )


if __name__ == "__main__":
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a compiler prints is no answer
    main(sys.stdin, answers)
