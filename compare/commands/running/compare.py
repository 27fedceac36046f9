"""``python -m compare OP`` and ``all``: the ops compared one after another, shown, written and recorded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from compare import registry
from compare import run as driver
from compare.command_line import outputs, status
from compare.commands.running import asked
from compare.records import archive
from compare.report import csv_file, markdown, terminal
from compare.report.html import page
from compare.report.progress import of_run
from compare.report.steps import Steps
from compare.report.summary import View
from compare.spec import Comparison, UsageError
from compare.tuning.matching import stand_ins

if TYPE_CHECKING:
    import torch


def run(arguments: argparse.Namespace, device: torch.device, told: Steps | None) -> int:
    """Compare the ops that ``arguments`` ask for; the exit status."""

    def say(what: str) -> None:
        if told:
            told(what)

    if arguments.record and device.type != "cuda":
        raise UsageError("--record needs a GPU: without one nothing is timed, so there is nothing to record")
    asked.check_timer(arguments, device.type)
    say("importing the implementations")
    names = asked.load(arguments.load, arguments.timeout, None if arguments.what == "all" else arguments.what)
    if arguments.matched:
        _check_matched(names, arguments.only)
    # All of them are understood before the first is run.
    work = [(op, asked.options(op, arguments)) for op in asked.having(names, arguments.only)]

    done: list[Comparison] = []
    unrecorded: list[str] = []
    unwritten: list[str] = []
    for op, options in work:
        with of_run(op.name, told) as progress:
            comparison = driver.run(op, options, progress)
        say("writing and printing")
        done.append(comparison)
        # What cannot be kept is on the screen all the same, and the next op is compared.
        if arguments.record:
            unrecorded += outputs.failures([partial(_record, comparison)])
        writes = outputs.writes(arguments, done, archive.dumps, csv_file.dumps, markdown.dumps, page.dumps)
        unwritten = outputs.failures(writes)  # of all ops so far: the last time counts
        if len(done) > 1:
            print("\n")
        yours = frozenset(impl.label for impl in registry.implementations(op.name) if impl.foreign)
        terminal.show(comparison, View(arguments.every, arguments.explain, arguments.details, yours))
        sys.stdout.flush()
        if comparison.interrupted:
            break
    if unrecorded or unwritten:
        raise UsageError("; ".join([*unrecorded, *unwritten]))
    return status.worst(map(status.of, done))


def _record(comparison: Comparison) -> None:
    print(f"recorded in {archive.record(comparison)}", file=sys.stderr)


def _check_matched(names: Sequence[str], only: Sequence[str]) -> None:
    chosen = [registry.implementations(op.name, only) for op in asked.having(names, only)]
    if any(impl.base for impls in chosen for impl in stand_ins(impls)):
        return
    every = [impl for name in registry.op_names() for impl in registry.implementations(name)]
    pairs = [f"{impl.op}'s {impl.label} that of {impl.matches}" for impl in every if impl.matches]
    raise UsageError(
        "--matched: nothing that was asked for can be run with the configuration of another. What can: "
        f"{', '.join(pairs)}; both have to be among the rows (--only)"
    )
