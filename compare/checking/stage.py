"""Calls an implementation with guarded memory, and records the PyTorch operators it calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from compare.checking.guarded_memory import GuardedMemory, memory_of, poisoned
from compare.spec import Implementation

_ONE_THREAD_BYTES = 1 << 22
"""Memory traffic in bytes up to which one CPU thread is faster than several."""

_LATE_BYTES = 64 << 20
_LATE_CYCLES = 1_000_000  # about half a millisecond

_MKL_FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "exp", "expm1"),
    *("log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),
)


@dataclass(frozen=True)
class CallResult:
    """What one call returned, and observations of it."""

    output: torch.Tensor | None
    """None where it cannot be compared; ``problem`` says why."""
    problem: str | None = None
    violations: tuple[str, ...] = ()
    """Writes into the guard zones."""
    guarded: bool = False
    """Whether there are guard zones around the output."""
    shared: str | None = None
    """The other tensor whose memory the output uses, in words; None: none."""
    borrowed: tuple[str, ...] = ()
    """PyTorch's operators that computed or copied something."""


class Stage(Protocol):
    """Where an implementation is called: in this process, in a worker process, or as a program."""

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The inputs that the implementation will get, with the same strides and offsets."""

    def call(self, expected: torch.Tensor) -> CallResult:
        """Call it on the inputs placed last.

        Args:
            expected: a meta tensor of the output's shape and dtype.

        Raises:
            Exception: what the implementation raised.
        """


class LocalStage:
    """An implementation in this process."""

    def __init__(self, impl: Implementation, device: torch.device) -> None:
        self._impl, self._device = impl, device
        self._inputs: tuple[torch.Tensor, ...] = ()
        self._previous: torch.Tensor | None = None

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._inputs = inputs
        return inputs

    def call(self, expected: torch.Tensor) -> CallResult:
        guard = GuardedMemory(self._device)
        nbytes = sum(x.numel() * x.itemsize for x in (*self._inputs, expected))
        with threads_for(nbytes) if self._device.type == "cpu" else contextlib.nullcontext():
            output, delivered = self._run(guard, expected)
        problem = wrong_kind(output, expected, self._device)
        violations, borrowed = tuple(guard.violations()), tuple(guard.borrowed)
        if problem is not None:
            return CallResult(None, problem, violations, borrowed=borrowed)
        shared = _shared(output, self._inputs, self._previous)
        self._previous = output
        return CallResult(delivered, None, violations, guard.owns(output), shared, borrowed)

    def _run(self, guard: GuardedMemory, expected: torch.Tensor) -> tuple[Any, Any]:
        """Call it with poisoned memory; returns the output, and a copy taken right after the call."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            # Freed at once: the caching allocator reuses it for the next request of that size.
            poisoned(expected.numel() * expected.itemsize, self._device)
            self._delay_inputs()
        # The mode does not see allocations inside PyTorch's operators, and torch.compile does not compile
        # under it.
        with guard if self._impl.way != "torch" else contextlib.nullcontext():
            output = self._impl.run(*self._inputs)
        # The copy is enqueued on the current stream: writes from another stream or thread come too late.
        delivered = output.clone() if type(output) is torch.Tensor and not output.is_meta else output
        if on_gpu:
            torch.cuda.synchronize(self._device)
        return output, delivered

    def _delay_inputs(self) -> None:
        """Enqueue the inputs' values behind a delay: a kernel on another stream reads NaN."""
        memory = [memory_of(x) for x in self._inputs]
        if sum(x.numel() * x.itemsize for x in memory) > _LATE_BYTES:
            return
        values = [x.clone() for x in memory]
        for x in memory:
            x.fill_(-1)  # all bits set: NaN in every floating-point dtype
        torch.cuda.synchronize(self._device)
        torch.cuda._sleep(_LATE_CYCLES)
        for x, value in zip(memory, values, strict=True):
            x.copy_(value)


def wrong_kind(output: object, expected: torch.Tensor, device: torch.device) -> str | None:
    """What is wrong with the output's type, layout, dtype, shape or device; None if nothing is."""
    if type(output) is not torch.Tensor:
        return f"a {type(output).__name__} was returned instead of a plain torch.Tensor"
    if output.layout is not torch.strided:
        return f"its layout is {output.layout}, expected torch.strided"
    if output.dtype is not expected.dtype:
        return f"its dtype is {output.dtype}, expected {expected.dtype}"
    if output.shape != expected.shape:
        return f"its shape is {tuple(output.shape)}, expected {tuple(expected.shape)}"
    if output.device.type != device.type:
        return f"it is on {output.device}, expected {device}"
    return None


def _shared(
    output: torch.Tensor, inputs: tuple[torch.Tensor, ...], previous: torch.Tensor | None
) -> str | None:
    """The other tensor whose memory the output uses, in words; None if it has its own."""
    if output.numel() == 0:
        return None
    pointer = output.untyped_storage().data_ptr()
    for i, x in enumerate(inputs):
        if x.untyped_storage().data_ptr() == pointer:
            return f"it is in the memory of argument {i}"
    if previous is not None and previous.untyped_storage().data_ptr() == pointer:
        return "it is in the memory of the last call's output"
    return None


@contextlib.contextmanager
def threads_for(nbytes: int) -> Iterator[None]:
    """Use one CPU thread where there is little memory traffic: synchronizing threads would take longer."""
    _settle_vector_math()
    threads = torch.get_num_threads()
    if nbytes <= _ONE_THREAD_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@functools.cache
def _settle_vector_math() -> None:
    """Call PyTorch's MKL functions once on a single thread.

    MKL chooses its kernel at a function's first call.  Where several threads make that call at once, one of
    them may run a kernel accurate to 11 bits, and a correct output would look wrong (PyTorch issue 188792).
    """
    for dtype in (torch.float32, torch.float64):
        for name in _MKL_FUNCTIONS:
            getattr(torch, name)(torch.ones(1, dtype=dtype))
