"""Dataclasses to JSON values and back; files read within limits, and written atomically."""

from __future__ import annotations

import base64
import dataclasses
import errno
import functools
import math
import os
import secrets
import shutil
import stat
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")

_DIGITS = 6
"""Significant digits of a figure or sample: more than a timer resolves."""
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any, *, lean: bool = False) -> Any:
    """Dataclasses to dicts, tuples to lists, floats to six significant digits or a named non-finite value.

    Args:
        value: a dataclass, or a collection of them.
        lean: leave out fields with their default value; `decode` fills them in.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(f, getattr(value, f.name)) for f in dataclasses.fields(value)]
        return {f.name: encode(v, lean=lean) for f, v in fields if not (lean and _is_default(f, v))}
    if isinstance(value, Mapping):
        return {str(key): encode(item, lean=lean) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item, lean=lean) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return float(f"{value:.{_DIGITS}g}")
    return value


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return field.default is not MISSING and bool(value == field.default)


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as a table's columns: ``{"timing": {"rounds": 3}}`` as ``{"timing.rounds": 3}``."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def nested(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    found: dict[str, Any] = {}
    for name, value in columns.items():
        *parents, last = name.split(".")
        inner = found
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return found


def decode(kind: type[Value], value: Any, where: str = "") -> Value:
    """The inverse of `encode`: a ``kind`` from a JSON value.

    Args:
        kind: the dataclass.
        value: from JSON.
        where: the value's name in errors; if empty, that of ``kind``.

    Raises:
        TypeError, ValueError: ``value`` is not a ``kind``.
    """
    found = _decode(kind, value, where or kind.__name__)
    assert isinstance(found, kind)
    return found


def _decode(kind: Any, value: Any, where: str) -> Any:
    """``value`` as a ``kind`` (a type hint of compare/model/); errors name ``where``."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{where}: got {value!r}, expected one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        _expect(list, value, where)
        if len(arguments) == 2 and arguments[1] is ...:
            if arguments[0] is float and all(type(item) is float for item in value):
                return tuple(value)  # samples: most of a file
            return tuple(_decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
        if len(value) != len(arguments):
            raise ValueError(f"{where}: got {len(value)} items, expected {len(arguments)}")
        items = enumerate(zip(arguments, value, strict=True))
        return tuple(_decode(argument, item, f"{where}[{i}]") for i, (argument, item) in items)
    if origin in (dict, Mapping):
        _expect(dict, value, where)
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float:
        if isinstance(value, str) and value in _NON_FINITE:
            return _NON_FINITE[value]
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    if kind in (bytes, Path):
        _expect(str, value, where)
        return Path(value) if kind is Path else base64.b64decode(value, validate=True)
    _expect(kind, value, where)
    if kind is str and not all(c.isprintable() or c in "\n\t" for c in value):
        raise ValueError(f"{where}: {value[:80]!a} has characters that cannot be printed")
    return value


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    _expect(dict, value, where)
    hints = _hints(kind)
    unknown = value.keys() - hints.keys()
    if unknown:
        raise ValueError(f"{where}: unknown {', '.join(sorted(unknown))}")
    # Fields of later versions have a default, so that older records can be read.
    required = (f for f in dataclasses.fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    missing = {f.name for f in required} - value.keys()
    if missing:
        raise ValueError(f"{where}: {', '.join(sorted(missing))} is missing")
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in value.items()})


def _decode_union(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    errors = []
    for choice in choices:
        if choice is not type(None):
            try:
                return _decode(choice, value, where)
            except (TypeError, ValueError) as error:
                errors.append(str(error))
    raise ValueError(errors[-1])


def _expect(kind: type, value: Any, where: str) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{where}: got {type(value).__name__}, expected {kind.__name__}")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def read_whole(path: Path, most_bytes: int = 1 << 24) -> str:
    """The text of a regular file of limited size.

    Raises:
        OSError: it cannot be read, is none (a pipe never ends), or is larger.
        UnicodeDecodeError: it is no UTF-8.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if found.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it has more than {most_bytes >> 20} MB")
        return file.read(most_bytes).decode()


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: a reader finds the old text or all of the new.  Its mode stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a crash of the machine leaves no empty file under the new name
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
