"""Poisoned memory with guard zones on both sides.

While `GuardedMemory` is on, ``torch.empty`` and its variants return the inside of a larger buffer that is
filled with `POISON`.  Poison left in the output marks unwritten elements; poison missing from a guard zone
marks an out-of-bounds write.

Of one byte, every pattern is a value.  An element of one byte is unwritten if it holds `POISON` after one
call and `SECOND_POISON` after another on the same inputs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from compare.capture import DispatchMode, call_code_of, is_users

POISON = 0x7FDE
"""Every two bytes of poisoned memory: a NaN in fp16, bf16 and fp32 that arithmetic does not produce."""

SECOND_POISON = 0xFFB7 - 0x10000
"""Such a NaN too, of other bytes; below 0, as int16 holds it."""

ZONE_BYTES = 1 << 16

_ALLOCATIONS = (
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
)

_ZEROED = (
    torch.ops.aten.zeros.default,
    torch.ops.aten.zeros_like.default,
    torch.ops.aten.new_zeros.default,
)


_MEMORY = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
        *("zeros", "zeros_like", "new_zeros"),
        *("ones", "ones_like", "new_ones", "full", "full_like", "new_full"),
        *("fill", "fill_", "zero", "zero_", "arange", "scalar_tensor"),
        *("set_", "resize_", "detach", "alias", "lift_fresh", "_local_scalar_dense"),
        *("record_stream", "is_pinned"),
    )
)
"""Operators that allocate or fill memory; views count with them (`_only_memory`)."""

_COPIES = frozenset(
    (
        *("copy", "copy_", "_to_copy", "clone", "contiguous", "cat", "stack", "constant_pad_nd"),
        *("lift_fresh_copy", "pin_memory", "_pin_memory"),
    )
)
"""Operators that copy values unchanged."""


@functools.cache
def _only_memory(func: Any) -> bool:
    namespace, _, name = func._schema.name.partition("::")
    return namespace in ("aten", "prim") and (name in _MEMORY or func.is_view)


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether an operator is nothing but calls of others; seen so within a user's own operator."""
    key = "CompositeImplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def is_copy(operator: str) -> bool:
    """Whether an operator, by its name in `GuardedMemory.borrowed` (``aten::clone``), only copies."""
    namespace, _, name = operator.partition("::")
    return namespace in ("aten", "prim") and name in _COPIES


@dataclass(frozen=True)
class Borrowed:
    """What one of PyTorch's operators did during a call."""

    calls: int = 0
    values: int = 0
    """Elements of all that it returned or wrote to."""


