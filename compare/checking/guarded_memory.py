"""Memory that shows what a kernel did to it: poisoned, and with guard zones on both sides.

While `GuardedMemory` is on, ``torch.empty`` and its kin hand out the inside of a bigger buffer.  All of
the buffer holds `POISON`: where that is still there afterwards, nobody wrote; where it is gone from the
zones around, somebody wrote out of bounds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

POISON = 0x7FDE
"""Every two bytes of poisoned memory: NaN in fp16, bf16 and fp32, and none that arithmetic produces."""

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
"""Operators that make or fill memory; beside them all that only look at it in another way."""

_COPIES = frozenset(
    (
        *("copy", "copy_", "_to_copy", "clone", "contiguous", "cat", "stack", "constant_pad_nd"),
        *("lift_fresh_copy", "pin_memory", "_pin_memory"),
    )
)
"""Operators that move what they are given, as it is."""


@functools.cache
def _only_memory(func: Any) -> bool:
    namespace, _, name = func._schema.name.partition("::")
    return namespace in ("aten", "prim") and (name in _MEMORY or func.is_view)


def is_copy(operator: str) -> bool:
    """Whether what `GuardedMemory` calls ``aten::clone`` computes nothing from what it moves."""
    namespace, _, name = operator.partition("::")
    return namespace in ("aten", "prim") and name in _COPIES


@dataclass(frozen=True)
class Allocation:
    """One piece of guarded memory; ``buffer`` is all of it, in int16."""

    buffer: torch.Tensor
    bytes: int

    @property
    def zones(self) -> dict[str, torch.Tensor]:
        """What lies before it and past it."""
        end = ZONE_BYTES + self.bytes + self.bytes % 2
        return {"before": self.buffer[: ZONE_BYTES // 2], "past": self.buffer[end // 2 :]}

    def violation(self, place: str) -> str:
        """Where one of the zones was written to."""
        written = (self.zones[place] != POISON).nonzero()
        at = int(written[-1] if place == "before" else written[0]) * 2
        distance = ZONE_BYTES - at if place == "before" else at + 2
        return f"wrote {place} its {self.bytes} bytes, about {distance} bytes off"


class GuardedMemory(TorchDispatchMode):
    """Guards what is allocated on ``device`` while it is on.

    A dispatch mode sees allocations however they are spelled, from Python and from C++ that calls Python;
    not those that PyTorch's own operators make inside.  torch.compile steps aside under a dispatch
    mode, so compiled code must not be run under it.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.allocations: list[Allocation] = []
        self.borrowed: dict[str, None] = {}
        """PyTorch's operators that computed or copied something meanwhile."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's own question: no, or every process that checks anything imports Dynamo, for seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _only_memory(func):
            self.borrowed[str(func.name()).partition(".")[0]] = None
        if func not in _ALLOCATIONS and func not in _ZEROED:
            return func(*args, **kwargs)
        device = kwargs.get("device") or (args[0].device if isinstance(args[0], torch.Tensor) else "cpu")
        if torch.device(device).type != self.device.type:
            return func(*args, **kwargs)
        plan = func(*args, **{**kwargs, "device": "meta", "pin_memory": False})
        memory = self._allocate(plan)
        return memory.zero_() if func in _ZEROED else memory

    def _allocate(self, plan: torch.Tensor) -> torch.Tensor:
        """A tensor with the sizes, strides and dtype of ``plan``, guarded."""
        extent = 0
        if plan.numel() > 0:
            extent = 1 + sum((n - 1) * s for n, s in zip(plan.shape, plan.stride(), strict=True))
        size = extent * plan.itemsize
        buffer = poisoned(2 * ZONE_BYTES + size, self.device)
        self.allocations.append(Allocation(buffer, size))
        inside = torch.empty(0, dtype=plan.dtype, device=self.device)
        storage = buffer.untyped_storage()
        # Typed by set_ rather than by views, so that it looks like any other fresh tensor.
        return inside.set_(storage, ZONE_BYTES // plan.itemsize, plan.shape, plan.stride())

    def violations(self) -> list[str]:
        """What was written outside of the allocations since the mode was turned on."""
        zones = [(each, *zone) for each in self.allocations for zone in each.zones.items()]
        if not zones:
            return []
        # All of them first, so that a GPU is waited for once.
        written = torch.stack([(zone != POISON).any() for _, _, zone in zones]).tolist()
        return [each.violation(place) for (each, place, _), hit in zip(zones, written, strict=True) if hit]

    def owns(self, tensor: torch.Tensor) -> bool:
        pointer = tensor.untyped_storage().data_ptr()
        return any(each.buffer.untyped_storage().data_ptr() == pointer for each in self.allocations)


def poisoned(size: int, device: torch.device) -> torch.Tensor:
    """At least ``size`` bytes of poison, as int16."""
    return torch.full((math.ceil(size / 2),), POISON, dtype=torch.int16, device=device)


def untouched(tensor: torch.Tensor) -> torch.Tensor:
    """Which elements of a tensor still hold poison, bit for bit; none where they are smaller than it."""
    if tensor.itemsize == 2:
        return tensor.view(torch.int16) == POISON
    if tensor.itemsize == 4:
        return tensor.view(torch.int32) == POISON * 0x10001
    if tensor.itemsize == 8:
        return tensor.view(torch.int64) == POISON * 0x1000100010001
    return torch.zeros_like(tensor, dtype=torch.bool)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory a tensor lies in, gaps included, as integers and without a copy."""
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
    return [i for i, found in enumerate(differs) if found]
