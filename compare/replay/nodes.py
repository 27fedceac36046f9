"""A recording as plain data: what one call enqueues on the GPU, and where its inputs and outputs lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from msgspec import Struct
from msgspec.structs import replace

from compare.checking.reference import Outputs
from compare.replay.arena import BASE

MOST_NODES = 256
MOST_KEPT_BYTES = 512 << 10
"""Memory that stays allocated between calls, such as counters and tables; a recording has its contents."""
_WORD = 8
_PARAMETER_BYTES = 32_764
"""Largest parameters of a kernel (CUDA C++ Programming Guide, since CUDA 12.1)."""
_LARGEST = 1 << 40
"""Addresses from `BASE` on that count as the arena's where two recordings are compared."""


class KernelLaunch(Struct, frozen=True, tag=True):
    """A kernel launch."""

    name: str
    """In its module: mangled."""
    source: int
    """Index into the recording's sources."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    """Zeros: none, or the one that the kernel was compiled for."""
    shared_bytes: int
    """Dynamic."""
    cooperative: bool
    overlap: bool
    """Programmatic dependent launch."""
    parameters: tuple[bytes, ...]


class Memset(Struct, frozen=True, tag=True):
    """``count`` elements set to the low ``element_bytes`` (1, 2 or 4) of ``value``."""

    address: int
    value: int
    element_bytes: Literal[1, 2, 4]
    count: int


class Copy(Struct, frozen=True, tag=True):
    """A copy within the arena."""

    origin: int
    address: int
    nbytes: int


Node = KernelLaunch | Memset | Copy


class TritonSource(Struct, frozen=True, tag=True):
    """What Triton compiles to machine code."""

    ir: str
    stage: Literal["ttir", "ttgir"]
    """Gluon begins with the second."""
    options: dict[str, int | str | bool | None]


class CudaSource(Struct, frozen=True, tag=True):
    """What NVRTC compiles to machine code."""

    code: str
    names: tuple[str, ...]
    """Kernels as C++ expressions."""
    options: tuple[str, ...]


Source = TritonSource | CudaSource


class ArenaOutput(Struct, frozen=True):
    """An output in the arena."""

    address: int
    """Of its first element."""
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """From its first element to behind its last."""
        if 0 in self.shape:
            return 0
        reach = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return int((reach + 1) * getattr(torch, self.dtype).itemsize)


class Kept(Struct, frozen=True):
    """Memory allocated before the call, as the call finds it."""

    address: int
    content: bytes


class Recording(Struct, frozen=True):
    """One call."""

    nodes: tuple[Node, ...]
    """In the order of one stream."""
    sources: tuple[Source, ...]
    outputs: tuple[ArenaOutput, ...]
    kept: tuple[Kept, ...]
    used_bytes: int
    """Of the arena, from `BASE`."""


def problem(recording: Recording, inputs_bytes: int, arena_bytes: int, expected: Outputs) -> str | None:
    """What is wrong with a recording, None if nothing is.

    Args:
        recording: of the form that its dataclasses say.
        inputs_bytes: of the arena, from `BASE`: no output may lie there.
        arena_bytes: size of the recorder's arena.
        expected: meta tensors like the outputs.
    """
    if not inputs_bytes <= recording.used_bytes <= arena_bytes:
        return f"it uses {recording.used_bytes} bytes of an arena of {arena_bytes}"
    if len(recording.nodes) > MOST_NODES:
        return f"its call has {len(recording.nodes)} GPU operations, and the most is {MOST_NODES}"
    if sum(len(kept.content) for kept in recording.kept) > MOST_KEPT_BYTES:
        most = f"{MOST_KEPT_BYTES >> 10} KiB of GPU memory"
        return f"it keeps more than {most} between calls: allocate it in the call"
    if len(recording.outputs) != len(expected):
        return f"it has {len(recording.outputs)} outputs, expected {len(expected)}"
    for output, (name, x) in zip(recording.outputs, expected.items(), strict=True):
        if (output.dtype, output.shape) != (str(x.dtype).removeprefix("torch."), tuple(x.shape)):
            return f"{name} has dtype {output.dtype} and shape {output.shape}"
        if len(output.stride) != len(output.shape) or any(step < 0 for step in output.stride):
            return f"{name} has strides {output.stride}"
    for address, nbytes in _written(recording):
        if not BASE + inputs_bytes <= address <= address + nbytes <= BASE + recording.used_bytes:
            return f"it writes to {address:#x}, outside its own memory"
    for node in recording.nodes:
        if isinstance(node, Copy):
            if not BASE <= node.origin <= node.origin + node.nbytes <= BASE + recording.used_bytes:
                return f"it copies from {node.origin:#x}, outside its own memory"
        elif isinstance(node, KernelLaunch):
            if not 0 <= node.source < len(recording.sources):
                return f"{node.name} has no source"
            if sum(map(len, node.parameters)) > _PARAMETER_BYTES or min(node.grid + node.block) < 1:
                return f"{node.name} has a launch that no GPU takes"
    return None


def _written(recording: Recording) -> Iterator[tuple[int, int]]:
    """Address and size of each write without a kernel, and of each output."""
    for node in recording.nodes:
        if isinstance(node, Memset):
            yield node.address, node.count * node.element_bytes
        elif isinstance(node, Copy):
            yield node.address, node.nbytes
    for kept in recording.kept:
        yield kept.address, len(kept.content)
    for output in recording.outputs:
        if output.nbytes:
            yield output.address, output.nbytes


def difference(one: Recording, other: Recording) -> str | None:
    """Where two recordings of the same call differ by more than addresses, None if they do not."""
    if len(one.nodes) != len(other.nodes):
        return f"{len(one.nodes)} GPU operations on some inputs, and {len(other.nodes)} on others"
    for mine, theirs in zip(one.nodes, other.nodes, strict=True):
        if isinstance(mine, KernelLaunch) and isinstance(theirs, KernelLaunch):
            if mine.name != theirs.name:
                return f"{mine.name} on some inputs, and {theirs.name} on others"
            if _shape(mine) != _shape(theirs):
                return f"{mine.name} is launched as {_shape(mine)} on some inputs, {_shape(theirs)} on others"
            if any(map(_apart, mine.parameters, theirs.parameters)):
                return f"a parameter of {mine.name} differs on other inputs"
        elif isinstance(mine, Memset) and isinstance(theirs, Memset):
            if replace(mine, address=theirs.address) != theirs:
                return "a memset differs on other inputs"
        elif not (isinstance(mine, Copy) and isinstance(theirs, Copy) and mine.nbytes == theirs.nbytes):
            return "its GPU operations differ on other inputs"
    return None


def _shape(kernel: KernelLaunch) -> tuple[object, ...]:
    sizes = tuple(map(len, kernel.parameters))
    attributes = kernel.cluster, kernel.cooperative, kernel.overlap
    return kernel.grid, kernel.block, kernel.shared_bytes, attributes, sizes


def words(parameter: bytes) -> list[int]:
    """The aligned 64-bit words of a parameter: where it has addresses, they are among these."""
    whole = len(parameter) // _WORD * _WORD
    return [int.from_bytes(parameter[at : at + _WORD], "little") for at in range(0, whole, _WORD)]


def _apart(one: bytes, other: bytes) -> bool:
    """Whether two values of a parameter, of one size, differ by more than addresses in the arena."""
    tail = len(one) // _WORD * _WORD
    arena = range(BASE, BASE + _LARGEST)
    pairs = zip(words(one), words(other), strict=True)
    return one[tail:] != other[tail:] or any(a != b and not (a in arena and b in arena) for a, b in pairs)
