"""Limits of figures as types.  They hold for what is read from a file: ratios divide by times."""

from __future__ import annotations

import sys
from typing import Annotated

try:
    from msgspec import Meta
except ImportError:  # `doctor` runs without any package, and reads no record
    Meta = dict  # type: ignore[assignment,misc]

__all__ = ["Count", "Meta", "Positive", "Share"]

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
"""Finite, and above 0."""
Share = Annotated[float, Meta(gt=0, le=1)]
