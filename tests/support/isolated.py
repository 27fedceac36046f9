"""Calls in an isolated child process, and what each came to."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from compare.sandbox import isolation, scratch
from compare.sandbox.isolation import Isolation

Attempt = Callable[[Path], object]
"""Takes the private folder."""


def inside(enter: Callable[[Path, int], object], attempts: Mapping[str, Attempt]) -> dict[str, str]:
    """What each attempt came to in an isolated child process.

    Args:
        enter: isolates the child; takes the private folder and the lifeline.

    Returns:
        ``ok``, the name of an `OSError`'s number such as ``EACCES``, or another exception's type.
    """
    private = scratch.private_folder()
    lifeline, kept = os.pipe()
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(kept)
        try:
            enter(private, lifeline)
            results = {name: _result(attempt, private) for name, attempt in attempts.items()}
        except BaseException as error:
            results = dict.fromkeys(attempts, f"not isolated: {error}")
        os.write(sender, json.dumps(results).encode())
        os._exit(0)
    for descriptor in (lifeline, sender):
        os.close(descriptor)
    with os.fdopen(receiver) as results_read:
        text = results_read.read()
    assert os.waitpid(child, 0)[1] == 0
    os.close(kept)
    scratch.remove(private)
    assert not private.exists()
    return dict(json.loads(text))


def entering(found: Isolation, *, gpu: bool = False) -> Callable[[Path, int], None]:
    """Enter these mechanisms."""
    return lambda private, lifeline: isolation.enter(found, private, lifeline, gpu=gpu)


def _result(attempt: Attempt, private: Path) -> str:
    try:
        attempt(private)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "OSError")
    except BaseException as error:
        return type(error).__name__
    return "ok"
