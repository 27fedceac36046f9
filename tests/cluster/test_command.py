"""The command with a cluster, from its words to its screen: without a GPU, so nothing is timed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compare.records import archive
from processes import ROOT, called_with, running, until


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("killed", "said"), [("worker", "its worker process ended"), ("comparison", "killed by SIGKILL (")]
)
def test_a_comparison_that_is_killed_is_made_again(killed: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    words = ("vector_add", "--only", "torch.eager", "--no-resources", "--seed", "4242", "--json", str(file))
    command = [sys.executable, "-m", "compare", *words, "--cluster", "local"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as client:
        comparison = called_with("--seed=4242")
        status = Path(f"/proc/{comparison}/status").read_text()
        (worker,) = (line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
        os.kill(comparison if killed == "comparison" else int(worker), signal.SIGKILL)
        assert until(lambda: not running(comparison)), "it ends with its worker, and so frees the GPU"
        out, err = client.communicate(timeout=240)
    assert client.returncode == 0, err
    (line,) = (line for line in err.splitlines() if "it is tried again" in line)
    assert said in line
    assert out.count("CORRECT  1 of 1 matches fp64") == 1
    (run,) = archive.read(file)
    assert (run.op, run.seed) == ("vector_add", 4242)


@pytest.mark.thorough
def test_ctrl_c_says_what_was_finished() -> None:
    """A terminal sends it to the workers as well."""
    words = ("vector_add", "--only", "torch.eager", "--no-resources", "--seed", "4243", "--cluster", "local")
    line, pipe = [sys.executable, "-m", "compare", *words], subprocess.PIPE
    with subprocess.Popen(line, cwd=ROOT, stderr=pipe, text=True, start_new_session=True) as client:
        comparison = called_with("--seed=4243")
        os.killpg(client.pid, signal.SIGINT)
        error = client.communicate(timeout=60)[1]
    assert (client.returncode, "Traceback" in error) == (3, False), error
    assert "0 of 1 comparisons were finished" in error
    assert until(lambda: not running(comparison))
