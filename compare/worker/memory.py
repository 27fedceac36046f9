"""Shared memory of the judge and a worker.

A `Place` describes a tensor in it: the offset of its storage, and the tensor's layout in the storage.  So a
tensor reaches the worker with its strides, storage offset and alignment.

On a CPU it is an anonymous file, on a GPU an allocation shared by CUDA IPC.  It never holds a reference or
another worker's output.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch

from compare.checking.reference import Outputs
from cuda_impl import build

ALIGNMENT = 512
"""Of every storage, in bytes: that of PyTorch's allocator on a GPU."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""A worker that could shrink the file would end the judge by SIGBUS."""

_GRANULE = 2 << 20
"""CUDA IPC shares whole pages of this size; a smaller allocation would expose its neighbours."""


@dataclass(frozen=True)
class Place:
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
    def of(cls, tensor: torch.Tensor, start: int) -> Place:
        name = str(tensor.dtype).removeprefix("torch.")
        nbytes = tensor.untyped_storage().nbytes()
        return cls(start, nbytes, name, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Place:
        return cls(**{**found, "shape": tuple(found["shape"]), "stride": tuple(found["stride"])})


def room(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of shared memory that these tensors need."""
    return sum(_aligned(tensor.untyped_storage().nbytes()) for tensor in tensors)


class Memory:
    """The judge's side; `View` is the worker's.  Close it when no worker needs it."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.device = device
        self.size = max(_GRANULE, -(-size // _GRANULE) * _GRANULE)
        if device.type == "cuda":
            self._pages: Any = _on_gpu().Pages(self.size, device)
        else:
            self._pages = _HostPages(self.size)
        self.bytes: torch.Tensor = self._pages.bytes

    def put(self, tensors: Sequence[torch.Tensor], start: int) -> list[Place]:
        """Copy tensors into it one after the other, with the gaps in their storages.

        Args:
            tensors: all on this memory's device.
            start: offset of the first one, a multiple of `ALIGNMENT`.
        """
        places = []
        for tensor in tensors:
            place = Place.of(tensor, start)
            self.bytes[start : start + place.nbytes].copy_(_storage(tensor))
            places.append(place)
            start += _aligned(place.nbytes)
        return places

    def tensor(self, place: Place) -> torch.Tensor:
        """The tensor at a place, without a copy."""
        return tensor_in(self._pages, place)

    def as_json(self) -> dict[str, Any]:
        """What a worker needs to open a `View` of it."""
        return {"size": self.size, **self._pages.as_json()}

    def send(self, connection: Connection, pid: int) -> None:
        """Send the file descriptor, right after the JSON."""
        self._pages.send(connection, pid)

    def close(self) -> None:
        """Unmap it.  It is freed once no worker has it mapped."""
        self.bytes = torch.empty(0)
        self._pages.close()


class View:
    """A worker's side of `Memory`."""

    def __init__(self, message: dict[str, Any], connection: Connection, device: torch.device) -> None:
        if device.type == "cuda":
            self._pages: Any = _on_gpu().View(message["size"], bytes.fromhex(message["handle"]), device)
        else:
            self._pages = _HostPages(message["size"], reduction.recv_handle(connection))

    def tensor(self, place: Place) -> torch.Tensor:
        return tensor_in(self._pages, place)

    def close(self) -> None:
        self._pages.close()


def mailboxes(memory: Memory | View, expected: Outputs) -> Outputs:
    """Tensors in shared memory like the outputs, without gaps, one behind the other."""
    found, start = {}, 0
    for name, plain in of_kinds(kinds_of(expected)).items():
        found[name] = memory.tensor(Place.of(plain, start))
        start += room((plain,))
    return found


def kinds_of(expected: Outputs) -> dict[str, Any]:
    """The outputs' shapes and dtypes, as an argument of a request."""
    return {
        name: {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
        for name, x in expected.items()
    }


def of_kinds(told: dict[str, Any]) -> Outputs:
    """Meta tensors of these shapes and dtypes."""
    return {
        name: torch.empty(kind["shape"], dtype=getattr(torch, kind["dtype"]), device="meta")
        for name, kind in told.items()
    }


def tensor_in(pages: Any, place: Place) -> torch.Tensor:
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

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)
        self.bytes = self.part(0, size)

    def part(self, start: int, size: int) -> torch.Tensor:
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=start)

    def as_json(self) -> dict[str, Any]:
        return {}

    def send(self, connection: Connection, pid: int) -> None:
        reduction.send_handle(connection, self._descriptor, pid)

    def close(self) -> None:
        self.bytes = torch.empty(0)
        os.close(self._descriptor)  # the map goes with the last tensor in it


def _on_gpu() -> ModuleType:
    """`compare.worker.gpu_memory`.

    Raises:
        BuildError: cupy cannot create its cache folder.
    """
    build.cupy()
    # Start-up: a comparison on a CPU needs no cupy (half a second to import, and a writable folder).
    from compare.worker import gpu_memory

    return gpu_memory
