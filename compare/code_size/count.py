"""The code size of an implementation, counted or from the cache."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from compare import registry
from compare.capture import Launch, capture
from compare.code_size import cpp, python
from compare.code_size.concepts import concepts_of
from compare.code_size.hashes import rests_on
from compare.code_size.pieces import Piece, size
from compare.code_size.sources import KERNELS, code_of, cpp_file
from compare.code_size.steps import of_triton
from compare.records import result_cache
from compare.records.encoding import decode, encode
from compare.spec import LIBRARY, CodeSize, CudaLaunch, Implementation

_ARCH = "sm_90a"
"""Launches are captured for this architecture to get kernel names: every variant runs on it."""

_CODE = ("compare/*.py", "compare/code_size/*.py", "cuda_impl/*.py", "cuda_impl/pybind/__init__.py")
"""The code that reads and compiles sources and captures launches."""


def kept_code_size(impl: Implementation) -> CodeSize:
    """`code_size`, from the cache where the sources and the counter are unchanged."""
    name = _name_of(impl)
    if (known := _known(name)) is not None:
        return known
    found = code_size(impl)
    result_cache.write("code_size", name, encode(found))
    return found


def known_code_size(impl: Implementation) -> CodeSize | None:
    """What the cache holds of an implementation."""
    return _known(_name_of(impl))


def _known(name: str) -> CodeSize | None:
    with suppress(TypeError, ValueError, OverflowError):
        return decode(CodeSize, result_cache.read("code_size", name))
    return None


def _name_of(impl: Implementation) -> str:
    """Its name in the cache."""
    function = code_of(impl.run)
    return result_cache.key(
        impl.op,
        impl.label,
        f"{function.co_name} {function.co_firstlineno}",
        rests_on(impl),
        result_cache.versions("torch", "Pygments", "nvidia-cuda-nvrtc"),
        result_cache.code(*_CODE),
    )


@dataclass(frozen=True)
class Kernel:
    """A kernel that an implementation launches on the case that is shown."""

    name: str
    """``softmax_online_kernel``"""
    source: str = ""
    """Of a CUDA kernel an op's name or CUDA text; empty for Triton,"""
    instance: cpp.Instance | None = None
    """which has no compiled lines."""


@dataclass(frozen=True)
class Launched:
    """The kernels of an implementation."""

    kernels: tuple[Kernel, ...] = ()
    fallbacks: tuple[str, ...] = ()
    """Names of those that only other cases launch."""


def code_size(impl: Implementation, kernels: Launched | None = None) -> CodeSize:
    """Lines and tokens of ``impl``, its own and those of what it uses, and the concepts in its code.

    Args:
        impl: read, and run only to capture its launches.
        kernels: the result of `launched`, where ``impl`` must not run in this process.

    Raises:
        OSError: a source file was deleted or changed since it was imported.
        SyntaxError: a source file no longer parses.
        BuildError: NVRTC is missing or refuses a kernel.
    """
    found = launched(impl) if kernels is None else kernels
    names = {impl.op} | {name for kernel in found.kernels for name in _homes(kernel)}
    binding: list[Piece] = []
    module: list[Piece] = []
    steps: tuple[str, ...] = ()
    if impl.route in ("pybind", LIBRARY):
        host = cpp.host_code(cpp_file(impl), impl.variant)
        binding, module = [host.binding], [host.module]
        kernel, launch, others = [], host.launch, list(host.others)
    else:
        known = {one.name for one in found.kernels} if impl.route == "triton" and found.kernels else None
        python_code = python.reached(impl.run, known)
        kernel, launch, others = python_code.kernels, python_code.launch, list(python_code.others)
        order = [f"def {one.name}(" for one in found.kernels]
        kernel.sort(key=lambda piece: [head not in piece.text for head in order])
        steps = of_triton(kernel, others)
        names |= {Path(piece.file).stem for piece in (*launch, *kernel)}
    for one in found.kernels:
        if one.instance is not None:
            pieces = cpp.unit_of(one.source).of_instance(one.instance)
            own = cpp.unit_of(one.source).named.get(one.name, ())
            kernel = kernel + [piece for piece in pieces if piece in own]
            others += [piece for piece in pieces if piece not in own]
    steps = (*steps, *(step for one in found.kernels if one.instance for step in one.instance.steps))
    helpers = [piece for piece in others if _is_of_op(piece, names)]
    shared = [piece for piece in others if not _is_of_op(piece, names)]
    return CodeSize(
        kernel=size(kernel),
        launch=size(launch),
        helpers=size(helpers),
        shared=size(shared),
        binding=size(binding),
        module=size(module),
        concepts=concepts_of([*kernel, *launch, *others, *binding, *module]),
        fallbacks=found.fallbacks,
        algorithm=impl.algorithm,
        steps=steps,
    )


def _homes(kernel: Kernel) -> Iterator[str]:
    """The file, or the folder of files, that a CUDA kernel is in, without ending."""
    if kernel.instance is not None:
        for piece in cpp.unit_of(kernel.source).named.get(kernel.name, ()):
            file = Path(piece.file)
            yield file.stem if file.parent == KERNELS else file.parent.name


def _is_of_op(piece: Piece, names: Collection[str]) -> bool:
    """Whether code is in a file of these names, in a folder of them, or outside of the project."""
    file = Path(piece.file)
    return file.stem in names or file.parent.name in names or not file.is_relative_to(registry.ROOT)


def launched(impl: Implementation) -> Launched:
    """The kernels that ``impl`` launches on the op's default case, or on the first that it takes.

    Captured, not searched in the text: host code may compose a kernel's name.

    Raises:
        BuildError: NVRTC is missing or refuses a kernel.
    """
    op = registry.get_op(impl.op)
    shown: dict[tuple[str, str], None] = {}
    others: dict[str, None] = {}
    for case in (op.cases.default, *op.cases.sweep, *op.cases.smoke, *op.cases.edge):
        try:
            launches = capture(impl, op, case, _ARCH)
        except Exception:  # it refuses the case, or user code fails: the check reports that
            continue
        found = {_named(launch): None for launch in launches}
        shown = shown or found
        others |= {name.partition("<")[0]: None for _, name in found}
    kernels = tuple(_kernel(source, name) for source, name in shown)
    names = {kernel.name for kernel in kernels}
    return Launched(kernels, tuple(name for name in others if name not in names))


def _named(launch: Launch) -> tuple[str, str]:
    if isinstance(launch, CudaLaunch):
        return launch.source, launch.kernel
    return "", str(launch.kernel.fn.__name__)


def _kernel(source: str, name: str) -> Kernel:
    return Kernel(name.partition("<")[0], source, cpp.compiled(source, name) if source else None)
