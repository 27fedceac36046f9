"""``python -m compare map``: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from compare import registry
from compare.command_line import options, outputs
from compare.spec import UsageError

_EPILOG = """\
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


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "map",
        "Which way is fastest, op by op and case by case, as recorded: its margin over the next way, its "
        "share of the ceiling, what binds it, and what there is to write for it. Needs no GPU, and measures "
        "nothing.",
        _EPILOG,
    )
    add = found.add_argument
    add("ops", nargs="*", metavar="OP", help="only these ops, case by case")
    add("--all", action="store_true", help="every op case by case, instead of a line for each")
    options.add_only(add, ", e.g. 'triton.*'")
    add(
        "--records",
        nargs="+",
        action="extend",
        type=Path,
        default=[],
        metavar="DIR|FILE",
        help="what to read, from --record or --json, of one device (default: results/ of this GPU, or of the "
        "one device on record)",
    )
    add(
        "--plot",
        type=Path,
        metavar="FILE",
        help="effort against share of the ceiling, as .png or .svg",
    )
    add("--json", type=Path, metavar="FILE", help="everything that was found")
    add("--csv", type=Path, metavar="FILE", help="one line for each op and case")
    add("--markdown", type=Path, metavar="FILE", help="the tables")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``map``.

    Raises:
        UsageError: the command asks for what is not recorded, or names a file that cannot be read or written.
    """
    arguments = parser().parse_args(argv)
    outputs.check({f"--{name}": getattr(arguments, name) for name in ("plot", "json", "csv", "markdown")})
    if arguments.plot:
        from compare.report import plots

        plots.check(arguments.plot)

    from compare.history.map import reading, survey

    files = reading.files_of(arguments.records)
    if not files:
        from compare.device import gpu_name

        files = reading.recorded_here(gpu_name())
    runs = reading.read(files)
    known = sorted({run.op for run in runs})
    for op in arguments.ops:
        if op not in known:
            raise UsageError(registry.unknown("op on record", op, known))
    found = survey.survey(runs, reading.hashes(arguments.ops or known), arguments.ops, arguments.only)

    from compare.report import maps, terminal

    whole = bool(arguments.all or arguments.ops or len(known) == 1)
    made = ((arguments.csv, maps.as_csv), (arguments.markdown, maps.as_markdown))
    writes = [partial(outputs.write, file, make(found)) for file, make in made if file]
    writes.append(partial(outputs.write_json, arguments.json, found))
    if arguments.plot:
        writes.append(partial(plots.draw, found, arguments.plot))
    outputs.beside(lambda: terminal.put(lambda width: maps.render(found, width, whole=whole)), writes)
    return 0
