"""From a plan to a folder with C files and a Makefile, and to the program that make and gcc build of them."""

from __future__ import annotations

from pathlib import Path

from compare.spec import TritonLaunch, UsageError
from compare.toolchain.aot import cuda_way, triton_tools
from compare.toolchain.aot.plan import Plan, Pointer, Scalar
from compare.toolchain.aot.records import Kernel, Program
from cuda_impl import build

_MARK = "Makefile"
"""Written first: a folder that holds it is one of ours."""

_FILES = Path(__file__).parent / "program"

_PLAN = """\
// What this program launches: {label} on {case}, for {arch}.  Generated.
#pragma once

#include <stddef.h>

#include "{header}"

#define USAGE "{usage}"
enum {{ INPUTS = {inputs} }};
static const size_t MEMORY_BYTES[] = {{{sizes}}};  // {names}

static void load(void) {{ load_{name}(); }}

static CUresult launch(CUstream stream, const CUdeviceptr *memory) {{
    return {launch}({arguments});
}}
"""


def make(plan: Plan, folder: Path) -> Program:
    """Write everything into ``folder``, in place of an earlier program there, and build it.

    Raises:
        NotImplementedError: no such program is possible; the text says why.
        build.BuildError: a compiler is missing or failed.
        OSError: the folder cannot be written.
        UsageError: it holds something else.
    """
    compiler, make_tool, include = build.gcc(), build.make_tool(), build.driver_include()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise UsageError(f"{folder} holds files that are not of an earlier program; name another folder")
    (folder / _MARK).touch()
    for stale in (*folder.glob("*.[cho]"), folder / "program"):
        stale.unlink(missing_ok=True)
    way = triton_tools if isinstance(plan.launch, TritonLaunch) else cuda_way
    kernel = way.make(plan, folder)
    _write_plan(plan, kernel, folder)
    for file in _FILES.iterdir():
        (folder / file.name).write_text(file.read_text().replace("@CUDA_INCLUDE@", str(include)))
    build.run([make_tool, "--no-print-directory", "-C", folder, f"CC={compiler}"], plan.label)
    executable = folder / "program"
    size = executable.stat().st_size
    return Program(plan.label, plan.arch, kernel, folder, executable, _files_of(plan), size)


def _write_plan(plan: Plan, kernel: Kernel, folder: Path) -> None:
    handed = []
    for name in kernel.arguments:
        argument = plan.arguments[name]
        if isinstance(argument, Pointer):
            offset = f" + {argument.offset_bytes}" if argument.offset_bytes else ""
            handed.append(f"memory[{argument.memory}]{offset}")
        else:
            handed.append(_literal(argument))
    text = _PLAN.format(
        label=plan.label,
        case=plan.case,
        arch=plan.arch,
        header=kernel.header,
        usage=" ".join(_files_of(plan)),
        inputs=len(plan.inputs),
        sizes=", ".join(str(memory.bytes) for memory in plan.memory),
        names=", ".join(memory.name for memory in plan.memory),
        name=kernel.name,
        launch=kernel.launch,
        arguments=", ".join(["stream", *handed]),
    )
    (folder / "plan.h").write_text(text)


def _files_of(plan: Plan) -> tuple[str, ...]:
    return tuple(f"{memory.name}.bin" for memory in plan.memory)


def _literal(argument: Scalar) -> str:
    if isinstance(argument.value, float):
        return argument.value.hex()
    return f"{int(argument.value)}{'LL' if abs(argument.value) >= 1 << 31 else ''}"
