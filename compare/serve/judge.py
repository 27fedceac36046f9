"""The process of one run: it asks the judge behind ``--load`` and ``grade``, and tells what came of it.

It is forked from a server that has imported everything, so it starts at once.  It writes to stderr: the steps
of ``--verbose``, and events, each a line of JSON behind `EVENT`.  A user's code runs in its workers only,
which cannot write there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from compare import registry
from compare.device import pick
from compare.labs import classroom, hand_ins, traces
from compare.labs.lab import find
from compare.labs.running import COMMAND_MODULES
from compare.model.op import Case, UsageError
from compare.model.result import Comparison
from compare.records import archive
from compare.report.html import lanes
from compare.sandbox.words import printable
from compare.serve import answers
from compare.serve.orders import Event, JudgeOrder, RunOrder
from compare.worker import user_files
from compare.worker.messages import Trace, TracedAccess
from compare.worker.pool import WorkerPool
from compare.worker.start import prepare

EVENT = "\x1e"
"""Begins a line with an event.  Text of a user's has no such character: `printable` replaces it."""
COMMAND_LINE = "compare.cli"
FILE = "mine"
"""The name of the user's file, without its suffix."""
_TIMING_S = 2.0
_PICTURES = 12


def main(words: Sequence[str]) -> int:
    """Do what the order, a line of JSON, says; the exit status."""
    order = msgspec.json.decode(words[0], type=JudgeOrder)
    try:
        return _mark(order) if order.lab else _run(order, order.order or RunOrder("", ""))
    except UsageError as error:
        tell({"kind": "refused", "text": printable(str(error))})
        return 2


def tell(event: Event) -> None:
    """Write an event."""
    sys.stderr.write(f"{EVENT}{msgspec.json.encode(event).decode()}\n")
    sys.stderr.flush()


# --------------------------------------------------------------------------- a kernel


def _run(order: JudgeOrder, asked: RunOrder) -> int:
    """First what is wrong on the usual cases, in a second; then everything."""
    file = Path(order.folder) / f"{FILE}{asked.suffix}"
    declared = user_files.declared(str(file), asked.op)
    labels = [each.label for each in declared]
    if not order.on_gpu and not asked.tune:
        quick = _compared(order, asked, labels, ("--no-resources", "--no-hard-inputs"))
        if quick is None:
            return 2
        first = answers.answer(quick, labels, {})
        tell({"kind": "first", **first})
        if first["wrong"] or quick.interrupted:
            return 1
    beside = [asked.beside] if asked.beside else []
    words = _tunes(declared) if asked.tune else []
    words += ["--budget", f"{_TIMING_S:g}"] if order.on_gpu else ["--arch", asked.arch]
    whole = _compared(order, asked, [*labels, *beside], words)
    if whole is None:
        return 2
    tell({"kind": "answer", **answers.answer(whole, labels, asked.predictions)})
    if not whole.interrupted and asked.suffix == ".py":
        _trace(order, asked, labels)
    return 0


def _compared(
    order: JudgeOrder, asked: RunOrder, only: Sequence[str], more: Sequence[str]
) -> Comparison | None:
    """The comparison of ``python -m compare OP --load FILE``; None: refused, and the text is on stderr."""
    out = Path(order.folder) / "run.json"
    out.unlink(missing_ok=True)
    file = Path(order.folder) / f"{FILE}{asked.suffix}"
    words = [asked.op, "--load", str(file), "--json", str(out), "--verbose", *more]
    words += ["--device", order.device, "--timeout", f"{order.timeout_s:g}"]
    words += [word for label in only for word in ("--only", label)]
    words += ["--case", asked.case] if asked.case else []
    importlib.import_module(COMMAND_LINE).main(words)
    return archive.read(out)[0] if out.is_file() else None


def _tunes(declared: Sequence[registry.implementation]) -> list[str]:
    """``--tune`` for each parameter that the user's rows declare."""
    names = dict.fromkeys(name for each in declared for name in each.tunable)
    if not names:
        raise UsageError(
            "nothing is tunable in this file: declare it in the decorator, tunable={'BLOCK_SIZE': (128, 256)}"
            ", and take it as a keyword-only parameter with a default"
        )
    return [word for name in names for word in ("--tune", name)]


def _trace(order: JudgeOrder, asked: RunOrder, labels: Sequence[str]) -> None:
    """Tell which lane accesses which element, on a small case, as the CPU runs it."""
    op = registry.get_op(asked.op)
    case = Case.parse(asked.case, op) if asked.case else op.cases.smoke[0]
    if op.cost(case).bytes > op.cost(op.cases.smoke[0]).bytes:
        case = op.cases.smoke[0]
    shown = [
        {"label": label, "svg": picture.svg, "caption": picture.caption}
        for label in labels
        for picture in map(lanes.picture, _accesses(order, asked, label, str(case))[:_PICTURES])
    ]
    tell({"kind": "lanes", "case": str(case), "pictures": shown})


def _accesses(order: JudgeOrder, asked: RunOrder, label: str, case: str) -> tuple[TracedAccess, ...]:
    """What a row accesses first, on a CPU."""
    if order.on_gpu:  # Triton's interpreter is on or off for a whole process
        return traces.of_file(asked.op, case, label, Path(order.folder) / f"{FILE}.py", order.timeout_s)
    impl = next(impl for impl in registry.implementations(asked.op, [label]) if impl.user_file)
    with suppress(Exception), WorkerPool(registry.get_op(asked.op), pick("cpu"), order.timeout_s) as pool:
        return pool.of(impl).ask(Trace(case))
    return ()  # what it raises, the check has shown


# --------------------------------------------------------------------------- a lab


def _mark(order: JudgeOrder) -> int:
    lab, folder = find(order.lab), Path(order.folder) / "hand_in"
    prepare(order.device, lab.ops, COMMAND_MODULES)
    hand_in = hand_ins.of_one(folder, hand_ins.EMPTY)
    how = classroom.MarkingOptions(order.device, order.timeout_s)
    marks, stopped = classroom.mark([replace(hand_in, student="you")], lab.path, how, None, _say)
    if not stopped:
        tell({"kind": "marks", **answers.marks(lab, marks[0])})
    return 0


def _say(step: str) -> None:
    tell({"kind": "step", "text": step})
