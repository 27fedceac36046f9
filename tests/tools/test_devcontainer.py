"""The container for an editor: it has what `make install` needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

from compare.registry import ROOT

CONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())


def packages(text: str) -> set[str]:
    """Those of an ``apt-get install``."""
    words = re.search(r"apt-get install ([^&\\]+)", text)
    return {word for word in words[1].split() if not word.startswith("-")}


def test_it_has_the_graders_packages_and_every_tool_that_an_install_asks_for() -> None:
    installed = packages(CONTAINER["onCreateCommand"])
    assert installed == packages((ROOT / "labs" / "Dockerfile").read_text())
    tools = re.search(r"for tool in (.+); do", (ROOT / "tools" / "make_venv.sh").read_text())
    assert {*tools[1].split(), "make"} <= installed


def test_its_last_command_is_one_of_this_project() -> None:
    tool, *words = CONTAINER["postCreateCommand"].split()
    assert shutil.which(tool)
    assert subprocess.run([tool, "-n", *words], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_the_editor_takes_the_environment_that_is_made() -> None:
    python = CONTAINER["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    made = re.search(r"(?m)^\s*ENV := (\S+)", (ROOT / "Makefile").read_text())
    assert python.startswith(f"${{containerWorkspaceFolder}}/{made[1].partition('/')[0]}")
