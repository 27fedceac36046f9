"""``python -m compare map``: which way is fastest, as recorded; shown, written and drawn."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from compare import registry
from compare.command_line import outputs, status
from compare.device import gpu_name
from compare.history.map import reading, survey
from compare.report import maps, plots, terminal
from compare.spec import UsageError


def run(arguments: argparse.Namespace, files: Sequence[Path]) -> int:
    """Survey the records in ``files``, by default those of this machine; the exit status."""
    if arguments.plot:
        plots.check(arguments.plot)
    runs = reading.read(files or reading.recorded_here(gpu_name(), arguments.ops))
    known = sorted({run.op for run in runs})
    for op in arguments.ops:
        if op not in known:
            raise UsageError(registry.unknown("op on record", op, known))
    found = survey.survey(runs, survey.hashes(arguments.ops or known), arguments.ops, arguments.only)
    whole = bool(arguments.all or arguments.ops or len(known) == 1)
    made = ((arguments.csv, maps.as_csv), (arguments.markdown, maps.as_markdown))
    writes = [partial(outputs.write, file, make(found)) for file, make in made if file]
    writes.append(partial(outputs.write_json, arguments.json, found))
    if arguments.plot:
        writes.append(partial(plots.draw, found, arguments.plot))
    outputs.beside(lambda: terminal.put(lambda width: maps.render(found, width, whole=whole)), writes)
    return status.SUCCESS
