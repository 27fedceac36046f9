"""The notebook for Colab: its one cell installs the project and compares, on a machine without a GPU too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_impl import build
from processes import ROOT

INSTALLER = (
    '#!/bin/sh\nfor word; do case $word in *.txt) test -f $word || exit 1; esac; done\necho "$@" > ../pip\n'
)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_its_cell_runs(tmp_path: Path):
    pytest.importorskip("nbmake", reason="nbmake is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip("the cell clones a repository")
    book = json.loads((ROOT / "examples/colab.ipynb").read_text())
    (cell,) = book["cells"]
    text = "".join(cell["source"])
    assert 'repository = ""' in text
    cell["source"] = text.replace('repository = ""', f'repository = "{ROOT}"')
    (tmp_path / "colab.ipynb").write_text(json.dumps(book))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text(
        f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    )  # a link would lose its packages
    (programs / "pip").write_text(INSTALLER)
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment["COMPARE_CACHE_DIR"] = str(build.cache_dir())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbmake", "--overwrite", "--nbmake-timeout=500", "colab.ipynb"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    ran = (tmp_path / "colab.ipynb").read_text()
    assert "CORRECT" in ran, ran
    assert "triton.mine" in ran
    assert "-r requirements.txt -c constraints.txt" in (tmp_path / "pip").read_text()
