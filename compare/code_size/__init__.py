"""How much a reader has to read, and of what: lines and tokens by role, and the concepts used.

What counts for an implementation:

* kernel: the device code that runs, ``@triton.jit`` or ``__global__`` functions and every helper of the
  project that they use, those in shared headers too;
* launch: the registered function and the helpers of its way that it uses; for pybind the exported C++
  function and the helpers in its file;
* binding: what hands the C++ function to Python: ``PYBIND11_MODULE`` with the variant's own line.

Each helper is charged once.  Left out: comments, docstrings, blank lines, imports and includes, the line
that registers the implementation, and the tools that serve every op: the ``compare`` package and what
compiles and loads CUDA, pybind's ``tensor.h`` included.  One lexer, Pygments, counts both languages.
"""

from __future__ import annotations

from compare import registry
from compare.code_size import cpp, python
from compare.code_size.concepts import concepts_of
from compare.code_size.pieces import Piece, size
from compare.code_size.sources import KERNELS, PYBIND, source_hash
from compare.spec import CodeSize, CudaLaunch, Implementation

__all__ = ["code_size", "source_hash"]

_ARCH = "sm_90a"
"""Whose launches are looked at for the names of CUDA kernels: the one that every rung runs on."""


def code_size(impl: Implementation) -> CodeSize:
    """Lines and tokens of ``impl`` by role, and the concepts that its code uses.

    Raises:
        OSError: a source file is gone or changed since it was imported.
        SyntaxError: a source file no longer parses.
    """
    binding: list[Piece] = []
    if impl.route == "pybind":
        binding, launch = cpp.binding_and_launch(PYBIND / f"{impl.op}.cu", impl.variant)
        kernel = _cuda_kernels(impl)
    else:
        kernel, launch = python.kernel_and_launch(impl.run)
        if impl.route == "cupy":
            kernel += _cuda_kernels(impl)
    return CodeSize(size(kernel), size(launch), size(binding), concepts_of([*kernel, *launch, *binding]))


def _cuda_kernels(impl: Implementation) -> list[Piece]:
    """The ``__global__`` functions that ``impl`` launches on any case it is checked on, and all they use.

    Which ones is captured, not searched for: host code may put a kernel's name together.
    """
    from compare.capture import capture

    op = registry.get_op(impl.op)
    launched: dict[tuple[str, str], None] = {}
    for case in (op.cases.default, *op.cases.smoke, *op.cases.edge):
        try:
            launches = capture(impl, op, case, _ARCH)
        except Exception:  # a case that it does not take, or a user's code that fails: its check says so
            continue
        for launch in launches:
            if isinstance(launch, CudaLaunch):
                launched[launch.source, launch.kernel.partition("<")[0]] = None
    found: list[Piece] = []
    for source, kernel in launched:
        unit = cpp.text_unit(source) if cpp.is_source(source) else cpp.file_unit(KERNELS / f"{source}.cuh")
        found += unit.reached([kernel])
    return found
