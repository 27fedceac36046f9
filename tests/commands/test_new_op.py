"""``new-op``: the files of an op that works, and what it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compare.command_line.status import SUCCESS, USAGE
from compare.registry import ROOT
from test_house import FILES_OF_AN_OP

Complaint = Callable[..., str]
MUTATIONS = "tests/mutations/{}.diff"


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_writes_every_file_of_an_op_and_says_so(
    tmp_path: Path, printed: Callable[..., tuple[str, str]]
) -> None:
    said, _ = printed("new-op", "cubed", "--into", str(tmp_path))
    files = {file.format("cubed") for file in (*FILES_OF_AN_OP, MUTATIONS)}
    assert written(tmp_path) == files
    for file in files:
        assert str(tmp_path / file) in said
        assert "new_op" not in (tmp_path / file).read_text()
    assert f"NEXT  move them into the same folders of {ROOT}\n      python -m compare cubed\n" in said


def test_no_file_is_overwritten(complaint: Complaint, tmp_path: Path) -> None:
    header = tmp_path / "cuda_impl" / "kernels" / "norm.cuh"  # as one of the project's
    header.parent.mkdir(parents=True)
    header.touch()
    assert "norm.cuh exists, and is not overwritten" in complaint("new-op", "norm", "--into", str(tmp_path))
    assert written(tmp_path) == {"cuda_impl/kernels/norm.cuh"}


def test_a_folder_that_cannot_be_written(tmp_path: Path, complaint: Complaint) -> None:
    (tmp_path / "file").touch()
    assert "new-op cubed: cannot write" in complaint("new-op", "cubed", "--into", str(tmp_path / "file"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project with a new op, ``cubed``."""
    for folder in ("compare", "ops", "torch_impl", "triton_impl", "cuda_impl", "examples", "tests", "tools"):
        ignored = shutil.ignore_patterns("__pycache__", "prebuilt")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for file in ("pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / file, tmp_path / file)
    assert python(tmp_path, "compare", "new-op", "cubed").returncode == SUCCESS
    return tmp_path


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.thorough
@pytest.mark.long
def test_the_op_runs_at_once(project: Path) -> None:
    done = python(project, "compare", "cubed", "--device", "cpu")
    assert done.returncode == SUCCESS, done.stdout + done.stderr
    assert "CORRECT  4 of 4 match fp64" in done.stdout
    for way in ("torch.eager", "triton.blocked", "cuda.scalar"):
        assert f"\n {way} " in done.stdout


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("OP = Op(", "MY_OP = Op(", "ops/cubed.py has no OP: name the op's description so"),
        (
            'dims=("N",)',
            "dims=(N,)",
            "ops/cubed.py:52: NameError: name 'N' is not defined. Fix the file",
        ),
        ("def cost(", "def cost((", "ops/cubed.py:20: SyntaxError: "),
        ("return x * x", "return x * z", "ops/cubed.py:17: NameError: name 'z' is not defined"),
    ],
)
def test_a_mistake_in_its_description_is_named(project: Path, before: str, after: str, says: str) -> None:
    op = project / "ops" / "cubed.py"
    op.write_text(op.read_text().replace(before, after))
    done = python(project, "compare", "cubed", "--device", "cpu", "--case", "N=9,fp32")
    assert done.returncode == USAGE
    assert says in done.stderr
    assert "please report it" not in done.stderr


@pytest.mark.long
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_op_passes_the_generic_tests(project: Path) -> None:
    generic = ("test_house.py", "test_spec.py", "code_size/test_count.py", "kernels/test_mutations.py")
    options = ("-q", "-p", "no:cacheprovider", "-k", "cubed", "-m", "not (gpu or exhaustive)")
    done = python(project, "pytest", *options, *(f"tests/{file}" for file in generic))
    assert done.returncode == SUCCESS, done.stdout + done.stderr
    assert " passed" in done.stdout
