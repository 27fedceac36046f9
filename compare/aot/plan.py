"""What a program without Python does: one launch, with all its arguments and the memory they point to.

It is captured from the implementation's own host code, run on meta tensors (`compare.capture`).  The program
has no PyTorch: an implementation whose host code does more than launch one kernel - a second kernel, zeros, a
copy - is refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from compare import registry
from compare.capture import Launch, capture_call, captured_route, meta_inputs
from compare.device import lacks
from compare.inputs import ITEM_BYTES
from compare.model.op import Case, CudaLaunch, Implementation, Op


@dataclass(frozen=True)
class Pointer:
    """An address in one piece of memory."""

    memory: int
    """Which: the inputs in order, then the output."""
    offset_bytes: int


Argument = Pointer | int | float | np.number[Any]
"""An address, or a number by value."""


@dataclass(frozen=True)
class MemoryBlock:
    """The device memory of an input or of the output."""

    name: str
    """As the op's signature has it: ``x``."""
    bytes: int


@dataclass(frozen=True)
class ProgramPlan:
    """One implementation on one case, as a program."""

    op: Op
    label: str
    case: Case
    arch: str
    launch: Launch
    arguments: dict[str, Argument]
    """By parameter, in the kernel's order; of Triton, with compile-time constants."""
    memory: tuple[MemoryBlock, ...]
    """The inputs in order, then the output."""
    expected: torch.Tensor
    """A meta tensor that lies in the output's memory as the output does."""


def candidates(op: Op, only: Sequence[str]) -> list[Implementation]:
    """The implementations with kernels of their own; each CUDA kernel once, by nvcc's route.

    Raises:
        UsageError: ``only`` matches nothing.
    """
    impls = [impl for impl in registry.implementations(op.name, only) if impl.has_own_kernels]
    by_nvcc = {impl.variant for impl in impls if impl.route == "pybind"}
    return [impl for impl in impls if impl.route != "cupy" or impl.variant not in by_nvcc]


def plan(op: Op, impl: Implementation, case: Case, arch: str) -> ProgramPlan:
    """What ``impl`` does on ``case``, for a GPU of ``arch`` (``sm_90``).

    Raises:
        NotImplementedError: no such program is possible; the text says why.
        Exception: whatever else the implementation raises on its inputs.
    """
    if impl.requires and (reason := lacks(impl.requires, arch)):
        raise NotImplementedError(reason)
    if op.further:
        raise NotImplementedError(f"{op.name} has {1 + len(op.further)} outputs, and the program writes one")
    if op.options(case):
        raise NotImplementedError(f"{op.name} takes more than tensors, and the program reads files of these")
    if ITEM_BYTES[op.output_dtype or case.dtype] == 1:
        raise NotImplementedError("its output is of bytes, and the program's check cannot see unwritten ones")
    source, inputs = captured_route(impl), meta_inputs(op, case)
    outputs: list[torch.Tensor] = []
    addresses, helpers = _Addresses(), _Helpers()

    def run(*given: torch.Tensor) -> torch.Tensor:
        with addresses, helpers:
            outputs.append(source.run(*given))
        return outputs[0]

    launches = capture_call(replace(source, run=run), inputs, arch)
    if not launches:
        raise NotImplementedError(f"it launches nothing on {case}; give a case with elements")
    if len(launches) > 1:
        kernels = ", ".join(_name_of(launch) for launch in launches)
        raise NotImplementedError(f"it launches {len(launches)} kernels ({kernels}), and the program has one")
    if helpers.used:
        called = ", ".join(helpers.used)
        raise NotImplementedError(
            f"its host code calls PyTorch's {called} beside the launch, and the program has no PyTorch"
        )
    tensors = (*inputs, outputs[0])
    names = re.findall(r"(\w+)\[", op.signature)
    if len(names) != len(tensors):
        names = [*(f"input{index}" for index in range(len(inputs))), "output"]
    memory = [MemoryBlock(name, x.untyped_storage().nbytes()) for name, x in zip(names, tensors, strict=True)]
    arguments = _arguments(launches[0], addresses, tensors)
    return ProgramPlan(op, impl.label, case, arch, launches[0], arguments, tuple(memory), outputs[0])


def _name_of(launch: Launch) -> str:
    return launch.kernel.partition("<")[0] if isinstance(launch, CudaLaunch) else launch.kernel.fn.__name__


def _arguments(launch: Launch, addresses: _Addresses, tensors: Sequence[torch.Tensor]) -> dict[str, Argument]:
    """Of CUDA named by their number: the C++ parameters' names are not known here."""
    storages = [addresses.number(x) for x in tensors]
    cuda = isinstance(launch, CudaLaunch)
    given = launch.arguments
    if not isinstance(given, dict):
        given = {f"arg{i}": each for i, each in enumerate(given)}
    arguments: dict[str, Argument] = {}
    for name, argument in given.items():
        if isinstance(argument, torch.Tensor) or (cuda and isinstance(argument, int)):
            address = addresses.of(argument) if isinstance(argument, torch.Tensor) else argument
            number, offset = divmod(address, _SPAN)
            if number not in storages:
                raise NotImplementedError(
                    "its kernel takes memory besides inputs and output, and the program has none"
                )
            arguments[name] = Pointer(storages.index(number), offset)
        elif isinstance(argument, int | float | np.number):
            arguments[name] = argument
        else:
            kind = f"a {type(argument).__name__}, no pointer and no number"
            if isinstance(argument, np.void):
                kind = f"{argument.nbytes} bytes by value, a tensor map, which holds an address"
            raise NotImplementedError(f"argument {name} of its kernel is {kind}")
    return arguments


_SPAN = 1 << 44
"""Distance of the addresses of two pieces of meta memory: more than the bytes of either."""


class _Addresses(TorchFunctionMode):
    """Gives addresses to meta tensors, which have none: a number for each storage, and the offset in it."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: list[torch.UntypedStorage] = []  # held: a freed storage's address is used again

    def of(self, tensor: torch.Tensor) -> int:
        return self.number(tensor) * _SPAN + int(tensor.storage_offset()) * tensor.itemsize

    def number(self, tensor: torch.Tensor) -> int:
        """From 1."""
        storage = tensor.untyped_storage()
        known = [held._cdata for held in self._storages]
        if storage._cdata not in known:
            self._storages.append(storage)
            return len(self._storages)
        return known.index(storage._cdata) + 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.data_ptr:
            return self.of(args[0])
        return func(*args, **(kwargs or {}))


class _Helpers(TorchDispatchMode):
    """Notes PyTorch's operators that do more than allocate or make a view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used: dict[str, None] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in compare.checking.guarded_memory: else Dynamo is imported

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if not (func.is_view or "empty" in name or name in ("detach", "alias")):
            self.used[name] = None
        return func(*args, **(kwargs or {}))
