"""Marks of a lab's submission, or of a class.

examples:
  python -m compare grade alice/
  python -m compare grade alice/ --rubric labs/09_odd_shapes/lab.toml --gradescope results.json
  python -m compare grade class/ --csv marks.csv --html class.html --similar --jobs 2
  python -m compare grade class/ --cluster local
  python -m compare grade class/ --latest --canvas canvas.csv --feedback pages/
  python -m compare grade class/ --regrade "Ann Lee:whole blocks"

A class is a folder with a folder or a .zip for each student. Its marks are kept in class/_marks/: a stopped
run goes on where it was, unchanged work is not marked again, and marks never fall. Points for written
answers come from class/_marks/answers.csv: fill in its column "points". A line there overrides any part.
A course.toml in the class's folder, or beside it, has the roster, submission times, a due date and a late
rule: labs/course.md. --regrade replaces the marks of one student, or of one group, task or part; all others'
stay as they are, and so does answers.csv.
Ctrl-C, SIGTERM and SIGHUP write what there is. All runs of one submission together may take 300 s and ten
times --timeout.

exit status:
  0  everything passed
  1  something is wrong or missing
  2  a mistake in the command or its files
  3  inconclusive: a speed is too close to its threshold to tell, or a submission
     was not marked. It costs no points
  4  a submission raised an error or does not compile
  5  a submission took too long
  6  a fault of the machine: the reference failed too. It costs no points; run it again

Where several apply, the first of 6, 5, 4, 1 and 3 counts.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from compare.cluster import packages
from compare.command_line import options, outputs, status
from compare.model.op import UsageError
from compare.model.result import Options

if TYPE_CHECKING:
    from compare.labs.by_hand import Table
    from compare.labs.classroom import MarkingOptions, Pair
    from compare.labs.course import Course
    from compare.labs.hand_ins import HandIn
    from compare.labs.lab import Lab
    from compare.labs.marking import Marks
    from compare.labs.roster import Person

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
    options.add_cluster(add, "mark on many GPUs, a submission on each")
    add("--others", type=Path, help=argparse.SUPPRESS)  # a task of --cluster: the class's folder
    add("--keep", type=Path, metavar="DIR", help="keep marks there (default: of a class, its _marks/)")
    marks = "points that you give; lines for answers are added (default: of a class, its _marks/answers.csv)"
    add("--by-hand", type=Path, metavar="CSV", help=marks)
    course = "roster, times, due date and late rule (default: a course.toml in DIR, or beside it)"
    add("--course", type=Path, metavar="FILE", help=course)
    add("--latest", action="store_true", help="of several hand-ins of one student mark the last")
    add(
        "--anonymous",
        action="store_true",
        help="show keyed hashes in place of students; the key is in --keep",
    )
    add("--regrade", metavar="STUDENT[:GROUP]", help="mark one student's work, or one group of it, anew")
    add("--similar", action="store_true", help="list submissions with similar code, or with the project's")
    options.add_repeatable(add, "--against", "DIR", "with --similar: earlier years' submissions, too")
    add("--unsafe", action="store_true", help="mark also where nothing isolates submissions")
    options.add_file(add, "json", "all marks")
    options.add_file(add, "csv", "one line for each submission")
    options.add_file(add, "canvas", "points for Canvas's gradebook, as CSV")
    options.add_file(add, "moodle", "points for Moodle's gradebook, as CSV")
    options.add_file(add, "junit", "JUnit XML: a test for each part")
    options.add_file(add, "gradescope", "Gradescope's results.json, of one submission")
    options.add_file(add, "markdown", "the page of a class")
    options.add_file(add, "html", "the page of a class, as HTML")
    add("--feedback", type=Path, metavar="DIR", help="a page for each student, as HTML")


def run(arguments: argparse.Namespace) -> int:
    """Mark, show and write; the exit status."""
    if arguments.folder is None:
        raise UsageError("grade takes a folder: python -m compare grade DIR")
    if arguments.against and not arguments.similar:
        raise UsageError("--against goes with --similar")
    options.check_folders([arguments.folder, *map(Path, arguments.against)])
    if not 1 <= arguments.jobs <= _MAX_JOBS:
        raise UsageError(f"--jobs {arguments.jobs}: give a number from 1 to {_MAX_JOBS}")
    if arguments.cluster and arguments.jobs > 1:
        raise UsageError("--jobs is for one machine: with --cluster each GPU has one submission at a time")
    if arguments.timeout is not None:
        options.check_timeout(arguments.timeout)
    if not arguments.gradescope or (arguments.gradescope.exists() and not arguments.gradescope.is_file()):
        return grade(arguments)  # a pipe takes the results only
    # A grader that is killed leaves this; one that is stopped, or cannot begin, the reason.
    _put_unfinished(arguments.gradescope, "it runs still, or was killed. Ask for another run")
    try:
        return grade(arguments)
    except UsageError as error:
        _put_unfinished(arguments.gradescope, str(error))
        raise
    except KeyboardInterrupt:
        _put_unfinished(arguments.gradescope, "it was stopped. Ask for another run")
        raise


def _put_unfinished(file: Path, reason: str) -> None:
    from compare.report import gradescope  # start-up

    outputs.write(file, gradescope.unfinished(reason))


@dataclass(frozen=True)
class _Class:
    """What is marked: hand-ins, and how they are named and kept."""

    course: Course
    hand_ins: list[HandIn]
    keep: Path | None
    table_file: Path | None
    table: Table
    notes: list[str]
    """Of hand-ins that are missing, of no student, or replaced by later ones."""
    absent: list[Person] = field(default_factory=list)
    hide: Callable[[str], str] = str
    """Puts other names in place of students' own, where these are not shown."""


