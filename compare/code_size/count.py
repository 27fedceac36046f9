"""The code size of an implementation, counted or from the cache."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from compare import registry
from compare.capture import Launch, capture
from compare.code_size import cpp, python
from compare.code_size.concepts import concepts_of
from compare.code_size.cpp import is_source
from compare.code_size.hashes import rests_on
from compare.code_size.pieces import CodePiece, size
from compare.code_size.sources import KERNELS, code_of, cpp_file
from compare.model.op import CudaLaunch, Implementation
from compare.model.result import CodeSize
from compare.records import result_cache
from compare.records.encoding import decode, encode

_ARCH = "sm_90a"
"""Launches are captured for this architecture to get kernel names: every variant runs on it."""

_CODE = ("compare/*.py", "compare/code_size/*.py", "cuda_impl/*.py", "cuda_impl/pybind/__init__.py")
"""The code that reads and compiles sources and captures launches."""


def kept_code_size(impl: Implementation) -> CodeSize:
    """`code_size`, from the cache where the sources and the counter are unchanged."""
    name = _name_of(impl)
    with suppress(ValueError):
        return decode(CodeSize, result_cache.read("code_size", name))
    found = code_size(impl)
    result_cache.write("code_size", name, encode(found))
    return found


def _name_of(impl: Implementation) -> str:
    """Its name in the cache."""
    function = code_of(impl.run)
    return result_cache.key(
        impl.op,
        impl.label,
        f"{function.co_name} {function.co_firstlineno}",
        rests_on(impl),
        result_cache.versions("torch", "Pygments", "tree-sitter-cuda"),
        result_cache.code(*_CODE),
    )


@dataclass(frozen=True)
class CountedKernel:
    """A kernel that an implementation launches on the case that is shown."""

    name: str
    """``softmax_online_kernel``"""
    source: str = ""
    """Of a CUDA kernel an op's name or CUDA text; empty for Triton."""


@dataclass(frozen=True)
class Launched:
    """The kernels of an implementation."""

    kernels: tuple[CountedKernel, ...] = ()
    fallbacks: tuple[str, ...] = ()
    """Names of those that only other cases launch."""
    passed: tuple[str, ...] = ()
    """Names of the Triton functions that they get as arguments."""


def code_size(impl: Implementation, kernels: Launched | None = None) -> CodeSize:
    """Lines and tokens of ``impl``, its own and those of what it uses, and the concepts in its code.

    Args:
        impl: read, and run only to capture its launches.
        kernels: the result of `launched`, where ``impl`` must not run in this process.

    Raises:
        OSError: a source file was deleted or changed since it was imported.
        SyntaxError: a source file no longer parses.
    """
    found = launched(impl) if kernels is None else kernels
    in_cuda = [_uses_in(cpp.unit_of(one.source), one.name) for one in found.kernels if one.source]
    kernel: list[CodePiece] = []
    binding: list[CodePiece] = []
    module: list[CodePiece] = []
    names = {impl.op}
    if by_hand := cpp_file(impl):
        host = cpp.host_code(by_hand, impl.variant)
        binding, module, launch, others = [host.binding], [host.module], host.launch, host.others
    else:
        known = {one.name for one in found.kernels} if impl.route == "triton" and found.kernels else None
        sources = [one.source for one in found.kernels if is_source(one.source)]
        code = python.reached(impl.run, known, found.passed, sources)
        kernel, launch, others = code.kernels, code.launch, code.others
        names |= {Path(piece.file).stem for piece in (*code.launch, *code.kernels)}
        if not in_cuda and code.texts:  # launched by other means than `cuda_impl.loader`
            in_cuda = [_uses_in(cpp.unit_of("\n".join(code.texts)))]
    kernel = [*kernel, *(piece for unit, use in in_cuda for piece in unit.meant(use))]
    names |= {_home(piece) for piece in kernel if piece.language == "cuda"}
    used = [*others, *(piece for unit, use in in_cuda for piece in unit.reached(use) if piece not in kernel)]
    helpers = [piece for piece in used if _is_of_op(piece, names)]
    return CodeSize(
        kernel=size(kernel),
        launch=size(launch),
        helpers=size(helpers),
        shared=size(piece for piece in used if piece not in helpers),
        binding=size(binding),
        module=size(module),
        concepts=concepts_of([*kernel, *launch, *used, *binding, *module]),
        fallbacks=found.fallbacks,
        algorithm=impl.algorithm,
    )


def _uses_in(unit: cpp.Unit, kernel: str = "") -> tuple[cpp.Unit, list[cpp.Use]]:
    """The use of a kernel in CUDA text; of all kernels and macros of kernels where it is not declared."""
    scope, _, name = kernel.rpartition("::")
    uses = [cpp.Use(name, scope=scope.rpartition("::")[2])]
    if not unit.meant(uses):
        kernels = (one for one in unit.declarations if is_source(one.piece.text))
        uses = [cpp.Use(name) for one in kernels for name in one.names]
    return unit, uses


def _home(piece: CodePiece) -> str:
    """The file, or the folder of files, that a CUDA kernel is in, without ending."""
    file = Path(piece.file)
    return file.stem if file.parent == KERNELS else file.parent.name


def _is_of_op(piece: CodePiece, names: Collection[str]) -> bool:
    """Whether code is in a file of these names, in a folder of them, or outside of the project."""
    file = Path(piece.file)
    return file.stem in names or file.parent.name in names or not file.is_relative_to(registry.ROOT)


def launched(impl: Implementation) -> Launched:
    """The kernels that ``impl`` launches on the op's default case, or on the first that it takes.

    Captured, not searched in the text: host code may compose a kernel's name.
    """
    op = registry.get_op(impl.op)
    shown: dict[CountedKernel, None] = {}
    every: dict[CountedKernel, None] = {}
    passed: dict[str, None] = {}
    for case in (op.cases.default, *op.cases.sweep, *op.cases.smoke, *op.cases.edge):
        with suppress(Exception):  # it refuses the case, or user code fails: the check reports that
            launches = capture(impl, op, case, _ARCH)
            kernels = dict.fromkeys(map(_kernel, launches))
            if not shown:
                shown, passed = kernels, dict.fromkeys(name for one in launches for name in _passed(one))
            every |= kernels
    names = {kernel.name for kernel in shown}
    fallbacks = dict.fromkeys(one.name for one in every if one.name not in names)
    return Launched(tuple(shown), tuple(fallbacks), tuple(passed))


def _passed(launch: Launch) -> list[str]:
    """The names of the Triton functions among its arguments."""
    if isinstance(launch, CudaLaunch):
        return []
    functions = (JITFunction, InterpretedFunction)
    return [value.fn.__name__ for value in launch.arguments.values() if isinstance(value, functions)]


def _kernel(launch: Launch) -> CountedKernel:
    if isinstance(launch, CudaLaunch):
        return CountedKernel(launch.kernel.partition("<")[0], launch.source)
    return CountedKernel(str(launch.kernel.fn.__name__))
