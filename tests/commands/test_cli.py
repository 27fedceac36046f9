"""The command line: exit status, one clear message for a mistake, and files written whole."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import made_up
import processes
from compare import cli, registry
from compare.records import archive
from compare.registry import ROOT
from compare.spec import Comparison, Options

OPS = registry.op_names()


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Options]]:
    """`run` replaced by made-up comparisons; what it was asked for."""
    asked: list[tuple[str, Options]] = []

    def run(op: object, options: Options, progress: object) -> Comparison:
        asked.append((op.name, options))  # type: ignore[attr-defined]
        return replace(made_up.comparison(), op=op.name)  # type: ignore[attr-defined]

    monkeypatch.setattr("compare.run.run", run)
    return asked


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistaken command prints; nothing else, and status 2."""
    assert cli.main(arguments) == cli.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    return printed.err


# --------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sofmax"], "did you mean softmax"),
        (["softmax", "--case", "M=4"], "N is missing"),
        (["softmax", "--case", "M=4,N=4,fp64"], "neither"),
        (["softmax", "--case", "M=4,N=-4"], "whole number"),
        (["softmax", "--case", "N=4,K=4"], "no dimension"),
        (["softmax", "--only", "trition.*"], "did you mean triton"),
        (["all", "--only", "nothing.*"], "no implementation"),
        (["softmax", "--arch", "90"], "reads like sm_90"),
        (["softmax", "--arch", "sm_70"], "sm_75"),
        (["softmax", "--arch", "sm_99"], "sm_99"),
        (["softmax", "--device", "tpu"], "auto, cpu, cuda"),
        (["softmax", "--device", "cuda:99"], "cuda"),
        (["softmax", "--budget", "0"], "above 0"),
        (["softmax", "--budget", "nan"], "above 0"),
        (["softmax", "--load", "nowhere.py"], "no such file"),
        (["softmax", "--device", "cpu", "--record"], "needs a GPU"),
        (["softmax", "--json", "no/such/folder/out.json"], "no directory"),
        (["softmax", "--csv", "."], "is a directory"),
        (["softmax", "--json", "same", "--csv", "./same"], "--json and --csv name one and the same file"),
        (["all", "--case", "N=4"], "belongs to one op"),
        (["softmax", "--timeout", "0"], "above 0"),
        (["softmax", "--timeout", "nan"], "above 0"),
        (["softmax", "--timeout", "1e7"], "a day, 86400, at most"),
        (["softmax", "--crossover", "N", "--timeout", "inf"], "a day, 86400, at most"),
        (["softmax", "--seed", str(1 << 63)], "at most 63 bits"),
        (["softmax", "matmul"], "only 'diff' takes files"),
        (["list", "--json", "out.json"], "--json goes with an op"),
        (["doctor", "--device", "cpu"], "--device goes with an op"),
        (["diff", "old.json", "new.json", "--case", "N=4"], "--case goes with an op"),
        (
            ["reduce_sum", "--crossover", "N", "--device", "cpu", "--csv", "out.csv"],
            "--markdown has the table",
        ),
        (["histogram", "--case", "N=0,SKEW=0", "--case", "N=101,SKEW=101"], "SKEW=101 of 100"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], stub: list[object]
) -> None:
    assert says in complaint(capsys, *arguments)
    assert stub == []


def test_a_file_that_raises_when_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stub: list[object]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("x = 1\nx / 0\n")
    said = complaint(capsys, "softmax", "--load", str(file))
    assert "ZeroDivisionError at line 2" in said
    assert stub == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_unwritable_file_is_found_out_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stub: list[object]
) -> None:
    tmp_path.chmod(0o500)
    assert "cannot be written" in complaint(capsys, "softmax", "--json", str(tmp_path / "out.json"))
    assert stub == []


