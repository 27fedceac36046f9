"""The command line: which command is meant, the list of ops, help without delay, and what a mistake says."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import pytest
import torch

import processes
from compare import cli, registry
from compare.cli import VERSION
from compare.command_line.inventory import inventory
from compare.command_line.options import COMMANDS
from compare.command_line.status import CLOSED_PIPE, INCONCLUSIVE, MEANINGS, SUCCESS, USAGE
from compare.device import supports
from compare.model.result import Comparison
from compare.records import archive
from compare.registry import ROOT
from loops import for_each

Complaint = Callable[..., str]
Printed = Callable[..., tuple[str, str]]


def test_an_error_of_the_tool_is_one_line(monkeypatch: pytest.MonkeyPatch, complaint: Complaint) -> None:
    def broken(*_: object) -> Comparison:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("compare.run.run", broken)
    monkeypatch.delenv("COMPARE_TRACEBACK", raising=False)
    said = complaint("softmax")
    assert "ZeroDivisionError" in said
    assert "COMPARE_TRACEBACK=1" in said
    monkeypatch.setenv("COMPARE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["softmax"])


@for_each(
    "error, says",
    [
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found"), "set TMPDIR"),
        (OSError(errno.EMFILE, "Too many open files"), "open files: end other programs"),
        (MemoryError(), "out of memory"),
        (ImportError("no memory", name="torch._C", path="torch/_C.so"), "cannot load a library, no memory"),
    ],
    ids=lambda case: case[1],
)
def test_what_the_machine_lacks_is_no_error_of_the_tool(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch, complaint: Complaint
) -> None:
    def lacking(*_: object) -> Comparison:
        raise error

    monkeypatch.setattr("compare.run.run", lacking)
    said = complaint("softmax")
    assert says in said
    assert "of the tool" not in said


def command(
    *arguments: str, cwd: Path = ROOT, flags: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command in a new process, which imports all anew."""
    return subprocess.run(
        [sys.executable, *flags, "-m", "compare", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("", SUCCESS),
        ("--version", SUCCESS),
        ("--help", SUCCESS),
        *((f"{name} --help", SUCCESS) for name in COMMANDS),
        ("sofmax", USAGE),
        ("softmax --timeout 0", USAGE),
        ("all --crossover N", USAGE),
        ("list --json out.json", USAGE),
        ("doctor --device cpu", USAGE),
        ("diff old.json", USAGE),
        ("map --records nowhere", USAGE),
    ],
)
def test_help_and_mistakes_are_quick_and_need_nothing_heavy(words: str, status: int) -> None:
    def seconds(expected: int, *arguments: str) -> float:
        """Of the processor, as the machine may be busy with other tests."""
        begin = os.times()
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, timeout=250)
        assert done.returncode == expected
        end = os.times()
        return end.children_user + end.children_system - begin.children_user - begin.children_system

    run = command(*words.split(), PYTHONPROFILEIMPORTTIME="1")
    assert run.returncode == status, run.stderr
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "compare.cli" in imported
    assert not imported & {"torch", "triton", "cupy", "rich", "numpy", "scipy", "tabulate", "pygments"}
    # Machines differ: beside modules of Python's own, which take about 0.1 s; and in one of several runs.
    own = "import argparse, dataclasses, email.message, importlib.metadata, inspect, tempfile"
    ours = ("-m", "compare", *words.split())
    assert any(seconds(status, *ours) <= 4 * seconds(SUCCESS, "-c", own) for _ in range(20))


def test_the_help_names_every_command_and_each_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--help"])
        assert ended.value.code == SUCCESS
        return capsys.readouterr().out

    whole = printed()
    assert all(f"({name})" in " ".join(whole.split()) for name in COMMANDS)
    for name in COMMANDS:
        text = printed(name)
        assert max(map(len, (whole + text).splitlines())) <= 80
        assert text.startswith(f"usage: python -m compare {name} ")
        assert "\nexit status:\n  0  " in text
        assert "--crossover" not in text
        assert not re.search(r"\b(?:routes?|variants?)\b", whole + text, re.IGNORECASE)


