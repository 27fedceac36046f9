"""One op compared, or all: mistakes, options, exit status, and files written whole."""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import made_up
from compare import registry
from compare.command_line import status
from compare.command_line.status import FAILURE, INCONCLUSIVE, SUCCESS, USAGE
from compare.model.op import Op, UsageError
from compare.model.result import Comparison, Options
from compare.records import archive
from loops import for_each

OPS = registry.op_names()
Complaint = Callable[..., str]
Printed = Callable[..., tuple[str, str]]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Options]]:
    """`run` replaced by made-up comparisons; what it was asked for."""
    asked: list[tuple[str, Options]] = []

    def run(op: object, options: Options, progress: object) -> Comparison:
        asked.append((op.name, options))  # type: ignore[attr-defined]
        return replace(made_up.comparison(), op=op.name)  # type: ignore[attr-defined]

    monkeypatch.setattr("compare.run.run", run)
    return asked


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_unwritable_file_is_found_out_before_the_run(
    tmp_path: Path, complaint: Complaint, stub: list[object]
) -> None:
    tmp_path.chmod(0o500)
    assert "cannot be written" in complaint("softmax", "--json", str(tmp_path / "out.json"))
    assert stub == []


def test_options_reach_the_run(stub: list[tuple[str, Options]], printed: Printed) -> None:
    arguments = ["softmax", "--case", "M=2,N=3,fp16", "--case", "M=2,N=5,bf16", "--only", "triton.*"]
    arguments += ["--arch", "sm_75,sm_90", "--arch", "sm_80", "--seed", "7", "--budget", "3.5"]
    printed(*arguments)
    ((name, options),) = stub
    assert name == "softmax"
    assert [str(case) for case in options.cases] == ["M=2,N=3,fp16", "M=2,N=5,bf16"]
    assert options.archs == ("sm_75", "sm_90", "sm_80")
    assert (options.only, options.seed, options.budget_s) == (("triton.*",), 7, 3.5)


def test_a_sweep_takes_every_case_once(stub: list[tuple[str, Options]], printed: Printed) -> None:
    _, said = printed("softmax", "--sweep")
    cases = stub[0][1].cases
    cases_of_op = registry.get_op("softmax").cases
    assert cases[0] == cases_of_op.default
    assert set(cases) == {cases_of_op.default, *cases_of_op.sweep}
    assert len(set(cases)) == len(cases)
    smoke = len(cases_of_op.smoke)
    assert re.match(rf"about \d+ s, more on the first run: {smoke} smoke cases x \d+ implementations;", said)


def test_a_sweep_of_shapes_takes_the_op_s_shapes(stub: list[tuple[str, Options]], printed: Printed) -> None:
    printed("matmul", "--sweep", "shapes")
    cases_of_op = registry.get_op("matmul").cases
    assert set(stub[0][1].cases) == {cases_of_op.default, *cases_of_op.shapes}


def test_all_compares_every_op_and_writes_whole_files(
    stub: list[tuple[str, Options]], tmp_path: Path, printed: Printed
) -> None:
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "markdown", "junit")}
    files = (word for kind, path in paths.items() for word in (f"--{kind}", str(path)))
    said, _ = printed("all", *files)
    assert [name for name, _ in stub] == OPS
    assert all(re.search(rf"(?m)^{name}  ", said) for name in OPS)
    assert [run.op for run in archive.read(paths["json"])] == OPS
    lines = list(csv.DictReader(paths["csv"].read_text().splitlines()))
    assert {line["op"] for line in lines} == set(OPS)
    assert all(f"## {name}: " in paths["markdown"].read_text() for name in OPS)
    assert all(f'testsuite name="{name} ' in paths["junit"].read_text() for name in OPS)
    assert sorted(tmp_path.iterdir()) == sorted(paths.values())


def test_what_cannot_be_written_is_shown_all_the_same(
    stub: list[object], tmp_path: Path, printed: Printed
) -> None:
    """Every op, and every other file; what could not be is said last."""
    table = tmp_path / "out.csv"
    out, err = printed("all", "--json", "/dev/full", "--csv", str(table), status=USAGE)
    assert all(re.search(rf"(?m)^{name}  ", out) for name in OPS)
    assert {line["op"] for line in csv.DictReader(table.read_text().splitlines())} == set(OPS)
    assert "/dev/full could not be written: No space left on device. The results are on" in err
    assert len(err.splitlines()) == 2


