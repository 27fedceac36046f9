"""What the shell's Tab key offers: asked as argcomplete's own shell function does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from compare import registry
from compare.command_line.options import COMMANDS
from compare.command_line.status import FAILURE
from compare.registry import ROOT
from loops import for_each


def completed(line: str, *flags: str) -> tuple[int, list[str]]:
    """The exit status and the words for the end of ``line``."""
    variables = {
        **os.environ,
        "_ARGCOMPLETE": "3",  # python -m compare: three words before the arguments
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \n",
        "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout",
        "COMP_LINE": f"python -m compare {line}",
        "COMP_POINT": str(len(f"python -m compare {line}")),
        "COMP_TYPE": "9",
    }
    command = [sys.executable, *flags, "-m", "compare"]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
    return done.returncode, [word.rstrip() for word in done.stdout.split("\n") if word.strip()]


@pytest.mark.thorough
@for_each(
    "line, words",
    [
        ("sof", ["softmax"]),
        ("", [*registry.op_names(), "all", *COMMANDS]),
        ("softmax --jun", ["--junit"]),
        ("softmax --device cp", ["cpu"]),
        ("softmax --only tri*", []),
        ("diff --mark", ["--markdown"]),
        ("pipeline vector_", ["vector_add"]),
        ("--no-hard-inputs soft", ["softmax"]),
        ("show --rec", ["--records"]),
        ("lab hi", ["hint"]),
    ],
    ids=lambda case: case[0],
)
def test_commands_ops_and_options_are_completed(line: str, words: list[str]) -> None:
    pytest.importorskip("argcomplete")
    status, completions = completed(line)
    assert status == 0
    assert {*completions} == {*words}


def test_implementations_are_completed() -> None:
    pytest.importorskip("argcomplete")
    _, completions = completed("softmax --only triton.")
    assert r"triton.\*" in completions, "escaped for the shell"


def test_without_the_library_nothing_is_completed() -> None:
    assert completed("sof", "-S") == (FAILURE, [])
