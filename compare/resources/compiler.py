"""What kernels take without a GPU: launches are captured, compiled, and the compilers' reports are read.

Triton must be imported without its interpreter.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import ty_to_cpp
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from compare import registry
from compare.capture import Launch, capture
from compare.device import capability
from compare.model.architecture import limits
from compare.model.op import Case, CudaLaunch, Implementation, TritonLaunch
from compare.model.result import KernelResources
from compare.resources.kernels import merged, with_occupancy
from compare.resources.machine_code import Figures, code_bytes, read_report
from compare.resources.occupancy import WARP
from compare.resources.sass.disassembly import NoDisassembler, disassembled, instructions, of_kernel
from compare.resources.sass.instruction_mix import load_bits, multiplications
from compare.resources.static import Refused
from compare.sandbox.words import raised_in
from cuda_impl import build


@dataclass(frozen=True)
class Compiled:
    """One kernel's machine code, and what ptxas said of it."""

    name: str
    """Mangled."""
    figures: Figures
    cubin: bytes


class Compiler:
    """Compiles the launches that one implementation makes."""

    def __init__(self) -> None:
        self._triton: dict[str, Compiled] = {}

    def resources(
        self, impl: Implementation, case: str, arch: str, *, disassemble: bool
    ) -> tuple[KernelResources, ...]:
        """What the kernels of one call take, in the order of their first launch.

        Args:
            impl: not run on a GPU: its launches are captured.
            case: of its op.
            arch: ``sm_90``.
            disassemble: read the widest load, too; of an op that is compute-bound it always is, with the
                instruction that multiplies.

        Raises:
            Refused: a compiler does not take a kernel.
            NotImplementedError: the implementation or a kernel does not take the case or the architecture.
            Exception: whatever else the implementation or a compiler raises.
        """
        op = registry.get_op(impl.op)
        parsed = Case.parse(case, op)
        multiplies = op.cost(parsed).compute_bound

        def described(launch: Launch) -> KernelResources:
            if isinstance(launch, TritonLaunch):
                kernel, code = self._of_triton(launch, arch)
            else:
                kernel, code = of_cuda(launch, arch)
            if multiplies or disassemble:
                instruction, bits = instructions_of(code)
                kernel = replace(kernel, instruction=instruction if multiplies else "", load_bits=bits)
            return kernel

        return merged(map(described, capture(impl, op, parsed, arch, untuned=not impl.untuned)))

    @staticmethod
    def compiled(launch: TritonLaunch, arch: str) -> tuple[Any, str]:
        """`compile_triton`; raises `Refused` where a stage does not take the kernel."""
        function = launch.kernel.fn
        try:
            return compile_triton(launch, arch)
        except Exception as error:  # each stage has its own
            name, text, where = raised_in(inspect.getfile(function), error)
            raise Refused(f"{function.__name__}: {where and f'{where}: '}{name}: {text}") from error

    def _of_triton(self, launch: TritonLaunch, arch: str) -> tuple[KernelResources, Compiled]:
        function = launch.kernel.fn
        compiled, log = self.compiled(launch, arch)
        metadata = compiled.metadata
        if compiled.hash not in self._triton:  # Triton compiles a specialisation once, and reports once
            figures = read_report(log)[metadata.name]
            self._triton[compiled.hash] = Compiled(metadata.name, figures, compiled.asm["cubin"])
        code = self._triton[compiled.hash]
        x, y, z = launch.grid
        grid, block = (x * getattr(metadata, "num_ctas", 1), y, z), (metadata.num_warps * WARP, 1, 1)
        return described(function.__name__, arch, code, metadata.shared, grid, block), code


def of_cuda(launch: CudaLaunch, arch: str) -> tuple[KernelResources, Compiled]:
    code = compile_cuda(launch.source, launch.kernel, arch)
    shared = launch.dynamic_shared_bytes
    return described(launch.kernel, arch, code, shared, launch.grid, launch.block), code


@functools.cache  # a disassembly takes a third of a second
def instructions_of(code: Compiled) -> tuple[str, int | None]:
    """What the kernel multiplies by, ``HMMA.16816``, and its widest load; neither without a disassembler."""
    try:
        listing = instructions(of_kernel(disassembled(code.cubin), code.name))
    except NoDisassembler:
        return "", None
    multiplies_by = multiplications(listing)
    return multiplies_by.most_common(1)[0][0] if multiplies_by else "", load_bits(listing)


@functools.cache
def compile_cuda(source: str, kernel: str, arch: str) -> Compiled:
    """A CUDA kernel as NVRTC makes it.

    Raises:
        Refused: NVRTC does not take it.
        NotImplementedError: the kernel itself does not take the architecture.
    """
    build.cuda_include()  # missing headers of CUDA's are not the kernel's fault
    try:
        cubin, mangled = build.cubin(source, [kernel], arch)
    except build.BuildError as error:
        refusal = str(error).partition("\n")[0]
        if build.is_asserted(refusal):
            raise NotImplementedError(refusal) from error
        raise Refused(refusal) from error
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


def described(
    name: str,
    arch: str,
    code: Compiled,
    dynamic_shared_bytes: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
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
        )
    )
