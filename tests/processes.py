"""Python as a user starts it: in the project's folder, and without Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

from compare.registry import ROOT


def python(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=inherited | environment,
        check=False,
    )


def command(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m compare``."""
    return python("-m", "compare", *words, **environment)