@for_each("command_name", ["", *COMMANDS])
def test_a_status_means_the_same_of_every_command(command_name: str) -> None:
    epilog = str(cli.parser_of(command_name).epilog)
    listed = re.search(r"(?m)^exit status.*:\n((?: .*\n?)+)", epilog)
    lines = dict(re.findall(r"(?m)^  (\d+)  (\S.*)$", listed[1]))
    statuses = [int(number) for number in lines]
    assert statuses == sorted(statuses)
    assert {SUCCESS, USAGE} <= {*statuses} <= {*MEANINGS}
    begins = {USAGE: ("a mistake", "something is missing"), INCONCLUSIVE: ("inconclusive: ",)}
    for number, beginnings in begins.items():
        assert lines.get(str(number), beginnings[0]).startswith(beginnings)


def test_the_first_words_and_the_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == SUCCESS
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 4
    assert "python -m compare softmax" in text
    assert cli.main(["softmax", "--version"]) == SUCCESS
    assert " ".join(capsys.readouterr().out.split()).startswith(
        f"gpu-three-ways {VERSION}, torch {metadata.version('torch')}, triton "
    )


def test_list_shows_everything_there_is(printed: Printed) -> None:
    text, _ = printed("list", "--all")
    words = " ".join(text.split())
    for name in registry.op_names():
        assert f"{name} {registry.get_op(name).signature}" in words
        for impl in registry.implementations(name):
            assert impl.label in text
    one, _ = printed("list", "softmax")
    assert one.strip() in text


def test_list_begins_with_a_line_for_each_op(printed: Printed) -> None:
    text, _ = printed("list", "--device", "cpu")
    head, *lines, follow = text.splitlines()
    assert len(lines) == len(registry.op_names())
    assert head.split()[:3] == ["op", "torch", "triton"]
    impls = registry.implementations("softmax")
    able = sum(supports(impl, torch.device("cpu")) is None for impl in impls)
    (line,) = (line.split() for line in lines if line.startswith("softmax "))
    assert f"{able}/{len(impls)}" in line
    assert int(line[1]) == sum(impl.way == "torch" for impl in impls)
    assert follow.startswith("NEXT  list softmax")


def test_what_a_list_needs_is_kept_until_a_source_changes(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as terminal:
        terminal.setattr(sys.stderr, "isatty", lambda: True)
        ops = inventory()
    assert "reading every op" in capsys.readouterr().err  # it may take long
    assert [op.name for op in ops] == registry.op_names()
    with monkeypatch.context() as patch:
        patch.setattr(registry, "get_op", None)  # nothing is imported
        assert inventory() == ops
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("compare.records.result_cache.code", lambda *_: "other sources")
    monkeypatch.setattr(registry, "get_op", None)
    with pytest.raises(TypeError):
        inventory()


@pytest.mark.parametrize(
    "words", [["list"], ["map"], ["doctor"], ["lab", "list"], ["--version"], []], ids="_".join
)
def test_what_only_looks_up_imports_no_pytorch(words: list[str]) -> None:
    """Its import alone takes seconds."""
    command(*words)  # after a change of a source these import everything, once
    run = command(*words, flags=["-X", "importtime"], CUDA_VISIBLE_DEVICES="")
    assert "compare.cli" in run.stderr
    assert not re.search(r"(?m)\| +(torch|triton)$", run.stderr)


def test_a_file_with_an_op_is_not_run_for_a_list(printed: Printed, own_registry: None) -> None:
    file = "tests/support/one_file_op.py"
    text, _ = printed("list", "--only", "triton.blocked", "--load", file)
    assert "scale_shift" not in registry.op_names()
    assert f"scale_shift  of {file}, which is not run for a list" in text
    assert not [name for name in sys.modules if name.startswith("_loaded_one_file_op")]


def test_options_may_come_before_the_command(printed: Printed) -> None:
    text, _ = printed("--device", "cpu", "--only", "*.gluon", "list")
    assert "layer_norm" in text
    assert "vector_add" not in text, "it has no such implementation"


def test_an_op_behind_sweep_is_no_value_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--sweep", "softmax", "--case", "M=2"]) == USAGE
    assert "case 'M=2' of softmax: N is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["lab hint {} 01 2", "lab {} hint 01 2", "{} lab hint 01 2", "lab hint 01 {} 2"]
)
def test_options_may_come_between_the_words_of_a_command(words: str, printed: Printed) -> None:
    text, _ = printed(*words.format("--device cpu").split())
    assert text.startswith("Hint 2 of ")


