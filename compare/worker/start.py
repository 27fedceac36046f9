"""The first step of a command: decide its device before anything imports Triton."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compare.sandbox.environment import kept_variables
from compare.worker import server

if TYPE_CHECKING:
    import torch


def prepare(device: str = "auto", ops: Sequence[str] = (), commands: Sequence[str] = ()) -> torch.device:
    """The device to run on; starts the workers' server in the background.

    Call it before a Triton kernel is imported: ``TRITON_INTERPRET`` is read when a kernel is decorated.

    Args:
        device: as on the command line.
        ops: the server imports their modules.
        commands: it also imports these modules, of commands that it will fork.

    Raises:
        UsageError: there is no such device, or this process may open too few files.
    """
    server.allow_descriptors()
    if server.likely_cpu(device):
        os.environ["TRITON_INTERPRET"] = "1"
    # Start-up: this imports PyTorch, which --help does not need, and with which the server is forked.
    from compare.device import imported_torch, pick

    imported_torch()
    server.start(ops, commands=commands, from_here=_is_clean_command())
    picked = pick(device)
    if picked.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    server.start(ops, commands=commands)
    return picked


def _is_clean_command() -> bool:
    """Whether this process is ``python -m compare``, so it has only imported modules so far, and never read a
    variable that workers do not get: a fork has its memory."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    is_command = server.forked_here or (spec is not None and spec.name == "compare.__main__")
    return is_command and kept_variables() == dict(os.environ)
