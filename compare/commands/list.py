"""Every op with its implementations, and which of them this machine can run.

examples:
  python -m compare list
  python -m compare list --only 'triton.*'
  python -m compare list --load my_softmax.py

exit status:
  0  shown
  2  a mistake in the command or its files
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compare import registry
from compare.command_line import options, status
from compare.model.op import Implementation
from compare.sandbox.words import printable

if TYPE_CHECKING:
    import torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_only(parser.add_argument, ", e.g. 'triton.*'")
    options.add_load(parser.add_argument)
    options.add_device(parser.add_argument)


def run(arguments: argparse.Namespace) -> int:
    """Print what ``--only`` and ``--load`` ask for; the exit status."""
    from compare.worker.start import prepare

    device = prepare(arguments.device)
    files = options.load(arguments.load, trusted=False)
    for op in options.select([name for name, file in files.items() if not file], arguments.only):
        title = f"{op.name}  {op.signature}\n  {op.summary}\n  dtypes: {', '.join(op.dtypes)}"
        _show(title, registry.implementations(op.name, arguments.only), device)
    for name, file in files.items():
        if file:
            impls = registry.implementations(name)
            among = [impl for impl in impls if registry.is_among(impl.label, arguments.only)]
            _show(f"{name}  of {file}, which is not run for a list", among, device)
    return status.SUCCESS


def _show(title: str, impls: Sequence[Implementation], device: torch.device) -> None:
    from compare.device import supports
    from compare.report.layout import UNLIMITED, layout
    from compare.report.tables import Table

    headers = ("implementation", "level", "requires", "here")
    rows = (
        (impl.label, impl.level, impl.requires or "", supports(impl, device) or "runs here") for impl in impls
    )
    (table,) = layout(Table("", headers, tuple(rows), headers), UNLIMITED)
    print(printable(f"{title}\n{textwrap.indent(table, '  ')}\n"))
