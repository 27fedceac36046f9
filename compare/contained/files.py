"""The user's files (``--load``), described by a worker and not loaded by the judge.

Loading a file runs it, and what it runs could replace the very functions that judge it.  So a worker loads
it and tells what it registers; the judge knows its implementations by description, and its code by
reading.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from compare import registry
from compare.contained.process import Ended, Raised, Worker
from compare.contained.tree import Tree
from compare.spec import Implementation, UsageError


def load(paths: Sequence[str], timeout_s: float) -> None:
    """Register what users' files hold.

    A file that defines an op says what is right: that one is trusted, and loaded here as well.

    Raises:
        UsageError: a file is none, cannot be loaded, or registers nothing new, or what no op is for.
    """
    # Imported later it could be what a user's file has made of it.
    for module in pkgutil.walk_packages([str(registry.ROOT / "compare")], "compare."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
    registered = [(path, each) for path in paths for each in _load(path, timeout_s)]
    known = registry.op_names()  # with those that the last file may have defined
    for path, each in registered:
        if each["op"] not in known:
            raise UsageError(f"--load {path}: {each['label']}: {registry.unknown('op', each['op'], known)}")


def _load(path: str, timeout_s: float) -> list[dict[str, Any]]:
    """Register what a file holds, and tell its implementations."""
    if not Path(path).is_file():
        raise UsageError(f"--load {path}: there is no such file")
    tree = Tree([path])
    scout = Worker(path, torch.device("cpu"), timeout_s)
    try:
        described = scout.ask("load", "loading it", files=[*registry.op_files(), path])
    except (Ended, Raised) as error:
        raise UsageError(f"--load {path}: {error}. Mend the file") from None
    finally:
        scout.close()
    if changed := tree.changed():
        raise UsageError(f"--load {path}: {changed} while it was loaded. Mend the file")
    try:
        if described["ops"]:
            registry.load(path)
        else:
            for each in described["implementations"]:
                registry.implementations(each["op"])
                registry.add(_described(each, path))
        return list(described["implementations"])
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"--load {path}: what it registers cannot be understood ({error!r})") from None


def _described(each: dict[str, Any], path: str) -> Implementation:
    """An implementation known by what a worker told of it."""
    # Registering it checks its words as those of any other, and that they are not taken.
    tunable = {str(name): tuple(map(int, values)) for name, values in each["tunable"].items()}
    declare = registry.implementation(
        each["op"],
        each["label"],
        rung=each["rung"],
        requires=each["requires"],
        accumulator=each["accumulator"],
        without_gpu=bool(each["without_gpu"]),
        tunable=tunable,
    )
    where = str(Path(path).resolve())
    code = _only_a_worker_runs_it.__code__.replace(co_filename=where, co_firstlineno=int(each["line"]))
    run = types.FunctionType(code, globals(), each["label"])
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=int(each["defaults"][name]))
            for name in tunable
            if name in each["defaults"]
        ]
    )
    declare(run)
    return Implementation(
        each["op"],
        each["label"],
        each["rung"],
        run,
        each["requires"],
        each["accumulator"],
        where,
        foreign=True,
        tunable=tuple(tunable.items()),
        without_gpu=bool(each["without_gpu"]),
    )


def _only_a_worker_runs_it(*_: torch.Tensor) -> NoReturn:
    raise RuntimeError("a user's implementation is run by a worker only")


def to_load(impl: Implementation) -> list[str]:
    """The files that a worker has to load for an implementation."""
    return [*registry.op_files(), *([impl.origin] if impl.foreign else [])]
