"""The code size of an implementation, counted or from the cache."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict

from compare import registry
from compare.capture import capture
from compare.code_size import cpp, python
from compare.code_size.concepts import concepts_of
from compare.code_size.pieces import Piece, size
from compare.code_size.sources import KERNELS, code_of, cpp_file, rests_on
from compare.records import result_cache
from compare.spec import LIBRARY, CodeSize, CudaLaunch, Implementation, RoleSize

_ARCH = "sm_90a"
"""Launches are captured for this architecture to get kernel names: every variant runs on it."""

_CODE = ("compare/*.py", "compare/code_size/*.py", "cuda_impl/loader.py", "cuda_impl/pybind/__init__.py")
"""The code that reads sources and captures launches."""


def kept_code_size(impl: Implementation) -> CodeSize:
    """`code_size`, from the cache where the sources and the counter are unchanged."""
    function = code_of(impl.run)
    name = result_cache.key(
        impl.op,
        impl.label,
        f"{function.co_name} {function.co_firstlineno}",
        rests_on(impl),
        result_cache.versions("torch", "Pygments"),
        result_cache.code(*_CODE),
    )
    with suppress(KeyError, TypeError):
        known = result_cache.read("code_size", name)
        kernel, launch, binding = (RoleSize(**known[role]) for role in ("kernel", "launch", "binding"))
        return CodeSize(kernel, launch, binding, tuple(known["concepts"]))
    found = code_size(impl)
    result_cache.write("code_size", name, asdict(found))
    return found


def code_size(impl: Implementation, kernels: Iterable[tuple[str, str]] | None = None) -> CodeSize:
    """Lines and tokens of ``impl`` by role, and the concepts that its code uses.

    Args:
        impl: read, and run only to capture its launches.
        kernels: the result of `launched`, where ``impl`` must not run in this process.

    Raises:
        OSError: a source file was deleted or changed since it was imported.
        SyntaxError: a source file no longer parses.
    """
    binding: list[Piece] = []
    if impl.route in ("pybind", LIBRARY):
        binding, launch = cpp.binding_and_launch(cpp_file(impl), impl.variant)
        kernel = _cuda_kernels(launched(impl) if kernels is None else kernels)
    else:
        kernel, launch = python.kernel_and_launch(impl.run)
        if impl.route == "cupy":
            kernel += _cuda_kernels(launched(impl) if kernels is None else kernels)
    return CodeSize(size(kernel), size(launch), size(binding), concepts_of([*kernel, *launch, *binding]))


def launched(impl: Implementation) -> list[tuple[str, str]]:
    """Source and name of each ``__global__`` function that ``impl`` launches on a checked case.

    Captured, not searched in the text: host code may compose a kernel's name.
    """
    op = registry.get_op(impl.op)
    found: dict[tuple[str, str], None] = {}
    for case in (op.cases.default, *op.cases.smoke, *op.cases.edge):
        try:
            launches = capture(impl, op, case, _ARCH)
        except Exception:  # it refuses the case, or user code fails: the check reports that
            continue
        for launch in launches:
            if isinstance(launch, CudaLaunch):
                found[launch.source, launch.kernel.partition("<")[0]] = None
    return list(found)


def _cuda_kernels(kernels: Iterable[tuple[str, str]]) -> list[Piece]:
    """The code of these kernels and everything they use."""
    found: list[Piece] = []
    for source, kernel in kernels:
        unit = cpp.text_unit(source) if cpp.is_source(source) else cpp.file_unit(KERNELS / f"{source}.cuh")
        found += unit.reached([kernel])
    return found