def _class_of(arguments: argparse.Namespace, whole: bool, unpacked: Path) -> _Class:
    """The hand-ins of a folder, identified.

    Args:
        arguments: of the command.
        whole: whether the folder is a class's.
        unpacked: where zips are unpacked.
    """
    from compare.labs import anonymous, by_hand, classroom, course, hand_ins, roster

    if arguments.others:  # who it is of, and what is due, is known where the class is
        alone = hand_ins.HandIn(arguments.folder.name, arguments.folder, others=arguments.others)
        return _Class(course.Course(), [alone], None, None, {}, [])
    keep = arguments.keep or (arguments.folder / classroom.KEPT if whole else None)
    keep = outputs.create_folder(keep) if keep else None
    for option in ("anonymous", "regrade"):
        if getattr(arguments, option) and not keep:
            raise UsageError(f"--{option} needs the folder of kept marks: add --keep DIR")
    terms = course.read(arguments.course) if arguments.course else course.find(arguments.folder)
    students, older = [hand_ins.of_one(arguments.folder, terms)], list[hand_ins.HandIn]()
    if whole:
        students, older = hand_ins.of_class(arguments.folder, unpacked, terms, arguments.latest)
    people = terms.people()
    absent = roster.missing(people, (each.person for each in students)) if whole else []
    has_aliases = keep and (arguments.anonymous or (keep / anonymous.KEY).exists())
    aliases = anonymous.Aliases(keep) if keep and has_aliases else None
    names = {aliases.of_hand_in(each): each.student for each in students} if aliases else {}
    if arguments.anonymous and aliases:
        students = aliases.renamed(students, people.people)
        older = [replace(each, student=aliases.of_hand_in(each)) for each in older]
        absent = [replace(each, name=aliases.of(each.id), id="", email="") for each in absent]
    table_file = arguments.by_hand or (keep / by_hand.NAME if keep and whole else None)
    table = by_hand.read(table_file) if table_file else {}
    names |= {name: each.student for each in students for name in each.names}
    table, unknown = by_hand.under(table, names)
    hide = anonymous.hider(students) if arguments.anonymous else str
    notes = [*hand_ins.notes(students, older, absent, bool(people.people)), *(unknown if whole else ())]
    return _Class(terms, students, keep, table_file, table, list(map(hide, notes)), absent, hide)


