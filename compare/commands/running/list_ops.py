"""``python -m compare list``: the ops and their implementations, shown."""

from __future__ import annotations

import argparse
import textwrap

import torch
from tabulate import tabulate

from compare import registry
from compare.command_line import status
from compare.commands.running import asked
from compare.device import supports
from compare.spec import Options


def run(arguments: argparse.Namespace, device: torch.device) -> int:
    """Print what ``--only`` and ``--load`` ask for; the exit status."""
    names = asked.load(arguments.load, Options.timeout_s)
    for op in asked.having(names, arguments.only):
        print(f"{op.name}  {op.signature}\n  {op.summary}\n  dtypes: {', '.join(op.dtypes)}")
        rows = [
            (impl.label, impl.level, impl.requires or "", supports(impl, device) or "runs here")
            for impl in registry.implementations(op.name, arguments.only)
        ]
        table = tabulate(rows, ("implementation", "level", "requires", "here"), "simple")
        print(textwrap.indent("\n".join(map(str.rstrip, table.splitlines())), "  "), end="\n\n")
    return status.SUCCESS
