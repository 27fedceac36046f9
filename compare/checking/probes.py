"""Probes: inputs of a check, with their reference and limit."""

from __future__ import annotations

import functools
import random
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from compare.checking.guarded_memory import memory_of
from compare.checking.reference import Reference, expected_outputs
from compare.checking.tolerance import ToleranceFromBaseline
from compare.model.op import Case, Op, Tolerance, by_output

_KEPT_BYTES = 1 << 29
"""Inputs of up to this size with their fp64 reference are kept; on a GPU up to 1/16 of its memory."""

_MANY = range(1 << 16, 1 << 31)
"""Elements of all inputs where an op's sensitive inputs are a probe too: beyond, indices take much memory."""

_TRIES = 64
"""Elements of a tensor that are looked at for a byte unlike another."""

_LEAST_CHANGE = 4.0
_ATTEMPTS = 6
"""Elements that are changed, each half as much, until the outputs grow by `_MOST_GROWTH` at most."""
_MOST_GROWTH = 64.0


@dataclass(frozen=True)
class Probe:
    """One set of inputs of a check."""

    name: str
    inputs: tuple[torch.Tensor, ...]
    references: tuple[Reference, ...]
    """By output, each with its limit."""


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
        self._limits: dict[tuple[int, str, Op], tuple[float, bool, str]] = {}
        self._probes: dict[tuple[int, str], Probe] = {}
        self._lock = threading.Lock()

    def of(self, seed: int) -> Probe:
        return self._probe(seed)

    def of_check(self, seeds: Sequence[int], accumulator: str = "fp32") -> Iterator[Probe]:
        """The probes of a check: one of each seed; of the first also the op's sensitive and extreme inputs.

        Sensitive ones are for sums in fp32: what loses digits of each term, as TF32 does, loses more in sums
        of few.
        """
        for seed in seeds:
            yield self.of(seed)
        for name in self._changes if seeds else ():
            if name != "sensitive inputs" or accumulator == "fp32":
                yield self._probe(seeds[0], name)

    @functools.cached_property
    def _changes(self) -> dict[str, Callable[[tuple[torch.Tensor, ...]], None]]:
        """What turns this case's inputs into others, by the name of these."""
        op, changes = self._op, {}
        if self._case.fill != "normal" or "expanded" in self._case.layout:
            return {}
        inputs = op.make_inputs(self._case, torch.Generator(), torch.device("meta"))
        count = sum(x.numel() for x in inputs)
        if op.sensitive_inputs and count in _MANY:
            changes["sensitive inputs"] = op.sensitive_inputs.change
        if op.extreme_inputs and count < _MANY.stop:
            changes[op.extreme_inputs.__name__.replace("_", " ")] = op.extreme_inputs
        return changes

    def _probe(self, seed: int, change: str = "") -> Probe:
        with self._lock:
            known = self._probes.get((seed, change))
            return known or self._make(seed, change)

    def _make(self, seed: int, change: str) -> Probe:
        generator = torch.Generator(self._device).manual_seed(seed)
        inputs = self._op.make_inputs(self._case, generator, self._device)
        parts = by_output(self._op, self._case)
        if change:
            self._changes[change](inputs)
        if change == "sensitive inputs" and self._op.sensitive_inputs:
            parts = tuple(_sensitive(part, self._op.sensitive_inputs.exact) for part in parts)
        keep = seed in self._kept and self._bytes(inputs) <= most_kept(self._device)
        references = tuple(Reference(part, inputs, keep) for part in parts)
        for each in references:
            key = seed, change, each.op
            if key in self._limits:
                each.limit, each.by_row, each.hint = self._limits[key]
            else:
                each.limit = self._tolerance.limit(self._case, each)
                self._limits[key] = each.limit, each.by_row, each.hint
        probe = Probe(f"seed {seed}" + (f", {change}" if change else ""), inputs, references)
        if keep:
            self._probes[seed, change] = probe
        return probe

    def _bytes(self, inputs: tuple[torch.Tensor, ...]) -> int:
        """Of the inputs, and of each output's reference and magnitude in fp64."""
        outputs = expected_outputs(self._op, self._case, self._device).values()
        return sum(x.numel() * x.itemsize for x in inputs) + sum(16 * x.numel() for x in outputs)


