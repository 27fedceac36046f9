"""Pictures: a Jinja template beside this file and its values, as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def drawn(name: str, **values: Any) -> str:
    """``NAME.svg.jinja`` with these values."""
    return _TEMPLATES.get_template(f"{name}.svg.jinja").render(values)
