"""The first step of a command: which device it runs on, decided before anything imports Triton."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compare.worker import server

if TYPE_CHECKING:
    import torch


def prepare(device: str = "auto", ops: Sequence[str] = ()) -> torch.device:
    """The device to run on; the server of workers is started meanwhile.

    To be called before any Triton kernel is imported: ``TRITON_INTERPRET`` is read when one is decorated.

    Args:
        device: as on the command line.
        ops: whose modules workers will need; they are imported there while this process does its own.

    Raises:
        UsageError: there is no such device.
    """
    if server.likely_cpu(device):
        os.environ["TRITON_INTERPRET"] = "1"
    # Start-up: this imports PyTorch, which --help does not need, and with which the server is forked.
    from compare.device import pick

    server.start(ops, from_here=_is_command())
    picked = pick(device)
    if picked.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    server.start(ops)
    return picked


def _is_command() -> bool:
    """Whether this process is ``python -m compare``, which has only imported modules so far."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "compare.__main__"
