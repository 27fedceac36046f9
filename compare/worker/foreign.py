"""Implementations of users' files as processes know them that have not loaded the files."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from msgspec import Struct

from compare import registry
from compare.code_size.sources import code_of
from compare.model.op import Implementation


class Description(Struct, frozen=True):
    """An implementation of a user's file as data."""

    op: str
    label: str
    level: str
    requires: str | None
    accumulator: str
    without_gpu: bool
    algorithm: str
    tunable: dict[str, tuple[int, ...]]
    defaults: dict[str, int]
    """Of the tunable parameters."""
    line: int
    """First line of its function; 0 where that is not in the file."""

    @classmethod
    def of(cls, impl: Implementation, file: str) -> Description:
        """The description of an implementation that ``file`` registers."""
        tunable, code = dict(impl.tunable), code_of(impl.run)
        is_there = Path(code.co_filename) == Path(file).absolute()
        return cls(
            impl.op,
            impl.label,
            impl.level,
            impl.requires,
            impl.accumulator,
            impl.without_gpu,
            impl.algorithm,
            tunable,
            {name: default for name, default in registry.keywords(impl.run).items() if name in tunable},
            code.co_firstlineno if is_there else 0,
        )

    def stand_in(self, file: str) -> Implementation:
        """An implementation that can be read, and not run."""
        return Implementation(
            self.op,
            self.label,
            self.level,
            _function_at(file, self.line, self.label, self.defaults),
            self.requires,
            self.accumulator,
            file,
            foreign=True,
            tunable=tuple(self.tunable.items()),
            without_gpu=self.without_gpu,
            algorithm=self.algorithm,
        )


def _function_at(file: str, line: int, name: str, defaults: Mapping[str, int]) -> Any:
    """A function that says that it was written there.  It cannot be called.

    Args:
        file: its path.
        line: its first.
        name: its name.
        defaults: its keyword-only parameters, and their defaults.
    """
    code = _only_a_worker_runs_it.__code__.replace(co_filename=file, co_firstlineno=line)
    run = types.FunctionType(code, globals(), name)
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, default=default)
            for parameter, default in defaults.items()
        ]
    )
    return run


def _only_a_worker_runs_it(*_: torch.Tensor) -> NoReturn:
    raise RuntimeError("a user's implementation is run by a worker only")
