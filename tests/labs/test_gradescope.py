"""The autograder's archive, unpacked and run as Gradescope does, but for the installation of packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gradescope
from compare.labs import lab as labs
from compare.registry import ROOT
from right_files import ALL

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

pytestmark = [
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="archives are made of git's last commit"),
    pytest.mark.thorough,
    pytest.mark.long,
]


@pytest.fixture
def autograder(tmp_path: Path) -> Path:
    """Gradescope's folder: the archive's files in ``source``, a submission in ``submission``."""
    archive = ROOT / "build" / "gradescope_01.zip"
    subprocess.run(["make", f"PY={sys.executable}", "gradescope", "LAB=01"], cwd=ROOT, check=True)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "source")
    (tmp_path / "source" / "project" / ".venv").symlink_to(sys.prefix)
    submission = tmp_path / "submission"
    submission.mkdir()
    shutil.copy(labs.SOLUTIONS / "01_programs_and_threads" / "answers.toml", submission)
    for right in ALL[:2]:  # the solutions are the project's code
        (submission / right.file).write_text(right.text)
    starter = (labs.find("01").path.parent / "starter" / "torch_add.py").read_text()
    (submission / "torch_add.py").write_text(starter.partition("    raise")[0] + "    return x + y\n")
    return tmp_path


def marked(autograder: Path) -> dict[str, object]:
    script = autograder / "source" / "run_autograder"
    environment = {**os.environ, "AUTOGRADER": str(autograder)}
    subprocess.run(["bash", str(script)], env=environment, check=True, capture_output=True)
    found = json.loads((autograder / "results" / "results.json").read_text())
    jsonschema.validate(found, gradescope.RESULTS)
    return dict(found)


def test_the_archive_marks_a_submission(autograder: Path) -> None:
    project = autograder / "source" / "project"
    assert (autograder / "source" / "setup.sh").is_file()
    assert not (project / "labs" / "solutions").exists()
    assert not [*project.rglob("instructor.md"), *project.rglob("rubric.toml")]
    found = marked(autograder)
    assert found["score"] == sum(test["max_score"] for test in found["tests"]) > 0  # type: ignore[attr-defined]
    for file in (autograder / "submission").iterdir():
        file.unlink()
    assert marked(autograder)["score"] == 0


@pytest.mark.parametrize(
    ("grader", "says"),
    [
        ("exit 7", "The grader ended with status 7 before it could begin"),
        ("trap 'echo \"$reason\" > $file; exit 1' TERM; sleep 20 & wait", "stopped"),
        ('echo "$reason" > $file; kill -9 $$', "stopped"),
    ],
)
def test_whatever_ends_the_grader_there_are_results(grader: str, says: str, tmp_path: Path) -> None:
    """Here a shell script stands for the grader; compare/commands/grade.py has its own tests."""
    python = tmp_path / "source" / "project" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    reason = json.dumps({"score": 0, "output": "stopped", "tests": []})
    python.write_text(f"#!/bin/bash\nreason='{reason}'\nfile=${{@: -1}}\n{grader}\n")
    python.chmod(0o755)
    (tmp_path / "source" / "lab").write_text("01")
    (tmp_path / "submission").mkdir()
    environment = {**os.environ, "AUTOGRADER": str(tmp_path), "LIMIT_S": "1"}
    script = ROOT / "labs" / "gradescope" / "run_autograder"
    subprocess.run(["bash", str(script)], env=environment, check=True, capture_output=True, timeout=15)
    content = json.loads((tmp_path / "results" / "results.json").read_text())
    jsonschema.validate(content, gradescope.RESULTS)
    assert says in content["output"]
