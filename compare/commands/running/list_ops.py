"""``python -m compare list``: the ops and their implementations, shown."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence

import torch
from tabulate import tabulate

from compare import registry
from compare.command_line import status
from compare.commands.running import asked
from compare.device import supports
from compare.sandbox import isolation
from compare.sandbox.words import printable
from compare.spec import Implementation, Options
from compare.worker import user_files


def run(arguments: argparse.Namespace, device: torch.device) -> int:
    """Print what ``--only`` and ``--load`` ask for; the exit status."""
    names = registry.op_names()
    for name in names:
        registry.implementations(name)  # the project's own come first
    files: dict[str, str] = {}
    if arguments.load:
        isolation.protect_judge()
        files = user_files.load(arguments.load, Options.timeout_s, trusted=False)
        asked.check_names(files)
    for op in asked.having(names, arguments.only):
        _show(
            f"{op.name}  {op.signature}\n  {op.summary}\n  dtypes: {', '.join(op.dtypes)}",
            registry.implementations(op.name, arguments.only),
            device,
        )
    for name, file in files.items():
        impls = registry.implementations(name)
        shown = [impl for impl in impls if registry.is_among(impl.label, arguments.only)]
        _show(f"{name}  of {file}, which is not run for a list", shown, device)
    return status.SUCCESS


def _show(title: str, impls: Sequence[Implementation], device: torch.device) -> None:
    rows = [
        (impl.label, impl.level, impl.requires or "", supports(impl, device) or "runs here") for impl in impls
    ]
    table = tabulate(rows, ("implementation", "level", "requires", "here"), "simple")
    lines = textwrap.indent("\n".join(map(str.rstrip, table.splitlines())), "  ")
    print(printable(f"{title}\n{lines}\n"))
