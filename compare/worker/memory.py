"""Shared memory of the judge and its workers.

A `Placement` describes a tensor in it: the offset of its storage, and the tensor's layout in the storage.
So a tensor reaches the worker with its strides, storage offset and alignment.

On a CPU it is an anonymous file, on a GPU an allocation shared by CUDA IPC.  It never holds a reference or
another worker's output.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from cuda_impl import build

ALIGNMENT = 512
"""Of every storage, in bytes: that of PyTorch's allocator on a GPU."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""A worker that could shrink the file would end the judge by SIGBUS."""

_GRANULE = 2 << 20
"""CUDA IPC shares whole pages of this size; a smaller allocation would expose its neighbours."""


@dataclass(frozen=True)
class Placement:
    """Layout of a tensor in shared memory."""

    start: int
    """Offset of its storage, in bytes."""
    nbytes: int
    """Size of its storage."""
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor, start: int) -> Placement:
        name = str(tensor.dtype).removeprefix("torch.")
        nbytes = tensor.untyped_storage().nbytes()
        return cls(start, nbytes, name, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def room(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of shared memory that these tensors need."""
    return sum(_aligned(tensor.untyped_storage().nbytes()) for tensor in tensors)


def places_of(tensors: Iterable[torch.Tensor], start: int) -> list[Placement]:
    """Places one behind the other from ``start`` on, a multiple of `ALIGNMENT`."""
    places = []
    for tensor in tensors:
        places.append(Placement.of(tensor, start))
        start += _aligned(places[-1].nbytes)
    return places


class SharedMemory:
    """Memory that several processes have mapped; it is freed once none of them has.

    Args:
        size: in bytes, rounded up to whole pages.
        handle: of CUDA IPC, for a worker on a GPU; empty: the judge allocates.
        descriptors: of the file, for a worker on a CPU; closed with the memory.
    """

    def __init__(
        self, size: int, device: torch.device, handle: bytes = b"", descriptors: Sequence[int] = ()
    ) -> None:
        self.device = device
        self.size = max(_GRANULE, -(-size // _GRANULE) * _GRANULE)
        if device.type == "cuda":
            self._pages: Any = _on_gpu().GpuPages(self.size, device, handle)
        else:
            self._pages = _HostPages(self.size, *descriptors)
        self.bytes: torch.Tensor = self._pages.bytes

    def put(self, tensors: Sequence[torch.Tensor], start: int) -> list[Placement]:
        """Copy tensors into it as `places_of` says, with the gaps in their storages."""
        places = places_of(tensors, start)
        for tensor, place in zip(tensors, places, strict=True):
            self.bytes[place.start : place.start + place.nbytes].copy_(_storage(tensor))
        return places

    def tensor(self, place: Placement) -> torch.Tensor:
        """The tensor at a place, without a copy."""
        return tensor_in(self._pages, place)

    @property
    def handle(self) -> bytes:
        """On a GPU what another process opens it by; empty on a CPU."""
        return bytes(self._pages.handle)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """On a CPU the file descriptor that another process needs; none on a GPU."""
        return tuple(self._pages.descriptors)

    def close(self) -> None:
        self.bytes = torch.empty(0)
        self._pages.close()


def tensor_in(pages: Any, place: Placement) -> torch.Tensor:
    """The tensor at a place of memory that has a ``device`` and returns ``part``s as bytes."""
    typed = torch.empty(0, dtype=getattr(torch, place.dtype), device=pages.device)
    if place.nbytes == 0:
        return typed.set_(typed.untyped_storage(), 0, place.shape, place.stride)
    storage = pages.part(place.start, place.nbytes).untyped_storage()
    return typed.set_(storage, place.storage_offset, place.shape, place.stride)


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    """The storage of a tensor as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class _HostPages:
    """An anonymous file, mapped.  Without a name, no other process can open it."""

    device = torch.device("cpu")
    handle = b""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self.descriptors = (descriptor,)
        self._map = mmap.mmap(descriptor, size)
        self.bytes = self.part(0, size)

    def part(self, start: int, size: int) -> torch.Tensor:
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=start)

    def close(self) -> None:
        self.bytes = torch.empty(0)
        os.close(*self.descriptors)  # the map goes with the last tensor in it


def _on_gpu() -> ModuleType:
    """`compare.worker.gpu_memory`.

    Raises:
        BuildError: cupy cannot create its cache folder.
    """
    build.cupy()
    # Start-up: a comparison on a CPU needs no cupy (half a second to import, and a writable folder).
    from compare.worker import gpu_memory

    return gpu_memory
