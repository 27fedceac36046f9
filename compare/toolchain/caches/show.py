"""What ``python -m compare cache`` does once its arguments are understood: look, clear, show."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from compare.command_line import outputs
from compare.device import default_archs, pick
from compare.report import terminal
from compare.toolchain.caches import looking, ours, report
from compare.toolchain.caches.records import Cleared, Found


def run(arguments: argparse.Namespace, archs: Sequence[str]) -> None:
    """Show what is kept, or with ``--clear`` remove what is ours.

    Args:
        arguments: of the command line.
        archs: whose keys; none: what is compiled for here by default.
    """
    found: Cleared | Found
    if arguments.clear:
        kernels = frozenset(looking.cuda_kernels(arguments.op)) if arguments.op else frozenset()
        found = ours.clear(arguments.op, kernels)
    elif arguments.op:
        found = looking.of_op(arguments.op, arguments.only, archs or default_archs(pick()))
    else:
        found = Found("", looking.caches())
    outputs.beside(
        lambda: terminal.put(lambda width: _shown(found, width)),
        [lambda: outputs.write_json(arguments.json, found)],
    )


def _shown(found: Cleared | Found, width: int) -> str:
    if isinstance(found, Cleared):
        return report.cleared(found, looking.caches(), width)
    return report.render(found, width)
