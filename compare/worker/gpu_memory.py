"""`compare.worker.memory` on a GPU: an allocation that another process can open through CUDA IPC."""

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


class GpuPages:
    """A whole allocation, as CUDA IPC shares no part of one.

    Args:
        size: in bytes.
        opened: the handle of another process's allocation; empty: a new one.
    """

    descriptors = ()
    """None: the handle is all that another process needs."""

    def __init__(self, size: int, device: torch.device, opened: bytes) -> None:
        self.device, self._opened = device, opened
        try:
            with _on(device):
                self.pointer = runtime.ipcOpenMemHandle(opened) if opened else runtime.malloc(size)
        except runtime.CUDARuntimeError as error:
            if opened:
                raise
            raise MemoryError(f"{size / 1e9:.1f} GB to share with workers: {error}") from error
        self.bytes = self.part(0, size)

    def part(self, start: int, size: int) -> torch.Tensor:
        return memory_at(self.pointer + start, size, self.device)

    @property
    def handle(self) -> bytes:
        with _on(self.device):
            return bytes(runtime.ipcGetMemHandle(self.pointer))

    def close(self) -> None:
        self.bytes = torch.empty(0)
        with _on(self.device):
            torch.cuda.synchronize()
            if self._opened:
                runtime.ipcCloseMemHandle(self.pointer)
            else:
                runtime.free(self.pointer)
