"""A run as a trace in Chrome's JSON format, which Perfetto (ui.perfetto.dev) and speedscope.app open.

A process of the trace is the start or an op; its first thread has the steps of the run, as ``--verbose``
prints them, and every implementation that a worker built and checked has a thread of its own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # start-up: it imports rich
    from compare.report.progress import Progress

_START = "start and end"
_STEPS = "steps of the run"
_COUNTED = re.compile(r", \d+ of \d+ .*")
"""The end of a step that many workers share."""
_FINISHED = re.compile(r".*\(last (?P<label>\S+): (?P<parts>.+)\)")
_PART = re.compile(r"(?P<name>[a-z][a-z ]*) (?P<seconds>\d+\.\d+) s")
_NAMES = {
    "ready after": "start the worker",
    "built after": "build",
    "first called in": "first call",
    "waited": "wait for the reference",
    "checked in": "check",
    "more checked in": "check on hard inputs",
    "put away in": "end",
}
"""What a worker's parts are called here, in their order; others overlap them."""


class Timeline:
    """Collects the steps of a whole command.

    Args:
        clock_s: the seconds since some moment.
    """

    def __init__(self, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._clock_s = clock_s
        self._first_s = clock_s()
        self._events: list[dict[str, object]] = []
        self._threads: dict[tuple[str, str], tuple[int, int]] = {}
        self._step: tuple[str, str, float] | None = None

    def __call__(self, what: str, of: str = _START) -> None:
        """A step begins, and the one before it ends; as `Steps`.

        Args:
            what: the step's text; empty: none begins.
            of: the op that is run.
        """
        now_s = self._clock_s()
        if finished := _FINISHED.fullmatch(what):
            self._add_worker(of, finished["label"], finished["parts"], now_s)
        name = _COUNTED.sub("", what)
        if self._step is not None:
            process, before, begin_s = self._step
            if (process, before) == (of, name):
                return
            self._add(process, _STEPS, before, begin_s, now_s)
        self._step = (of, name, now_s) if name else None

    def beside(self, op: str, progress: Progress) -> Progress:
        """The ``progress`` of an op's run, whose steps come here too."""

        def step(what: str, done: float) -> None:
            self(what, op)
            progress(what, done)

        return step

    def dumps(self) -> str:
        """The document; the last step ends now."""
        self("")
        return json.dumps({"traceEvents": self._events, "displayTimeUnit": "ms"}, indent=0) + "\n"

    def _add_worker(self, op: str, label: str, parts: str, end_s: float) -> None:
        """What a worker did until now, one part after the other."""
        spans = [(_NAMES.get(part["name"]), float(part["seconds"])) for part in _PART.finditer(parts)]
        for name, seconds in reversed(spans):
            if name:
                self._add(op, label, name, end_s - seconds, end_s)
                end_s -= seconds

    def _add(self, process: str, thread: str, name: str, begin_s: float, end_s: float) -> None:
        """One span, in microseconds since the start."""
        pid, tid = self._place(process, thread)
        ts, end = (1e6 * max(0.0, s - self._first_s) for s in (begin_s, end_s))
        times = {"ts": round(ts, 3), "dur": round(end - ts, 3)}
        self._events.append({"name": name, "cat": "compare", "ph": "X", "pid": pid, "tid": tid, **times})

    def _place(self, process: str, thread: str) -> tuple[int, int]:
        """The numbers of a process and a thread, which get their names at first."""
        if (process, thread) not in self._threads:
            pids = {name: pid for (name, _), (pid, _) in self._threads.items()}
            pid = pids.get(process, len(pids) + 1)
            tid = len(self._threads) + 1
            self._threads[process, thread] = pid, tid
            for kind, name in (("process_name", process), ("thread_name", thread)):
                self._events.append({"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}})
        return self._threads[process, thread]
