"""A recorded GPU, an H100, for host code that asks for its properties on a machine without a GPU.

A persistent kernel's launch depends on the number of multiprocessors, and on the registers and the shared
memory that ``kernel.warmup`` reports.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from triton_impl.notes import note

_TRITONS = {
    "max_shared_mem": 232448,
    "max_num_regs": 65536,
    "multiprocessor_count": 132,
    "warpSize": 32,
    "sm_clock_rate": 1980000,
    "mem_clock_rate": 2619000,
    "mem_bus_width": 5120,
}
_TORCHS = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    total_memory=85_045_084_160,
    multi_processor_count=132,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=52_428_800,
    gcnArchName="",  # Inductor reads it where PyTorch is built without CUDA
)
_REGISTERS, _SHARED_BYTES = 32, 4096
"""Of a warmed-up kernel: only a compiler for a GPU knows them."""


class RecordedDriver:
    """In place of Triton's driver: answers about the device, and launches nothing."""

    utils = SimpleNamespace(get_device_properties=lambda device=0: dict(_TRITONS))

    def get_current_device(self) -> int:
        return 0

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return _TORCHS.major, _TORCHS.minor

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 10 * _TORCHS.major + _TORCHS.minor, _TORCHS.warp_size)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"triton.runtime.driver.active.{name} needs a GPU: without one, take get_current_target() or "
            "utils.get_device_properties(0)"
        )


class WarmedUp:
    """In place of a compiled kernel that ``kernel.warmup`` returns; a launch interprets the kernel.

    Args:
        kernel: the interpreted function.
        run: launches it, as ``InterpretedFunction.run``.
        args: of the warm-up: its compile-time constants hold for each launch.
        options: ``num_warps`` and the like, and arguments by name.
    """

    n_regs, n_spills, n_max_threads = _REGISTERS, 0, 1024

    def __init__(
        self, kernel: Any, run: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self._kernel, self._run = kernel, run
        self.name = kernel.__name__
        self.metadata = SimpleNamespace(
            name=self.name,
            shared=_SHARED_BYTES,
            num_warps=options.get("num_warps", 4),
            num_stages=options.get("num_stages", 3),
            num_ctas=options.get("num_ctas", 1),
        )
        self._bound = dict(zip(kernel.arg_names, args, strict=False)) | {
            name: value for name, value in options.items() if name in kernel.arg_names
        }
        note(
            f"{self.name}.warmup without a GPU: assumed {_REGISTERS} registers a thread and {_SHARED_BYTES} "
            "bytes of shared memory"
        )

    def _init_handles(self) -> None:
        """Called by host code that reads `n_regs`."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, stream: Any = None) -> None:
            names = self._kernel.arg_names
            # Some leave out the compile-time constants.
            constants = {name: self._bound[name] for name in names[len(args) :] if name in self._bound}
            self._run(self._kernel, *args, grid=grid, warmup=False, **constants)

        return launch

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"{self.name}.warmup(...).{name} needs a GPU: without one, read n_regs, n_spills or "
            "metadata.shared"
        )


def answer_for_gpu() -> None:
    """Have PyTorch and Triton answer as on the recorded GPU when host code asks for its properties."""
    driver.set_active(RecordedDriver())
    torch.cuda.get_device_properties = lambda device=None: _TORCHS
    torch.cuda.get_device_capability = lambda device=None: (_TORCHS.major, _TORCHS.minor)
    torch.cuda.get_device_name = lambda device=None: _TORCHS.name
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = lambda device=None: nullcontext()  # type: ignore[assignment, misc]
