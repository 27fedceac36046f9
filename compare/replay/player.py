"""Launches the nodes of a recording at the recorded addresses, on torch's current stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from compare.checking.guarded_memory import POISON
from compare.replay.arena import BASE, Arena, checked
from compare.replay.nodes import ArenaOutput, Copy, KernelLaunch, Memset, Node, Recording, TritonSource

_PORTABLE_CLUSTER = 8
_PORTABLE_SHARED_BYTES = 48 << 10

Enqueue = Callable[[Any], None]
"""Enqueues one node on a stream."""


class Player:
    """A recording, ready to be replayed in this process.

    Args:
        recording: validated.
        images: machine code of its sources.
        arena: as large as the recording says, and with the inputs in it.
        inputs_bytes: of the arena, from its beginning.
    """

    def __init__(
        self, recording: Recording, images: Sequence[bytes], arena: Arena, inputs_bytes: int
    ) -> None:
        self._device = arena.device
        self._modules = [checked(driver.cuModuleLoadData(image), "loading machine code") for image in images]
        self._launches = [self._launch(node, recording) for node in recording.nodes]
        outputs = [_tensor(output, arena) for output in recording.outputs]
        self._outputs = outputs[0] if len(outputs) == 1 else tuple(outputs)
        self._workspace = arena.part(inputs_bytes, recording.used_bytes - inputs_bytes)
        self._kept = [
            (arena.part(kept.address - BASE, len(kept.content)), _on(arena.device, kept.content))
            for kept in recording.kept
        ]

    def __call__(self, *_: torch.Tensor, **__: Any) -> Any:
        """Replay; returns the outputs.  The inputs lie in the arena, and the options in the parameters."""
        stream = driver.CUstream(torch.cuda.current_stream(self._device).cuda_stream)
        for launch in self._launches:
            launch(stream)
        return self._outputs

    def reset(self) -> None:
        """Poison all memory of the call, and restore what it finds there: a replay leaves nothing behind."""
        self._workspace.view(torch.int16).fill_(POISON)
        for memory, content in self._kept:
            memory.copy_(content)

    def _launch(self, node: Node, recording: Recording) -> Enqueue:
        if isinstance(node, KernelLaunch):
            return self._kernel(node, isinstance(recording.sources[node.source], TritonSource))
        if isinstance(node, Copy):
            return lambda stream: _enqueued(
                driver.cuMemcpyDtoDAsync(node.address, node.origin, node.nbytes, stream)
            )
        return _memset(node)

    def _kernel(self, kernel: KernelLaunch, of_triton: bool) -> Enqueue:
        function = checked(
            driver.cuModuleGetFunction(self._modules[kernel.source], kernel.name.encode()),
            f"{kernel.name} in its own source",
        )
        sizes = driver.CUfunction_attribute
        static_bytes = checked(
            driver.cuFuncGetAttribute(sizes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function), kernel.name
        )
        if kernel.shared_bytes + static_bytes > _PORTABLE_SHARED_BYTES:
            if of_triton:  # as Triton's own loader does
                prefer = driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED
                checked(driver.cuFuncSetCacheConfig(function, prefer), kernel.name)
            largest = sizes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(function, largest, kernel.shared_bytes), kernel.name)
        if prod(kernel.cluster) > _PORTABLE_CLUSTER:
            large = sizes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            checked(driver.cuFuncSetAttribute(function, large, 1), kernel.name)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = kernel.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = kernel.block
        config.sharedMemBytes = kernel.shared_bytes
        if attributes := _attributes(kernel):  # once: cuda.bindings 13.0 frees a list that is replaced twice
            config.attrs, config.numAttrs = attributes, len(attributes)
        values = [np.frombuffer(value, np.uint8) for value in kernel.parameters]
        addresses = np.array([value.ctypes.data for value in values], np.uint64)
        at = addresses.ctypes.data

        def launch(stream: Any, held: object = (values, addresses)) -> None:
            config.hStream = stream
            _enqueued(driver.cuLaunchKernelEx(config, function, at, 0))

        return launch


def _attributes(kernel: KernelLaunch) -> list[Any]:
    """A launch's attributes beyond its shape."""
    attributes = []

    def attribute(name: str) -> Any:
        each = driver.CUlaunchAttribute()
        each.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
        attributes.append(each)
        return each.value

    if prod(kernel.cluster):
        size = attribute("CLUSTER_DIMENSION").clusterDim
        size.x, size.y, size.z = kernel.cluster
    if kernel.cooperative:
        attribute("COOPERATIVE").cooperative = 1
    if kernel.overlap:
        attribute("PROGRAMMATIC_STREAM_SERIALIZATION").programmaticStreamSerializationAllowed = 1
    return attributes


def _memset(node: Memset) -> Enqueue:
    fill = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[
        node.element_bytes
    ]
    value = node.value & ((1 << 8 * node.element_bytes) - 1)
    return lambda stream: _enqueued(fill(node.address, value, node.count, stream))


def _enqueued(result: tuple[Any, ...]) -> None:
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"replaying: {result[0].name}")


def _tensor(output: ArenaOutput, arena: Arena) -> torch.Tensor:
    typed = torch.empty(0, dtype=getattr(torch, output.dtype), device=arena.device)
    if not output.nbytes:
        return typed.new_empty(output.shape)
    storage = arena.part(output.address - BASE, output.nbytes).untyped_storage()
    return typed.set_(storage, 0, output.shape, output.stride)


def _on(device: torch.device, content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
