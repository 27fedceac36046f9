"""``--trace``: Chrome's trace format, read back."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import made_up
from compare import cli
from compare.command_line.status import USAGE
from compare.model.op import UsageError
from compare.report.trace import Timeline
from compare.worker.checking import CheckOutcome

CASE = "on N=64,fp32"
PHASE = "building kernels and checking"


def events_of(text: str) -> tuple[list[dict[str, Any]], dict[tuple[int, int], tuple[str, str]]]:
    """The spans, and the names of process and thread by their numbers; all by the format's rules."""
    names: dict[str, dict[tuple[int, int], str]] = defaultdict(dict)
    spans = []
    for event in json.loads(text)["traceEvents"]:
        place = event["pid"], event["tid"]
        assert all(isinstance(number, int) and number > 0 for number in place)
        if event["ph"] == "M":
            names[event["name"]][place] = event["args"]["name"]
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert event["name"]
            spans.append(event)
    places = {place: (names["process_name"][place], name) for place, name in names["thread_name"].items()}
    assert {(span["pid"], span["tid"]) for span in spans} == {*places}
    return spans, places


def test_steps_and_the_parts_of_a_worker_are_spans() -> None:
    clock_s = iter([100.0, 100.0, 102.0, 104.0, 105.0, 108.0])
    trace = Timeline(lambda: next(clock_s))
    progress = trace.beside("softmax", lambda what, done: None)
    outcome = CheckOutcome(
        seconds={
            "ready after": 0.5,
            "a context of": 0.4,
            "waited": 0.25,
            "checked in": 1.0,
            "put away in": 0.0,
        }
    )
    trace("importing PyTorch")
    for what in (
        f"{PHASE}, 0 of 2 implementations {CASE}",
        f"{PHASE}, 1 of 2 implementations (last triton.online:BLOCK=64: {outcome})",
        "timing N=64,fp32",
    ):
        progress(what, 0.0)
    spans, places = events_of(trace.dumps())
    shown = [(*places[s["pid"], s["tid"]], s["name"], s["ts"] / 1e6, s["dur"] / 1e6) for s in spans]
    worker = ("softmax", "triton.online:BLOCK=64")
    steps = ("softmax", "steps of the run")
    assert sorted(shown) == [
        ("softmax", "steps of the run", PHASE, 2.0, 3.0),
        (*steps, "timing N=64,fp32", 5.0, 3.0),
        (*worker, "check", 3.0, 1.0),
        (*worker, "end", 4.0, 0.0),
        (*worker, "start the worker", 2.25, 0.5),
        (*worker, "wait for the reference", 2.75, 0.25),
        ("start and end", "steps of the run", "importing PyTorch", 0.0, 2.0),
    ]
    assert len({pid for pid, _ in places}) == 2


def test_it_is_written_where_the_run_failed_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(op: object, options: object, progress: Any) -> object:
        progress("reading sources", 0.5)
        if options.seed:  # type: ignore[attr-defined]
            raise UsageError("too large for this device")
        return made_up.comparison()

    monkeypatch.setattr("compare.run.run", run)
    file = tmp_path / "trace.json"
    for seed, status in (("0", 0), ("1", USAGE)):
        assert cli.main(["softmax", "--trace", str(file), "--seed", seed]) == status
        spans, places = events_of(file.read_text())
        names = {(places[span["pid"], span["tid"]][0], span["name"]) for span in spans}
        assert {("softmax", "reading sources"), ("start and end", "importing PyTorch")} <= names
    assert "too large" in capsys.readouterr().err