@dataclass(frozen=True)
class Allocation:
    """One guarded allocation; ``buffer`` is the allocation and its zones, as int16."""

    buffer: torch.Tensor
    bytes: int
    poison: int = POISON

    def hit(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether the guard zones before and past the allocation are poison no more."""
        # Two bytes at a time: an odd number of bytes ends within a pair.
        before, end, past = ZONE_BYTES // 2, ZONE_BYTES + self.bytes, (ZONE_BYTES + self.bytes + 1) // 2
        zones = [self.buffer[:before] != self.poison, self.buffer[past:] != self.poison]
        within = self.buffer.view(torch.uint8)[end : 2 * past] != self.poison >> 8 & 0xFF
        return zones[0].any(), zones[1].any() | within.any()

    def overwritten(self, place: Literal["before", "past"]) -> torch.Tensor:
        """Which bytes of the guard zone before or past the allocation are no longer poison."""
        poison = poisoned(2, self.buffer.device, self.poison).view(torch.uint8)
        pairs = self.buffer.view(torch.uint8).view(-1, 2)
        if place == "before":
            return (pairs[: ZONE_BYTES // 2] != poison).flatten()
        return (pairs[(ZONE_BYTES + self.bytes) // 2 :] != poison).flatten()[self.bytes % 2 :]

    def violation(self, place: Literal["before", "past"]) -> str:
        """A write into one of the zones, in words."""
        bytes_written = self.overwritten(place).nonzero()
        byte = self.bytes + int(bytes_written[0]) if place == "past" else int(bytes_written[-1]) - ZONE_BYTES
        return f"wrote {place} its {self.bytes} bytes, at byte {byte}: is a mask or a bound missing?"


_PLACES: tuple[Literal["before"], Literal["past"]] = "before", "past"


class GuardedMemory(DispatchMode):
    """Guards allocations on ``device`` while it is on.

    A dispatch mode sees every allocation from Python, and from C++ that calls Python, but not those inside
    PyTorch's own operators.  It sees what a user's own operators (``torch.library.custom_op``) call, and not
    the operators themselves.  torch.compile does not compile under a dispatch mode: do not run compiled code
    under it.
    """

    def __init__(self, device: torch.device, poison: int = POISON) -> None:
        super().__init__()
        self.device, self.poison = device, poison
        self.allocations: list[Allocation] = []
        self.borrowed: dict[str, Borrowed] = {}
        """PyTorch's operators that computed or copied something while the mode was on, by name."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_users(func):
            with self:  # PyTorch turns the mode off in here
                return call_code_of(func, self.device.type, args, kwargs)
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func not in _ALLOCATIONS and func not in _ZEROED:
            result = func(*args, **kwargs)
            if not _only_memory(func):
                self._note(func, args, kwargs, result)
            return result
        device = kwargs.get("device") or (args[0].device if isinstance(args[0], torch.Tensor) else "cpu")
        if torch.device(device).type != self.device.type:
            return func(*args, **kwargs)
        plan = func(*args, **{**kwargs, "device": "meta", "pin_memory": False})
        memory = self._allocate(plan)
        return memory.zero_() if func in _ZEROED else memory

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        written = [
            kwargs.get(argument.name, args[i] if i < len(args) else None)
            for i, argument in enumerate(func._schema.arguments)
            if argument.is_write
        ]
        # An operator that writes in place returns that tensor too.
        tensors = {id(x): x for x in tree_leaves((result, written)) if isinstance(x, torch.Tensor)}
        name = str(func.name()).partition(".")[0]
        before = self.borrowed.get(name, Borrowed())
        values = before.values + sum(x.numel() for x in tensors.values())
        self.borrowed[name] = Borrowed(before.calls + 1, values)

    def _allocate(self, plan: torch.Tensor) -> torch.Tensor:
        """A tensor with the sizes, strides and dtype of ``plan``, guarded."""
        extent = 0
        if plan.numel() > 0:
            extent = 1 + sum((n - 1) * s for n, s in zip(plan.shape, plan.stride(), strict=True))
        size = extent * plan.itemsize
        buffer = poisoned(2 * ZONE_BYTES + size, self.device, self.poison)
        self.allocations.append(Allocation(buffer, size, self.poison))
        inside = torch.empty(0, dtype=plan.dtype, device=self.device)
        storage = buffer.untyped_storage()
        # set_ instead of a view, so that it looks like any fresh tensor.
        return inside.set_(storage, ZONE_BYTES // plan.itemsize, plan.shape, plan.stride())

    def violations(self) -> list[str]:
        """The out-of-bounds writes since the mode was turned on, in words."""
        zones = [(each, place) for each in self.allocations for place in _PLACES]
        if not zones:
            return []
        # One synchronization of the GPU for all zones.
        written = torch.stack([hit for each in self.allocations for hit in each.hit()]).tolist()
        return [each.violation(place) for (each, place), hit in zip(zones, written, strict=True) if hit]

    def owns(self, tensor: torch.Tensor) -> bool:
        pointer = tensor.untyped_storage().data_ptr()
        return any(each.buffer.untyped_storage().data_ptr() == pointer for each in self.allocations)


def poisoned(size: int, device: torch.device, poison: int = POISON) -> torch.Tensor:
    """At least ``size`` bytes of poison, as int16."""
    return torch.full((math.ceil(size / 2),), poison, dtype=torch.int16, device=device)


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element: the dtype that views any tensor's bits, whatever its strides."""


def untouched(tensor: torch.Tensor, again: torch.Tensor | None = None) -> torch.Tensor:
    """Which elements still hold poison, bit for bit.

    Args:
        tensor: an output over `POISON`.
        again: that of a second call on the same inputs, over `SECOND_POISON`.  Without it, no element of one
            byte counts: every byte is a value.  What is written has the same value twice, and the poisons
            share no byte.  Either byte of a poison counts: a copy may begin at another one.
    """
    if tensor.itemsize > 1:
        pattern = int.from_bytes(POISON.to_bytes(2, "little") * (tensor.itemsize // 2), "little")
        return tensor.view(BITS[tensor.itemsize]) == pattern
    held = torch.full(tensor.shape, again is not None, device=tensor.device)
    for output, poison in ((tensor, POISON), (again, SECOND_POISON)):
        if output is not None:
            bits_of = output.view(torch.uint8)
            held &= (bits_of == poison & 0xFF) | (bits_of == poison >> 8 & 0xFF)
    return held


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's whole storage, gaps included, as integers and without a copy."""
    storage = tensor.untyped_storage()
    widest = next(
        dtype
        for dtype in (torch.int64, torch.int32, torch.int16, torch.int8)
        if storage.nbytes() % dtype.itemsize == 0
    )
    return torch.empty(0, dtype=widest, device=tensor.device).set_(storage)


def changed(now: Iterable[torch.Tensor], before: Iterable[torch.Tensor]) -> list[int]:
    """Indices of the tensors, each from `memory_of`, that differ; the GPU is synchronized once."""
    differs = torch.stack([(one != other).any() for one, other in zip(now, before, strict=True)]).tolist()
    return [i for i, different in enumerate(differs) if different]
