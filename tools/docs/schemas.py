"""JSON Schema of what ``--json`` and ``--record`` write, made from the dataclasses that they write."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from compare.aot.running import ProgramReport
from compare.history.diff import Diff
from compare.history.map import Map
from compare.labs.marking import Marks
from compare.records import archive

_WRITTEN: dict[str, tuple[str, Any]] = {
    "comparison": ("python -m compare OP --json, and a record of --record", archive.Document),
    "diff": ("python -m compare diff --json", Diff),
    "map": ("python -m compare map --json", Map),
    "aot": ("python -m compare aot --json", ProgramReport),
    "grade": ("python -m compare grade --json", list[Marks]),
}
_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
"""JSON has no such numbers, so `compare.records.encoding` writes their names."""


def schema(name: str) -> dict[str, Any]:
    """The schema of what one command writes."""
    title, kind = _WRITTEN[name]
    made: dict[str, Any] = _with_numbers(msgspec.json.schema(kind, schema_hook=_text))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **made}


def _text(kind: type) -> dict[str, str]:
    if issubclass(kind, Path):
        return {"type": "string"}
    raise NotImplementedError


def _with_numbers(part: Any) -> Any:
    if isinstance(part, dict):
        rest = {key: _with_numbers(each) for key, each in part.items() if (key, each) != ("type", "number")}
        return rest if len(rest) == len(part) else _NUMBER | rest
    return [_with_numbers(each) for each in part] if isinstance(part, list) else part


def every_schema() -> dict[Path, Callable[[], str]]:
    """The text of each file, by its place below the root."""
    return {Path("docs", "schemas", f"{name}.json"): partial(_text_of, name) for name in _WRITTEN}


def _text_of(name: str) -> str:
    return json.dumps(schema(name), indent=1) + "\n"
