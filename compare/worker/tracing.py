"""In a worker without a GPU: which addresses the first program or warp of a call loads and stores."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from compare import registry
from compare.checking.stage import tensors_of
from compare.model.op import Case, Implementation
from compare.worker.messages import TracedAccess
from cuda_impl import watch

_MOST = 8
"""Accesses: a loop repeats the others."""
_SIDE = 32
"""Elements of a tile along each of its last two dimensions."""
_LANES = 32

Span = tuple[int, int, str]
"""First address, the one behind the last, and the tensor's name."""


def trace(impl: Implementation, case_text: str) -> tuple[TracedAccess, ...]:
    """The accesses of a call of a Triton or CUDA implementation; none of other ways'."""
    op = registry.get_op(impl.op)
    case = Case.parse(case_text, op)
    inputs = tensors_of(op.make_inputs(case, torch.Generator().manual_seed(0), torch.device("cpu")))
    impl = impl.given(op.options(case))
    raw: Raw = []
    if impl.way == "triton":
        with _triton(impl.origin, [x.data_ptr() for x in inputs], raw):
            returned = impl.call(*inputs)
    elif impl.way == "cuda":
        returned = _cuda(impl, inputs, raw)
    else:
        return ()
    names = re.findall(r"(\w+)\[", op.signature)
    tensors = [*inputs, *tensors_of(returned)]
    spans = [
        (x.data_ptr(), x.data_ptr() + x.untyped_storage().nbytes(), name)
        for name, x in zip(names, tensors, strict=False)
    ]
    named = (_named(access, addresses, spans) for access, addresses in raw)
    return tuple(access for access in named if access.tensor)[:_MOST]


Raw = list[tuple[TracedAccess, Any]]
"""Without offsets, and the addresses."""


@contextmanager
def _triton(file: str, starts: Sequence[int], raw: Raw) -> Iterator[None]:
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    seen: set[tuple[str, str, int]] = set()

    def note(self: Any, kind: Any, ptrs: Any, mask: Any) -> None:
        where, lowest = _line(file), int(np.min(ptrs.data, initial=1 << 62))
        key = (
            where,
            kind,
            sum(start <= lowest for start in starts),
        )  # of a loop the first time, for each tensor
        if any(self.grid_idx) or key in seen:
            return
        seen.add(key)
        addresses = np.asarray(ptrs.data).reshape(ptrs.data.shape or (1,))
        active = np.broadcast_to(np.asarray(getattr(mask, "data", mask), dtype=bool), addresses.shape)
        side = _SIDE if addresses.ndim > 1 else _SIDE * _SIDE
        corner: Any = (*(0 for _ in addresses.shape[:-2]), *(slice(side) for _ in addresses.shape[-2:]))
        tile, active = addresses[corner], active[corner]
        size = ptrs.get_element_ty().primitive_bitwidth // 8
        flags = tuple(map(bool, np.ravel(active)))
        raw.append((TracedAccess(where, kind, "", tile.shape, size, (), flags), tile.ravel()))

    def noted_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        note(self, "load", ptrs, mask)
        return load(self, ptrs, mask, *rest, **named)

    def noted_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        note(self, "store", ptrs, mask)
        return store(self, ptrs, value, mask, *rest, **named)

    builder.create_masked_load, builder.create_masked_store = noted_load, noted_store
    try:
        yield
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store


def _line(file: str) -> str:
    """``mine.py:14``: the innermost line of a user's file that runs."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back  # type: ignore[assignment]
    return f"{Path(file).name}:{frame.f_lineno}" if frame else ""


def _cuda(impl: Implementation, inputs: Sequence[torch.Tensor], raw: Raw) -> Any:
    """Call it, with what each instruction accesses for the first time by its warp's lanes."""
    records: list[watch.Access] = []
    with watch.watched([], []), watch.recording(records):
        returned = impl.call(*inputs)
    library, source = watch.launched[-1]
    lanes: dict[int, dict[int, watch.Access]] = {}
    for record in records:
        lanes.setdefault(record.code, {}).setdefault(record.thread, record)
    for code, by_thread in lanes.items():
        first = next(iter(by_thread.values()))
        where = watch.with_lines(f"at +{code}", library, source).removeprefix("at ")
        addresses = np.array([by_thread[t].address if t in by_thread else 0 for t in range(_LANES)])
        tensor = "shared memory" if first.shared else ""
        active = tuple(t in by_thread for t in range(_LANES))
        kind: Any = "store" if first.write else "load"
        raw.append((TracedAccess(where, kind, tensor, (_LANES,), first.bytes, (), active), addresses))
    return returned


def _named(access: TracedAccess, addresses: Any, spans: Sequence[Span]) -> TracedAccess:
    """With its tensor's name, and offsets from the tensor; in shared memory from the lowest address.

    Other memory has no name: of a launch's arguments, or of tensors that are not returned.
    """
    inside = [int(a) for a, active in zip(addresses, access.active, strict=True) if active]
    lowest = min(inside, default=0)
    begin, name = next(((b, n) for b, end, n in spans if b <= lowest < end), (lowest, ""))
    offsets = (int(a) - begin if on else 0 for a, on in zip(addresses, access.active, strict=True))
    words = {name: getattr(access, name) for name in access.__struct_fields__}
    return TracedAccess(**{**words, "tensor": access.tensor or name, "offsets": tuple(offsets)})
