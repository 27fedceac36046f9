"""The project's code, to be changed by a test."""

from __future__ import annotations

import shutil
from pathlib import Path

from compare.places import PACKAGES, ROOT


def copy_of_code(folder: Path) -> Path:
    """The project's packages in a folder, which is returned, to be changed there."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
