"""What the command does: compile, or what ``--run`` names in its place."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from cupy.cuda import _compiler_cache, compiler
from triton import knobs

from compare import registry
from compare.capture import capture
from compare.model.op import CudaLaunch, TritonLaunch
from compare.resources.compiler import compile_triton
from cuda_impl import build, flags


def compile_once(name: str, arch: str) -> None:
    """Compile what an op's Triton implementations launch, and print what came of each kernel."""
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
    op = registry.get_op(name)
    found = []
    for impl in registry.implementations(name, ["triton.*"]):
        with contextlib.suppress(NotImplementedError):
            found += [
                each for each in capture(impl, op, op.cases.default, arch) if isinstance(each, TritonLaunch)
            ]
    return found


def _interpret(name: str, arch: str) -> None:
    """Run an implementation on the CPU, as Triton's interpreter does."""
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
    options = (f"-I{flags.KERNELS}", f"-I{build.cuda_include()}", "-std=c++17", "-default-device")
    asked = "_get_arch_for_options_for_nvrtc"  # of a GPU, which there may not be
    with (
        mock.patch.object(compiler, asked, lambda arch: (f"-arch=sm_{arch}", "cubin")),
        contextlib.suppress(compiler.CompileException),
    ):
        compiler.compile_using_nvrtc(f'#include "{name}.cuh"\nno such thing;\n', options, arch=arch[3:])


def _cupy_cache(name: str, arch: str) -> None:
    """What cupy's cache writes for a kernel of the op's: the machine code, and its source."""
    kernel = _cuda_launch(name, arch).kernel.partition("<")[0]
    _compiler_cache.DiskKernelCacheBackend().save(
        f"{'0' * 40}.cubin", b"machine code", build.source_text(name)
    )
    print(f"one file for {kernel}, and with CUPY_CACHE_SAVE_CUDA_SOURCE=1 its source:")


def _fat_binary(name: str, arch: str) -> None:
    """What nvcc's fat binary holds of a kernel of the op's: machine code, no PTX for a driver to compile."""
    launch = _cuda_launch(name, arch)
    tool = build.triton_nvidia() / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".fatbin") as file:
        file.write(build.fatbin(launch.source, launch.kernel, arch)[0])
        file.flush()
        for option in ("-lelf", "-lptx"):
            done = subprocess.run([tool, option, file.name], capture_output=True, text=True, check=False)
            print((done.stdout + done.stderr).replace(Path(file.name).stem, "kernel").strip(), flush=True)


def _cuda_launch(name: str, arch: str) -> CudaLaunch:
    """The launch of an op's first CUDA implementation."""
    op = registry.get_op(name)
    impl = registry.implementations(name, ["cupy.*"])[0]
    return next(each for each in capture(impl, op, op.cases.default, arch) if isinstance(each, CudaLaunch))


RUNS: dict[str, Callable[[str, str], None]] = {
    "interpret": _interpret,
    "autotune": _autotune,
    "cupy-cache": _cupy_cache,
    "cupy-error": _cupy_error,
    "fat-binary": _fat_binary,
}
"""By what ``--run`` calls it; each takes an op's name and an architecture."""
