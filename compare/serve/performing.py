"""One run: its judge process, forked, limited in time, watched and ended with all that it has started."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from compare.labs.lab import find
from compare.labs.running import limit_s
from compare.labs.work import ANSWERS
from compare.sandbox import scratch
from compare.sandbox.environment import kept_variables
from compare.sandbox.words import printable
from compare.serve import JUDGE
from compare.serve.judge import COMMAND_LINE, EVENT, FILE
from compare.serve.orders import Event, JudgeOrder, LabOrder, RunOrder
from compare.serve.runs import PageRun
from compare.worker import server

STEP_S = 20.0
"""Time limit of one step of a user's code."""
RUN_S = 180.0
"""Of a whole run; of a lab as `grade` has it."""
_LOOK_S = 0.05
_END_S = 5.0
_MOST_BYTES = 4 << 20
"""Of what a judge process tells, and of the page of stages."""
_STEP = re.compile(r" *\d+\.\d\d s  (.*)")
_SELF = "python -m compare: "

Tell = Callable[[Event], None]


def perform(run: PageRun, device: str, tell: Tell) -> None:
    """Do a run on a device, as of `FairQueue`."""
    with tempfile.TemporaryDirectory(prefix="page-", dir=scratch.folder()) as name:
        folder, order = Path(name), run.order
        if isinstance(order, LabOrder):
            hand_in = folder / "hand_in"
            hand_in.mkdir()
            for file, text in {**order.files, ANSWERS: order.answers}.items():
                (hand_in / file).write_text(text)
            judge_order = JudgeOrder(None, name, device, STEP_S, find(order.lab).number)
        else:
            (folder / f"{FILE}{order.suffix}").write_text(order.text)
            judge_order = JudgeOrder(order, name, device, STEP_S)
        ended = _Performance(run, device, tell, folder).judged(judge_order)
    tell(ended)


@dataclass
class _Performance:
    """A run while it is performed."""

    run: PageRun
    device: str
    tell: Tell
    folder: Path
    stages: _Judge | None = None
    labels: list[str] = field(default_factory=list)

    def judged(self, order: JudgeOrder) -> Event:
        """Its last event."""
        limit = limit_s(STEP_S) if order.lab else RUN_S
        until = time.monotonic() + limit
        judge = _Judge(JUDGE, [msgspec.json.encode(order).decode()])
        try:
            while judge.alive and time.monotonic() < until and not self.run.stop.is_set:
                judge.read(self._heard)
            judge.read(self._heard)
            if judge.alive:
                late = f"it took longer than {limit:.0f} s, the limit of a run"
                return {"kind": "cancelled"} if self.run.stop.is_set else {"kind": "lost", "text": late}
            if self.labels and self.stages is None:  # on a GPU the compilers would disturb the times
                self._begin_stages()
            while self.stages and self.stages.alive and time.monotonic() < until and not self.run.stop.is_set:
                self.stages.read(self._of_stages)
            self._show_stages()
            if not judge.has_result:
                why = judge.last or "the run ended without a result"
                return {"kind": "lost", "text": why.removeprefix(_SELF)}
            return {"kind": "cancelled" if self.run.stop.is_set else "done"}
        finally:
            for each in filter(None, (judge, self.stages)):
                each.end()

    def _heard(self, event: Event) -> None:
        self.tell(event)
        if event["kind"] in ("first", "answer") and isinstance(self.run.order, RunOrder):
            if event["wrong"] or event["interrupted"] or self.run.order.tune:
                self.labels = []
                return
            self.labels = [each["label"] for each in event["verdicts"]]
            if self.stages is None and self.device == "cpu":
                self._begin_stages()

    def _begin_stages(self) -> None:
        order = self.run.order
        assert isinstance(order, RunOrder)
        file = str(self.folder / f"{FILE}{order.suffix}")
        words = ["pipeline", order.op, "--load", file, "--html", str(self.folder / "stages.html")]
        words += [word for label in self.labels for word in ("--only", label)]
        words += ["--case", order.case] if order.case else []
        words += ["--arch", order.arch] if self.device == "cpu" else []
        self.stages = _Judge(COMMAND_LINE, [*words, "--timeout", f"{STEP_S:g}"], nice=10)

    def _of_stages(self, event: Event) -> None:
        if event["kind"] != "step":
            self.tell(event)

    def _show_stages(self) -> None:
        page = self.folder / "stages.html"
        if self.stages and page.is_file() and page.stat().st_size <= _MOST_BYTES:
            self.run.stages = page.read_text()
            self.tell({"kind": "stages"})
        elif self.stages and not self.run.stop.is_set:
            why = self.stages.last.removeprefix(_SELF) or "the compilers took too long"
            self.tell({"kind": "no stages", "text": why})


class _Judge:
    """A forked process of `module`, and what it writes to stderr."""

    def __init__(self, module: str, words: Sequence[str], nice: int = 0) -> None:
        # A file: a process that is forked with a file as its stderr cannot write to a pipe in its place.
        self._written = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        command = server.Command(module, tuple(words), kept_variables())
        self._process = server.fork_command(command, self._written.fileno())
        with suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, self._process.pid, nice)
        self._rest, self._bytes = b"", 0
        self.last = ""
        """The last line that is no step and no event: why it ended."""
        self.has_result = False
        """Whether it has told a result."""

    @property
    def alive(self) -> bool:
        return self._process.wait(0.0) is None

    def read(self, tell: Tell) -> None:
        """Tell what it has written; waits a moment if that is nothing."""
        chunk = os.pread(self._written.fileno(), _MOST_BYTES - self._bytes, self._bytes)
        self._bytes += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._say(line.decode(errors="replace"), tell)
        if not chunk:
            time.sleep(_LOOK_S)

    def _say(self, line: str, tell: Tell) -> None:
        if line.startswith(EVENT):
            event = msgspec.json.decode(line[len(EVENT) :])
            self.has_result |= event["kind"] != "step"
            tell(event)
        elif step := _STEP.fullmatch(line):
            tell({"kind": "step", "text": printable(step[1])})
        elif line.strip():
            self.last = printable(line.strip())

    def end(self) -> None:
        """End it with all that it has started."""
        for sent in (signal.SIGTERM, signal.SIGKILL):  # at the first it ends its workers
            if self._process.wait(0.0) is None:
                self._process.signal_group(sent)
                self._process.wait(_END_S)
        self._written.close()
