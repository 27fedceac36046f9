"""The labs' notebooks run from top to bottom, and a comparison shows itself in a cell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import made_up
from compare import notebook
from compare.labs import lab as labs
from compare.registry import ROOT
from cuda_impl import build

NOTEBOOKS = sorted(labs.FOLDER.glob("*/lab.ipynb"))
EVERY_RUN = NOTEBOOKS[:1]
OPTIONS = ("--nbmake", "--nbmake-timeout=300", "-p", "no:cacheprovider")


def test_a_comparison_is_shown_as_on_the_screen() -> None:
    shown = notebook.NotebookScreen(made_up.comparison(op="soft<max"))
    assert "CORRECT" in repr(shown)
    assert "soft&lt;max" in shown._repr_html_()
    assert shown._repr_html_().startswith("<pre")


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.parent.name, marks=() if path in EVERY_RUN else pytest.mark.exhaustive)
        for path in NOTEBOOKS
    ],
)
def test_it_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbmake", reason="nbmake is not installed")
    copy = tmp_path / "lab.ipynb"
    copy.write_text(path.read_text())
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment["COMPARE_CACHE_DIR"] = str(build.cache_dir())  # the project's own kernels take a minute
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, str(copy)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "answers.toml").is_file()
