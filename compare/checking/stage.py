"""Calling an implementation: with guarded memory, and with a watch on the PyTorch operators it calls."""

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
"""Memory traffic up to which one thread of a CPU is faster than several."""

_LATE_BYTES = 64 << 20
_LATE_CYCLES = 1_000_000  # about half a millisecond

_MKL_FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "exp", "expm1"),
    *("log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),
)


@dataclass(frozen=True)
class CallResult:
    """What one call returned, and what was observed of it."""

    output: torch.Tensor | None
    """None where the result cannot be compared; ``problem`` says why."""
    problem: str | None = None
    violations: tuple[str, ...] = ()
    """Writes into the guard zones."""
    guarded: bool = False
    """Whether there are guard zones around the output."""
    shared: str | None = None
    """Which other tensor's memory the output lies in, if any."""
    borrowed: tuple[str, ...] = ()
    """PyTorch's operators that computed or copied something."""


class Stage(Protocol):
    """Where an implementation is called: in this process, in a worker process, or as a program."""

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The inputs as the implementation will get them, with the same strides and offsets."""

    def call(self, expected: torch.Tensor) -> CallResult:
        """Call it on the inputs placed last.  Its exceptions are passed on.

        Args:
            expected: a meta tensor of the shape and dtype that the output must have.
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
        """Run with poison in all memory the output may come from; the output, and a copy taken at once."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            # Freed at once: the caching allocator reuses it for the next request of that size.
            poisoned(expected.numel() * expected.itemsize, self._device)
            self._delay_inputs()
        # PyTorch's own operators allocate inside PyTorch, which the mode does not see, and torch.compile
        # would not compile under it.
        with guard if self._impl.way != "torch" else contextlib.nullcontext():
            output = self._impl.run(*self._inputs)
        # Enqueued right behind the call on its own stream, or made at once: writes from another stream or
        # thread come too late.
        delivered = output.clone() if type(output) is torch.Tensor and not output.is_meta else output
        if on_gpu:
            torch.cuda.synchronize(self._device)
        return output, delivered

    def _delay_inputs(self) -> None:
        """Enqueue writing the inputs behind a pause: reads on another stream get NaN."""
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
    """What is wrong with the output's type, layout, dtype, shape or device; None if they are right."""
    if type(output) is not torch.Tensor:
        return f"a {type(output).__name__} came back instead of a plain torch.Tensor"
    if output.layout is not torch.strided:
        return f"its layout is {output.layout} and not torch.strided"
    if output.dtype is not expected.dtype:
        return f"its dtype is {output.dtype} and should be {expected.dtype}"
    if output.shape != expected.shape:
        return f"its shape is {tuple(output.shape)} and should be {tuple(expected.shape)}"
    if output.device.type != device.type:
        return f"it is on {output.device} and should be on {device}"
    return None


def _shared(
    output: torch.Tensor, inputs: tuple[torch.Tensor, ...], previous: torch.Tensor | None
) -> str | None:
    """Which other tensor's memory the output lies in, None if it is its own."""
    if output.numel() == 0:
        return None
    pointer = output.untyped_storage().data_ptr()
    for i, x in enumerate(inputs):
        if x.untyped_storage().data_ptr() == pointer:
            return f"it lies in the memory of argument {i}"
    if previous is not None and previous.untyped_storage().data_ptr() == pointer:
        return "it lies in the memory of the last call's output"
    return None


@contextlib.contextmanager
def threads_for(nbytes: int) -> Iterator[None]:
    """On a CPU, one thread where there is little memory traffic.

    Threads synchronize after every function, and on a busy machine they also wait for a core.
    """
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
    """Let MKL choose the kernels behind PyTorch's functions on a single thread.

    It chooses at a function's first call.  If several threads make that call at once, one of them may run a
    kernel accurate to 11 bits, this once, and a correct output would be found wrong (PyTorch issue 188792).
    """
    for dtype in (torch.float32, torch.float64):
        for name in _MKL_FUNCTIONS:
            getattr(torch, name)(torch.ones(1, dtype=dtype))
