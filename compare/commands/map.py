"""Which way to choose, from all records: the fastest way of each op and case, its speedup over
the next way, its share of the ceiling, and its code size. Needs no GPU.

examples:
  python -m compare map
  python -m compare map --all
  python -m compare map softmax --plot softmax.svg
  python -m compare map --only 'triton.*' --only 'cupy.*' --csv map.csv
  python -m compare map --records run.json
  python -m compare map --devices

exit status:
  0  shown
  2  a mistake in the command or its files, or nothing is recorded
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from compare.command_line import installed, options, outputs, status
from compare.model.op import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("ops", nargs="*", metavar="OP", help="only these ops, case by case")
    add("--all", action="store_true", help="every column, case and Pareto front, not only a line per op")
    devices = "the ways on each device side by side, by ratios within a device (default: all of results/)"
    add("--devices", action="store_true", help=devices)
    options.add_only(add, ", e.g. 'triton.*'")
    options.add_records(add)
    options.add_file(add, "plot", "effort against share of the ceiling, as .png or .svg")
    options.add_tables(add, "all results", "op and case")


def run(arguments: argparse.Namespace) -> int:
    """Survey the records of ``--records``, by default those of this machine; the exit status."""
    from compare.history import reading

    files = reading.files_of(arguments.records)
    return (show_devices if arguments.devices else show)(arguments, files)


def show_devices(arguments: argparse.Namespace, files: list[Path]) -> int:
    """The ways across devices; the exit status."""
    from compare.history import devices, reading
    from compare.history.kept import charted
    from compare.records import archive
    from compare.report import devices as rendering
    from compare.report import terminal

    if arguments.plot or arguments.all:
        raise UsageError("--devices is a table of its own: leave out --all and --plot")
    by_device: dict[str, list[Path]] = {}
    runs = []
    for file in files or archive.files_in():
        if arguments.ops and not files and file.stem not in arguments.ops:
            continue
        for run in archive.read(file):
            runs.append(run)
            by_device.setdefault(run.environment.device, []).append(file)
    if not runs:
        raise UsageError(f"nothing of that is recorded: on a machine with a GPU, run {reading.RECORD_IT}")
    maps = [
        charted(list(dict.fromkeys(mine)), arguments.ops, arguments.only).chart
        for _, mine in sorted(by_device.items())
    ]
    found = devices.side_by_side(maps, runs)
    writes = outputs.writes(
        arguments, found, json=outputs.as_json, csv=rendering.as_csv, markdown=rendering.as_markdown
    )
    outputs.beside(lambda: terminal.put(lambda width: rendering.render(found, width)), writes)
    return status.SUCCESS


def show(arguments: argparse.Namespace, files: list[Path]) -> int:
    from compare.history import reading
    from compare.history.kept import charted
    from compare.report import maps, plots, terminal

    if arguments.plot:
        plots.check(arguments.plot)
    files = files or reading.recorded_here(installed.gpu_name, arguments.ops)
    every = charted(files, arguments.ops, arguments.only, partial(outputs.say_slow, "record and source"))
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
