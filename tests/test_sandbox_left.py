"""What a command leaves of temporary files and shared memory, however it ends: nothing."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compare.registry import ROOT
from compare.sandbox import isolation, scratch
from own_machine import OwnMachine
from processes import descendants, until

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

NEEDS_NAMESPACES = pytest.mark.skipif(
    not isolation.found().namespaces, reason=f"no namespaces here: {isolation.found().refused}"
)
FILE = """
import os, signal
from compare.registry import implementation
from triton_impl.softmax import onepass

@implementation("softmax", "triton.mine", level="tiled")
def mine(x):
    {}
    return onepass(x)
"""
HOLDS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from compare.sandbox import scratch
print(scratch.private_folder().parent, flush=True)
sys.stdin.read()
"""


# --------------------------------------------------------------------------- one run's folder


def folder_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's new folder in a temporary folder."""
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return scratch.folder.__wrapped__()


def holder(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another run, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=-1,
        stdout=-1,
        text=True,
    )
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_running_process_stays_and_that_of_a_killed_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, theirs = holder(tmp_path)
    (theirs / "deep").mkdir(mode=0)
    folder_in(tmp_path, monkeypatch)
    assert theirs.exists()
    with process:
        process.kill()
    new = folder_in(tmp_path, monkeypatch)
    assert new.exists()
    assert not theirs.exists()


def test_the_folder_is_gone_when_its_process_has_ended(tmp_path: Path) -> None:
    process, theirs = holder(tmp_path)
    assert theirs.parent == tmp_path
    assert theirs.exists()
    process.communicate()
    assert not theirs.exists()


def test_a_folder_outlives_a_fork_that_ends(tmp_path: Path) -> None:
    program = HOLDS.replace(
        "sys.stdin.read()", "import os; child = os.fork(); child and os.wait(); child and print("
    )
    program += "scratch.folder().exists())"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.split()[1:] == ["True"], done.stderr


def test_what_runs_share_is_not_in_the_folder_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of a record, and the cache of torch.compile."""
    for name in ("COMPARE_TMPDIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    variables = scratch.variables()
    own = Path(variables.pop("TMPDIR"))
    assert own == scratch.folder()
    assert variables.keys() == {"COMPARE_TMPDIR", "TORCHINDUCTOR_CACHE_DIR"}
    assert not any(Path(each).is_relative_to(own) for each in variables.values())
    assert {Path(variables["COMPARE_TMPDIR"])} == {own.parent}


# --------------------------------------------------------------------------- whole commands


@pytest.fixture
def machine(tmp_path: Path) -> OwnMachine:
    return OwnMachine(tmp_path)


def comparing(machine: OwnMachine, code: str = "pass", seconds: int = 120) -> subprocess.Popen[str]:
    """A comparison whose kernels are built first, by g++."""
    file = machine.folder / "mine.py"
    file.write_text(FILE.format(code))
    words = ["--device", "cpu", "--case", "M=3,N=37,fp32", "--no-hard-inputs", "--timeout", seconds]
    return machine.start("softmax", *words, "--only", "cupy.onepass", "--only", "*.mine", "--load", file)


def lab(machine: OwnMachine, command: str) -> subprocess.Popen[str]:
    folder = machine.folder / "lab"
    if not folder.exists():
        shutil.copytree(ROOT / "labs" / "01_programs_and_threads" / "starter", folder)
        (folder / "answers.toml").write_text('lab = "01"\n')
    words = command.split()
    return machine.start(*words, folder, "--device", "cpu", "--timeout", 60)


def compiling(machine: OwnMachine) -> bool:
    """Whether g++ has a temporary file there."""
    return any(Path(path).name.startswith("cc") and path.endswith((".s", ".o")) for path in machine.left())


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed until it ended by itself."""
    return process.communicate(timeout=250)[0]


def nothing_left(machine: OwnMachine) -> None:
    """A process that was killed may take a moment to end."""
    assert until(lambda: not machine.left(), 10), machine.left()


@NEEDS_NAMESPACES
@pytest.mark.thorough
@pytest.mark.parametrize(
    "ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda each: each.name
)
def test_a_signal_while_a_compiler_runs(ending: signal.Signals, machine: OwnMachine) -> None:
    process = comparing(machine)
    assert until(lambda: compiling(machine) or process.poll() is not None, 120)
    assert process.poll() is None, ended(process)
    process.send_signal(ending)
    text = ended(process)
    assert "Traceback" not in text
    if ending == signal.SIGKILL:  # the next command removes it
        ended(machine.start("--version"))
    nothing_left(machine)


@NEEDS_NAMESPACES
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("pass", "CORRECT"),
        ("raise RuntimeError('odd')", "odd"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("while True: pass", "took longer"),
    ],
)
def test_an_end_of_a_file(code: str, says: str, machine: OwnMachine) -> None:
    text = ended(comparing(machine, code, 5 if "while" in code else 120))
    assert says in text
    nothing_left(machine)


@NEEDS_NAMESPACES
@pytest.mark.thorough
def test_workers_killed_from_outside(machine: OwnMachine) -> None:
    """While a compiler of theirs runs."""
    process = comparing(machine)
    assert until(lambda: compiling(machine) or process.poll() is not None, 120)
    for pid in descendants(process.pid):
        os.kill(pid, signal.SIGKILL)
    ended(process)
    nothing_left(machine)


@NEEDS_NAMESPACES
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "ending"),
    [
        *(("grade", None), ("lab check", signal.SIGTERM), ("grade", signal.SIGKILL)),
        pytest.param("lab check", None, marks=pytest.mark.exhaustive),
        pytest.param("grade", signal.SIGTERM, marks=pytest.mark.exhaustive),
        pytest.param("lab check", signal.SIGKILL, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_a_lab(command: str, ending: signal.Signals | None, machine: OwnMachine) -> None:
    process = lab(machine, command)
    if ending is not None:
        assert until(lambda: compiling(machine) or process.poll() is not None, 120)
        assert process.poll() is None, ended(process)
        others = descendants(process.pid)
        process.send_signal(ending)
        ended(process)
        assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in others), 20), "one goes on"
        ended(machine.start("--version"))
    else:
        assert "Traceback" not in ended(process)
    nothing_left(machine)


@NEEDS_NAMESPACES
@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name
)
def test_stops_at_random_moments_beside_another_run(ending: signal.Signals, machine: OwnMachine) -> None:
    """Nothing is left of those that are stopped, and the other run loses nothing."""
    generator = random.Random(int(ending))
    for _ in range(8):
        other, stopped = comparing(machine), comparing(machine)
        time.sleep(generator.uniform(0.0, 12.0))
        stopped.send_signal(ending)
        assert "Traceback" not in ended(stopped)
        ended(machine.start("--version"))
        assert "CORRECT" in ended(other)
        nothing_left(machine)
        shutil.rmtree(machine.folder / "cache")
