"""Dataclasses to JSON values and back; files written atomically."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")

_DIGITS = 6
"""Significant digits of a figure or sample: more than a timer resolves."""


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
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else json.dumps(value)  # "NaN"
    return value


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return field.default is not MISSING and bool(value == field.default)


def decode(kind: type[Value], value: Any) -> Value:
    """The inverse of `encode`: a ``kind`` from a JSON value.  Fields that ``kind`` does not have are ignored.

    Raises:
        ValueError: ``value`` is not a ``kind``; names the field, as ``$.cases[0].case``.
    """
    import msgspec  # `doctor` writes files without any package, and reads none

    # Not strict: "NaN" and "Infinity" are floats.  The hook is for paths.
    return msgspec.convert(value, kind, strict=False, dec_hook=lambda hooked, item: hooked(item))


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
