"""`compare.worker.memory` on a GPU: an allocation that another process can open through CUDA IPC.

CUDA IPC shares whole allocations, so each tensor group gets its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import cupy
import torch
from cupy.cuda import runtime

from compare.replay.arena import memory_at


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Make ``device`` current in torch's CUDA runtime and in cupy's own copy of it."""
    with torch.cuda.device(device), cupy.cuda.Device(device.index):
        yield


class _SharedGpuMemory:
    def __init__(self, pointer: int, size: int, device: torch.device) -> None:
        self.device, self.pointer = device, pointer
        self.bytes = self.part(0, size)

    def part(self, start: int, size: int) -> torch.Tensor:
        return memory_at(self.pointer + start, size, self.device)


class GpuPages(_SharedGpuMemory):
    """The judge's side."""

    descriptors = ()
    """None: the handle is all that another process needs."""

    def __init__(self, size: int, device: torch.device) -> None:
        try:
            with _on(device):
                pointer = runtime.malloc(size)
        except runtime.CUDARuntimeError as error:
            raise MemoryError(f"{size / 1e9:.1f} GB to share with workers: {error}") from error
        super().__init__(pointer, size, device)

    @property
    def handle(self) -> bytes:
        with _on(self.device):
            return bytes(runtime.ipcGetMemHandle(self.pointer))

    def close(self) -> None:
        self.bytes = torch.empty(0)
        with _on(self.device):
            torch.cuda.synchronize()
            runtime.free(self.pointer)


class GpuView(_SharedGpuMemory):
    """The worker's side."""

    def __init__(self, size: int, handle: bytes, device: torch.device) -> None:
        with _on(device):
            pointer = runtime.ipcOpenMemHandle(handle)
        super().__init__(pointer, size, device)

    def close(self) -> None:
        self.bytes = torch.empty(0)
        with _on(self.device):
            torch.cuda.synchronize()
            runtime.ipcCloseMemHandle(self.pointer)
