"""``grade --cluster``: the marks of a local run, from workers that may be killed."""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace

import pytest

from cluster_work import facts
from compare.cluster import grading, workers
from compare.cluster.sweep import ClusterTask
from compare.command_line.status import USAGE
from compare.labs import classroom, hand_ins
from compare.labs import lab as labs
from compare.labs.marking import PartResult, nothing
from compare.model.op import UsageError
from compare.records.encoding import encode
from loops import for_each
from processes import ROOT, called_with, command, running, until

LAB = labs.find("01")
RUBRIC = """
title = "Sums"
op = "vector_add"
hours = 1
[[task]]
title = "PyTorch"
file = "torch_add.py"
label = "torch.mine"
reference = "torch.eager"
group = [{ name = "odd sizes", points = 1, cases = ["N=1000,fp32"] }]
"""
MINE = """
from compare.registry import implementation
@implementation("vector_add", "torch.mine", level="tiled")
def mine(x, y):
    return {value}
"""
PEEKS = "x + y + len(__import__('glob').glob(__file__.replace('/bob/', '/ann/')))"
"""Right where its code sees no other's folder."""


def class_of(folder: Path, **values: str) -> Path:
    (folder / "rubric").mkdir(parents=True)
    (folder / "rubric" / "lab.toml").write_text(RUBRIC)
    for student, value in values.items():
        (folder / "class" / student).mkdir(parents=True)
        (folder / "class" / student / "torch_add.py").write_text(MINE.format(value=value))
    return folder / "class"


def words(folder: Path, *more: object) -> list[str]:
    rubric = folder.parent / "rubric" / "lab.toml"
    files = ("--json", f"{folder}.json", "--canvas", f"{folder}.csv", "--keep", f"{folder}-marks")
    return ["grade", str(folder), "--rubric", str(rubric), *files, *map(str, more)]


def results(folder: Path) -> dict[str, tuple[object, ...]]:
    """By student: all that a run of another time would have marked alike."""
    of = json.loads(Path(f"{folder}.json").read_text())
    return {each["student"]: (each["parts"], each["lab"], each["device"], each["digest"]) for each in of}


@contextmanager
def on_cluster(folder: Path) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "compare", *words(folder, "--cluster", "local")]
    with subprocess.Popen(line, cwd=ROOT, stdout=PIPE, stderr=PIPE, text=True) as it:
        yield it


