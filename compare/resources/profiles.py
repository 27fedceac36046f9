"""Kernels of the project's implementations as the profiler saw them, cached on disk.

Starting the profiler takes seconds in each process, and what it reports of the same code does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from compare.model.result import KernelResources
from compare.records import result_cache
from compare.records.encoding import decode
from compare.resources.static import Request, key_of

_FOLDER = "resources"


def kept(request: Request, device: str) -> tuple[KernelResources, ...]:
    """The kernels of an earlier profile on a ``device`` of this name; empty if nothing is cached."""
    with suppress(KeyError, TypeError, ValueError):
        found = result_cache.read(_FOLDER, _key(request, device))
        return tuple(decode(KernelResources, kernel) for kernel in found["kernels"])
    return ()


def keep(request: Request, device: str, kernels: Sequence[KernelResources]) -> None:
    """Keep a profile, unless it is empty."""
    if kernels:
        value = {"kernels": [asdict(kernel) for kernel in kernels]}
        result_cache.write(_FOLDER, _key(request, device), value)


def _key(request: Request, device: str) -> str:
    return result_cache.key("profiler", key_of(request), device)
