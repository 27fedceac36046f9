"""Probes: inputs of a check, with their reference and limit."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection
from dataclasses import dataclass

import torch

from compare.checking.guarded_memory import memory_of
from compare.checking.reference import Reference
from compare.checking.tolerance import ToleranceFromBaseline
from compare.spec import Case, Op, by_output

_KEPT_ELEMENTS = 1 << 25
"""Inputs of up to this many elements are kept with their fp64 reference."""


@dataclass(frozen=True)
class Wanted:
    """What one output is compared with."""

    reference: Reference
    limit: float
    """The largest allowed error for an fp32 accumulator, in the tolerance's unit."""


@dataclass(frozen=True)
class Probe:
    """One set of inputs of a check."""

    name: str
    inputs: tuple[torch.Tensor, ...]
    wanted: tuple[Wanted, ...]
    """By output."""


class Probes:
    """The probes of a case by their seed.  Safe to call from several threads.

    Args:
        tolerance: called once for each probe and output.
        kept: seeds shared by several implementations: their inputs and reference are kept, if small enough.
    """

    def __init__(
        self,
        op: Op,
        case: Case,
        device: torch.device,
        tolerance: ToleranceFromBaseline,
        kept: Collection[int],
    ) -> None:
        self._op, self._case, self._device = op, case, device
        self._tolerance, self._kept = tolerance, frozenset(kept)
        self._limits: dict[tuple[int, str], tuple[float, bool, str]] = {}
        self._probes: dict[int, Probe] = {}
        self._lock = threading.Lock()

    def of(self, seed: int) -> Probe:
        with self._lock:
            return self._probes[seed] if seed in self._probes else self._make(seed)

    def _make(self, seed: int) -> Probe:
        generator = torch.Generator(self._device).manual_seed(seed)
        inputs = self._op.make_inputs(self._case, generator, self._device)
        keep = seed in self._kept and sum(x.numel() for x in inputs) <= _KEPT_ELEMENTS
        wanted = []
        for op in by_output(self._op, self._case):
            reference = Reference(op, inputs, keep)
            if (seed, op.output) in self._limits:
                limit, reference.by_row, reference.hint = self._limits[seed, op.output]
            else:
                limit = self._tolerance.limit(self._case, reference)
                self._limits[seed, op.output] = limit, reference.by_row, reference.hint
            wanted.append(Wanted(reference, limit))
        probe = Probe(f"seed {seed}", inputs, tuple(wanted))
        if keep:
            self._probes[seed] = probe
        return probe


def with_one_element_changed(probe: Probe) -> Probe | None:
    """The probe with one random element changed visibly; None where none may change.

    Floating-point elements and bytes may change.  Other integers stay: only the op knows their valid values.
    """
    sizes = [x.numel() if x.is_floating_point() or x.dtype is torch.uint8 else 0 for x in probe.inputs]
    if sum(sizes) == 0:
        return None
    inputs = tuple(_copy_with_layout(x) for x in probe.inputs)
    which = secrets.choice([i for i, size in enumerate(sizes) if size > 0])
    x = inputs[which]
    at = tuple(secrets.randbelow(size) for size in x.shape)
    if x.is_floating_point():
        # As large as the planted outliers, and of the other sign, so that it differs.
        value = 4.0 + secrets.randbelow(1 << 10) / 256
        x[at] = -value if float(x[at]) > 0 else value
    else:
        x[at] = (int(x[at]) + 1 + secrets.randbelow(255)) % 256
    wanted = tuple(
        Wanted(Reference(old.reference.op, inputs, by_row=old.reference.by_row), old.limit)
        for old in probe.wanted
    )
    return Probe(f"{probe.name}, one element changed", inputs, wanted)


def _copy_with_layout(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and offset, in new memory."""
    storage = memory_of(tensor).clone().untyped_storage()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
