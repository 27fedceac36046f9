"""Kernel launches captured without a GPU: an implementation's own host code, run on meta tensors.

Meta tensors have shapes, strides and dtypes but no memory.  During a capture Triton's ``run`` and the CUDA
loader record a launch instead of making it.  So grid, block and arguments are those of the real code, for a
user's file too, and nothing is declared twice.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from compare import registry
from compare.device import captured_arch, outdated
from compare.model.op import Case, CudaLaunch, Implementation, Op, TritonLaunch, UsageError

Launch = CudaLaunch | TritonLaunch


_NAMESPACES = frozenset(name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names())
"""Of PyTorch's operators: this module is imported before any user's file registers its own."""

_active: ContextVar[list[Launch] | None] = ContextVar("_active", default=None)


def capture(impl: Implementation, op: Op, case: Case, arch: str, *, untuned: bool = False) -> list[Launch]:
    """The launches of one call of ``impl`` on a GPU of ``arch`` (``sm_90``), in order.

    Empty where it calls kernels of PyTorch or of libraries only.  For a pybind implementation the cupy one of
    the same variant is captured: it launches the same kernels from Python.

    Args:
        impl: what is called.
        op: its op.
        case: of its inputs.
        arch: ``sm_90``.
        untuned: take the first configuration of an autotuned kernel, as Triton's interpreter does.

    Raises:
        NotImplementedError: the implementation does not take this case, or its launch depends on the GPU; the
            text says why.
        Exception: whatever else the implementation raises on its inputs.
    """
    if not impl.has_own_kernels:
        return []
    inputs = meta_inputs(op, case)
    if op.of_rank:
        return capture_call(impl.given({"rank": 0}), op.of_rank(inputs), arch, untuned=untuned)
    return capture_call(impl.given(op.options(case)), inputs, arch, untuned=untuned)


def capture_call(
    impl: Implementation, inputs: Sequence[torch.Tensor], arch: str, *, untuned: bool = False
) -> list[Launch]:
    """`capture` with these meta tensors as inputs."""
    if reason := outdated(impl):
        raise NotImplementedError(reason)
    run = captured_route(impl).call
    launches: list[Launch] = []
    token, of_arch = _active.set(launches), captured_arch.set(arch)
    try:
        with _triton_records(untuned), replaced(torch, "empty_like", _empty_like), _UsersOperators():
            run(*inputs)
    finally:
        _active.reset(token)
        captured_arch.reset(of_arch)
    return launches


def is_users(operator: Any) -> bool:
    """Whether an operator is a user's own, as of ``torch.library.custom_op``."""
    return operator.namespace not in _NAMESPACES


def call_code_of(operator: Any, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an operator's code for tensors of a kind of device: from within a dispatch mode, without it."""
    key = torch._C._parse_dispatch_key(torch._C._dispatch_key_for_device(kind))
    assert key is not None
    return operator.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that starts without Dynamo."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Called by PyTorch; False avoids the import of Dynamo, which takes seconds."""
        return False


class _UsersOperators(DispatchMode):
    """Has users' own operators run the code for a GPU on meta tensors, and not what says their shapes."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not is_users(func):
            return func(*args, **(kwargs or {}))
        with self:  # PyTorch turns the mode off in here
            return call_code_of(func, "cuda", args, kwargs or {})


def record(launch: Launch) -> None:
    """Add a launch to the capture; for a launcher that gets meta tensors.

    Raises:
        RuntimeError: no capture is active.
    """
    launches = _active.get()
    if launches is None:
        raise RuntimeError(
            "a kernel was launched on meta tensors outside compare.capture: they have no memory. "
            "Pass tensors on cuda or cpu"
        )
    launches.append(launch)


def meta_inputs(op: Op, case: Case) -> tuple[torch.Tensor, ...]:
    """The op's inputs for ``case`` as meta tensors: shapes, strides, offsets and dtypes, no values."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return _inputs(op, case, "meta")
    # An op that draws with the given generator cannot draw on meta; fake CPU tensors can.
    with FakeTensorMode():
        fakes = _inputs(op, case, "cpu")
    return tuple(map(_on_meta, fakes))


def _inputs(op: Op, case: Case, device: str) -> tuple[torch.Tensor, ...]:
    inputs = op.make_inputs(case, torch.Generator(), torch.device(device))
    if not isinstance(inputs, tuple):
        raise UsageError(f"{op.name}: make_inputs returned a {type(inputs).__name__}, not a tuple of tensors")
    return inputs


def _on_meta(fake: torch.Tensor) -> torch.Tensor:
    storage = torch.empty(fake.untyped_storage().nbytes() // fake.itemsize, dtype=fake.dtype, device="meta")
    return storage.as_strided(fake.shape, fake.stride(), fake.storage_offset())


_torch_empty_like = torch.empty_like


def _empty_like(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """``torch.empty_like`` that avoids PyTorch's import of sympy on meta tensors, which takes seconds."""
    if tensor.is_meta and tensor.is_contiguous() and options.keys() <= {"dtype"}:
        return torch.empty(tensor.shape, dtype=options.get("dtype", tensor.dtype), device="meta")
    return _torch_empty_like(tensor, **options)


def captured_route(impl: Implementation) -> Implementation:
    """The implementation that launches the same kernels from Python: for pybind, the cupy one.

    Raises:
        NotImplementedError: there is none.
    """
    if impl.route != "pybind":
        return impl
    sibling = registry.through_cupy(impl, registry.implementations(impl.op))
    if sibling is None:
        raise NotImplementedError(
            f"{impl.label}: no cupy.{impl.variant} to capture the launch from. Register one"
        )
    return sibling.given(dict(impl.options))


@contextlib.contextmanager
def _triton_records(untuned: bool) -> Iterator[None]:
    """Record Triton's launches, of compiled and of interpreted kernels."""
    tune = Autotuner.run

    def autotuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        if untuned and len(self.configs) > 1:
            first = copy.copy(self)
            first.nargs = dict(zip(self.arg_names, args, strict=False))
            first.configs = first.prune_configs(kwargs)[:1]
            return tune(first, *args, **kwargs)
        if len(self.configs) > 1:
            raise NotImplementedError(
                f"{self.base_fn.__name__} is autotuned: a search on the GPU chooses one of its "
                f"{len(self.configs)} configurations"
            )
        return tune(self, *args, **kwargs)

    with (
        replaced(JITFunction, "run", _record_triton),
        replaced(InterpretedFunction, "run", _record_triton),
        replaced(Autotuner, "run", autotuned),
    ):
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """For a while, a public name of a class or module is ``value``."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _record_triton(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """In place of ``JITFunction.run``: binds the arguments as Triton does, and records the launch."""
    if warmup:
        raise NotImplementedError(
            f"{kernel.fn.__name__} is compiled before its launch (warmup) to read its registers or shared "
            "memory: that needs a GPU"
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
    """A grid or block of up to three sizes, padded with ones."""
    x, y, z = (*(int(size) for size in sizes), 1, 1, 1)[:3]
    return x, y, z
