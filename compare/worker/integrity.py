"""Detects replaced functions that a worker's answers depend on.

The functions are recorded before an implementation's file is loaded, and compared with every answer.  The row
names each function that was replaced or whose code was.  This is a diagnosis, not a barrier: a file can patch
this module too.  The judge's own clock and checks do not depend on it.
"""

from __future__ import annotations

import builtins
import gc
import json
import operator
import os
import statistics
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

_WATCHED: tuple[tuple[str, Any, tuple[str, ...]], ...] = tuple(
    (prefix, holder, tuple(names.split()))
    for prefix, holder, names in (
        ("time", time, "perf_counter perf_counter_ns monotonic time time_ns sleep"),
        ("statistics", statistics, "median"),
        ("json", json, "dumps loads"),
        ("gc", gc, "collect"),
        ("os", os, "fork read write _exit"),
        ("builtins", builtins, "type isinstance len getattr zip sum min max range enumerate"),
        ("multiprocessing.connection.Connection", Connection, "send_bytes recv_bytes"),
        ("torch", torch, "empty empty_like empty_strided full zeros as_tensor frombuffer equal"),
        (
            "torch.Tensor",
            torch.Tensor,
            "copy_ clone zero_ fill_ set_ equal view nonzero untyped_storage data_ptr numel stride "
            "storage_offset itemsize dtype shape device layout __torch_function__",
        ),
        (
            "torch.cuda",
            torch.cuda,
            "synchronize Event Stream stream current_stream graph CUDAGraph graph_pool_handle device _sleep "
            "empty_cache",
        ),
        ("torch.cuda.Event", torch.cuda.Event, "__new__ record query synchronize elapsed_time wait"),
        ("torch.cuda.CUDAGraph", torch.cuda.CUDAGraph, "replay capture_begin capture_end"),
    )
)

_OUR_OWN = "compare."


@dataclass(frozen=True)
class _Noted:
    """What a name referred to."""

    name: str
    holder: Any
    key: str
    parts: tuple[Any, ...]

    def is_still_there(self) -> bool:
        thing = getattr(self.holder, self.key, None)
        if len(self.parts) == 1 and thing is self.parts[0]:
            return True
        parts = _parts(thing)
        return len(parts) == len(self.parts) and all(map(operator.is_, parts, self.parts))


class Integrity:
    """Records the watched functions; `changed` names those that were replaced since."""

    def __init__(self) -> None:
        self._libraries = [*_libraries()]
        self._modules = {name: sys.modules[name] for name in sys.modules if name.startswith(_OUR_OWN)}
        self._our_own = [noted for name, module in self._modules.items() for noted in _inside(name, module)]
        self._objects: list[tuple[str, Any]] = []

    def watch(self, name: str, thing: object) -> None:
        """Watch an object: its methods must stay those of its class."""
        self._objects.append((name, thing))

    def changed(self, *, quick: bool = False) -> list[str]:
        """Names of what was replaced; ``quick``: of the libraries' functions only."""
        found = [noted.name for noted in self._libraries if not noted.is_still_there()]
        if not quick:
            found += [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
            found += [noted.name for noted in self._our_own if not noted.is_still_there()]
        for name, thing in self._objects:
            found += [f"{name}.{key}" for key in vars(thing) if callable(getattr(type(thing), key, None))]
        if sys.gettrace() is not None or sys.getprofile() is not None:
            found.append("sys.settrace or sys.setprofile")
        return found


def _libraries() -> Iterator[_Noted]:
    """Every watched function."""
    for prefix, holder, names in _WATCHED:
        for name in names:
            yield _Noted(f"{prefix}.{name}", holder, name, _parts(getattr(holder, name, None)))


def _inside(name: str, module: types.ModuleType) -> Iterator[_Noted]:
    """Every function, class and method of one of this project's modules."""
    for key, value in vars(module).items():
        if isinstance(value, types.FunctionType):
            yield _Noted(f"{name}.{key}", module, key, _parts(value))
        elif isinstance(value, type) and value.__module__ == name:
            yield _Noted(f"{name}.{key}", module, key, (value,))
            for method, function in vars(value).items():
                if callable(getattr(function, "__func__", function)):
                    yield _Noted(f"{name}.{key}.{method}", value, method, _parts(getattr(value, method)))


def _parts(thing: Any) -> tuple[Any, ...]:
    """The object and, for a Python function, its code and defaults."""
    function = getattr(thing, "__func__", thing)  # each access to a class method makes a new bound object
    if isinstance(function, types.FunctionType):
        return function, function.__code__, function.__defaults__, function.__kwdefaults__
    return (function,)