@pytest.mark.parametrize("words", [["vector_add"], ["list"], ["map"]], ids="_".join)
def test_a_python_without_the_packages_is_told_from_an_error(words: list[str]) -> None:
    """The likeliest mistake of all: the environment is not activated."""
    run = command(*words, flags=["-S"], PYTHONPATH=str(ROOT))  # without site-packages
    assert run.returncode == USAGE
    says = f"this Python, {re.escape(sys.executable)}, has no module '\\w+': run 'make install' in "
    assert re.search(f"{says}.*, then 'source .venv/bin/activate'; ", run.stderr)
    assert len(run.stderr.splitlines()) == 1


def test_a_module_of_our_own_that_is_missing_is_an_error_of_the_tool(
    monkeypatch: pytest.MonkeyPatch, complaint: Complaint
) -> None:
    monkeypatch.setitem(sys.modules, "compare.run", None)  # makes its import fail
    monkeypatch.delenv("COMPARE_TRACEBACK", raising=False)
    assert "an error of the tool itself" in complaint("softmax")


def test_the_whole_command_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ("vector_add", "--device", "cpu", "--only", "triton.*", "--arch", "sm_80")
    run = processes.command(*words, "--json", out, "--verbose")
    assert run.returncode == SUCCESS, run.stderr
    assert "\x1b" not in run.stdout
    assert "building kernels and checking, 2 of 2 implementations (last " in run.stderr
    (comparison,) = archive.read(out)
    checked = {row.label for case in comparison.cases for row in case.rows if row.agreement}
    assert {"torch.eager", "triton.blocked"} <= checked
    assert all(label in run.stdout for label in checked)


