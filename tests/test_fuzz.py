"""Hostile arguments, damaged records and workers' answers: one sentence and a documented exit status, always.

``make fuzz`` runs more examples for five minutes, drawn anew each time; here they are few and the same.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import os
import pkgutil
import re
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import made_up
from compare import commands
from compare.cli import main
from compare.code_size.count import CountedKernel, Launched
from compare.command_line.options import COMMANDS
from compare.model.result import Tuning
from compare.records import archive
from compare.registry import ROOT
from compare.timing.stopwatch import Reading
from compare.worker import messages
from compare.worker.channel import Channel, Malformed

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
FUZZED = settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=[*HealthCheck],
)

DOCUMENTED = {0, 1, 2, 3}
NASTY: list[Any] = [
    *(0, -1, 10**18, 10**400, True, None, 1e308, -1e308, 5e-324, float("nan"), float("inf")),
    *("", "NaN", "-Infinity", "\x1b[2J", "\ud800", "\u202e", "x" * 100_000, "../../etc/passwd", "| a | =1+1"),
    *([], {}, [[]], {"": {}}, [None] * 1000, {"__class__": "x"}),
]
nasty = st.sampled_from(NASTY) | st.text(max_size=20) | st.floats() | st.integers()
"""Beside these a value may be missing, doubled, or nested a hundred levels deep."""


def damaged(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with one to three of its parts replaced, removed or nested."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        holder, key = None, None
        part = value
        for _ in range(draw(st.integers(1, 9))):
            if not isinstance(part, (dict, list)) or not part:
                break
            holder = part
            key = draw(st.sampled_from(sorted(part) if isinstance(part, dict) else range(len(part))))
            part = part[key]
        if holder is None:
            return draw(nasty)
        kind = draw(st.sampled_from(("replace", "remove", "nest", "double")))
        if kind == "remove":
            del holder[key]
        elif kind == "double":
            holder[key] = [part, part]
        elif kind == "nest":
            for _ in range(100):
                part = [part]
            holder[key] = part
        else:
            holder[key] = draw(nasty)
    return value


@contextlib.contextmanager
def captured() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def check_said(status: object, out: str, err: str) -> None:
    assert status in DOCUMENTED, status
    assert "Traceback" not in out + err
    assert "error of the tool itself" not in err, err
    assert all(c.isprintable() or c in "\n\t" for c in out + err), (out + err)[:500]


RECORD = json.loads(archive.dumps([made_up.comparison()]))


@FUZZED
@given(data=st.data())
def test_damaged_records(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("records")
    whole, other = folder / "whole.json", folder / "other.json"
    whole.write_text(json.dumps(RECORD))
    if data.draw(st.booleans()):
        other.write_text(json.dumps(damaged(data.draw, RECORD)))
    else:
        text = bytearray(json.dumps(RECORD).encode())
        begin = data.draw(st.integers(0, len(text)))
        text[begin : begin + data.draw(st.integers(0, 50))] = data.draw(st.binary(max_size=50))
        other.write_bytes(text)
    files = data.draw(st.permutations([str(whole), str(other)]))
    with captured() as (out, err):
        status = main(["diff", *files, "--csv", str(folder / "out.csv"), "--json", str(folder / "out.json")])
    check_said(status, out.getvalue(), err.getvalue())
    with captured() as (out, err):
        status = main(["map", "--all", "--records", str(other), "--markdown", str(folder / "out.md")])
    check_said(status, out.getvalue(), err.getvalue())
    known = {"whole.json", "other.json", "out.csv", "out.json", "out.md"}
    assert {path.name for path in folder.iterdir()} <= known
    assert json.loads(whole.read_text()) == RECORD


def options() -> list[str]:
    """Every option of every command, from their help."""
    with captured() as (out, _):
        for words in ([], ["softmax"], *([name] for name in COMMANDS)):
            with contextlib.suppress(SystemExit):
                main([*words, "--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z-]+", out.getvalue())))


WORDS = st.sampled_from(
    [
        *(*COMMANDS, *options(), "softmax", "vector_add", "all"),
        *("start", "check", "hint", "report", "01", "99"),
        *("M=1,N=1,fp32", "--case=M=1,N=1,fp32", "M=-1", "M=" + "9" * 5000, "N=\uff11,fp32", "--case="),
        *("sm_90", "sm_75a", "sm_" + "1" * 5000, "cpu", "cuda:99", "1e999", "nan", "-1", "0", "-", "--", "="),
        *("", ".", "/dev/zero", "/dev/stdin", "/proc/self/mem", "\x1b[2J", "\ud800", "a\nb", "x" * 5000),
        *("*", "[", "'"),
    ]
)

WORK = (
    *(f"compare.commands.compare.{name}" for name in ("compare_ops", "search_crossover")),
    *(f"compare.commands.lab.{name}" for name in ("check", "report", "start")),
    *("compare.commands.grade.grade", "compare.commands.list.run", "compare.commands.map.show"),
    *("compare.commands.new_op.write", "compare.commands.predict.measure"),
    *("compare.commands.aot.build_and_show", "compare.commands.pipeline.open_and_show"),
    "compare.commands.doctor.report",
)
"""What the arguments are for: not done here."""

# Imported before anything is patched: a module first imported later would keep what stands in its place.
for module in pkgutil.walk_packages(commands.__path__, f"{commands.__name__}."):
    importlib.import_module(module.name)


@FUZZED
@given(words=st.lists(WORDS | st.text(max_size=8), max_size=7))
def test_arguments(words: list[str], tmp_path_factory: Any) -> None:
    assume(not any(word.startswith("COMPARE") for word in words))
    folder = tmp_path_factory.mktemp("arguments")
    before = changed_ns()
    with contextlib.ExitStack() as stack:
        for name in WORK:
            stack.enter_context(mock.patch(name, return_value=0))
        stack.enter_context(mock.patch.dict(os.environ))  # TRITON_INTERPRET: some commands change it
        stack.enter_context(mock.patch("compare.worker.start.prepare", return_value=torch.device("cpu")))
        stack.enter_context(
            contextlib.chdir(folder) if sys.version_info >= (3, 11) else contextlib.nullcontext()
        )
        out, err = stack.enter_context(captured())
        try:
            status: object = main(words)
        except SystemExit as ended:  # argparse: --help, or its own message
            status = ended.code or 0
    check_said(status, out.getvalue(), err.getvalue())
    assert changed_ns() == before


def changed_ns() -> dict[Path, int]:
    """When what lies in the project's folder was changed; other tests call git meanwhile."""
    return {path: path.stat().st_mtime_ns for path in ROOT.iterdir() if path.name != ".git"}