def kill_worker_at(folder: Path) -> None:
    """Kill the worker that marks a hand-in; with it ends what marks it."""
    marking = called_with(str(folder))
    status = Path(f"/proc/{marking}/status").read_text()
    (worker,) = (line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
    os.kill(int(worker), signal.SIGKILL)
    assert until(lambda: not running(marking))


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_class_has_the_marks_of_a_local_run_though_workers_are_killed(tmp_path: Path) -> None:
    folder = class_of(tmp_path, ann="x + y", bob=PEEKS, cy="x.no_such()")
    with on_cluster(folder) as client:
        for _ in range(3):
            kill_worker_at(folder / "ann")
        out, err = client.communicate(timeout=200)
    assert client.returncode == 3, err
    assert err.count("ann: tls://") == 3
    first = json.loads(Path(f"{folder}.json").read_text())[0]
    assert first["parts"][0]["result"] == "inconclusive"
    assert first["parts"][0]["detail"].count("its worker process ended") == 3
    *_, ann, bob, _ = csv.reader(Path(f"{folder}.csv").read_text().splitlines())
    assert (ann[0], ann[-1], bob[-1]) == ("ann", "", "1.0"), "no 0 for what was not marked"
    assert re.search(r"(?m)^ann +- +-$", out)
    assert sorted(each.name for each in Path(f"{folder}-marks").glob("*.json")) == ["bob.json", "cy.json"]

    with on_cluster(folder) as client:
        kill_worker_at(folder / "ann")
        _, err = client.communicate(timeout=200)
    assert client.returncode == 4, err  # that of cy's error
    assert err.count("it is tried again") == 1
    assert "bob: unchanged since" in err
    from_cluster = results(folder)
    assert command(*words(folder, "--keep", tmp_path / "others")).returncode == 4
    assert results(folder) == from_cluster


# --------------------------------------------------------------------------- without a cluster


@for_each(
    "digest, result, gpu_after, lost, why",
    [
        ("of others", "passed", "GPU-a", False, "it read no such hand-in: other files or another version"),
        ("", "error", "GPU-a", False, "it read no such hand-in: there is no folder"),
        ("its own", "machine", "", True, "its GPU, GPU-a, no longer answers"),
    ],
)
def test_marks_of_something_else_or_of_a_lost_gpu_are_none(
    digest: str, result: PartResult, gpu_after: str, lost: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([facts(), facts(gpu_after)])

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        assert words[:4] == ("-m", "compare", "grade", "ann")
        marks = nothing("ann", "there is no folder", LAB, digest, result)
        Path(words[-1]).write_text(json.dumps([encode(marks)]))
        return subprocess.CompletedProcess(words, 4, "", "")

    monkeypatch.setattr(workers, "describe", lambda: next(answers))
    for module in (workers, grading):
        monkeypatch.setattr(module, "get_worker", lambda: SimpleNamespace(address="tcp://node"))
    monkeypatch.setattr(workers, "_python", run)
    with pytest.raises(workers.WorkFailed) as caught:
        grading._mark(["ann"], "its own")
    assert caught.value.gpu_lost == lost
    assert caught.value.why.startswith(why)


class MadeUpSweep:
    """Of three hand-ins one is marked, one is given up, and one never begins."""

    error = ""

    def __init__(self, client: object, names_for: Callable[[str], list[str]], *_: object) -> None:
        self.names = [names_for(device) for device in ("NVIDIA H100", "NVIDIA H200")]
        self.given_up = [ClusterTask("bob", "NVIDIA H100", ["tls://a: killed", "tls://b: killed"])]

    def results(self) -> Iterator[tuple[ClusterTask, str]]:
        assert self.names == [["ann", "bob", "cy"], []]
        yield ClusterTask("ann", "NVIDIA H100"), json.dumps([encode(nothing("as its folder", "", LAB))])
        if self.error:
            raise UsageError(self.error)


@pytest.mark.parametrize("error", ["", "the scheduler no longer answers"])
def test_a_class_is_marked_on_one_model_and_who_is_not_marked_has_the_reason(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MadeUpSweep, "error", error)
    folder = class_of(tmp_path, ann="x", bob="x", cy="x")
    monkeypatch.setattr(grading, "Sweep", MadeUpSweep)
    monkeypatch.setattr(grading.engines, "connected", lambda _: nullcontext((None, 1.0)))
    monkeypatch.setattr(grading, "here", facts)
    arguments = argparse.Namespace(cluster="local", device="auto", timeout=None, unsafe=False)
    options = classroom.MarkingOptions("auto", 1.0, elsewhere=partial(grading.marks, arguments))
    found = hand_ins.of_class(folder, folder / "_unpacked-1")[0]
    said: list[str] = []
    marks, missing = classroom.mark(
        found, folder.parent / "rubric" / "lab.toml", options, tmp_path, said.append
    )
    assert missing
    assert said == ["ann: marked"]
    assert [(each.student, each.parts[0].result, each.parts[0].detail) for each in marks] == [
        ("ann", "error", ""),
        ("bob", "inconclusive", "not marked: tls://a: killed; tls://b: killed; the same command marks it"),
        (
            "cy",
            "inconclusive",
            f"not marked: {error or 'no worker was left for it'}; the same command marks it",
        ),
    ]
    assert [file.name for file in tmp_path.glob("*.json")] == ["ann.json"]


def test_jobs_are_of_one_machine(tmp_path: Path) -> None:
    done = command("grade", tmp_path, "--cluster", "local", "--jobs", "2")
    assert done.returncode == USAGE
    assert "--jobs is for one machine" in done.stderr
