"""Environment variables of the toolchain at work: ``python -m tools.docs.toolchain_variables OP ARCH``.

The command compiles what the op's Triton implementations launch on its default case, for any architecture and
with or without a GPU, and says of each kernel whether it was compiled or found in the cache.  Whatever else
appears, the variables that are set have made Triton print.  `examples` does it once for each variable, for
docs/toolchain-environment.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from compare import registry
from compare.records import result_cache
from compare.spec import UsageError

_FIRST = 6
"""Lines of an output that are shown; what follows is counted."""


Action = Callable[[str, str], None]
"""Of an op's name and an architecture."""


@dataclass(frozen=True)
class Example:
    """One variable at work, by default in compiling an op's kernels."""

    variables: str
    """As they are written before the command; DIR is a folder that is empty at first."""
    runs: int = 1
    """How often the command is run: what the variable does may show in the second run only."""
    shown: str = ""
    """Of what is printed, lines that match; empty: all."""
    files: str = ""
    """Which files to list afterwards, as a pattern in DIR."""
    prepare: Callable[[Path, str, str], None] | None = None
    """What is done in DIR before."""
    run: str = ""
    """Which of `RUNS` to do in place of compiling."""


# --------------------------------------------------------------------------- the command


def compile_once(name: str, arch: str) -> None:
    """Compile what an op's Triton implementations launch, and print what came of each kernel."""
    from triton import knobs

    from compare.resources.compiler_process import compile_triton

    hits: list[bool] = []

    def listen(*, cache_hit: bool, **_: Any) -> None:
        hits.append(cache_hit)

    knobs.compilation.listener = listen
    for launch in _launches(name, arch):
        compiled, log = compile_triton(launch, arch)
        if log:
            print(log.strip())
        how = "found in the cache" if hits[-1:] == [True] else "compiled"
        sizes = ", ".join(compiled.asm.keys())
        print(f"{launch.kernel.fn.__name__} for {arch}: {how} ({sizes})", flush=True)


def _launches(name: str, arch: str) -> list[Any]:
    from compare.capture import capture
    from compare.spec import TritonLaunch

    op = registry.get_op(name)
    found = []
    for impl in registry.implementations(name, ["triton.*"]):
        with contextlib.suppress(NotImplementedError):
            found += [
                each for each in capture(impl, op, op.cases.default, arch) if isinstance(each, TritonLaunch)
            ]
    return found


# --------------------------------------------------------------------------- what is run in its place


def _interpret(name: str, arch: str) -> None:
    """Run an implementation on the CPU, as Triton's interpreter does."""
    import torch

    op = registry.get_op(name)
    impl = registry.implementations(name, ["triton.*"])[0]
    inputs = op.make_inputs(op.cases.smoke[0], torch.Generator().manual_seed(0), torch.device("cpu"))
    output = impl.run(*inputs)
    wanted = op.oracle(*(x.double() for x in inputs))
    kinds = {type(each.kernel).__name__ for each in _launches(name, arch)}
    print(f"kernels are of type {', '.join(kinds)}")
    print(
        f"{impl.label} on {op.cases.smoke[0]}, on {output.device}: largest error "
        f"{float((output - wanted).abs().max()):.1e}"
    )


def _autotune(name: str, arch: str) -> None:
    """Autotune the op's first kernel between two numbers of warps; made-up times stand for a GPU's."""
    import triton

    launch = _launches(name, arch)[0]
    times = iter([0.03, 0.02])
    tuned = triton.autotune(
        [triton.Config({}, num_warps=warps) for warps in (4, 8)],
        key=[],
        do_bench=lambda call, quantiles: (next(times),) * 3,
    )(launch.kernel)
    tuned.fn.run = lambda *args, **kwargs: None  # there is no GPU to launch it on
    tuned.run(*launch.arguments.values(), grid=launch.grid, warmup=False)


def _cupy_error(name: str, arch: str) -> None:
    """Let cupy compile a kernel of the op's with a mistake in it."""
    from cupy.cuda import compiler

    from cuda_impl import build, flags

    options = (f"-I{flags.KERNELS}", f"-I{build.cuda_include()}", "-std=c++17", "-default-device")
    asked = "_get_arch_for_options_for_nvrtc"  # of a GPU, which there may not be
    with (
        mock.patch.object(compiler, asked, lambda arch: (f"-arch=sm_{arch}", "cubin")),
        contextlib.suppress(compiler.CompileException),
    ):
        compiler.compile_using_nvrtc(f'#include "{name}.cuh"\nno such thing;\n', options, arch=arch[3:])


def _cupy_cache(name: str, arch: str) -> None:
    """What cupy's cache writes for a kernel of the op's: the machine code, and its source."""
    from cupy.cuda import _compiler_cache

    from compare.toolchain.caches.looking import cuda_kernels
    from cuda_impl import build

    kernel = sorted(cuda_kernels(name))[0]
    _compiler_cache.DiskKernelCacheBackend().save(
        f"{'0' * 40}.cubin", b"machine code", build.source_text(name)
    )
    print(f"one file for {kernel}, and with CUPY_CACHE_SAVE_CUDA_SOURCE=1 its source:")


