"""How files of a source are named to the reader."""

from __future__ import annotations

import os

from compare.registry import ROOT


def shortened(file: str) -> str:
    """A path from the project's folder on, if it lies there; a line number after it stays."""
    path = os.path.normpath(file)
    return os.path.relpath(path, ROOT) if path.startswith(f"{ROOT}{os.sep}") else path
