"""CUDA through pybind11: the same kernels and launch tables, from C++ that is built at the first call.

An op's module is generated from its launch tables; ``pybind/<op>.cu`` is host code written by hand in its
place, which exports one function per variant.  ``pybind/library/<op>.cu`` calls a library for the same work:
a baseline, ``library.<name>``, for GPUs only.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from compare.device import supports
from compare.inputs import TORCH_DTYPES
from compare.model.op import DTYPES, LIBRARY, Implementation
from compare.registry import get_op, implementation
from cuda_impl import build
from cuda_impl.ahead import Building
from cuda_impl.launch import Variant, encoded

Run = Callable[..., torch.Tensor]

_NAMES = {TORCH_DTYPES[name]: name for name in DTYPES}
_VARYING = ("scan",)
"""Ops whose library adds in an order that changes from call to call."""


def register(op: str, implementations: Iterable[Implementation]) -> None:
    """Register ``pybind.<variant>`` for every launch table of an op, and ``library.<name>`` for every export
    of ``pybind/library/<op>.cu``.

    Args:
        op: the op's name.
        implementations: the op's implementations known so far.
    """
    exported = _exported(op)
    known = list(implementations)
    present = {impl.label for impl in known}
    for impl in known:
        label = f"pybind.{impl.variant}"
        table = getattr(impl.run, "table", None)
        by_hand = impl.variant in exported
        if impl.route == "cupy" and (table or by_hand) and label not in present:
            declare = implementation(
                op,
                label,
                level=impl.level,
                requires=impl.requires,
                accumulator=impl.accumulator,
                deterministic=impl.deterministic,
                emulated=impl.emulated,
                algorithm=impl.algorithm,
                prepare=impl.prepare and through_cpp(impl.prepare),
            )
            declare(_lazy(op, impl.variant, op) if by_hand else through_cpp(table))
    for name in _exported(f"{LIBRARY}/{op}"):
        if (label := f"{LIBRARY}.{name}") not in present:
            declare = implementation(op, label, level="vendor", deterministic=op not in _VARYING)
            declare(_lazy(op, name, f"{LIBRARY}/{op}"))


def _exported(name: str) -> list[str]:
    """The names that the module ``pybind/<name>.cu`` exports; empty if there is no such file."""
    file = build.by_hand(name)
    return re.findall(r'\bm\.def\("(\w+)"', file.read_text()) if file else []


def _lazy(op: str, variant: str, name: str) -> Run:
    functions: dict[tuple[torch.device, torch.dtype], Run] = {}

    def run(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        try:
            function = functions[tensors[0].device, tensors[0].dtype]
        except (AttributeError, KeyError):  # the first call on its device and dtype, or no tensor
            function = getattr(module(name, _device(tensors[0], name), _dtype(op, tensors)), variant)
            if isinstance(tensors[0], torch.Tensor):
                functions[tensors[0].device, tensors[0].dtype] = function
        return function(*tensors, **options)

    run.__name__ = run.__qualname__ = f"{op}_{variant}"
    run.module = name  # type: ignore[attr-defined]
    return run


def through_cpp(table: Variant) -> Run:
    """A variant's function of tensors that plans once a layout, and allocates and launches from C++."""
    launchers: dict[tuple[str, torch.device, str], tuple[Run, Run]] = {}

    def launcher_for(tensors: tuple[Any, ...]) -> tuple[Run, Run]:
        """Of the module for these tensors' device and dtype: what launches, and what adds a plan."""
        device, dtype = _device(tensors[0] if tensors else None, table.op), _dtype(table.op, tensors)
        key = build.LAUNCHER if device.type == "cpu" else table.op, device, dtype
        if key not in launchers:
            launchers[key] = module(*key).launcher()
        return launchers[key]

    launch: Run = _nothing

    @functools.wraps(table.plan)
    def run(*tensors: torch.Tensor, **options: Any) -> Any:
        nonlocal launch
        outputs = launch(*tensors, **options)
        if outputs is None:  # the first call of a layout, or another module's
            this_launch, add = launcher_for(tensors)
            if any(isinstance(x, torch.Tensor) and x.is_cuda for x in tensors[:1]):
                launch = this_launch  # on a CPU each call is checked: of decode_attention also the values
                outputs = launch(*tensors, **options)
            if outputs is None:
                add(encoded(table, *tensors, **options), *tensors, **options)
                outputs = this_launch(*tensors, **options)
        return outputs

    run.module = table.op  # type: ignore[attr-defined]
    return run