def started(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`command`, still running; Ctrl-C reaches it."""
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
    assert run.returncode == INCONCLUSIVE
    assert stdout == ""
    assert "interrupted before anything was finished" in stderr
    assert "compare/" not in stderr


def test_ctrl_c_in_an_exec_of_a_string_has_the_exit_status_of_others(tmp_path: Path) -> None:
    """As dataclasses have one; Python would end itself by SIGINT, though the interrupt was answered."""
    (tmp_path / "sitecustomize.py").write_text(
        "import compare.cli\ncompare.cli.main = lambda words: exec('raise KeyboardInterrupt')\n"
    )
    run = started("softmax", PYTHONPATH=f"{tmp_path}:{ROOT}")
    run.communicate(timeout=60)
    assert run.returncode == INCONCLUSIVE


def test_an_interrupt_that_python_wraps_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one within a ``__set_name__``, while a module is imported."""

    def interrupted(*_: object) -> Comparison:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("compare.run.run", interrupted)
    assert cli.main(["softmax"]) == INCONCLUSIVE
    assert "interrupted before anything was finished" in capsys.readouterr().err


@pytest.mark.thorough
def test_no_module_of_the_current_folder_is_imported(tmp_path: Path) -> None:
    """Neither by the command nor by a process that it starts; Python's own start is another matter."""
    for name in ("json", "ctypes", "subprocess", "signal", "pathlib", "secrets", "tempfile", "selectors"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\nraise ImportError('not this one')\n"
        )
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from compare.registry import implementation\n"
        "from triton_impl.vector_add import blocked\n"
        "@implementation('vector_add', 'triton.mine', level='tiled')\n"
        "def mine(x, y):\n"
        "    return blocked(x, y)\n"
    )
    words = ("vector_add", "--device", "cpu", "--case", "N=64,fp32", "--only", "*.mine", "--arch", "sm_90")
    done = command(*words, "--load", str(mine), cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert not (tmp_path / "imported").exists(), (tmp_path / "imported").read_text()
    assert done.returncode == SUCCESS, done.stderr


@pytest.mark.thorough
def test_repeated_ctrl_c_shows_no_traceback() -> None:
    """Not even where Python is ending already."""
    run = started("vector_add", "--device", "cpu", "--case", "N=64,fp32", "--verbose")
    assert run.stderr is not None
    said = next(line for line in run.stderr if "importing" in line)
    while run.poll() is None:
        run.send_signal(signal.SIGINT)
        time.sleep(0.02)
    stdout, stderr = run.communicate(timeout=60)
    assert "Traceback" not in stdout + stderr
    assert said


@pytest.mark.thorough
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_keeps_and_prints_what_was_finished(ending: signal.Signals, tmp_path: Path) -> None:
    mine, out, called = tmp_path / "mine.py", tmp_path / "out.json", tmp_path / "called"
    os.mkfifo(called)  # an isolated process may read: that blocks, and can be seen
    mine.write_text(
        "import pathlib\n"
        "from compare.registry import implementation\n"
        "@implementation('vector_add', 'triton.hangs', level='tiled')\n"
        "def hangs(x, y):\n"
        f"    pathlib.Path({str(called)!r}).read_text()\n"
    )
    arguments = ("vector_add", "--load", str(mine), "--only", "triton.*", "--case", "N=64,fp32")
    run = started(*arguments, "--device", "cpu", "--json", str(out), PYTHONFAULTHANDLER="1")
    until = time.monotonic() + 200
    written = None
    while written is None and run.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError):  # nothing reads it yet
            written = os.open(called, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.05)
    run.send_signal(ending)
    try:
        stdout, stderr = run.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        assert run.poll() is None, "it has ended, but what it started has not: it holds stdout or stderr"
        run.send_signal(signal.SIGABRT)  # has it say where each thread is
        stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == INCONCLUSIVE, stderr
    assert written is not None, stderr
    os.close(written)
    assert "Traceback" not in stderr
    assert "INTERRUPTED" in stdout
    (comparison,) = archive.read(out)
    assert comparison.interrupted
    finished = {row.label for row in comparison.cases[0].rows}
    assert {"torch.eager"} <= finished <= {"torch.eager", "triton.blocked"}  # two are checked at once


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        pytest.param("lab >&-", SUCCESS, "", marks=pytest.mark.thorough),
        ("lab > /dev/full", USAGE, "No space left on device"),
        ("lab | head -1", SUCCESS, ""),  # a closed pipe is no error
        pytest.param("lab | true; exit ${PIPESTATUS[0]}", CLOSED_PIPE, "", marks=pytest.mark.thorough),
        ("--help | true; exit ${PIPESTATUS[0]}", CLOSED_PIPE, ""),
        ("--nonsense 2>&1 | true; exit ${PIPESTATUS[0]}", CLOSED_PIPE, ""),
        pytest.param("vector_ad 2>&-", USAGE, "", marks=pytest.mark.thorough),
        pytest.param("vector_ad 2>&1 | true; exit ${PIPESTATUS[0]}", USAGE, "", marks=pytest.mark.thorough),
    ],
)
def test_nowhere_to_print(words: str, status: int, says: str) -> None:
    run = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m compare {words}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # argparse passes over what a write itself fails with
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == status
    assert says in run.stderr
    assert len(run.stderr.splitlines()) == (1 if says else 0)
