"""Implementations of users' files as processes know them that have not loaded the files."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import torch

from compare.code_size.sources import code_of
from compare.spec import Implementation


@dataclass(frozen=True)
class Description:
    """What reading an implementation's source takes."""

    op: str
    label: str
    file: str
    line: int
    algorithm: str

    @classmethod
    def of(cls, impl: Implementation) -> Description:
        line = code_of(impl.run).co_firstlineno
        return cls(impl.op, impl.label, impl.origin, line, impl.algorithm)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def stand_in(self) -> Implementation:
        """An implementation that can be read, and not run."""
        run = function_at(self.file, self.line, self.label, {})
        level = "naive"  # reading asks for none
        return Implementation(
            self.op, self.label, level, run, origin=self.file, foreign=True, algorithm=self.algorithm
        )


def function_at(file: str, line: int, name: str, defaults: Mapping[str, int]) -> Any:
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