def _nothing(*tensors: Any, **options: Any) -> None:
    """A launcher without plans."""


def _device(argument: object, name: str) -> torch.device:
    """A tensor's device.  For anything else, any device of the module: all raise the same error."""
    if isinstance(argument, torch.Tensor):
        return argument.device
    if build.calls_a_library(name) and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _dtype(op: str, arguments: Iterable[object]) -> str:
    """The first of the arguments' dtypes that the op takes; without one, any: all raise the same error."""
    taken = get_op(op).dtypes
    given = (_NAMES.get(getattr(argument, "dtype", None), "") for argument in arguments)
    return next((name for name in given if name in taken), taken[0])


def module(name: str, device: torch.device, dtype: str) -> types.ModuleType:
    """A module for a device and a dtype, built if necessary: an op's, ``library/<op>``, or `build.LAUNCHER`.

    Raises:
        build.BuildError: a compiler is missing or refuses the source.
        TypeError: the device is neither a GPU nor the CPU, or it is the CPU and the module is for GPUs only.
    """
    target = target_of(device, dtype)
    if target is None or (target == "host" and build.calls_a_library(name)):
        op, taken = name.rpartition("/")[2], "cuda" if build.calls_a_library(name) else "cuda or cpu"
        raise TypeError(f"{op}: tensors are on {device}; it takes tensors on {taken}")
    return _load(name, target)


def building(
    impls: Iterable[Implementation], device: torch.device, dtypes: Iterable[str]
) -> dict[tuple[str, str | None], Building]:
    """Start building, in the background, the modules that ``impls`` will load and that are not built yet.

    Args:
        impls: implementations of one op, of any route.
        device: where they will run.
        dtypes: of the cases that they will run on.

    Returns:
        The builds, by `module_of` name and `target_of` name.
    """
    found: dict[tuple[str, str | None], Building] = {}
    targets = dict.fromkeys(target_of(device, dtype) for dtype in dtypes)
    names = dict.fromkeys(module_of(impl, device) for impl in impls if supports(impl, device) is None)
    for name, target in itertools.product(filter(None, names), filter(None, targets)):
        # If a compiler is missing, loading the module reports it.
        with contextlib.suppress(build.BuildError, OSError):
            if not build.pybind_is_built(name, target):
                found[name, target] = Building(name, target)
    return found


def module_of(impl: Implementation, device: torch.device) -> str:
    """The project's module behind an implementation that `register` made; empty for any other."""
    run = impl.run
    while isinstance(run, functools.partial):
        run = run.func
    name: str = getattr(run, "module", "")
    return build.on_host(name) if name and device.type == "cpu" else name


def target_of(device: torch.device, dtype: str) -> str | None:
    """The build target of `cuda_impl.build.pybind_module`; None for a device that is neither GPU nor CPU."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}" + (f"-{dtype}" if dtype in DTYPES else "")
    return "host" if device.type == "cpu" else None


@functools.cache
def _load(name: str, target: str) -> types.ModuleType:
    path = build.pybind_module(name, target)
    # The target is part of the name: pybind11 treats two modules of one name as the same.
    spec = importlib.util.spec_from_file_location(f"{target}.{name.replace('/', '.')}", path)
    if spec is None or spec.loader is None:
        raise build.BuildError(f"{path} is no Python module")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