def _fat_binary(name: str, arch: str) -> None:
    """What nvcc's fat binary holds of a kernel of the op's: machine code, no PTX for a driver to compile."""
    from compare.capture import capture
    from compare.spec import CudaLaunch
    from cuda_impl import build

    op = registry.get_op(name)
    impl = registry.implementations(name, ["cupy.*"])[0]
    (launch,) = (each for each in capture(impl, op, op.cases.default, arch) if isinstance(each, CudaLaunch))
    tool = build.triton_nvidia() / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".fatbin") as file:
        file.write(build.fatbin(launch.source, launch.kernel, arch)[0])
        file.flush()
        for option in ("-lelf", "-lptx"):
            done = subprocess.run([tool, option, file.name], capture_output=True, text=True, check=False)
            print((done.stdout + done.stderr).replace(Path(file.name).stem, "kernel").strip(), flush=True)


# --------------------------------------------------------------------------- before a command


def _dumped(folder: Path, name: str, arch: str) -> None:
    """PTX that the kernel is compiled from instead of its own, with a remark of ours in it."""
    os.environ.update(TRITON_KERNEL_DUMP="1", TRITON_DUMP_DIR=str(folder), TRITON_ALWAYS_COMPILE="1")
    del os.environ["TRITON_KERNEL_OVERRIDE"]
    compile_once(name, arch)
    for file in folder.rglob("*"):
        if file.suffix == ".ptx":
            file.write_text(f"// edited by hand\n{file.read_text()}")
        elif file.is_file():
            file.unlink()
    del os.environ["TRITON_KERNEL_DUMP"]
    os.environ["TRITON_KERNEL_OVERRIDE"] = "1"
    _forget(name, arch)


RUNS: dict[str, Action] = {
    "interpret": _interpret,
    "autotune": _autotune,
    "cupy-cache": _cupy_cache,
    "cupy-error": _cupy_error,
    "fat-binary": _fat_binary,
}

EXAMPLES = {
    "TRITON_CACHE_DIR": Example("TRITON_CACHE_DIR=DIR", runs=2, files="*/*"),
    "TRITON_ALWAYS_COMPILE": Example("TRITON_CACHE_DIR=DIR TRITON_ALWAYS_COMPILE=1", runs=2),
    "TRITON_KERNEL_DUMP": Example(
        "TRITON_ALWAYS_COMPILE=1 TRITON_KERNEL_DUMP=1 TRITON_DUMP_DIR=DIR", files="*/*"
    ),
    "TRITON_KERNEL_OVERRIDE": Example(
        "TRITON_ALWAYS_COMPILE=1 TRITON_KERNEL_OVERRIDE=1 TRITON_OVERRIDE_DIR=DIR", prepare=_dumped
    ),
    "MLIR_ENABLE_DUMP": Example(
        "TRITON_ALWAYS_COMPILE=1 MLIR_ENABLE_DUMP=1", shown=r"IR Dump Before|compiled"
    ),
    "LLVM_IR_ENABLE_DUMP": Example(
        "TRITON_ALWAYS_COMPILE=1 LLVM_IR_ENABLE_DUMP=1", shown=r"IR Dump|compiled"
    ),
    "NVPTX_ENABLE_DUMP": Example(
        "TRITON_ALWAYS_COMPILE=1 NVPTX_ENABLE_DUMP=1",
        shown=r"^\s*(//.*NVPTX|\.version|\.target|ld\.global|add\.)|compiled",
    ),
    "TRITON_DUMP_PTXAS_LOG": Example("TRITON_ALWAYS_COMPILE=1 TRITON_DUMP_PTXAS_LOG=1"),
    "TRITON_INTERPRET": Example("TRITON_INTERPRET=1", run="interpret"),
    "TRITON_PRINT_AUTOTUNING": Example("TRITON_PRINT_AUTOTUNING=1", run="autotune"),
    "CUPY_CACHE_DIR": Example(
        "CUPY_CACHE_DIR=DIR CUPY_CACHE_SAVE_CUDA_SOURCE=1", files="*", run="cupy-cache"
    ),
    "CUPY_DUMP_CUDA_SOURCE_ON_ERROR": Example("CUPY_DUMP_CUDA_SOURCE_ON_ERROR=1", run="cupy-error"),
    "CUDA_CACHE_PATH": Example("CUDA_CACHE_PATH=DIR", run="fat-binary"),
}


# --------------------------------------------------------------------------- examples


