"""Notes what each kernel of this process was compiled from, where Triton and cupy compile and load it.

It runs beside a user's file and can be lied to: a source that is not the kernel's own gives another kernel.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Literal

from triton.compiler import CompiledKernel

from compare.replay.nodes import CudaSource, Source, TritonSource
from cuda_impl import build

OPTIONS = (
    *("num_warps", "num_ctas", "num_stages", "maxnreg", "ptx_version", "ptx_options", "enable_fp_fusion"),
    *("enable_reflect_ftz", "launch_cooperative_grid", "launch_pdl", "debug", "sanitize_overflow", "arch"),
)
"""Triton's options that compiling its IR depends on, without paths: those are the compiling process's."""
_CUPYS_OWN = "cupy/carray.cuh"
"""Included by the kernels that cupy itself generates."""


class Sources:
    """What every loaded module was compiled from, by its handle; from `watch` on."""

    def __init__(self) -> None:
        self._of_module: dict[int, Source] = {}

    def of(self, module: int) -> Source | None:
        """The source of a CUmodule; None: not compiled here by Triton or cupy."""
        return self._of_module.get(module)

    def watch(self) -> None:
        """Note from now on; before any kernel is compiled."""
        self._watch_triton()
        self._watch_cupy()

    def _watch_triton(self) -> None:
        load = CompiledKernel._init_handles

        @functools.wraps(load)
        def loading(kernel: Any) -> None:
            load(kernel)
            self._of_module[int(kernel.module)] = of_triton(kernel)

        CompiledKernel._init_handles = loading

    def _watch_cupy(self) -> None:
        compiler = build.cupy().cuda.compiler
        load, compile_it = compiler._compile_module_with_cache, compiler._NVRTCProgram.compile
        compiled: list[CudaSource] = []

        @functools.wraps(compile_it)
        def compiling(program: Any, options: Any = (), log_stream: Any = None) -> Any:
            compiled.append(CudaSource(program.src, tuple(program.name_expressions or ()), tuple(options)))
            return compile_it(program, options, log_stream)

        @functools.wraps(load)
        def loading(source: str, options: Any = (), **keywords: Any) -> Any:
            module = load(source, options, **keywords)
            wanted = source, tuple(keywords.get("name_expressions") or ())
            for found in compiled:
                # cupy adds options of its own behind those asked for.
                same = (found.code, found.names) == wanted and found.options[: len(options)] == tuple(options)
                if same and _CUPYS_OWN not in source:
                    self._of_module[int(module.ptr)] = found
            return module

        compiler._NVRTCProgram.compile, compiler._compile_module_with_cache = compiling, loading


def of_triton(kernel: Any) -> TritonSource:
    """The source of a `CompiledKernel`."""
    stage: Literal["ttir", "ttgir"] = "ttir" if "ttir" in kernel.asm else "ttgir"
    known = kernel.metadata._asdict()
    options = {name: known[name] for name in OPTIONS if known.get(name) is not None}
    # Warp specialization adds warps: the option is the number before.
    if found := re.search(r'"ttg\.num-warps" = (\d+)', kernel.asm["ttgir"]):
        options["num_warps"] = int(found[1])
    return TritonSource(kernel.asm[stage], stage, options)
