"""Calls an implementation with guarded memory, and records the PyTorch operators it calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from triton.runtime.interpreter import GridExecutor

from compare.capture import replaced
from compare.checking.guarded_memory import POISON, Borrowed, GuardedMemory, memory_of, poisoned
from compare.checking.reference import Outputs
from compare.model.op import Implementation
from cuda_impl.loader import HostKernel

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

    outputs: Outputs | None
    """None where they cannot be compared; ``problem`` says why."""
    problem: str | None = None
    violations: tuple[str, ...] = ()
    """Writes into the guard zones."""
    guarded: bool = False
    """Whether there are guard zones around every output."""
    shared: str | None = None
    """The other tensor whose memory an output uses, in words; None: none."""
    borrowed: Mapping[str, Borrowed] = field(default_factory=dict)
    """PyTorch's operators that computed or copied something, by name."""
    launched: int | None = None
    """How many Triton and cupy kernels it ran; None where that cannot be seen."""
    notes: tuple[str, ...] = ()
    """What Triton's interpreter did otherwise than asked, as a GPU would or for want of one."""


class Stage(Protocol):
    """Where an implementation is called: in this process, in a worker process, or as a program."""

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The inputs that the implementation will get, with the same strides and offsets."""

    def call(self, expected: Outputs, poison: int = POISON) -> CallResult:
        """Call it on the inputs placed last.

        Args:
            expected: meta tensors of the outputs' shapes and dtypes.
            poison: what its memory holds before.

        Raises:
            Exception: what the implementation raised.
        """


class LocalStage:
    """An implementation in this process."""

    def __init__(self, impl: Implementation, device: torch.device) -> None:
        self.impl, self._device = impl, device
        self._inputs: tuple[torch.Tensor, ...] = ()
        self._previous: tuple[torch.Tensor, ...] = ()

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._inputs = inputs
        return inputs

    def call(self, expected: Outputs, poison: int = POISON) -> CallResult:
        guard = GuardedMemory(self._device, poison)
        nbytes = sum(x.numel() * x.itemsize for x in (*self._inputs, *expected.values()))
        on_cpu = self._device.type == "cpu"
        with threads_for(nbytes) if on_cpu else contextlib.nullcontext(), kernels_run() as ran:
            returned, delivered = self._run(guard, expected)
            violations = tuple(guard.violations())
        problem = wrong_kind(returned, expected, self._device)
        if problem is not None:
            return CallResult(None, problem, violations, borrowed=guard.borrowed)
        outputs = tensors_of(returned)
        shared = [_shared(output, self._inputs, self._previous) for output in outputs]
        self._previous = outputs
        return CallResult(
            dict(zip(expected, delivered, strict=True)),
            None,
            violations,
            all(map(guard.owns, outputs)),
            next(filter(None, shared), None),
            guard.borrowed,
            len(ran) if on_cpu else None,
        )

    def _run(self, guard: GuardedMemory, expected: Outputs) -> tuple[Any, list[Any]]:
        """Call it with poisoned memory; what it returned, and copies of it taken right after the call."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            # Freed at once: the caching allocator reuses it for the next request of that size.
            memory = [poisoned(x.numel() * x.itemsize, self._device, guard.poison) for x in expected.values()]
            del memory
            self._delay_inputs()
        # The mode does not see allocations inside PyTorch's operators, and torch.compile does not compile
        # under it.
        with guard if self.impl.way != "torch" else contextlib.nullcontext():
            returned = self.impl.call(*self._inputs)
        # The copy is enqueued on the current stream: writes from another stream or thread come too late.
        delivered = [
            x.clone() if type(x) is torch.Tensor and not x.is_meta else x for x in tensors_of(returned)
        ]
        if on_gpu:
            torch.cuda.synchronize(self._device)
        return returned, delivered

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


@contextlib.contextmanager
def kernels_run() -> Iterator[list[object]]:
    """The Triton and cupy kernels that a CPU runs within the context, an item each."""
    ran: list[object] = []

    def noting(launch: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(launch)
        def noted(kernel: object, *args: Any, **options: Any) -> None:
            ran.append(kernel)
            launch(kernel, *args, **options)

        return noted

    with (
        replaced(GridExecutor, "__call__", noting(GridExecutor.__call__)),
        replaced(HostKernel, "__call__", noting(HostKernel.__call__)),
    ):
        yield ran


def tensors_of(returned: object) -> tuple[Any, ...]:
    """The outputs in what a call returned: a tensor, or a tuple of them."""
    return returned if type(returned) is tuple else (returned,)


def wrong_kind(returned: object, expected: Outputs, device: torch.device) -> str | None:
    """What is wrong with the outputs' number, types, layouts, dtypes, shapes or devices; None: nothing."""
    outputs = tensors_of(returned)
    if len(outputs) != len(expected) or (type(returned) is tuple) != (len(expected) > 1):
        got = f"a tuple of {len(outputs)}" if type(returned) is tuple else f"a {type(returned).__name__}"
        kind = "a plain torch.Tensor" if len(expected) == 1 else f"a tuple of {', '.join(expected)}"
        return f"{got} was returned instead of {kind}"
    for output, (name, x) in zip(outputs, expected.items(), strict=True):
        if problem := _wrong_kind(output, x, device):
            return problem if len(expected) == 1 else f"{name}: {problem}"
    return None


def _wrong_kind(output: object, expected: torch.Tensor, device: torch.device) -> str | None:
    if type(output) is not torch.Tensor:
        return f"a {type(output).__name__} was returned instead of a plain torch.Tensor"
    for what, got, right in (
        ("layout", output.layout, torch.strided),
        ("dtype", output.dtype, expected.dtype),
        ("shape", tuple(output.shape), tuple(expected.shape)),
    ):
        if got != right:
            return f"its {what} is {got}, expected {right}"
    return None if output.device.type == device.type else f"it is on {output.device}, expected {device}"


def _shared(
    output: torch.Tensor, inputs: tuple[torch.Tensor, ...], previous: tuple[torch.Tensor, ...]
) -> str | None:
    """The other tensor whose memory an output uses, in words; None if it has its own."""
    if output.numel() == 0:
        return None
    pointer = output.untyped_storage().data_ptr()
    for i, x in enumerate(inputs):
        if x.untyped_storage().data_ptr() == pointer:
            return f"it is in the memory of argument {i}"
    if any(x.untyped_storage().data_ptr() == pointer for x in previous):
        return "it is in the memory of the last call's output"
    return None


@contextlib.contextmanager
def threads_for(nbytes: int) -> Iterator[None]:
    """Use one CPU thread where there is little memory traffic: synchronizing threads would take longer."""
    settle_vector_math()
    threads = torch.get_num_threads()
    if nbytes <= _ONE_THREAD_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@functools.cache
def settle_vector_math() -> None:
    """Call PyTorch's MKL functions once on a single thread.

    MKL chooses its kernel at a function's first call.  Where several threads make that call at once, one of
    them may run a kernel accurate to 11 bits, and a correct output would look wrong (PyTorch issue 188792).
    """
    for dtype in (torch.float32, torch.float64):
        for name in _MKL_FUNCTIONS:
            getattr(torch, name)(torch.ones(1, dtype=dtype))
