"""CUDA through pybind11: C++ host code around the same kernels, built ahead of time or on the first call.

``pybind/<op>.cu`` exports one function per variant; each becomes ``pybind.<variant>`` beside the cupy
implementation of the same kernel.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import types
from collections.abc import Callable, Iterable

import torch

from compare.registry import implementation
from compare.spec import Implementation
from cuda_impl import build
from cuda_impl.ahead import Building

Run = Callable[..., torch.Tensor]


def register(op: str, implementations: Iterable[Implementation]) -> None:
    """Register ``pybind.<variant>`` for every cupy implementation that ``pybind/<op>.cu`` has as well.

    Args:
        op: the op's name.
        implementations: those of the op that are known so far.
    """
    file = build.PYBIND / f"{op}.cu"
    if not file.is_file():
        return
    exported = re.findall(r'\bm\.def\("(\w+)"', file.read_text())
    known = list(implementations)
    present = {impl.label for impl in known}
    for impl in known:
        label = f"pybind.{impl.variant}"
        if impl.route == "cupy" and impl.variant in exported and label not in present:
            declare = implementation(
                op,
                label,
                rung=impl.rung,
                requires=impl.requires,
                accumulator=impl.accumulator,
                deterministic=impl.deterministic,
            )
            declare(_lazy(op, impl.variant))


def _lazy(op: str, variant: str) -> Run:
    functions: dict[torch.device, Run] = {}

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        try:
            function = functions[tensors[0].device]
        except (AttributeError, KeyError):  # the first call on its device, or no tensor
            function = getattr(module(op, _device(tensors[0])), variant)
            functions[_device(tensors[0])] = function
        return function(*tensors)

    run.__name__ = run.__qualname__ = f"{op}_{variant}"
    return run


def _device(argument: object) -> torch.device:
    """Where a tensor lies; the CPU for what is none, as any module refuses it in the same words."""
    return argument.device if isinstance(argument, torch.Tensor) else torch.device("cpu")


def module(op: str, device: torch.device) -> types.ModuleType:
    """The module of ``pybind/<op>.cu`` for a device, built if there is none yet.

    Raises:
        build.BuildError: a compiler is missing or refuses the source.
        TypeError: the device is neither a GPU nor the CPU.
    """
    target = _target(device)
    if target is None:
        raise TypeError(f"{op}: tensors are on {device}; it takes tensors on cuda or cpu")
    return _load(op, target)


def building(impls: Iterable[Implementation], device: torch.device) -> Building | None:
    """Begin to build, in the background, the module that some of ``impls`` will load; None if it is there.

    Args:
        impls: implementations of one op, of any route.
        device: where they are going to run.
    """
    waiting = [impl for impl in impls if needs_module(impl)]
    target = _target(device)
    if not waiting or target is None:
        return None
    op = waiting[0].op
    try:
        return None if build.pybind_is_built(op, target) else Building(op, target)
    except (build.BuildError, OSError):  # loading the module says what is wrong
        return None


def needs_module(impl: Implementation) -> bool:
    """Whether it is one of `register`'s, which a module of this project stands behind."""
    return impl.origin == __file__


def _target(device: torch.device) -> str | None:
    """What to build for: ``host``, or a GPU's architecture."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor}"
    return "host" if device.type == "cpu" else None


@functools.cache
def _load(op: str, target: str) -> types.ModuleType:
    path = build.pybind_module(op, target)
    # Named after the target as well: pybind11 takes modules of one name for one module.
    spec = importlib.util.spec_from_file_location(f"{target}.{op}", path)
    if spec is None or spec.loader is None:
        raise build.BuildError(f"{path} is no Python module")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