def _sensitive(part: Op, exact: bool) -> Op:
    """The op of an output on its sensitive inputs."""
    part = replace(part, sensitive_inputs=None)
    return replace(part, tolerance=_exactly, magnitude=None) if exact else part


def _exactly(case: Case) -> Tolerance:
    return Tolerance(least=0.0, exact=True)


def most_kept(device: torch.device) -> int:
    """Most bytes of inputs and expected outputs that are kept for later comparisons."""
    if device.type != "cuda":
        return _KEPT_BYTES
    return max(_KEPT_BYTES, torch.cuda.get_device_properties(device).total_memory // 16)


def with_one_element_changed(probe: Probe, outputs: Collection[torch.Tensor] = ()) -> Iterator[Probe]:
    """The probe with one random element changed visibly, twice; nothing where none may change.

    Once it is in the first half of a tensor, once in the second half, of another tensor where there are two:
    a cache whose key is the first few elements, or all of one tensor, misses one of these changes.

    A byte gets the value of another element of its tensor.  Wider integers stay: only the op knows which are
    valid.

    An input may follow from others, as a log-sum-exp follows from q and k: with another q exponentials
    overflow in a correct kernel.  Where an output becomes much larger, another element is changed, and less.

    Args:
        outputs: of the shapes and on the device that the call's outputs have; meta tensors will do.
    """
    sizes = [x.numel() if x.is_floating_point() or x.itemsize == 1 else 0 for x in probe.inputs]
    changeable = [i for i, size in enumerate(sizes) if size > 0]
    if not changeable:
        return
    keep = sum(16 * output.numel() for output in outputs) <= most_kept(probe.inputs[0].device)
    most = [
        _MOST_GROWTH * max(old.largest(output), _LEAST_CHANGE)
        for old, output in zip(probe.references, outputs, strict=False)
    ]
    order = random.SystemRandom().sample(changeable, len(changeable))
    for which, part in ((order[0], "first half"), (order[-1], "second half")):
        half = sizes[which] // 2
        begin, length = (0, max(half, 1)) if part == "first half" else (half, sizes[which] - half)
        for attempt in range(_ATTEMPTS):
            inputs = tuple(_copy_with_layout(x) for x in probe.inputs)
            if not _change(inputs[which], begin + secrets.randbelow(length), 0.5**attempt):
                break
            references = tuple(
                Reference(old.op, inputs, keep, old.by_row, old.limit) for old in probe.references
            )
            each = zip(references, outputs, most, strict=False)
            if all(new.largest(output) <= limit for new, output, limit in each):
                yield Probe(f"{probe.name}, one element changed", inputs, references)
                break


def _change(x: torch.Tensor, number: int, scale: float) -> bool:
    """Change the element with this number, row by row; whether its tensor has another value for it."""
    at = tuple(map(int, np.unravel_index(number, x.shape)))  # torch.unravel_index imports sympy
    if x.is_floating_point():
        # As large as the planted outliers, and of the other sign, so that it differs.  With four significant
        # bits, as the scales of quantized weights have: a dequantized weight stays exact in 16 bits.
        value = scale * (_LEAST_CHANGE + secrets.randbelow(8) / 2)
        x[at] = -value if float(x[at]) > 0 else value
        return True
    candidates = (x[tuple(map(secrets.randbelow, x.shape))] for _ in range(_TRIES))
    other = next((value for value in candidates if value != x[at]), None)
    if other is not None:
        x[at] = other
    return other is not None


def _copy_with_layout(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and offset, in new memory."""
    storage = memory_of(tensor).clone().untyped_storage()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
