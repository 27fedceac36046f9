"""The labs' notebooks run from top to bottom, and a comparison shows itself in a cell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import made_up
from compare import notebook
from compare.labs import lab as labs
from compare.labs.lab import Lab
from compare.labs.marking import total
from compare.labs.work import ANSWERS, start
from cuda_impl import build

LABS = labs.every()
EVERY_RUN = LABS[:1]
OPTIONS = ("--nbmake", "--overwrite", "--nbmake-timeout=600", "-p", "no:cacheprovider")


def test_a_comparison_is_shown_as_on_the_screen() -> None:
    shown = notebook.NotebookScreen(made_up.comparison(op="soft<max"))
    assert "CORRECT" in repr(shown)
    assert "soft&lt;max" in shown._repr_html_()
    assert shown._repr_html_().startswith("<pre")


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "lab",
    [
        pytest.param(lab, id=lab.name, marks=() if lab in EVERY_RUN else pytest.mark.exhaustive)
        for lab in LABS
    ],
)
def test_it_runs_from_top_to_bottom_where_lab_start_puts_it(lab: Lab, tmp_path: Path) -> None:
    pytest.importorskip("nbmake", reason="nbmake is not installed")
    start(lab, tmp_path / "mine")
    (tmp_path / "mine" / ANSWERS).unlink()  # a cell writes it
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    environment["COMPARE_CACHE_DIR"] = str(build.cache_dir())  # the project's own kernels take a minute
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, "lab.ipynb"],
        cwd=tmp_path / "mine",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    ran = (tmp_path / "mine" / "lab.ipynb").read_text()
    assert f"mine: 0 of {total(lab) - written(lab):g} points" in ran
    assert "predict first: fill in" in ran, "lab report"
    assert "CORRECT" in ran, "a comparison"


def written(lab: Lab) -> float:
    """The points that `lab check` does not show."""
    return sum(question.points for question in lab.question) + bool(lab.prediction)
