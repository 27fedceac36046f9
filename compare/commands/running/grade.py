"""``python -m compare grade``: marks of a submission or of a class, shown and written."""

from __future__ import annotations

import argparse
import signal
from functools import partial

from compare.command_line import outputs, status
from compare.commands.running import marked
from compare.labs import classroom, similarity
from compare.labs.lab import Lab, read
from compare.labs.marking import Marks
from compare.report import labs as pages
from compare.report import terminal
from compare.sandbox import isolation
from compare.sandbox.words import printable
from compare.spec import UsageError
from compare.worker.start import prepare


def run(arguments: argparse.Namespace) -> int:
    """Mark, show and write; the exit status."""
    whole_class = classroom.is_class(arguments.folder)
    folders = classroom.submissions(arguments.folder) if whole_class else [arguments.folder]
    if arguments.gradescope and len(folders) > 1:
        raise UsageError("--gradescope is for one submission; give its folder")
    if arguments.rubric:
        read(arguments.rubric)
    if arguments.similar:
        similarity.library()  # if it is missing, before anything is marked
    found_here = isolation.found()
    if not (found_here.holds or arguments.unsafe):
        why = "; ".join(found_here.refused)
        raise UsageError(
            f"submissions would run with all your rights: this machine offers no isolation ({why}). "
            "--unsafe marks them all the same"
        )
    prepare(arguments.device)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: marks so far are kept
    keep = arguments.keep or (arguments.folder / classroom.KEPT if whole_class else None)
    if keep:
        keep = outputs.made(keep)
    try:
        found = classroom.mark(
            folders, arguments.rubric, arguments.device, arguments.jobs, arguments.timeout, keep, marked.say
        )
    except KeyboardInterrupt:
        if keep is None or not any(keep.iterdir()):
            raise
        marked.say(f"interrupted: the marks so far are in {keep}; the same command goes on from there")
        return status.INCONCLUSIVE
    labs = [read(arguments.rubric)] if arguments.rubric else classroom.labs_of(found)
    similar = None
    if arguments.similar:
        similar = [pair for lab in labs for pair in similarity.pairs(lab, folders)]
    page = pages.class_page(labs, found, similar)
    writes = [
        partial(outputs.write, arguments.csv, pages.csv(found)),
        partial(outputs.write, arguments.junit, pages.junit(found)),
        partial(outputs.write, arguments.markdown, page),
        partial(outputs.write, arguments.html, pages.html(page, "Marks")),
        partial(outputs.write, arguments.gradescope, pages.gradescope(found[0])),
        partial(outputs.write_json, arguments.json, found),
    ]
    outputs.beside(lambda: _show(found, labs, similar), writes)
    return marked.status_of(found)


def _show(found: list[Marks], labs: list[Lab], similar: list[similarity.Pair] | None) -> None:
    if len(found) == 1:
        terminal.put(lambda width: marked.screen(pages.marks_table(found[0]), width))
        return
    title = ", ".join(f"Lab {lab.number}: {lab.title}" for lab in labs)
    table = pages.class_table(found, title)
    terminal.put(lambda width: marked.screen(table, width))
    similar = similar or []
    for pair in similar[:_SHOWN]:
        print(printable(f"similar: {pair.first} and {pair.second}, {pair.file}: {pair.share:.0%}"))
    if len(similar) > _SHOWN:
        print(f"similar: {len(similar) - _SHOWN} more pairs; --html FILE lists all")


_SHOWN = 10
"""Pairs with similar code on the screen."""
