"""Which way to choose, from all records: the fastest way of each op and case, its speedup over
the next way, its share of the ceiling, and its code size. Needs no GPU.

examples:
  python -m compare map
  python -m compare map --all
  python -m compare map softmax --plot softmax.svg
  python -m compare map --only 'triton.*' --only 'cupy.*' --csv map.csv
  python -m compare map --records run.json

exit status:
  0  shown
  2  a mistake in the command or its files, or nothing is recorded
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from compare.command_line import installed, options, outputs, status

_SLOW = "reading every record and source, which takes some seconds; it is kept until one changes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("ops", nargs="*", metavar="OP", help="only these ops, case by case")
    add("--all", action="store_true", help="every column, case and Pareto front, not only a line per op")
    options.add_only(add, ", e.g. 'triton.*'")
    options.add_records(add)
    options.add_file(add, "plot", "effort against share of the ceiling, as .png or .svg")
    options.add_tables(add, "all results", "op and case")


def run(arguments: argparse.Namespace) -> int:
    """Survey the records of ``--records``, by default those of this machine; the exit status."""
    from compare.history import reading

    return show(arguments, reading.files_of(arguments.records))


def show(arguments: argparse.Namespace, files: list[Path]) -> int:
    from compare.history import reading
    from compare.history.kept import charted
    from compare.report import maps, plots, terminal

    if arguments.plot:
        plots.check(arguments.plot)
    files = files or reading.recorded_here(installed.gpu_name, arguments.ops)
    every = charted(files, arguments.ops, arguments.only, lambda: outputs.say(_SLOW))
    options.check_only(arguments.only, every.labels, "implementation on record")
    chart = every.chart
    whole = bool(arguments.all or arguments.ops or len(every.ops) == 1)
    writes = outputs.writes(
        arguments, chart, json=outputs.as_json, csv=maps.as_csv, markdown=maps.as_markdown
    )
    if arguments.plot:
        writes.append(partial(plots.draw, chart, arguments.plot))
    outputs.beside(lambda: terminal.put(lambda width: maps.render(chart, width, whole=whole)), writes)
    return status.SUCCESS
