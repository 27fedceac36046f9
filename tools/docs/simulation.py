"""What a simulated sweep showed: the figures of ``python -m tools.docs.simulate_sweep``, in `RESULT`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from compare.places import ROOT

RESULT = ROOT / "results" / "simulation.json"
_OP_S = 20.0
"""What an op's sweep takes on a GPU, at least: ten cases, two seconds of samples each."""

_SENTENCES = """\
With tasks that sleep for {seconds:g} s and workers that share a process with the scheduler, on {cores} cores
at a load average of {load}, {first.workers} workers did {first.per_second:.0f} tasks a second, and \
{last.workers} did {last.per_second:.0f}:
{overhead_ms:.0f} ms of overhead a task. An op's sweep takes {op_s:g} s at least, so 1,000 GPUs would end at
most {needed:.0f} tasks a second. Joining breaks first: {last.workers} workers took \
{last.start_s:.0f} s to connect and {last.admit_s:.0f} s to be
admitted; 1,000 did not fit into the process."""


@dataclass(frozen=True)
class Run:
    workers: int
    tasks: int
    start_s: float
    """Until the workers were connected,"""
    admit_s: float
    """until the first task was done,"""
    sweep_s: float
    """and from there to the last."""

    @property
    def per_second(self) -> float:
        return self.tasks / self.sweep_s


def block() -> str:
    """Three sentences for the documents."""
    kept = json.loads(RESULT.read_text())
    runs = [Run(**run) for run in kept["runs"]]
    first, last = runs[0], runs[-1]
    return _SENTENCES.format(
        seconds=kept["seconds"],
        cores=kept["cores"],
        load=kept["load"],
        first=first,
        last=last,
        overhead_ms=1e3 / last.per_second,
        op_s=_OP_S,
        needed=1000 / _OP_S,
    )
