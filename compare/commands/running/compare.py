"""``python -m compare OP`` and ``all``: the ops compared one after another, shown, written and recorded."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from compare import device as machine
from compare import registry
from compare import run as driver
from compare.command_line import outputs, status
from compare.commands.running import asked
from compare.records import archive
from compare.report import csv_file, markdown, terminal
from compare.report.progress import of_run
from compare.report.steps import Steps
from compare.report.summary import View
from compare.spec import Comparison, Op, Options, UsageError
from compare.stages.checking import left_out
from compare.tuning.matching import stand_ins

if TYPE_CHECKING:
    import torch

_START_S = 4.0
"""To start workers and to compile, for each op,"""
_CHECK_S = 0.25
"""and to check an implementation on a smoke case: on two cores, with what earlier runs have compiled."""


def run(arguments: argparse.Namespace, device: torch.device, told: Steps | None) -> int:
    """Compare the ops that ``arguments`` ask for; the exit status."""

    def say(what: str) -> None:
        if told:
            told(what)

    html = asked.html(arguments.html)
    if arguments.record and device.type != "cuda":
        raise UsageError("--record needs a GPU: without one nothing is timed, so there is nothing to record")
    say("importing the implementations")
    names = asked.load(arguments.load, arguments.timeout, None if arguments.what == "all" else arguments.what)
    if arguments.matched:
        _check_matched(names, arguments.only)
    # A mistake in any of them is found before the first is run.
    work = [(op, asked.options(op, arguments)) for op in asked.having(names, arguments.only)]

    if device.type != "cuda" and (arguments.sweep or len(work) > 1):
        print(_estimate(work, device), file=sys.stderr, flush=True)

    done: list[Comparison] = []
    statuses: list[int] = []
    failures: list[str] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: results so far are written
    try:
        for op, options in work:
            with of_run(op.name, told) as progress:
                comparison = driver.run(op, options, progress)
            say("printing")
            done.append(comparison)
            if arguments.record:  # a failure is reported at the end: the next op is compared all the same
                failures += outputs.failures([partial(_record, comparison)])
            if len(done) > 1:
                print("\n")
            yours = frozenset(impl.label for impl in registry.implementations(op.name) if impl.foreign)
            statuses.append(status.of(comparison, yours))
            view = View(arguments.every, arguments.explain, arguments.details, bool(html), yours)
            terminal.show(comparison, view)
            sys.stdout.flush()
            if comparison.interrupted:
                break
    finally:
        if done:
            say("writing files")
            writes = outputs.writes(arguments, done, archive.dumps, csv_file.dumps, markdown.dumps, html)
            failures += outputs.failures(writes)
    if failures:
        raise UsageError("; ".join(failures))
    return status.worst(statuses)


def _estimate(work: Sequence[tuple[Op, Options]], device: torch.device) -> str:
    """``about 10 s: 3 smoke cases x 11 implementations``: what a run without a GPU checks."""
    cases = checks = 0
    for op, options in work:
        steps = [step for step in driver.plan(op, options, device.type) if step.check]
        able = [
            impl
            for impl in registry.implementations(op.name, options.only)
            if machine.supports(impl, device) is None
        ]
        cases += len(steps)
        checks += sum(not left_out(options, impl, step.case) for step in steps for impl in able)
    what = f"x {checks / max(1, cases):.0f} implementations" if len(work) == 1 else f"of {len(work)} ops"
    seconds = _START_S * len(work) + _CHECK_S * checks
    return f"about {seconds:.0f} s, more on the first run: {cases} smoke cases {what}; times are replayed"


def _record(comparison: Comparison) -> None:
    print(f"recorded in {archive.record(comparison)}", file=sys.stderr)


def _check_matched(names: Sequence[str], only: Sequence[str]) -> None:
    chosen = [registry.implementations(op.name, only) for op in asked.having(names, only)]
    if any(impl.base for impls in chosen for impl in stand_ins(impls)):
        return
    every = [impl for name in registry.op_names() for impl in registry.implementations(name)]
    pairs = [f"{impl.op}'s {impl.label} that of {impl.matches}" for impl in every if impl.matches]
    raise UsageError(
        "--matched: none of these implementations can run with the configuration of another. Those that can: "
        f"{', '.join(pairs)}; both have to be among the rows (--only)"
    )
