"""Marks of a lab's submission, or of a class.

examples:
  python -m compare grade alice/
  python -m compare grade alice/ --rubric labs/09_odd_shapes/lab.toml --gradescope results.json
  python -m compare grade class/ --csv marks.csv --html class.html --similar --jobs 2

A class is a folder with a folder or a .zip for each student. Its marks are kept in class/_marks/: a stopped
run goes on where it was, unchanged work is not marked again, and marks never fall. Points for written
answers come from class/_marks/answers.csv: fill in its column "points". A line there overrides any part.
Ctrl-C, SIGTERM and SIGHUP write what there is. All runs of one submission together may take 300 s and ten
times --timeout.

exit status:
  0  everything passed
  1  something is wrong or missing
  2  a mistake in the command or its files
  3  inconclusive: a speed is too close to its threshold to tell. It costs no points
  4  a submission raised an error or does not compile
  5  a submission took too long
  6  a fault of the machine: the reference failed too. It costs no points; run it again

Where several apply, the first of 6, 5, 4, 1 and 3 counts.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from compare.command_line import options, outputs, status
from compare.model.op import UsageError
from compare.model.result import Options

if TYPE_CHECKING:
    from compare.labs.classroom import Pair
    from compare.labs.lab import Lab
    from compare.labs.marking import Marks

_MAX_JOBS = 64
_ON_CPU_S = 20.0
"""A lab's cases take a few seconds there; while others have the cores, a step gets up to twice as long."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", nargs="?", type=Path, metavar="DIR", help="a submission, or a folder of submissions")
    add("--rubric", type=Path, metavar="FILE", help="a lab.toml (default: as answers.toml says)")
    options.add_device(add)
    options.add_timeout(add, None, f"; without a GPU: {_ON_CPU_S:.0f}")
    add("--jobs", type=int, default=1, metavar="N", help="check N submissions at a time (default: 1)")
    add("--keep", type=Path, metavar="DIR", help="keep marks there (default: of a class, its _marks/)")
    marks = "points that you give; lines for answers are added (default: of a class, its _marks/answers.csv)"
    add("--by-hand", type=Path, metavar="CSV", help=marks)
    add("--similar", action="store_true", help="list submissions with similar code, or with the project's")
    options.add_repeatable(add, "--against", "DIR", "with --similar: earlier years' submissions, too")
    add("--unsafe", action="store_true", help="mark also where nothing isolates submissions")
    options.add_file(add, "json", "all marks")
    options.add_file(add, "csv", "one line for each submission")
    options.add_file(add, "junit", "JUnit XML")
    options.add_file(add, "gradescope", "Gradescope's results.json, of one submission")
    options.add_file(add, "markdown", "the page of a class")
    options.add_file(add, "html", "the page of a class, as HTML")


def run(arguments: argparse.Namespace) -> int:
    """Mark, show and write; the exit status."""
    if arguments.folder is None:
        raise UsageError("grade takes a folder: python -m compare grade DIR")
    if not arguments.folder.is_dir():
        raise UsageError(f"{arguments.folder}: there is no such folder")
    if not 1 <= arguments.jobs <= _MAX_JOBS:
        raise UsageError(f"--jobs {arguments.jobs}: give a number from 1 to {_MAX_JOBS}")
    if arguments.timeout is not None:
        options.check_timeout(arguments.timeout)
    return grade(arguments)


def grade(arguments: argparse.Namespace) -> int:
    from compare.labs import by_hand, classroom, hand_ins
    from compare.labs.lab import read
    from compare.labs.running import stop_on_signals
    from compare.sandbox import isolation
    from compare.worker.start import prepare

    whole_class = hand_ins.is_class(arguments.folder)
    if arguments.gradescope and whole_class:
        raise UsageError("--gradescope is for one submission; give its folder")
    rubric = read(arguments.rubric) if arguments.rubric else None
    if arguments.similar:
        classroom.similarity_library()  # if it is missing, before anything is marked
    here = isolation.found()
    if not (here.holds or arguments.unsafe):
        raise UsageError(
            "submissions would run with all your rights: this machine offers no isolation "
            f"({'; '.join(here.refused)}). --unsafe marks them all the same"
        )
    device = prepare(arguments.device)
    timeout_s = arguments.timeout
    if timeout_s is None:
        timeout_s = _ON_CPU_S if device.type == "cpu" else Options.timeout_s
    stop = stop_on_signals()
    keep = arguments.keep or (arguments.folder / classroom.KEPT if whole_class else None)
    if keep:
        keep = outputs.create_folder(keep)
    table_file = arguments.by_hand or (keep / by_hand.NAME if keep and whole_class else None)
    table = by_hand.read(table_file) if table_file else {}
    unpacked = arguments.folder / f"{hand_ins.UNPACKED}{os.getpid()}"
    similar = None
    try:
        students = (
            hand_ins.of_class(arguments.folder, unpacked)
            if whole_class
            else [hand_ins.of_one(arguments.folder)]
        )
        how = classroom.MarkingOptions(arguments.device, timeout_s, arguments.jobs, stop)
        marks, interrupted = classroom.mark(students, arguments.rubric, how, keep, outputs.say)
        labs = [rubric] if rubric else classroom.labs_of(marks)
        if arguments.similar and not interrupted:
            against = [Path(folder) for folder in arguments.against]
            similar = [pair for lab in labs for pair in classroom.similar(lab, students, against)]
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
    if table_file and (added := by_hand.extend(table_file, table, marks)):
        outputs.say(f"{added} answers to be read: fill in their points in {table_file}, and run this again")
    marks = [by_hand.merged(each, table) for each in marks]
    _write_and_show(arguments, labs, marks, similar)
    if interrupted:
        where = f"the marks so far are in {keep}; " if keep else ""
        outputs.say(f"interrupted: {where}the same command goes on from there")
    return status.INCONCLUSIVE if interrupted else status.of_marks(marks)


def _write_and_show(
    arguments: argparse.Namespace, labs: list[Lab], marks: list[Marks], similar: list[Pair] | None
) -> None:
    from compare.report import labs as pages

    def page(_: list[Marks]) -> str:
        return pages.class_page(labs, marks, similar)

    writes = outputs.writes(
        *(arguments, marks),
        json=outputs.as_json,
        csv=pages.csv,
        junit=pages.junit,
        gradescope=lambda marks: pages.gradescope(marks[0]),
        markdown=page,
        html=lambda marks: pages.html(page(marks), "Marks"),
    )
    outputs.beside(lambda: pages.put_marks(labs, marks, similar), writes)
