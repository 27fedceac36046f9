"""Device memory at a fixed virtual address: the same in the process that records and in the one that replays.

The inputs come first; behind them lies what the call allocates through PyTorch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver

from cuda_impl import build

BASE = 0x7A00_0000_0000
"""An H100's driver gave this address in two processes; elsewhere it may refuse, which `Arena` says."""
GRANULE = 2 << 20
"""CUDA maps device memory in pages of this size."""
RESERVED_BYTES = 64 << 30
"""Addresses of an arena; its memory takes the first.  For a few megabytes the driver chooses others."""
ALLOCATOR = Path(__file__).with_name("arena.cpp")


def checked(result: tuple[Any, ...], what: str) -> Any:
    """The values of a call to the driver.

    Raises:
        RuntimeError: the driver refused ``what``.
    """
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{what}: {error.name}")
    return values[0] if len(values) == 1 else tuple(values)


def whole(nbytes: int) -> int:
    """``nbytes`` rounded up to whole pages, at least one."""
    return max(1, -(-nbytes // GRANULE)) * GRANULE


class Arena:
    """``nbytes`` of device memory at `BASE`, until `close`.

    Args:
        nbytes: whole pages.
        device: of the current CUDA context.

    Raises:
        RuntimeError: the driver gives another address, or has not enough memory.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.device, self.nbytes = device, nbytes
        place = driver.CUmemLocation()
        place.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.id = torch.cuda.current_device() if device.index is None else device.index
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = place
        access = driver.CUmemAccessDesc()
        access.location = place
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        size = f"{nbytes >> 20} MiB"
        self._reserved = max(nbytes, RESERVED_BYTES)
        address = int(checked(driver.cuMemAddressReserve(self._reserved, 0, BASE, 0), f"reserving {size}"))
        if address != BASE:
            driver.cuMemAddressFree(address, self._reserved)
            raise RuntimeError(f"the driver reserves address {address:#x} and not {BASE:#x}")
        self._memory = checked(driver.cuMemCreate(nbytes, properties, 0), f"{size} of GPU memory")
        checked(driver.cuMemMap(BASE, nbytes, 0, self._memory, 0), "mapping it")
        checked(driver.cuMemSetAccess(BASE, nbytes, [access], 1), "making it accessible")

    def part(self, start: int, nbytes: int) -> torch.Tensor:
        """Bytes ``start`` to ``start + nbytes`` as a tensor, without a copy."""
        return memory_at(BASE + start, nbytes, self.device)

    def close(self) -> None:
        """Unmap and free it, when the GPU is done."""
        torch.cuda.synchronize(self.device)
        checked(driver.cuMemUnmap(BASE, self.nbytes), "unmapping")
        checked(driver.cuMemRelease(self._memory), "freeing")
        checked(driver.cuMemAddressFree(BASE, self._reserved), "freeing the addresses")


def memory_at(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """Bytes on a GPU as a tensor, without a copy."""
    return torch.as_tensor(_Raw(address, nbytes), device=device)


class _Raw:
    """Bytes on a GPU by the CUDA array interface."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class Pool:
    """PyTorch's allocations in an arena, from ``start`` bytes on.

    Written against torch 2.11 to 2.13: a `torch.cuda.MemPool` keeps its allocator, so a graph that is
    captured into the pool's id allocates from it as well.

    Args:
        library: `ALLOCATOR`, built by `cuda_impl.build.shared_library`.
    """

    def __init__(self, library: str, arena: Arena, start: int) -> None:
        self._functions = ctypes.CDLL(library)
        self._functions.arena_next.restype = ctypes.c_size_t
        self._functions.arena_set(ctypes.c_size_t(BASE + start), ctypes.c_size_t(BASE + arena.nbytes))
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "arena_alloc", "arena_free")
        self._pool = torch.cuda.MemPool(self._allocator.allocator())

    @property
    def id(self) -> Any:
        """For ``torch.cuda.graph(pool=...)``, outside `used`: PyTorch takes a pool once at a time."""
        return self._pool.id

    @property
    def end(self) -> int:
        """Offset in the arena behind the last byte that was handed out."""
        return int(self._functions.arena_next()) - BASE

    @contextmanager
    def used(self) -> Iterator[None]:
        """This thread's allocations come from the pool."""
        with torch.cuda.use_mem_pool(self._pool):
            yield

    def live(self) -> list[tuple[int, int]]:
        """Address and size of every allocation that is in use."""
        blocks = []
        for segment in torch.cuda.memory_snapshot(self._pool.id):
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    blocks.append((address, block["size"]))
                address += block["size"]
        return blocks


def library() -> Path:
    """`ALLOCATOR` as a shared library, for the judge to build: an isolated worker may find no compiler.

    Raises:
        BuildError: g++ is missing.
    """
    return build.shared_library(ALLOCATOR)
