"""Every op, how many implementations it has of each way, and how many of them run on this machine.

examples:
  python -m compare list
  python -m compare list softmax
  python -m compare list --all
  python -m compare list --only 'triton.*'
  python -m compare list --load my_softmax.py

exit status:
  0  shown
  2  a mistake in the command or its files
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from compare import registry
from compare.command_line import installed, options, status
from compare.model.op import LIBRARY, ROUTES, UsageError

if TYPE_CHECKING:
    from compare.command_line.inventory import ListedOp
    from compare.report.layout import Column

_ROUTES = ("torch", "triton", *ROUTES, LIBRARY)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ops", nargs="*", metavar="OP", help="each implementation of these ops")
    parser.add_argument("--all", action="store_true", help="each implementation of every op")
    options.add_only(parser.add_argument, ", e.g. 'triton.*'")
    options.add_load(parser.add_argument)
    options.add_device(parser.add_argument)


def run(arguments: argparse.Namespace) -> int:
    """Print what the arguments ask for; the exit status."""
    # Start-up: --help needs neither a table nor a GPU's name.
    from compare.report import terminal
    from compare.worker.start import prepare

    if arguments.load:
        prepare(arguments.device)
    here = _architecture(arguments.device)
    ops = _with_users_files(arguments) if arguments.load else _of_the_project(arguments.only)
    known = [op.name for op in ops]
    for name in arguments.ops:
        if name not in known:
            raise UsageError(registry.unknown("op", name, known))
    ops = [op for op in ops if not arguments.ops or op.name in arguments.ops]
    if arguments.all or arguments.ops or arguments.only or arguments.load:
        terminal.put(lambda width: "\n\n".join(_every(op, here, width) for op in ops) + "\n")
    else:
        terminal.put(lambda width: _summary(ops, here, width))
    return status.SUCCESS


def _architecture(device: str) -> str | None:
    """The architecture of the device of that name, as ``sm_90``; None: it is a CPU.

    Raises:
        UsageError: there is no such device here.
    """
    from compare import device as machine
    from compare.worker import server

    if server.likely_cpu(device):
        return None
    if device == "auto" and (first := installed.gpu()):
        return first.arch
    return machine.arch(machine.pick(device))


def _of_the_project(only: Sequence[str]) -> list[ListedOp]:
    """Every op that has an implementation of ``--only``, with those."""
    from compare.command_line.inventory import inventory

    ops = inventory()
    options.check_only(only, [impl.label for op in ops for impl in op.implementations])
    return [chosen for op in ops if (chosen := _among(op, only)).implementations]


def _among(op: ListedOp, only: Sequence[str]) -> ListedOp:
    impls = (impl for impl in op.implementations if registry.is_among(impl.label, only))
    return replace(op, implementations=tuple(impls))


def _with_users_files(arguments: argparse.Namespace) -> list[ListedOp]:
    """The same with what users' files add; of an op that a file defines its implementations only."""
    from compare.command_line.inventory import ListedOp, listed, listed_op

    files = options.load(arguments.load, trusted=False)
    selected = options.select([name for name, file in files.items() if not file], arguments.only)
    ops = [_among(listed_op(op), arguments.only) for op in selected]
    for name, file in files.items():
        if file:
            impls = tuple(map(listed, registry.implementations(name)))
            op = ListedOp(name, f"of {file}, which is not run for a list", "", (), impls)
            ops.append(_among(op, arguments.only))
    return ops


def _every(op: ListedOp, here: str | None, width: int) -> str:
    from compare.report.layout import PROSE_WIDTH, Column, fitted, paragraph

    impls = op.implementations
    why = [impl.refusal(here) or "runs here" for impl in impls]
    columns = [
        Column("implementation", tuple(impl.label for impl in impls), left=True),
        Column("level", tuple(impl.level for impl in impls), left=True),
        Column("requires", tuple(impl.requires or "" for impl in impls), left=True),
    ]
    whole, brief = (
        Column("here", tuple(cells), left=True) for cells in (why, (text.partition(":")[0] for text in why))
    )
    table = fitted([([*columns, last], gap) for last in (whole, brief) for gap in (2, 1)], width - 2)
    dtypes = f"dtypes: {', '.join(op.dtypes)}" if op.dtypes else ""
    prose = min(width, PROSE_WIDTH)
    head = [paragraph(f"{op.name}  {op.signature}", prose, hanging="    ")]
    head += [paragraph(line, prose, "  ", "  ") for line in (op.summary, dtypes) if line]
    return "\n".join([*head, *(f"  {line}" for line in table)])


def _summary(ops: Sequence[ListedOp], here: str | None, width: int) -> str:
    """A line for each op: as many columns as fit."""
    from compare.report.layout import fitted, paragraph

    columns = list(_columns(ops, here))
    table = fitted([(columns, 2), (columns[:-1], 2), (columns[:-1], 1)], width)
    several = f"{' · '.join(registry.collective_names())} (of several GPUs)"
    return "\n".join([*table, paragraph(f"NEXT  list softmax · list --all · softmax · {several}", width)])


def _columns(ops: Sequence[ListedOp], here: str | None) -> Iterator[Column]:
    from compare.report.layout import Column

    yield Column("op", tuple(op.name for op in ops), left=True)
    for route in _ROUTES:
        counts = [sum(impl.route == route for impl in op.implementations) for op in ops]
        if any(counts):
            yield Column(route, tuple(str(count or "-") for count in counts))
    ran = (sum(impl.refusal(here) is None for impl in op.implementations) for op in ops)
    of = (len(op.implementations) for op in ops)
    yield Column("here", tuple(f"{count}/{every}" for count, every in zip(ran, of, strict=True)))
    yield Column("computes", tuple(op.summary for op in ops), left=True)
