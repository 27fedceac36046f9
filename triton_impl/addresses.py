"""Every address that a kernel in Triton's interpreter loads or stores lies within one of its arguments.

A GPU reads what lies behind a tensor without an error, as long as that memory is mapped: a load without its
mask is right or wrong by chance.  So is one of what another program of the launch stores, because programs
run in any order: that is an error too, unless an atomic operation may have ordered them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

Span = tuple[int, int]
"""Addresses: of the first byte, and of the one behind the last."""

_LEAST_ADDRESS = 1 << 40
"""A plain number as large as this may be an address: then nothing is known of what a kernel may access."""

_arenas: list[Span] = []
_tensors: list[Span] = []


class OutOfBoundsError(IndexError):
    """A load or store outside of the arguments of its kernel."""


class RaceError(RuntimeError):
    """A load of what another program of the same launch stored."""


@contextmanager
def within(arenas: Sequence[Span], tensors: Sequence[Span]) -> Iterator[None]:
    """Of ``arenas``, which hold several tensors each, kernels may access ``tensors`` only."""
    _arenas[:], _tensors[:] = arenas, tensors
    try:
        yield
    finally:
        _arenas.clear()
        _tensors.clear()


class Bounds:
    """Where a launch may load and store, in the interpreter's copies of its arguments."""

    def __init__(self, args: Mapping[str, Any], copies: Mapping[str, Any]) -> None:
        spans: list[tuple[int, int, str]] = []
        self.known = not any(isinstance(arg, int) and abs(arg) >= _LEAST_ADDRESS for arg in args.values())
        for name, arg in args.items():
            for theirs, ours in zip(_tensors_in(arg), _tensors_in(copies[name]), strict=True):
                spans += [(begin, end, name) for begin, end in _allowed(theirs, ours)]
        spans.sort()
        self._names = [name for _, _, name in spans]
        self._begins = np.array([begin for begin, _, _ in spans], dtype=np.uint64)
        self._writers: dict[int, Any] = {}
        """By span: the program, from 1, that stored each byte last."""
        self._ordered = False
        """Whether an atomic operation has run, which may order programs."""
        self._ends = np.maximum.accumulate(np.array([end for _, end, _ in spans], dtype=np.uint64))

    def check(self, what: str, addresses: Any, mask: Any, item_bytes: int, program: int) -> None:
        """Raise for the first address that is in no span, or holds what another program stored.

        Args:
            what: ``load``, ``store`` or ``atomic operation``.
            program: its number in the launch, from 1.

        Raises:
            OutOfBoundsError, RaceError: there is one.
        """
        used = np.asarray(addresses, dtype=np.uint64)[np.asarray(mask, dtype=bool)]
        if not self.known or used.size == 0 or self._begins.size == 0:
            return
        span = np.searchsorted(self._begins, used, side="right").astype(np.int64) - 1
        outside = (span < 0) | (used + np.uint64(item_bytes) > self._ends[span])
        if not outside.any():
            self._check_order(what, used, span, program)
            return
        at = int(outside.argmax())
        nearest = max(int(span[at]), 0)
        address, end = int(used[at]), int(self._ends[nearest])
        where = f"{address - end} bytes behind" if span[at] >= 0 else "before"
        raise OutOfBoundsError(
            f"a {what} of {int(outside.sum())} elements outside of the arguments, the first {where} "
            f"{self._names[nearest]}: is its mask missing?"
        )

    def _check_order(self, what: str, used: Any, span: Any, program: int) -> None:
        self._ordered |= what == "atomic operation"
        if self._ordered:
            return
        for each in np.unique(span):
            offsets = (used[span == each] - self._begins[each]).astype(np.int64)
            if what == "store":
                size = int(self._ends[each] - self._begins[each])
                self._writers.setdefault(each, np.zeros(size, dtype=np.int32))[offsets] = program
            elif each in self._writers:
                writer = self._writers[each][offsets]
                others = int(((writer != 0) & (writer != program)).sum())
                if others:
                    raise RaceError(
                        f"a load of {others} elements of {self._names[each]} that another program of the "
                        "launch stored: programs run in any order. Is an atomic missing?"
                    )


def _tensors_in(arg: Any) -> list[torch.Tensor]:
    if isinstance(arg, TensorDescriptor):
        return _tensors_in(arg.base)
    if isinstance(arg, tuple):
        return [each for one in arg for each in _tensors_in(one)]
    tensor = interpreter._unwrap_tensor(arg) if hasattr(arg, "data_ptr") else arg
    return [tensor] if isinstance(tensor, torch.Tensor) else []


def _allowed(theirs: torch.Tensor, ours: torch.Tensor) -> Iterable[Span]:
    """What may be accessed of an argument's storage, as addresses in the interpreter's copy of it."""
    storage, copy = theirs.untyped_storage(), ours.untyped_storage()
    begin, moved = storage.data_ptr(), copy.data_ptr() - storage.data_ptr()
    end = begin + storage.nbytes()
    if any(first < end and begin < last for first, last in _arenas):
        known = ((first, last) for first, last in _tensors if begin <= first and last <= end)
        return [(first + moved, last + moved) for first, last in known]
    return [(begin + moved, end + moved)]