def test_what_cannot_be_recorded_is_shown_all_the_same(
    stub: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: Printed
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("compare.worker.server.likely_cpu", lambda device: False)
    monkeypatch.setattr("compare.worker.start.prepare", lambda *_: SimpleNamespace(type="cuda"))
    monkeypatch.setattr("compare.device.uuid", lambda device: None)
    out, err = printed("all", "--record", "--results", str(tmp_path / "file"), status=USAGE)
    for name in OPS:
        assert re.search(rf"(?m)^{name}  ", out)
        assert f"{name}.json could not be written: [Errno 20]" in err


@for_each("words", [["--record"], ["--sustained"], ["--sustained", "--crossover", "N"]])
def test_what_is_timed_needs_a_gpu(
    words: list[str], monkeypatch: pytest.MonkeyPatch, complaint: Callable[..., str]
) -> None:
    monkeypatch.setattr("compare.worker.start.prepare", lambda *_: SimpleNamespace(type="cpu"))
    assert f"{words[0]} needs a GPU: without one nothing is timed" in complaint(
        "softmax", *words, "--only", "torch.eager"
    )


@for_each(
    "changes, interrupted, expected",
    [
        ({}, False, SUCCESS),
        ({}, True, INCONCLUSIVE),
        ({"status": "unavailable", "reason": "needs sm_90", "agreement": None}, False, SUCCESS),
        ({"status": "failed", "reason": "RuntimeError"}, False, FAILURE),
        ({"status": "failed", "reason": "its process was killed"}, True, INCONCLUSIVE),
        ({"status": "failed", "reason": "the judge's own", "by_judge": True}, False, INCONCLUSIVE),
        ({"status": "disagrees", "agreement": made_up.DISAGREEMENT}, False, FAILURE),
        ({"status": "disagrees", "agreement": made_up.DISAGREEMENT}, True, FAILURE),
    ],
)
def test_exit_status_of_one_row(changes: dict[str, object], interrupted: bool, expected: int) -> None:
    case = made_up.with_row(made_up.case(), "cupy.online", **changes)
    assert status.of(made_up.comparison(case, interrupted=interrupted)) == expected
    assert status.of(replace(made_up.comparison(), cases=())) == INCONCLUSIVE


def test_an_interruption_ends_all_and_writes_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: Printed
) -> None:
    monkeypatch.setattr("compare.run.run", lambda *_: made_up.comparison(interrupted=True))
    out = tmp_path / "out.json"
    said, _ = printed("all", "--json", str(out), status=INCONCLUSIVE)
    (only,) = archive.read(out)
    assert only.interrupted
    assert "INTERRUPTED" in said


def test_an_error_in_one_op_writes_the_ops_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: Printed
) -> None:
    def run(op: Op, options: Options, progress: object) -> Comparison:
        if op.name == OPS[2]:
            raise UsageError("too large for this device")
        return replace(made_up.comparison(), op=op.name)

    rendered: list[int] = []
    monkeypatch.setattr("compare.run.run", run)
    monkeypatch.setattr("compare.report.html.page.dumps", lambda runs: rendered.append(len(runs)) or "")
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "html")}
    arguments = [word for kind, path in paths.items() for word in (f"--{kind}", str(path))]
    _, said = printed("all", *arguments, status=USAGE)
    assert [run.op for run in archive.read(paths["json"])] == OPS[:2]
    assert rendered == [2]  # once, and not after every op
    assert "too large for this device" in said


def test_verbose_says_each_step_with_its_seconds(monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    def run(op: object, options: Options, progress: Callable[[str, float], None]) -> Comparison:
        progress("checking it", 0.0)
        time.sleep(0.05)
        progress("timing it", 0.2)
        progress("timing it", 0.7)
        return made_up.comparison()

    monkeypatch.setattr("compare.run.run", run)
    out, err = printed("softmax", "-v")
    lines = [re.fullmatch(r" *(\d+\.\d\d) s  (.+)", line) for line in err.splitlines()]
    said = [(line[2], float(line[1])) for line in lines if line]
    assert len(said) == len(lines)
    steps = [what for what, _ in said]
    assert steps[-5:] == ["checking it", "timing it", "printing", "writing files", "in all"]
    assert dict(said)["checking it"] >= 0.05
    assert dict(said)["in all"] == pytest.approx(sum(seconds for _, seconds in said[:-1]), abs=0.1)
    assert "softmax  y = exp(x" in out
    assert printed("softmax")[1] == ""