ANSWERS: tuple[tuple[messages.WorkerRequest[Any], Any], ...] = (
    (messages.Setup("cpu"), None),
    (messages.Connect(), 0.25),
    (messages.Rest(), messages.Held(0, 0)),
    (
        messages.First((), ()),
        messages.FirstCall(1.5, (Tuning("k", "key", "found", ("a", "b"), 2, 0.5),)),
    ),
    (messages.CheckCall((), 7), messages.Called(None, ("y",), True, None, {}, 1, ())),
    (messages.FindKernels(()), messages.Profile(made_up.rows()[1].resources, ("k",))),
    (messages.FindLaunched(), Launched((CountedKernel("k"),))),
    (messages.Compile((), "sm_90"), (b"code",)),
    (messages.CallAgain(), "torch.float32"),
    (messages.Warm(0, "graph", 3), Reading(1.0, 2.0)),
)
RAISED = messages.Answer("7", raised=messages.Error("failed", "ValueError", "no", "", ""))


def test_honest_answers_are_read() -> None:
    for request, value in ANSWERS:
        answer = messages.Answer("7", value=value)
        assert messages.read_answer(messages.encode(answer), request) == answer
        assert messages.read_answer(messages.encode(RAISED), request) == RAISED


@FUZZED
@given(data=st.data())
def test_workers_answers(data: st.DataObject) -> None:
    request, value = data.draw(st.sampled_from(ANSWERS))
    honest = RAISED if data.draw(st.booleans()) else messages.Answer("7", value=value)
    message = json.dumps(damaged(data.draw, msgspec.to_builtins(honest))).encode()
    if data.draw(st.booleans()):
        message = message[: data.draw(st.integers(0, len(message)))] + data.draw(st.binary(max_size=9))
    with contextlib.suppress(ValueError):
        answer = messages.read_answer(message, request)
        assert isinstance(answer.value, (type(value), type(None)))
        text = json.dumps(msgspec.to_builtins(answer), ensure_ascii=False)
        assert all(c.isprintable() or c in "\n\t" for c in text)


@FUZZED
@given(chunks=st.lists(st.binary(max_size=20), max_size=6), size=st.integers(-(2**31), 2**31 - 1))
def test_what_comes_through_the_pipe(chunks: list[bytes], size: int) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    try:
        for chunk in (struct.pack("!i", size), *chunks):
            theirs.sendall(chunk)
        with contextlib.suppress(Malformed):
            message = channel.receive(0.0)
            assert message is None or len(message) == size
        theirs.close()
        with contextlib.suppress(Malformed, EOFError):
            while channel.receive(0.0) is not None:
                pass
    finally:
        channel.close()
        theirs.close()


def test_the_record_is_one(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(RECORD))
    assert archive.read(tmp_path / "r.json")
