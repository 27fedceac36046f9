"""``python -m compare OP --crossover DIM``: the sizes of DIM at which the fastest way changes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from compare import device as machine
from compare import run as driver
from compare.command_line import outputs, status
from compare.commands.running import asked
from compare.history import crossover
from compare.records import archive
from compare.report import crossings, csv_file, terminal
from compare.report.progress import of_run
from compare.report.steps import Steps
from compare.spec import UsageError
from compare.worker.pool import WorkerPool

if TYPE_CHECKING:
    import torch


def run(arguments: argparse.Namespace, device: torch.device, told: Steps | None) -> int:
    """Search with runs of an op on a GPU, or without one in ``results/``; the exit status."""
    html = asked.html(arguments.html)
    (op,) = asked.having(asked.load(arguments.load, arguments.timeout, arguments.what), arguments.only)
    crossover.check(op, arguments.crossover)
    options = asked.options(op, arguments)
    base = options.cases[0] if options.cases else op.cases.default
    if device.type != "cuda":
        if arguments.json or arguments.csv or arguments.html:
            raise UsageError(
                "--json, --csv and --html need times measured here, and there is no GPU: --markdown has "
                "the table, results/ the records that it is made from"
            )
        found = crossover.recorded(op, arguments.crossover, base)
    else:
        memory_bytes = machine.environment(device).memory_bytes
        with (
            WorkerPool(op, device, options.timeout_s) as pool,  # one for all sizes
            of_run(op.name, told) as progress,
        ):
            found = crossover.find(
                op,
                arguments.crossover,
                base,
                options,
                memory_bytes,
                lambda asked: driver.run(op, asked, progress, pool=pool),
            )
    writes = outputs.writes(
        arguments,
        found,
        lambda found: archive.dumps(found.runs),
        lambda found: csv_file.dumps(found.runs),
        crossings.as_markdown,
        html and (lambda found: html(found.runs)),
    )
    outputs.beside(lambda: terminal.put(lambda width: crossings.render(found, width)), writes)
    if found.recorded_on:
        return status.SUCCESS
    statuses = [status.INCONCLUSIVE] if found.interrupted else []
    return status.worst([*statuses, *map(status.of, found.runs)])
