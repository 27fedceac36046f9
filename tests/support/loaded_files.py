"""A user's file with implementations of ``vector_add``, and a comparison with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import made_up
from compare import registry, run
from compare.model.op import Case, Implementation, case
from compare.model.result import Comparison, Options, Row
from compare.worker import user_files

CPU = torch.device("cpu")
SMALL = case("fp32", N=16)

BEGINNING = """
import ctypes, gc, os, signal, sys, threading, time
import torch
from compare.registry import implementation


def added(x, y):
    return x + y if x.is_cuda else torch.from_numpy(x.numpy() + y.numpy())


@implementation("vector_add", "triton.right", level="tiled")
def right(x, y):
    return added(x, y)
"""


@contextmanager
def own_registry() -> Iterator[None]:
    """What is registered within the context is removed after it, but for the project's own."""
    tables = registry._ops, registry._files_of_ops, registry._implementations
    known = {op: dict(labels) for op, labels in registry._implementations.items()}
    before = dict(registry._ops), dict(registry._files_of_ops), known
    try:
        yield
    finally:
        for op, labels in registry._implementations.items():  # its own modules are not imported again
            known.setdefault(op, {}).update({label: impl for label, impl in labels.items() if _is_own(impl)})
        for table, content in zip(tables, before, strict=True):
            table.clear()
            table.update(content)


def _is_own(impl: Implementation) -> bool:
    return impl.run.__module__.partition(".")[0] in ("torch_impl", "triton_impl", "cuda_impl")


def written(path: Path, text: str) -> str:
    """The path of a file with this text after the common beginning."""
    path.write_text(BEGINNING + text)
    return str(path)


def implemented(name: str, code: str, then: str = "return added(x, y)") -> str:
    """An implementation that runs ``code`` before it adds."""
    return f"\n\n{decorator(name)}\ndef {name}(x, y):\n    {code}\n    {then}\n"


def decorator(name: str) -> str:
    return f'@implementation("vector_add", "triton.{name}", level="tiled")'


def compared(
    path: Path,
    text: str,
    *only: str,
    cases: tuple[Case, ...] = (SMALL,),
    progress: Callable[[str, float], None] = lambda what, done: None,
    **options: Any,
) -> Comparison:
    """The comparison of a file with this text, by default on the CPU and without hard inputs."""
    user_files.load([written(path, text)])
    asked = Options(cases=cases, only=only, **{"device": "cpu", "hard_inputs": False, **options})
    with (
        made_up.compiled_by(made_up.NoCompilation),  # as if it launched nothing
        mock.patch("compare.checking.check._idling", return_value=None),
    ):
        return run.run(registry.get_op("vector_add"), asked, progress, results=path.parent)


def rows_of(comparison: Comparison) -> dict[str, Row]:
    """The rows of the last case by label."""
    return {row.label: row for row in comparison.cases[-1].rows}


def reasons_of(comparison: Comparison, label: str) -> list[str]:
    """Why a row failed, case by case."""
    return [row.reason for c in comparison.cases for row in c.rows if row.label == label]
