"""The work of ``python -m compare cache``: look, clear, show."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from compare.command_line import outputs
from compare.device import default_archs, pick
from compare.report import terminal
from compare.toolchain.caches import looking, ours, report
from compare.toolchain.caches.records import Cleared, Found


def run(arguments: argparse.Namespace, archs: Sequence[str]) -> None:
    """Show what is kept, or with ``--clear`` remove what is ours; without ``archs``: for the default ones."""
    found: Cleared | Found
    if arguments.clear:
        kernels = frozenset(looking.cuda_kernels(arguments.op)) if arguments.op else frozenset()
        found = ours.clear(arguments.op, kernels)
        shown = partial(report.cleared, found, looking.caches())
    else:
        of_op = partial(looking.of_op, arguments.op, arguments.only)
        found = of_op(archs or default_archs(pick())) if arguments.op else Found("", looking.caches())
        shown = partial(report.render, found)
    outputs.beside(lambda: terminal.put(shown), [lambda: outputs.write_json(arguments.json, found)])
