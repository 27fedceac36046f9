"""The one place that knows Triton's ahead-of-time tools, ``triton.tools.compile`` and ``triton.tools.link``.

From 3.6 to 3.9 the first makes a C file that carries the cubin, the second a function that picks among such
files by the divisibility of sizes and addresses.  Four facts hold in all versions:

* they ask the active driver for the target and for the C types of arguments, so they get one that answers
  only that and needs no GPU;
* ``num_warps`` is 1 unless given, where the compiler at run time takes 4;
* they take only ``num_warps`` and ``num_stages`` of a launch's options;
* they ask that driver for the C type of a float by value.  Triton's own says double, which the kernel does
  not take; the one given here says float for fp32.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import triton
from triton.tools.compile import CompileArgs, compile_kernel

from compare.resources.compiler_process import compile_triton, without_gpu
from compare.spec import TritonLaunch
from compare.toolchain.aot.plan import Plan
from compare.toolchain.aot.records import Kernel
from cuda_impl.build import BuildError, run

_OPTIONS = ("num_warps", "num_stages")


def make(plan: Plan, folder: Path) -> Kernel:
    """Write the kernel's C files into ``folder``.

    Raises:
        NotImplementedError: Triton's tools do not take such a kernel; the text says why.
        BuildError: one of them failed.
    """
    launch = plan.launch
    assert isinstance(launch, TritonLaunch)
    more = [name for name in launch.options if name not in _OPTIONS]
    if more:
        raise NotImplementedError(
            f"it is launched with {', '.join(more)}, and Triton's ahead-of-time tools take num_warps and "
            "num_stages only"
        )
    # The kernel compiled as at run time says how each argument is specialised.
    compiled, _ = compile_triton(launch, plan.arch)
    if compiled.metadata.num_ctas > 1:
        raise NotImplementedError(
            "it is launched in clusters of programs, and Triton's ahead-of-time tools launch single ones"
        )
    spelled, names = _spelled(launch.kernel, compiled.src)
    name = launch.kernel.fn.__name__
    made = _compile(plan, launch, compiled.metadata, ",".join(spelled), folder)
    _link([file for file in made if file.suffix == ".h"], folder / name)
    tool = "triton.tools.compile and link"
    return Kernel(name, f"{name}_default", f"{name}.h", tuple(names), tool, _code_bytes(made))


def _spelled(kernel: Any, source: Any) -> tuple[list[str], list[str]]:
    """The signature as ``triton.tools.compile`` reads it, and the parameters that are left at run time.

    ``*fp32:16`` is a pointer to a multiple of 16 bytes, ``i32:1`` an integer that is 1, ``1024`` a constant.
    """
    spelled, names = [], []
    for index, (name, parameter) in enumerate(zip(kernel.arg_names, kernel.params, strict=True)):
        kind = source.signature[name]
        if kind == "constexpr":
            value = source.constants[(index,)]
            at_run_time = not parameter.is_constexpr and value == 1
            spelled.append("i32:1" if at_run_time else _literal(name, value))
            if at_run_time:
                names.append(name)
            continue
        if not kind.startswith(("*", "i", "u")) and kind != "fp32":
            raise NotImplementedError(
                f"argument {name} of its kernel is {kind}, which Triton's ahead-of-time tools do not hand "
                "over right"
            )
        divisible = ["tt.divisibility", 16] in [list(attr) for attr in source.attrs.get((index,), ())]
        spelled.append(f"{kind}:16" if divisible else kind)
        names.append(name)
    return spelled, names


def _literal(name: str, value: Any) -> str:
    if isinstance(value, bool | int):
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    raise NotImplementedError(
        f"constant {name} of its kernel is {value!r}, and Triton's ahead-of-time tools take numbers only"
    )


def _compile(plan: Plan, launch: TritonLaunch, metadata: Any, signature: str, folder: Path) -> list[Path]:
    name = launch.kernel.fn.__name__
    asked = CompileArgs(
        path=launch.kernel.fn.__code__.co_filename,
        kernel_name=name,
        signature=signature,
        grid=",".join(map(str, launch.grid)),
        target=None,  # the driver's; of one given here, the numbers stay text, and a comparison fails
        num_warps=metadata.num_warps,
        num_stages=metadata.num_stages,
        out_name=name,
        out_path=folder / name,
    )
    with without_gpu(plan.arch), _path_as_it_is():
        try:
            return list(compile_kernel(asked)[1])
        except RuntimeError as error:
            if "not yet implemented" in str(error):
                raise NotImplementedError(f"Triton's own tools refuse it: {error}") from None
            raise BuildError(f"{name}: triton.tools.compile failed: {error}") from error


def _code_bytes(made: list[Path]) -> int:
    """The length of the array that the C file carries."""
    for file in made:
        if file.suffix == ".c" and (found := re.search(r"CUBIN_NAME\[(\d+)\]", file.read_text())):
            return int(found[1])
    raise BuildError("triton.tools.compile wrote a C file without CUBIN_NAME; please report it")


def _link(headers: list[Path], out: Path) -> None:
    """``triton.tools.link`` is a script: it is run as one."""
    script = Path(triton.__file__).parent / "tools" / "link.py"
    run([sys.executable, script, *headers, "-o", out], f"{out.name}: triton.tools.link")


@contextmanager
def _path_as_it_is() -> Iterator[None]:
    """The tool runs the kernel's file again and puts its folder first in ``sys.path``."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before