def grade(arguments: argparse.Namespace) -> int:
    from compare.labs import by_hand, classroom, hand_ins
    from compare.labs.lab import read
    from compare.labs.running import COMMAND_MODULES, stop_on_signals
    from compare.sandbox import isolation
    from compare.worker.start import prepare

    whole_class = not arguments.others and hand_ins.is_class(arguments.folder)
    if arguments.gradescope and whole_class:
        raise UsageError("--gradescope is for one submission; give its folder")
    rubric = read(arguments.rubric) if arguments.rubric else None
    if arguments.similar:
        classroom.similarity_library()  # if it is missing, before anything is marked
    if arguments.feedback:
        outputs.create_folder(arguments.feedback)
    here = isolation.found()
    if not (here.holds or arguments.unsafe or arguments.cluster not in (None, "local")):
        raise UsageError(
            f"submissions would run with all your rights: this machine {here.lack}. "
            "--unsafe marks them all the same"
        )
    elsewhere = _on_cluster(arguments) if arguments.cluster else None
    on_cpu = not elsewhere and prepare(arguments.device, commands=COMMAND_MODULES).type == "cpu"
    timeout_s = arguments.timeout or (_ON_CPU_S if on_cpu else Options.timeout_s)
    stop = stop_on_signals()
    unpacked = arguments.folder / f"{hand_ins.UNPACKED}{os.getpid()}"
    similar = None
    try:
        students = _class_of(arguments, whole_class, unpacked)
        how = classroom.MarkingOptions(arguments.device, timeout_s, arguments.jobs, stop, elsewhere)
        marks, interrupted = _marked(arguments, students, how)
        labs = [rubric] if rubric else classroom.labs_of(marks)
        if arguments.similar and not interrupted:
            against = [Path(folder) for folder in arguments.against]
            similar = [pair for lab in labs for pair in classroom.similar(lab, students.hand_ins, against)]
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
    file = students.table_file
    if file and (added := by_hand.extend(file, students.table, marks)):
        outputs.say(f"{added} answers to be read: fill in their points in {file}, and run this again")
    marks = _settled(students, marks)
    _write_and_show(arguments, students, labs, marks, similar)
    if interrupted:
        where = f"the marks so far are in {students.keep}; " if students.keep else ""
        outputs.say(f"not all are marked: {where}the same command goes on from there")
    return status.INCONCLUSIVE if interrupted else status.of_marks(marks)


def _on_cluster(arguments: argparse.Namespace) -> Callable[..., Iterator[tuple[HandIn, Marks | str]]]:
    with packages():
        from compare.cluster import grading

    return partial(grading.marks, arguments)


def _marked(arguments: argparse.Namespace, students: _Class, how: MarkingOptions) -> tuple[list[Marks], bool]:
    """Marks as they are kept, and whether some are missing."""
    from compare.labs import classroom, regrade

    def say(step: str) -> None:
        outputs.say(students.hide(step))

    if arguments.regrade and students.keep:
        return regrade.regrade(
            students.hand_ins, arguments.regrade, arguments.rubric, how, students.keep, say
        )
    return classroom.mark(students.hand_ins, arguments.rubric, how, students.keep, say)


def _settled(students: _Class, marks: Sequence[Marks]) -> list[Marks]:
    """Marks with an instructor's points, the late rule and ids: what all pages and files are made of."""
    from compare.labs import anonymous, by_hand, course

    settled = []
    for each, hand_in in zip(marks, students.hand_ins, strict=True):
        due = students.course.due_of(hand_in.names)
        each = course.with_lateness(by_hand.merged(each, students.table), due, students.course.late)
        if hand_in.person:
            each = replace(each, id=hand_in.person.id, email=hand_in.person.email)
        settled.append(each)
    if students.hide is str:
        return settled
    # The order of names would tell them.
    return sorted((anonymous.hidden(each, students.hide) for each in settled), key=lambda each: each.student)


def _write_and_show(
    arguments: argparse.Namespace,
    students: _Class,
    labs: list[Lab],
    marks: list[Marks],
    similar: list[Pair] | None,
) -> None:
    from compare.labs.hand_ins import key_of
    from compare.report import feedback, gradebook, gradescope
    from compare.report import labs as pages

    def page(_: list[Marks]) -> str:
        return pages.class_page(labs, marks, similar, students.notes)

    writes = outputs.writes(
        *(arguments, marks),
        json=outputs.as_json,
        csv=pages.csv,
        canvas=lambda marks: gradebook.canvas(marks, labs, students.absent),
        moodle=lambda marks: gradebook.moodle(marks, labs, students.absent),
        junit=pages.as_junit,
        gradescope=lambda marks: gradescope.results(marks[0], labs),
        markdown=page,
        html=lambda marks: pages.html(page(marks), "Marks"),
    )
    for each in marks if arguments.feedback else ():
        file = arguments.feedback / f"{key_of(each.student)}.html"
        writes.append(partial(outputs.write, file, feedback.page(each, labs)))
    outputs.beside(lambda: pages.put_marks(labs, marks, similar, students.notes), writes)
