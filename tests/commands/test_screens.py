"""Every screen on narrow terminals, without colours, in the C locale and into a pipe."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable

import pytest

import made_up
from compare import cli
from compare.pipeline import screen
from compare.pipeline.records import CompilerStage, Opened, StageFailure
from compare.report import terminal
from compare.resources.sass.disassembly import Instruction
from loops import for_each


def opened() -> list[Opened]:
    """An op's kernels of which one stopped at a stage."""
    rows = tuple(Instruction(16 * i, code, code) for i, code in enumerate(("LDG.E.128", "HMMA.16816.F32")))
    stages = (CompilerStage("cubin", "ptxas", b"\0", took_ms=1200.0),)
    labels = ("triton.pipelined", "cupy.tensor_core", "pybind.tensor_core")
    every = [
        Opened("op", label, "M=4096,N=4096,fp32", "sm_90", "k", stages, instructions=rows) for label in labels
    ]
    failed = Opened(
        "op", "cupy.b", "M=4096,N=4096,fp32", "sm_90", "k", failure=StageFailure("ptx", "word " * 40)
    )
    gone = Opened("op", "torch.eager", "M=4096,N=4096,fp32", "sm_90", unavailable="no source")
    return [failed, *every, gone]


SCREENS: dict[str, Callable[[], object]] = {
    "start": lambda: cli.main([]),
    "help": lambda: cli.main(["--help"]),
    "list": lambda: cli.main(["list", "--device", "cpu"]),
    "list softmax": lambda: cli.main(["list", "softmax", "--device", "cpu"]),
    "map": lambda: cli.main(["map"]),
    "doctor": lambda: cli.main(["doctor"]),
    "lab list": lambda: cli.main(["lab", "list"]),
    "comparison": lambda: terminal.show(made_up.comparison()),
    "pipeline": lambda: screen.put(opened(), "x[M,N] -> y[M,N]", "summary", ""),
    "caches": lambda: screen.put(opened(), "x[M,N] -> y[M,N]", "caches", ""),
}


def shown(name: str, patch: pytest.MonkeyPatch, *, tty: bool, encoding: str = "utf-8") -> str:
    """What a screen prints to a terminal or into a pipe."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    patch.setattr(stream, "isatty", lambda: tty)
    patch.setattr(sys, "stdout", stream)
    cli.parser_of.cache_clear()  # its help has the width of the terminal before
    with contextlib.suppress(SystemExit):  # of --help
        SCREENS[name]()
    stream.flush()
    return raw.getvalue().decode(encoding)


@for_each("columns", [80, 60])
@for_each("name", list(SCREENS))
def test_a_screen_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, name: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(name, monkeypatch, tty=True)
    assert "\x1b" not in text
    table = text.partition("\nTo fix ")[0]  # which has commands to copy
    wide = [line for line in table.splitlines() if len(line) > columns]
    assert [line for line in wide if len(line.split()) > 1] == []


@for_each("name", list(SCREENS))
def test_a_screen_into_a_pipe_is_plain_text_in_any_locale(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    whole, ascii_only = (shown(name, monkeypatch, tty=False, encoding=each) for each in ("utf-8", "ascii"))
    assert "\x1b" not in whole
    assert len(whole.splitlines()) == len(ascii_only.splitlines())
    assert whole.count("?") == ascii_only.count("?")
