"""All that is on record of an op: every recorded case, registers, shared memory and occupancy of
its kernels, and its code size. Needs no GPU.

examples:
  python -m compare show softmax
  python -m compare show softmax --case M=4096,N=4096,fp32 --only 'triton.*'
  python -m compare show softmax --html softmax.html
  python -m compare show all --csv all.csv
  python -m compare show softmax --records run.json

exit status:
  0  shown
  2  a mistake in the command or its files, or nothing is recorded
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from compare import registry
from compare.command_line import installed, options, outputs, status
from compare.model.op import Case, UsageError
from compare.model.result import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("op", metavar="OP|all", help="the op, or all that are on record")
    options.add_repeatable(add, "--case", "CASE", "only this case, e.g. M=4096,N=781,fp16")
    options.add_only(add, ", e.g. 'triton.*', and the baseline")
    options.add_records(add)
    options.add_tables(add, "all figures, raw samples included", "implementation and case")
    options.add_page(add)
    options.add_junit(add)


def run(arguments: argparse.Namespace) -> int:
    """Show the records of ``--records``, by default those of this machine; the exit status."""
    if arguments.case and arguments.op == "all":
        raise UsageError("--case goes with one op, as sizes differ by op; name it instead of 'all'")
    from compare.history import reading
    from compare.report import terminal

    files = reading.files_of(arguments.records)
    renderers = outputs.renderers(arguments)
    every = _on_record(arguments.op, files)
    labels = [row.label for one in every for case in one.cases for row in case.rows]
    options.check_only(arguments.only, labels, "implementation on record")
    comparisons = [shown for one in every if (shown := _chosen(one, arguments.case, arguments.only)).cases]
    if not comparisons:
        where = " or ".join(arguments.case)
        raise UsageError(f"no implementation of --only is on record on {where}: leave one out")
    writes = outputs.writes(arguments, comparisons, **renderers)
    outputs.beside(lambda: terminal.put(lambda width: _rendered(comparisons, width)), writes)
    return status.SUCCESS


def _on_record(op: str, files: Sequence[Path]) -> list[Comparison]:
    """All that is on record of an op, or of each op.

    Raises:
        UsageError: nothing is, or the files are of several devices.
    """
    from compare.history import reading
    from compare.history.recorded import merged

    names = [] if op == "all" else [op]
    if not files:
        here = reading.recorded_here(installed.gpu_name, names)
        files = [file for file in here if not names or file.stem in names] or here
    runs = reading.read(files)
    reading.check_device(runs)
    on_record = sorted({run.op for run in runs})
    known = ["all", *sorted({*on_record, *registry.op_names()})]
    if op not in known:
        raise UsageError(registry.unknown("op", op, known))
    by_op = [merged([run for run in runs if run.op == name]) for name in names or on_record]
    comparisons = [comparison for comparison in by_op if comparison]
    if not comparisons:
        record = f"python -m compare {op} --sweep --record"
        raise UsageError(f"nothing is recorded of {op}: on a machine with a GPU, run {record}")
    return comparisons


def _chosen(comparison: Comparison, cases: Sequence[str], only: Sequence[str]) -> Comparison:
    """Of these cases and implementations, and each case's baseline; without cases, if it has none of them.

    Raises:
        UsageError: a case is not on record.
    """
    from compare.timing import figures

    known = [case.case for case in comparison.cases]
    chosen = list(cases)
    if comparison.op in registry.op_names():
        chosen = [str(Case.parse(text, registry.get_op(comparison.op))) for text in cases]
    for text in chosen:
        if text not in known:
            raise UsageError(registry.unknown(f"case on record of {comparison.op}", text, known))
    kept = []
    for case in comparison.cases:
        among = {row.label for row in case.rows if registry.is_among(row.label, only)}
        if among and (not chosen or case.case in chosen):
            among.add(figures.baseline_of(case))
            kept.append(replace(case, rows=tuple(row for row in case.rows if row.label in among)))
    labels = {row.label for case in kept for row in case.rows}
    sizes = {label: size for label, size in comparison.code_sizes.items() if label in labels}
    return replace(comparison, cases=tuple(kept), code_sizes=sizes)


def _rendered(comparisons: Sequence[Comparison], width: int) -> str:
    """Where and when all is from, each op's tables, and how to see the rest."""
    from compare.report import terminal

    dates = sorted({row.run[:10] for one in comparisons for case in one.cases for row in case.rows})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    device = comparisons[0].environment.device
    blocks = [terminal.paragraph(f"From records of {device}, {when}; nothing is measured now.", width)]
    for one in comparisons:
        blocks += [terminal.paragraph(f"{one.op}  {one.signature}", width), *terminal.details(one, width)]
    last = comparisons[-1]
    case = f"show {last.op} --case {last.cases[-1].case}\n      " if len(last.cases) > 1 else ""
    blocks.append(f"NEXT  {case}--csv {last.op}.csv · --html {last.op}.html")
    return "\n\n".join(blocks)
