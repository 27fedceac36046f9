"""The driver: ``python -m compare``.  docs/architecture.md says what is where.

``from compare import check`` is for the tests of a function of your own.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compare.api import check as check


def __getattr__(name: str) -> Any:
    """`check`, imported at first use: it needs PyTorch, which ``import compare`` does not."""
    if name == "check":
        return importlib.import_module("compare.api").check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
