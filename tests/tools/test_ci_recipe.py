"""examples/github-actions.yml: its commands are ones that we have, and it acts on their exit statuses."""

from __future__ import annotations

import argparse
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from compare import cli
from compare.command_line.options import COMMANDS
from compare.command_line.status import FAILURE, INCONCLUSIVE, SUCCESS, USAGE
from compare.registry import ROOT, op_names

RECIPE = ROOT / "examples" / "github-actions.yml"


def steps() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    (job,) = yaml.safe_load(RECIPE.read_text())["jobs"].values()
    return list(job["steps"])


def commands() -> list[list[str]]:
    """The words after ``python -m compare`` of each command, without what the shell does with its status."""
    scripts = "\n".join(step.get("run", "") for step in steps())
    lines = (line.partition("python -m compare ")[2].partition(" || ")[0] for line in scripts.splitlines())
    return [shlex.split(line) for line in lines if line]


def parsed(words: list[str]) -> argparse.Namespace:
    name = words[0] if words[0] in COMMANDS else ""
    arguments, rest = cli.parser_of(name).parse_known_intermixed_args(words[bool(name) :])
    assert rest == []
    return arguments


def test_every_command_is_one_of_ours_and_writes_what_later_steps_read() -> None:
    comparison, diff = map(parsed, commands())
    assert comparison.what in op_names()
    assert all((ROOT / file).is_file() for file in comparison.load)
    assert diff.files == [Path("$BASELINE"), comparison.json]
    inputs = [value for step in steps() for value in step.get("with", {}).values()]
    assert {str(comparison.json), str(comparison.junit)} <= {*inputs}


@pytest.mark.parametrize(
    ("status", "expected"),
    [(SUCCESS, SUCCESS), (FAILURE, FAILURE), (USAGE, USAGE), (INCONCLUSIVE, SUCCESS)],
)
def test_a_slower_row_fails_the_job_and_an_undecided_one_warns(
    status: int, expected: int, tmp_path: Path
) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexit {status}\n")
    python.chmod(0o755)
    (script,) = (step["run"] for step in steps() if " diff " in step.get("run", ""))
    command = ["bash", "-e", "-c", script]  # as GitHub's own
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == expected
    assert ("::warning::" in done.stdout) == (status == INCONCLUSIVE)
