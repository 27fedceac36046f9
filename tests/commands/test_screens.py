"""Every screen on narrow terminals, without colours, in the C locale and into a pipe."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

from compare import cli
from compare.command_line.options import COMMANDS
from compare.report.substitutes import SUBSTITUTES
from loops import for_each
from screens import LONG, SCREENS


def shown(
    name: str, folder: Path, patch: pytest.MonkeyPatch, *, tty: bool = False, encoding: str = "utf-8"
) -> str:
    """What a screen prints to a terminal or into a pipe."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    patch.setattr(stream, "isatty", lambda: tty)
    patch.setattr(sys, "stdout", stream)
    patch.setattr(sys, "stderr", io.StringIO())
    patch.setenv("COMPARE_TRACEBACK", "1")  # an error of the tool is no screen
    cli.parser_of.cache_clear()  # its help has the width of the terminal before
    with contextlib.suppress(SystemExit):  # of --help
        SCREENS[name](folder)
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("columns", [132, 80, 60])
@for_each("name", list(SCREENS))
def test_a_screen_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    text = shown(name, tmp_path, monkeypatch, tty=True)
    assert text.strip()
    assert "\x1b" not in text
    lines = text.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    table = re.split(r"(?m)^To (?:fix |build and run )", text)[0]  # which has commands to copy
    typed = re.compile(r"(?:NEXT)? *(?:ncu|python -m compare) ")  # a command to copy, which is one line
    wide = [line for line in table.splitlines() if len(line) > columns and not typed.match(line)]
    assert [line for line in wide if len(line.split()) > 1] == []
    assert not re.search(r"(?m)^ *--[- ]*\n(?:\n|\Z)", text), "an empty table"


@for_each("name", list(SCREENS))
def test_a_screen_into_a_pipe_is_plain_text_in_any_locale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    whole, ascii_only = (shown(name, tmp_path, monkeypatch, encoding=each) for each in ("utf-8", "ascii"))
    assert whole.strip()
    assert "\x1b" not in whole
    assert len(whole.splitlines()) == len(ascii_only.splitlines())
    assert whole.count("?") == ascii_only.count("?")


def test_every_command_has_a_screen_here() -> None:
    seen = {name.split()[0] for name in SCREENS if not name.endswith("--help")}
    assert set(COMMANDS) - seen == {"serve"}  # prints its address only, to stderr


def test_a_check_gives_each_reason_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first group's is seen while the others run; its terms are explained at the end."""
    monkeypatch.chdir(tmp_path)
    text = " ".join(shown("lab check", tmp_path, monkeypatch).split())
    assert text.count(LONG) == 1
    assert text.index("tail mask?") < text.index("tail mask: the condition")


@for_each("text, instead", [("2 µs ± 1 · ▁█", "2 us +- 1 | 18"), ("Zoë … ≠", "Zoe ... ="), ("好", "?")])
def test_characters_that_an_encoding_lacks_are_replaced(text: str, instead: str) -> None:
    assert text.encode("ascii", SUBSTITUTES) == instead.encode()
    assert text.encode("utf-8", SUBSTITUTES) == text.encode()
