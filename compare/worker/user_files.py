"""The user's files (``--load``), described by a worker and not loaded by the judge.

Loading a file runs it, and what it runs could replace the very functions that judge it.  So a worker loads
it and tells what it registers; the judge knows its implementations by description, and its code by
reading.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from compare import registry
from compare.model.op import Implementation, UsageError
from compare.worker.foreign import Description
from compare.worker.messages import AnswerT, Hash, Load, WorkerRequest
from compare.worker.process import Worker

_LARGEST_BYTES = 1 << 18
_MOST_LINES = 10_000
"""The lexer of ``--html`` takes a time that grows faster than a file."""
_MOST_ROWS = 64


def load(
    paths: Sequence[str], timeout_s: float, asked: str | None = None, *, trusted: bool = True
) -> dict[str, str]:
    """Register what users' files hold.

    A file that defines the op asked for says what is right: that one is trusted, and loaded here as well.

    Args:
        paths: the files.
        timeout_s: the most time that loading one may take.
        asked: the op that is compared; None: all of them are, those of the files too.
        trusted: False: nothing will be compared, so no file is loaded here.

    Returns:
        The file of each op that was loaded here, or would be if it were trusted.

    Raises:
        UsageError: a file is none, cannot be loaded, or registers nothing new, nothing of the op asked for,
            what no op is for, or another's op.
    """
    # Imported later it could be what a user's file has made of it.
    for module in registry.modules():
        importlib.import_module(module)
    found: list[_Told] = []
    defined: dict[str, str] = {}
    for path in paths:
        found.append(told := _ask(path, list(dict.fromkeys(defined.values())), timeout_s))
        for op in told.ops:
            if op in registry.op_names() or op in defined:
                where = defined.get(op, "the project")
                raise UsageError(f"--load {path}: {where} has an op {op} already: give yours another name")
            defined[op] = path
    known = sorted({*registry.op_names(), *defined})
    for told in found:
        for each in told.implementations:
            if each.op not in known:
                raise UsageError(
                    f"--load {told.path}: {each.label}: {registry.unknown('op', each.op, known)}"
                )
        # A file is needed too if it defines an op that another has rows of beside those asked for.
        needed = {op for other in found if other is not told for op in other.has}
        if asked in known and asked not in told.has and needed.isdisjoint(told.ops):
            raise UsageError(registry.nothing_of(asked, told.path, told.has))
    defining = [told for told in found if asked in told.ops or (asked is None and told.ops)]
    for told in found:
        if trusted and told in defining:
            registry.load(told.path)
        else:
            _add(told.path, [each for each in told.implementations if asked in (None, each.op)])
    if trusted:
        _hash([told.path for told in found], timeout_s)
    return {op: told.path for told in defining for op in told.ops}


@dataclass(frozen=True)
class _Told:
    """What a file registers, by its worker's word."""

    path: str
    ops: Sequence[str]
    implementations: Sequence[Description]

    @property
    def has(self) -> set[str]:
        """What it has something of."""
        return {*self.ops, *(each.op for each in self.implementations)}


def _ask(path: str, before: Sequence[str], timeout_s: float) -> _Told:
    """Have a worker load a file behind those before it, and tell what it registers."""
    if not Path(path).is_file():
        raise UsageError(f"--load {path}: there is no such file")
    if (size := Path(path).stat().st_size) > _LARGEST_BYTES:
        raise UsageError(f"--load {path}: {size} bytes, and the most is {_LARGEST_BYTES}")
    if (lines := len(Path(path).read_bytes().splitlines())) > _MOST_LINES:
        raise UsageError(f"--load {path}: {lines} lines, and the most is {_MOST_LINES}")
    contents = _asked(path, timeout_s, Load((*before, path)), "loading it")
    if (rows := len(contents.implementations)) > _MOST_ROWS:
        raise UsageError(f"--load {path}: {rows} implementations, and the most is {_MOST_ROWS}")
    return _Told(path, contents.ops, contents.implementations)


def _asked(path: str, timeout_s: float, request: WorkerRequest[AnswerT], step: str) -> AnswerT:
    """The answer of a new worker."""
    try:
        with reader(path, timeout_s, load_ops=not isinstance(request, Load)) as worker:
            return worker.ask(request, step)
    except UsageError as error:
        raise UsageError(" ".join(str(error).split())) from None
    except Exception as error:  # of whatever kind the worker says
        said = " ".join(str(error).split()) or repr(error)
        raise UsageError(f"--load {path}: {said}. Fix the file") from None


@contextmanager
def reader(who: str, timeout_s: float, *, load_ops: bool = True) -> Iterator[Worker]:
    """An isolated worker that reads users' files and has loaded none, but those that define ops."""
    worker = Worker(who, torch.device("cpu"), timeout_s, isolated=True)
    try:
        if load_ops and (files := registry.op_files()):
            worker.ask(Load(tuple(files)), "loading the op")
        yield worker
    finally:
        worker.close()


def _add(path: str, implementations: Sequence[Description]) -> None:
    """Register implementations by what a worker told of them."""
    with _understood(path):
        for each in implementations:
            registry.implementations(each.op)  # the project's own come first
            registry.add(_described(each, path))


def _hash(paths: Sequence[str], timeout_s: float) -> None:
    """Add hashes to the implementations of users' files, read by a process that runs none of them."""
    for path in paths:
        where = str(Path(path).resolve())
        impls = [impl for impl in registry.foreign() if impl.origin == where]
        if not impls:
            continue
        request = Hash(where, tuple(Description.of(impl, where) for impl in impls))
        hashes = _asked(path, timeout_s, request, "reading its source")
        with _understood(path):
            for impl, found in zip(impls, hashes, strict=True):
                registry.add(replace(impl, source_hash=found))


@contextmanager
def _understood(path: str) -> Iterator[None]:
    """Whatever a worker tells is one file's own affair."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"--load {path}: {error}") from None
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UsageError(f"--load {path}: what it registers cannot be understood ({error!r})") from None


def _described(each: Description, path: str) -> Implementation:
    """An implementation known by what a worker told of it."""
    impl = each.stand_in(str(Path(path).resolve()))
    # Registering it checks its words as those of any other, and that they are not taken.
    declare = registry.implementation(
        each.op,
        each.label,
        level=each.level,
        requires=each.requires,
        accumulator=each.accumulator,
        tunable=each.tunable,
    )
    declare(impl.run)
    return impl


def to_load(impl: Implementation) -> list[str]:
    """The files that a worker has to load for an implementation."""
    return [*registry.op_files(), *([impl.origin] if impl.foreign else [])]
