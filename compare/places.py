"""Where the project's own files are: in a checkout, or beside the packages that a wheel installed."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder of the packages: in an installed copy all others are there too."""
PACKAGES = ("compare", "ops", "torch_impl", "triton_impl", "cuda_impl")
_INSTALLED = ROOT / "compare" / "data"
DATA = _INSTALLED if _INSTALLED.is_dir() else ROOT
"""The folder of ``labs``, ``results`` and ``examples``; setup.py makes it where this is no checkout."""
IS_CHECKOUT = DATA == ROOT


def to_install(extra: str = "") -> str:
    """The command that installs, for this Python, what a comparison needs or, of an extra, what that adds."""
    file = DATA / f"requirements{extra and '-'}{extra}.txt"
    return shlex.join((sys.executable, "-m", "pip", "install", "-r", str(file)))


def _of_user() -> Path:
    """``$XDG_DATA_HOME/gpu-three-ways``, by default in ``~/.local/share``; it need not exist."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111 - never raises
    return Path("/", home, "gpu-three-ways")


RECORDS = DATA / "results"
"""The records that come with the project."""
RESULTS = RECORDS if IS_CHECKOUT else _of_user() / "results"
"""Where ``--record`` writes: where this is no checkout, a folder of the user's, as the next version replaces
the project's files."""