def test_an_error_of_the_tool_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> Comparison:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("compare.run.run", broken)
    monkeypatch.delenv("COMPARE_TRACEBACK", raising=False)
    said = complaint(capsys, "softmax")
    assert "ZeroDivisionError" in said
    assert "COMPARE_TRACEBACK=1" in said
    monkeypatch.setenv("COMPARE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["softmax"])


# --------------------------------------------------------------------------- options and outputs


def test_options_reach_the_run(stub: list[tuple[str, Options]], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["softmax", "--case", "M=2,N=3,fp16", "--case", "M=2,N=5,bf16", "--only", "triton.*"]
    arguments += ["--arch", "sm_75,sm_90", "--arch", "sm_80", "--seed", "7", "--budget", "3.5"]
    assert cli.main(arguments) == cli.AGREE
    ((name, options),) = stub
    assert name == "softmax"
    assert [str(case) for case in options.cases] == ["M=2,N=3,fp16", "M=2,N=5,bf16"]
    assert options.archs == ("sm_75", "sm_90", "sm_80")
    assert (options.only, options.seed, options.budget_s) == (("triton.*",), 7, 3.5)


def test_a_sweep_takes_every_case_once(
    stub: list[tuple[str, Options]], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["softmax", "--sweep"])
    cases = stub[0][1].cases
    cases_of_op = registry.get_op("softmax").cases
    assert cases[0] == cases_of_op.default
    assert set(cases) == {cases_of_op.default, *cases_of_op.sweep}
    assert len(set(cases)) == len(cases)


def test_all_compares_every_op(stub: list[tuple[str, Options]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["all"]) == cli.AGREE
    assert [name for name, _ in stub] == OPS
    printed = capsys.readouterr().out
    assert all(re.search(rf"(?m)^{name}  ", printed) for name in OPS)


def test_files_are_written_whole(
    stub: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "markdown")}
    arguments = [word for kind, path in paths.items() for word in (f"--{kind}", str(path))]
    assert cli.main(["all", *arguments]) == cli.AGREE
    assert [run.op for run in archive.read(paths["json"])] == OPS
    lines = list(csv.DictReader(paths["csv"].read_text().splitlines()))
    assert {line["op"] for line in lines} == set(OPS)
    assert all(f"## {name}: " in paths["markdown"].read_text() for name in OPS)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths.values())


def test_what_cannot_be_written_is_shown_all_the_same(
    stub: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every op, and every other file; what could not be is said last."""
    table = tmp_path / "out.csv"
    assert cli.main(["all", "--json", "/dev/full", "--csv", str(table)]) == cli.USAGE
    printed = capsys.readouterr()
    assert all(re.search(rf"(?m)^{name}  ", printed.out) for name in OPS)
    assert {line["op"] for line in csv.DictReader(table.read_text().splitlines())} == set(OPS)
    assert "/dev/full could not be written: No space left on device. What was found is on" in printed.err
    assert len(printed.err.splitlines()) == 1


def test_what_cannot_be_recorded_is_shown_all_the_same(
    stub: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gpu:
        type = "cuda"

    def record(comparison: Comparison) -> Path:
        (tmp_path / "file").touch()
        return real(comparison, tmp_path / "file")

    real = archive.record
    monkeypatch.setattr(archive, "record", record)
    monkeypatch.setattr("compare.run.prepare", lambda *_: Gpu)
    assert cli.main(["all", "--record"]) == cli.USAGE
    printed = capsys.readouterr()
    for name in OPS:
        assert re.search(rf"(?m)^{name}  ", printed.out)
        assert f"{name}.json could not be written: [Errno 20]" in printed.err


@pytest.mark.parametrize(
    ("arguments", "shows"),
    [
        (["map", "vector_add"], "vector_add"),
        (["cache"], "TRITON_CACHE_DIR"),
        (["pipeline", "vector_add", "--only", "triton.blocked", "--arch", "sm_80"], "sm_80"),
        (["aot", "vector_add", "--only", "triton.blocked", "--arch", "sm_80", "--out", "OUT"], "sm_80"),
    ],
)
def test_other_commands_show_what_they_cannot_write(arguments: list[str], shows: str, tmp_path: Path) -> None:
    words = [str(tmp_path) if word == "OUT" else word for word in arguments]
    done = processes.command(*words, "--json", "/dev/full")
    assert done.returncode == cli.USAGE
    assert shows in done.stdout
    assert "/dev/full could not be written: No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, cli.AGREE),
        ({"status": "unavailable", "reason": "needs sm_90", "agreement": None}, cli.AGREE),
        ({"status": "failed", "reason": "RuntimeError"}, cli.INCONCLUSIVE),
        ({"status": "disagrees", "agreement": made_up.DISAGREEMENT}, cli.DISAGREE),
    ],
)
def test_exit_status_of_one_row(changes: dict[str, object], status: int) -> None:
    case = made_up.with_row(made_up.case(), "cupy.online", **changes)
    assert cli.exit_status(made_up.comparison(case)) == status


def test_a_disagreement_outranks_an_interruption() -> None:
    wrong = made_up.with_row(made_up.case(), "cupy.online", status="disagrees")
    assert cli.exit_status(made_up.comparison(wrong, interrupted=True)) == cli.DISAGREE
    assert cli.exit_status(made_up.comparison(interrupted=True)) == cli.INCONCLUSIVE
    assert cli.exit_status(replace(made_up.comparison(), cases=())) == cli.INCONCLUSIVE


def test_an_interruption_ends_all_and_writes_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(op: object, options: Options, progress: object) -> Comparison:
        return made_up.comparison(interrupted=True)

    monkeypatch.setattr("compare.run.run", run)
    out = tmp_path / "out.json"
    assert cli.main(["all", "--json", str(out)]) == cli.INCONCLUSIVE
    (only,) = archive.read(out)
    assert only.interrupted
    assert "INTERRUPTED" in capsys.readouterr().out


def test_verbose_says_each_step_with_its_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(op: object, options: Options, progress: Callable[[str, float], None]) -> Comparison:
        progress("checking it", 0.0)
        time.sleep(0.05)
        progress("timing it", 0.2)
        progress("timing it", 0.7)
        return made_up.comparison()

    monkeypatch.setattr("compare.run.run", run)
    assert cli.main(["softmax", "-v"]) == cli.AGREE
    printed = capsys.readouterr()
    lines = [re.fullmatch(r" *(\d+\.\d\d) s  (.+)", line) for line in printed.err.splitlines()]
    said = [(line[2], float(line[1])) for line in lines if line]
    assert len(said) == len(lines)
    steps = [what for what, _ in said]
    assert steps[-4:] == ["checking it", "timing it", "writing and printing", "in all"]
    assert dict(said)["checking it"] >= 0.05
    assert dict(said)["in all"] == pytest.approx(sum(seconds for _, seconds in said[:-1]), abs=0.1)
    assert "softmax  x[M,N]" in printed.out
    cli.main(["softmax"])
    assert capsys.readouterr().err == ""


def test_verbose_says_the_steps_of_a_real_run(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["vector_add", "--case", "N=64,fp32", "--device", "cpu", "--only", "torch.eager", "-v"]
    assert cli.main(arguments) == cli.AGREE
    assert "checking torch.eager on N=64,fp32" in capsys.readouterr().err


def test_list_shows_everything_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == cli.AGREE
    printed = capsys.readouterr().out
    for name in OPS:
        assert f"{name}  {registry.get_op(name).signature}" in printed
        for impl in registry.implementations(name):
            assert impl.label in printed


def test_list_shows_the_ops_that_have_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--only", "*.gluon"]) == cli.AGREE
    printed = capsys.readouterr().out
    assert "layer_norm" in printed
    assert "vector_add" not in printed


# --------------------------------------------------------------------------- as a process


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "compare", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys; from compare.cli import parser; parser().format_help();"
        "print(sorted({'torch', 'triton', 'cupy', 'rich', 'numpy', 'scipy', 'tabulate'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_help_is_quick() -> None:
    def seconds() -> float:
        begin = os.times()
        assert command("--help").returncode == 0
        end = os.times()
        return end.children_user + end.children_system - begin.children_user - begin.children_system

    # Of the processor, as the machine may be busy with other tests, and the best of several.
    assert min(seconds() for _ in range(3)) <= 0.4


def test_an_unknown_op_is_refused_without_importing_torch() -> None:
    run = command("sofmax")
    assert run.returncode == cli.USAGE
    assert "did you mean softmax" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("words", [["vector_add"], ["list"], ["map"], ["cache"]], ids="_".join)
def test_a_python_without_the_packages_is_told_from_an_error(words: list[str]) -> None:
    """The likeliest mistake of all: the environment is not activated."""
    run = subprocess.run(
        [sys.executable, "-S", "-m", "compare", *words],  # without site-packages
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == cli.USAGE
    says = f"this Python, {re.escape(sys.executable)}, has no module '\\w+': run 'make install' in "
    assert re.search(f"{says}.*, then 'source .venv/bin/activate'; ", run.stderr)
    assert len(run.stderr.splitlines()) == 1


def test_a_module_of_our_own_that_is_missing_is_an_error_of_the_tool(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "compare.run", None)  # makes its import fail
    monkeypatch.delenv("COMPARE_TRACEBACK", raising=False)
    assert "an error of the tool itself" in complaint(capsys, "softmax")


def test_the_whole_command_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run = command(
        "vector_add", "--device", "cpu", "--json", str(out), "--only", "triton.*", "--arch", "sm_80"
    )
    assert run.returncode == cli.AGREE, run.stderr
    assert "\x1b" not in run.stdout
    (comparison,) = archive.read(out)
    json.loads(out.read_text())
    checked = {row.label for case in comparison.cases for row in case.rows if row.agreement}
    assert {"torch.eager", "triton.blocked"} <= checked
    assert all(label in run.stdout for label in checked)


def started(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`command`, on its way; it hears Ctrl-C."""
    return subprocess.Popen(
        [sys.executable, "-m", "compare", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Jobs in the background start with Ctrl-C ignored, and so may whoever runs this test.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize("imported", ["argparse", "numpy."])
def test_ctrl_c_while_it_starts_ends_it(imported: str) -> None:
    """Before anything could answer it; and in the midst of numpy, where PyTorch's import of it drops it."""
    run = started("vector_add", "--device", "cpu", PYTHONPROFILEIMPORTTIME="1")
    assert run.stderr is not None
    assert any(line.rpartition("|")[2].strip().startswith(imported) for line in run.stderr)
    run.send_signal(signal.SIGINT)
    stdout, stderr = run.communicate(timeout=60)
    by_python = -signal.SIGINT  # if it came in an exec of a string, as of dataclasses, though it was answered
    assert run.returncode in (cli.INCONCLUSIVE, by_python)
    assert stdout == ""
    assert "interrupted before anything was finished" in stderr
    assert "compare/" not in stderr


def test_ctrl_c_keeps_and_prints_what_was_finished(tmp_path: Path) -> None:
    mine, out, called = tmp_path / "mine.py", tmp_path / "out.json", tmp_path / "called"
    mine.write_text(
        "import pathlib, time\n"
        "from compare.registry import implementation\n"
        "@implementation('vector_add', 'triton.hangs', rung='tiled')\n"
        "def hangs(x, y):\n"
        f"    pathlib.Path({str(called)!r}).touch()\n"
        "    time.sleep(1000)\n"
    )
    arguments = ("vector_add", "--load", str(mine), "--only", "triton.*", "--case", "N=64,fp32")
    run = started(*arguments, "--device", "cpu", "--json", str(out), PYTHONFAULTHANDLER="1")
    until = time.monotonic() + 200
    while not called.exists() and run.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    was_called = called.exists()
    run.send_signal(signal.SIGINT)
    try:
        stdout, stderr = run.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        assert run.poll() is None, "it has ended, but what it started has not: it holds stdout or stderr"
        run.send_signal(signal.SIGABRT)  # has it say where each thread is
        stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == cli.INCONCLUSIVE, stderr
    assert was_called, stderr
    assert "Traceback" not in stderr
    assert "INTERRUPTED" in stdout
    (comparison,) = archive.read(out)
    assert comparison.interrupted
    assert [row.label for row in comparison.cases[0].rows] == ["torch.eager", "triton.blocked"]


@pytest.mark.parametrize(
    ("redirected", "status", "says"),
    [
        (">&-", cli.AGREE, ""),
        ("> /dev/full", cli.USAGE, "No space left on device"),
        ("| true; exit ${PIPESTATUS[0]}", cli.INCONCLUSIVE, ""),
    ],
)
def test_nowhere_to_print(redirected: str, status: int, says: str) -> None:
    command = f"{sys.executable} -m compare map vector_add {redirected}"
    run = subprocess.run(["bash", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=250)
    assert run.returncode == status
    assert says in run.stderr
    assert len(run.stderr.splitlines()) == (1 if says else 0)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("vector_add --device cpu --case N=64,fp32 --only torch.eager 2>&-", cli.AGREE),
        ("vector_ad 2>&-", cli.USAGE),
        ("vector_ad 2>&1 | true; exit ${PIPESTATUS[0]}", cli.USAGE),
    ],
)
def test_nowhere_to_complain(words: str, status: int) -> None:
    command = f"{sys.executable} -m compare {words}"
    run = subprocess.run(["bash", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=250)
    assert run.returncode == status
    assert ("torch.eager" in run.stdout) == (status == cli.AGREE)


def test_a_closed_pipe_is_no_error() -> None:
    run = subprocess.run(
        f"{sys.executable} -m compare list --device cpu | head -1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.stderr == ""
