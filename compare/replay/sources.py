"""Notes what each kernel of this process was compiled from, by Triton's hook and by cupy's public classes.

It runs beside a user's file and can be lied to: a source that is not the kernel's own gives another kernel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from cuda.bindings import driver
from triton import knobs

from compare.device import arch
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

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._of_module: dict[int, Source] = {}
        self._raw: list[Any] = []
        """Every ``cupy.RawModule`` and ``cupy.RawKernel``."""

    def of(self, module: int) -> Source | None:
        """The source of a CUmodule; None: not compiled here by Triton or cupy."""
        if module not in self._of_module:
            self._of_module |= self._of_cupy()
        return self._of_module.get(module)

    def watch(self) -> None:
        """Note from now on; before any kernel is compiled."""
        knobs.runtime.kernel_load_end_hook.add(self.loaded_by_triton)
        cupy = build.cupy()
        cupy.RawModule, cupy.RawKernel = map(self._noted, (cupy.RawModule, cupy.RawKernel))

    def loaded_by_triton(
        self, module: int, function: int, name: str, files: Mapping[str, str], *_: Any
    ) -> None:
        """Called by Triton after it has loaded a kernel; ``files``: as of `of_triton`."""
        self._of_module[int(module)] = of_triton(files)

    def _noted(self, base: Any) -> Any:
        """A class of cupy's whose instances are noted."""
        raw = self._raw

        class Noted(base):  # type: ignore[misc]
            def __init__(self, *arguments: Any, **keywords: Any) -> None:
                super().__init__(*arguments, **keywords)
                raw.append(self)

        return Noted

    def _of_cupy(self) -> Iterator[tuple[int, Source]]:
        for raw in self._raw:
            if raw.backend != "nvrtc" or not raw.code or _CUPYS_OWN in raw.code:
                continue
            try:
                yield _module(raw), of_cupy(raw, arch(self._device) or "")
            except Exception:  # one that does not compile was not launched
                continue


def _module(raw: Any) -> int:
    """The CUmodule of a ``RawModule`` or ``RawKernel``, compiled if it was not."""
    if hasattr(raw, "module"):
        return int(raw.module.ptr)
    _, module = driver.cuFuncGetModule(driver.CUfunction(raw.kernel.ptr))
    return int(module)


def of_cupy(raw: Any, arch: str) -> CudaSource:
    """The source of a ``cupy.RawModule`` or ``cupy.RawKernel``, with the options that cupy adds."""
    names = getattr(raw, "name_expressions", None) or ()
    added = "-ftz=true", f"-arch={arch}", "--device-as-default-execution-space"
    return CudaSource(raw.code, tuple(names), (*raw.options, *added))


def of_triton(files: Mapping[str, str]) -> TritonSource:
    """The source of a kernel, from the paths of its files in Triton's cache by their names."""
    by_stage = {Path(name).suffix[1:]: Path(path) for name, path in files.items()}
    stage: Literal["ttir", "ttgir"] = "ttir" if "ttir" in by_stage else "ttgir"
    known = json.loads(by_stage["json"].read_text())
    options = {name: known[name] for name in OPTIONS if known.get(name) is not None}
    # Warp specialization adds warps: the option is the number before.
    if match := re.search(r'"ttg\.num-warps" = (\d+)', by_stage["ttgir"].read_text()):
        options["num_warps"] = int(match[1])
    return TritonSource(by_stage[stage].read_text(), stage, options)