def examples(name: str, arch: str) -> dict[str, str]:
    """What each variable makes the compilers do to an op's kernels, shortened, with nothing of this machine.

    Raises:
        RuntimeError: the process that tries them ended early; the text is what it said.
    """
    from compare.code_size.sources import rests_on

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
        environment = {
            n: v for n, v in os.environ.items() if not re.match(r"TRITON_|MLIR_|LLVM_|CUPY_|NVPTX_", n)
        }
        done = subprocess.run(
            [sys.executable, "-m", "tools.docs.toolchain_variables", name, arch, "--examples"],
            capture_output=True,
            text=True,
            cwd=registry.ROOT,
            env=environment,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the examples of environment variables failed:\n{done.stderr}")
        found = json.loads(done.stdout)
        result_cache.write("switches", key, found)
    return found


_RESTS_ON = (
    "tools/docs/toolchain_variables.py",
    "compare/capture.py",
    "compare/resources/compiler_process.py",
    "cuda_impl/build.py",
)


def _all_examples(name: str, arch: str) -> dict[str, str]:
    import torch  # noqa: F401 - once for all; what reads variables at import is imported by each
    from triton.runtime.cache import triton_key

    triton_key()  # reads all of Triton, which takes seconds: once for all as well
    return {variable: _forked(example, name, arch) for variable, example in EXAMPLES.items()}


def _forked(example: Example, name: str, arch: str) -> str:
    """An example in a process of its own, which need not import everything anew."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as output:
        folder = Path(scratch, "DIR")
        folder.mkdir()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                _try(example, name, arch, folder, Path(scratch))
                status = 0
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, waited = os.waitpid(child, 0)
        output.seek(0)
        said = output.read().decode(errors="replace")
        if waited != 0:
            raise RuntimeError(f"{example.variables}: {said[-2000:]}")
        return _written(example, name, arch, said.partition(_BEGIN)[2], folder)


_BEGIN = "=====\n"


def _try(example: Example, name: str, arch: str, folder: Path, scratch: Path) -> None:
    for pair in example.variables.split():
        variable, _, value = pair.partition("=")
        os.environ[variable] = str(folder) if value == "DIR" else value
    os.environ.setdefault("TRITON_CACHE_DIR", str(scratch / "cache"))
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    if example.prepare:
        example.prepare(folder, name, arch)
    print(_BEGIN, end="", flush=True)
    for run in range(example.runs):
        if run:
            print("$ again", flush=True)
            _forget(name, arch)
        RUNS.get(example.run, compile_once)(name, arch)


def _forget(name: str, arch: str) -> None:
    """What this process has compiled, as another would not know it."""
    for launch in _launches(name, arch):
        launch.kernel.device_caches.clear()


def _written(example: Example, name: str, arch: str, said: str, folder: Path) -> str:
    """Command and output as the document has them."""
    command = f"python -m tools.docs.toolchain_variables {name} {arch}"
    if example.run:
        command += f" --run {example.run}"
    wanted = re.compile(r"^\$ again|" + (example.shown or r"\S"))
    lines = [
        _normal(line.rstrip(), folder)
        for line in said.splitlines()
        if wanted.search(line) and not line.startswith(_OF_THIS_MACHINE)
    ]
    last = lines[-1:] if example.shown else []
    body = lines[: len(lines) - len(last)]
    most = _FIRST if example.shown else 4 * _FIRST
    if len(body) > most:
        body = [*body[:most], f"... {len(body) - most} more such lines"]
    shown = [f"$ {example.variables} {command}", *body, *last]
    if example.files:
        files = sorted(_normal(str(path), folder) for path in folder.glob(example.files) if path.is_file())
        shown += ["$ find DIR -type f", *dict.fromkeys(files)]
    return "\n".join(shown)


_OF_THIS_MACHINE = ("nvdisasm warning", "Options: ")
_WIDEST = 110


def _normal(line: str, folder: Path) -> str:
    """A line without paths, keys and times, which are another machine's tomorrow."""
    line = line.expandtabs(8).replace(str(folder), "DIR").replace(str(registry.ROOT), ".")
    line = re.sub(r"\b[A-Z2-7]{52}\b|\b[0-9a-f]{20}\b", "KEY", line)
    line = re.sub(r"/tmp/tmp\w+|/tmp(?=/kernel)", "TMP", line)
    line = re.sub(r"\b\d+\.\d+ ?(s\b|seconds|ms\b)", r"TIME \1", line)
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 4]} ..."


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m tools.docs.toolchain_variables",
        description="Compile an op's Triton kernels once, for any architecture, with or without a GPU: what "
        "environment variables do then, docs/toolchain-environment.md shows.",
    )
    add = found.add_argument
    add("op", choices=registry.op_names())
    add("arch", metavar="SM", help="for which architecture, e.g. sm_90")
    add("--run", choices=RUNS, help="do this in place of compiling")
    add("--examples", action="store_true", help="try all that the document shows, and print it as JSON")
    return found


def main(words: Sequence[str]) -> int:
    """Run the command and return the exit status: 0, or 2 for a mistake in it."""
    arguments = parser().parse_args(words)
    from compare.resources.occupancy import limits

    try:
        limits(arguments.arch)
    except UsageError as error:
        print(f"python -m tools.docs.toolchain_variables: {error}", file=sys.stderr)
        return 2
    if arguments.examples:
        print(json.dumps(_all_examples(arguments.op, arguments.arch)))
    else:
        RUNS.get(arguments.run, compile_once)(arguments.op, arguments.arch)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
