"""The variables of docs/toolchain-environment.md, and its blocks: what each makes the compilers print.

What compilers print changes from version to version, so a block is written anew with the versions that
constraints.txt names, and left as it is with others; tests hold what it says against every Triton served.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from compare import registry
from compare.code_size.hashes import rests_on
from compare.model.op import UsageError
from compare.records import result_cache
from tools.docs.child import output_of

ARCH = "sm_90"
_PACKAGES = {"triton": "Triton", "cupy-cuda13x": "cupy"}
_RESTS_ON = (
    "tools/docs/toolchain_variables/*.py",
    "compare/capture.py",
    "compare/resources/compiler.py",
    "cuda_impl/build.py",
)


@dataclass(frozen=True)
class Example:
    """One variable at work, by default in compiling an op's kernels."""

    variables: str
    """As they are written before the command; DIR is a folder that is empty at first."""
    runs: int = 1
    """How often the command is run: what the variable does may show in the second run only."""
    shown: str = ""
    """Printed lines that match; empty: all."""
    files: str = ""
    """Which files to list afterwards, as a pattern in DIR."""
    edited: bool = False
    """Whether DIR holds the kernels' PTX from before, with a remark of ours in it."""
    run: str = ""
    """What to ``--run`` in place of compiling."""


EXAMPLES = {
    "TRITON_CACHE_DIR": Example("TRITON_CACHE_DIR=DIR", runs=2, files="*/*"),
    "TRITON_ALWAYS_COMPILE": Example("TRITON_CACHE_DIR=DIR TRITON_ALWAYS_COMPILE=1", runs=2),
    "TRITON_KERNEL_DUMP": Example(
        "TRITON_ALWAYS_COMPILE=1 TRITON_KERNEL_DUMP=1 TRITON_DUMP_DIR=DIR", files="*/*"
    ),
    "TRITON_KERNEL_OVERRIDE": Example(
        "TRITON_ALWAYS_COMPILE=1 TRITON_KERNEL_OVERRIDE=1 TRITON_OVERRIDE_DIR=DIR", edited=True
    ),
    "MLIR_ENABLE_DUMP": Example(
        "TRITON_ALWAYS_COMPILE=1 MLIR_ENABLE_DUMP=1", shown=r"IR Dump Before|compiled"
    ),
    "LLVM_IR_ENABLE_DUMP": Example(
        "TRITON_ALWAYS_COMPILE=1 LLVM_IR_ENABLE_DUMP=1", shown=r"IR Dump|compiled"
    ),
    "NVPTX_ENABLE_DUMP": Example(
        "TRITON_ALWAYS_COMPILE=1 NVPTX_ENABLE_DUMP=1",
        shown=r"^\s*(// -----//|\.version|\.target|ld\.global)|compiled",
    ),
    "TRITON_DUMP_PTXAS_LOG": Example(
        "TRITON_ALWAYS_COMPILE=1 TRITON_DUMP_PTXAS_LOG=1", shown="spill|registers|compiled"
    ),
    "TRITON_INTERPRET": Example("TRITON_INTERPRET=1", run="interpret"),
    "TRITON_PRINT_AUTOTUNING": Example(
        "TRITON_PRINT_AUTOTUNING=1", shown="with config|finished|best config", run="autotune"
    ),
    "CUPY_CACHE_DIR": Example(
        "CUPY_CACHE_DIR=DIR CUPY_CACHE_SAVE_CUDA_SOURCE=1", files="*", run="cupy-cache"
    ),
    "CUPY_DUMP_CUDA_SOURCE_ON_ERROR": Example(
        "CUPY_DUMP_CUDA_SOURCE_ON_ERROR=1",
        shown=r"error: identifier|^CUDA source|^\d no such",
        run="cupy-error",
    ),
    "CUDA_CACHE_PATH": Example("CUDA_CACHE_PATH=DIR", run="fat-binary"),
}


def block(words: str, was: str) -> str:
    """``VARIABLE... OP`` at work, one after the other, or for ``versions`` what printed it.

    Args:
        words: what the block is of.
        was: what the document holds now.

    Raises:
        UsageError: there is no such variable or op.
    """
    pinned = dict(re.findall(r"(?m)^([\w-]+)==([\w.]+)$", (registry.ROOT / "constraints.txt").read_text()))
    wanted = {package: pinned[package] for package in _PACKAGES}
    if {package: _installed(package) for package in _PACKAGES} != wanted:
        return was
    if words == "versions":
        shown = " and ".join(f"{_PACKAGES[package]} {number}" for package, number in wanted.items())
        return f"What follows was printed by {shown}, without a GPU."
    *variables, op = words.split() or [""]
    if not variables or not set(variables) <= EXAMPLES.keys() or op not in registry.op_names():
        raise UsageError(
            f"<!-- generated: switch {words} -->: write versions, or a variable and an op; there are "
            f"{', '.join(EXAMPLES)}"
        )
    printed = examples(op, ARCH)
    shown = "\n\n".join(printed[variable] for variable in variables)
    return f"```text\n{shown}\n```"


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def examples(name: str, arch: str) -> dict[str, str]:
    """What each variable makes the compilers do to an op's kernels, shortened, with nothing of this machine.

    Raises:
        RuntimeError: the process that tries them ended early; the text is what it said.
    """
    sources = [rests_on(impl) for impl in registry.implementations(name)]
    key = result_cache.key(
        name,
        arch,
        *sources,
        result_cache.versions("triton", "torch", "cupy-cuda13x"),
        result_cache.code(*_RESTS_ON),
    )
    found: dict[str, str] | None = result_cache.read("switches", key)
    if found is None:
        try:
            module = "tools.docs.toolchain_variables.trying"
            found = output_of(module, name, arch, without="TRITON_|MLIR_|LLVM_|CUPY_|NVPTX_")
        except subprocess.CalledProcessError as error:
            problem = f"the examples of environment variables failed:\n{error.stderr}"
            raise RuntimeError(problem) from error
        result_cache.write("switches", key, found)
    return found
