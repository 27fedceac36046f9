"""A module run in a process of its own, for what the compilers' environment variables would change."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

from compare import registry


def output_of(module: str, *words: str, without: str, **variables: str) -> Any:
    """What a module prints, as a JSON value.

    Args:
        module: run as ``python -m module``.
        words: its arguments.
        without: a pattern of the environment variables that it does not get.
        variables: those that it gets in addition.

    Raises:
        subprocess.CalledProcessError: it failed; ``stderr`` says why.
    """
    kept = {name: value for name, value in os.environ.items() if not re.match(without, name)}
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        cwd=registry.ROOT,
        env=kept | variables,
        check=True,
    )
    return json.loads(done.stdout)
