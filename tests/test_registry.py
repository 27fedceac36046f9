"""The registry: what a label may be, and what a user's file that cannot be loaded is answered with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from compare import registry
from compare.contained import files
from compare.spec import UsageError

NO_RUNG = """
from compare.registry import implementation


@implementation("vector_add", "cupy.mine")
def mine(x, y):
    return x + y
"""


@pytest.mark.parametrize(
    "variant",
    [
        "",
        "mine x\ny",
        "mine\n",
        "a/b",
        "..",
        "*",
        "mi?e",
        "[m]ine",
        "\x1b[31m",
        "\U0001f600",
        "é",
        "mine:8",
        "a|b",
    ],
)
def test_a_label_that_is_more_than_a_name_is_refused(variant: str) -> None:
    """Tables and terminals would break on it, --only take it for a pattern, or a row for one of --tune."""
    with pytest.raises(UsageError, match="letters, digits and _ behind the dot") as caught:
        registry.implementation("vector_add", f"cupy.{variant}", rung="naive")
    assert str(caught.value).isprintable()


def test_a_file_with_such_a_label_is_not_loaded(tmp_path: Path) -> None:
    file = tmp_path / "starred.py"
    file.write_text(NO_RUNG.replace('"cupy.mine"', '"cupy.*", rung="naive"'))
    with pytest.raises(UsageError, match=r"--load .*label 'cupy\.\*': write ROUTE\.VARIANT"):
        files.load([str(file)], 60.0)
    assert "cupy.*" not in [impl.label for impl in registry.implementations("vector_add")]


@pytest.mark.parametrize("label", ["torch.eager2", "triton.My_Kernel", "cupy.0", "library.cub"])
def test_a_label_that_is_a_name_is_taken(label: str) -> None:
    registry.implementation("vector_add", label, rung="naive")  # which registers when it decorates


def test_the_command_that_is_advised_shows_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the user's own folder, which is not the project's, by a path with a space in it."""
    monkeypatch.chdir(tmp_path)
    Path("no rung.py").write_text(NO_RUNG)
    with pytest.raises(UsageError, match=r"TypeError at line 5: .*'rung'\. Mend the file") as caught:
        registry.load("no rung.py")
    advised = str(caught.value).partition("Mend the file (")[2].removesuffix(" shows the whole traceback)")
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(["sh", "-c", advised], env=bare, capture_output=True, text=True, check=False)
    assert 'File "' in done.stderr
    assert "TypeError: implementation() missing" in done.stderr


def test_a_file_that_interrupts_its_worker_is_told_from_ctrl_c(tmp_path: Path) -> None:
    file = tmp_path / "interrupts.py"
    file.write_text("raise KeyboardInterrupt\n")
    with pytest.raises(UsageError, match=r"KeyboardInterrupt at line 1\. Mend the file"):
        files.load([str(file)], 60.0)
    with pytest.raises(KeyboardInterrupt):  # here it would be the user's
        registry.load(str(file))
