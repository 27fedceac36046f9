"""Launches without a GPU: an implementation's own host code, run on meta tensors.

Meta tensors have shapes, strides and dtypes and no memory.  While a capture is on, Triton's ``run`` and
the CUDA loader write down what they are asked to launch instead of launching it, so the grid, the block
and every argument are those of the real code, of a user's own file as well, and nothing is declared
twice.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from compare import registry
from compare.device import captured_arch
from compare.spec import Case, CudaLaunch, Implementation, Op, TritonLaunch, UsageError

Launch = CudaLaunch | TritonLaunch


@dataclass(frozen=True)
class _Capture:
    launches: list[Launch] = field(default_factory=list)


_active: ContextVar[_Capture | None] = ContextVar("_active", default=None)


def capture(impl: Implementation, op: Op, case: Case, arch: str) -> list[Launch]:
    """What one call of ``impl`` launches on a GPU of ``arch`` (``sm_90``), in order.

    Kernels of PyTorch and of libraries are none of ours to compile: who calls them yields an empty list.  A
    pybind implementation launches from C++ what the cupy implementation of the same variant launches
    from Python; that one is captured in its place.

    Raises:
        NotImplementedError: the implementation does not take this case, or its launch cannot be known
            without a GPU; the text says why.
        Exception: whatever else the implementation raises on its inputs.
    """
    if not impl.has_own_kernels:
        return []
    return capture_call(impl, meta_inputs(op, case), arch)


def capture_call(impl: Implementation, inputs: Sequence[torch.Tensor], arch: str) -> list[Launch]:
    """`capture` with these meta tensors as inputs."""
    run = captured_route(impl).run
    active = _Capture()
    token, of_arch = _active.set(active), captured_arch.set(arch)
    try:
        with _triton_records(), mock.patch.object(torch, "empty_like", _empty_like):
            run(*inputs)
    finally:
        _active.reset(token)
        captured_arch.reset(of_arch)
    return active.launches


def record(launch: Launch) -> None:
    """Note a launch; for whoever is asked to launch a kernel on meta tensors.

    Raises:
        RuntimeError: nothing is being captured, so meta tensors came from elsewhere.
    """
    _current().launches.append(launch)


def meta_inputs(op: Op, case: Case) -> tuple[torch.Tensor, ...]:
    """The op's inputs for ``case`` as meta tensors: shapes, strides, offsets and dtypes, no values."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return _inputs(op, case, "meta")
    # An op that draws with the generator it is given cannot draw on meta; fake tensors of a CPU can.
    with FakeTensorMode():
        fakes = _inputs(op, case, "cpu")
    return tuple(map(_on_meta, fakes))


def _inputs(op: Op, case: Case, device: str) -> tuple[torch.Tensor, ...]:
    inputs = op.make_inputs(case, torch.Generator(), torch.device(device))
    if not isinstance(inputs, tuple):
        raise UsageError(f"{op.name}: make_inputs gives no tuple of tensors, but a {type(inputs).__name__}")
    return inputs


def _on_meta(fake: torch.Tensor) -> torch.Tensor:
    storage = torch.empty(fake.untyped_storage().nbytes() // fake.itemsize, dtype=fake.dtype, device="meta")
    return storage.as_strided(fake.shape, fake.stride(), fake.storage_offset())


_torch_empty_like = torch.empty_like


def _empty_like(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """``torch.empty_like``, without the seconds that PyTorch's own takes to import sympy on meta."""
    if tensor.is_meta and tensor.is_contiguous() and options.keys() <= {"dtype"}:
        return torch.empty(tensor.shape, dtype=options.get("dtype", tensor.dtype), device="meta")
    return _torch_empty_like(tensor, **options)


def _current() -> _Capture:
    active = _active.get()
    if active is None:
        raise RuntimeError(
            "a kernel was launched on meta tensors outside compare.capture: there is no memory to work on. "
            "Pass tensors on cuda or cpu"
        )
    return active


def captured_route(impl: Implementation) -> Implementation:
    """The implementation that launches the same kernels from Python: of a pybind one, its cupy sibling.

    Raises:
        NotImplementedError: there is none.
    """
    if impl.route != "pybind":
        return impl
    sibling = registry.through_cupy(impl, registry.implementations(impl.op))
    if sibling is None:
        raise NotImplementedError(
            f"{impl.label} has no cupy.{impl.variant} beside it, whose launch could be captured"
        )
    return sibling


@contextlib.contextmanager
def _triton_records() -> Iterator[None]:
    """Let Triton's launches be written down, compiled and interpreted kernels' alike."""
    tune = Autotuner.run

    def autotuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(self.configs) > 1:
            raise NotImplementedError(
                f"{self.base_fn.__name__} is autotuned: which of its {len(self.configs)} configurations runs "
                "is decided on the GPU"
            )
        return tune(self, *args, **kwargs)

    with (
        mock.patch.object(JITFunction, "run", _record_triton),
        mock.patch.object(InterpretedFunction, "run", _record_triton),
        mock.patch.object(Autotuner, "run", autotuned),
    ):
        yield


def _record_triton(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """Stands in for ``JITFunction.run``: binds the arguments as Triton does, and notes the launch."""
    if warmup:
        raise NotImplementedError(
            f"{kernel.fn.__name__} is compiled before its launch to ask for its registers or shared memory, "
            "which is possible on a GPU only"
        )
    signature = inspect.signature(kernel.fn)
    named = {name: value for name, value in kwargs.items() if name in signature.parameters}
    options = {name: value for name, value in kwargs.items() if name not in named}
    for hook in getattr(kernel, "pre_run_hooks", ()):
        hook(*args, **kwargs)
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    if callable(grid):
        grid = grid(bound.arguments)
    record(TritonLaunch(kernel, dict(bound.arguments), three(grid), options))


def three(sizes: Sequence[int]) -> tuple[int, int, int]:
    """A grid or block of up to three sizes, filled up with ones."""
    x, y, z = (*(int(size) for size in sizes), 1, 1, 1)[:3]
    return x, y, z
