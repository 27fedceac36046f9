"""Settings of the whole test run: its device, tests that need a GPU, and shared fixtures."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU:
    # Triton reads this when a kernel is decorated, so it must stand before any kernel is imported.
    os.environ["TRITON_INTERPRET"] = "1"
# Tests side by side share a GPU: each process has locks of its own, and so waits for no other.
LOCKS = tempfile.mkdtemp(prefix="compare-locks-")
atexit.register(shutil.rmtree, LOCKS, ignore_errors=True)
os.environ["COMPARE_LOCKS"] = LOCKS
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)  # the workers of pytest-xdist get a terminal's: screens would wrap


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail, instead of skipping, where there is no CUDA device or no gpu test ran",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--require-gpu"):
        return
    if not HAS_GPU:
        raise pytest.UsageError(
            "--require-gpu: torch finds no CUDA device. `python -m compare doctor` says why and how to fix it"
        )
    config.pluginmanager.register(RequireGpu())


@pytest.hookimpl(tryfirst=True)  # before -m selects by these marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    if HAS_GPU:
        for item in items:
            params = getattr(getattr(item, "callspec", None), "params", {})
            if "device" in getattr(item, "fixturenames", ()) and "device" not in params:
                item.add_marker(pytest.mark.gpu)  # it takes the GPU where there is one
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and torch finds none here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        # Under xdist only a worker's report reaches the counting process.
        item.user_properties.append(("gpu", True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if HAS_GPU and report.failed and context_is_lost():
        if not hasattr(item.config, "workerinput"):
            pytest.exit(f"{item.nodeid} made this process's GPU context unusable\n{report.longreprtext}", 1)
        # No later test would work.  xdist reports that its worker crashed in this test, and starts another.
        with item.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(report.longreprtext, file=sys.stderr, flush=True)
        os._exit(1)
    return report


def context_is_lost() -> bool:
    """Whether a kernel failed with a sticky CUDA error, such as an illegal access."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


class RequireGpu:
    """Fails a run in which every gpu test was skipped or deselected."""

    ran = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self.ran += dict(report.user_properties).get("gpu", False)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        worker = hasattr(session.config, "workerinput")
        if not worker and self.ran == 0 and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.ran == 0:
            terminalreporter.section("--require-gpu: no gpu test ran", red=True)


@pytest.fixture(autouse=True)
def tritons_environment() -> Generator[None, None, None]:
    """Undo torch.compile's choice of PyTorch's ptxas for Triton; fail a test that leaves the interpreter."""
    ptxas, interpreted = (os.environ.get(name) for name in ("TRITON_PTXAS_PATH", "TRITON_INTERPRET"))
    yield
    if ptxas is None:
        os.environ.pop("TRITON_PTXAS_PATH", None)
    if interpreted is not None and os.environ.get("TRITON_INTERPRET") != interpreted:
        os.environ["TRITON_INTERPRET"] = interpreted
        pytest.fail("it changed TRITON_INTERPRET, which later tests read: use the fixture `decorated`")


@pytest.fixture
def decorated(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a command that changes TRITON_INTERPRET: kernels are decorated before, and it is restored after."""
    from compare import registry

    for op in registry.op_names():
        registry.implementations(op)
    monkeypatch.setenv("TRITON_INTERPRET", os.environ.get("TRITON_INTERPRET", ""))


@pytest.fixture
def impossible_cupy_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """cupy's cache folder, which cannot be created: its import fails."""
    folder = tmp_path / "file" / "cupy"
    folder.parent.touch()
    (tmp_path / "cupy.py").write_text("import os\n\nos.makedirs(os.environ['CUPY_CACHE_DIR'])\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def own_registry() -> Iterator[None]:
    """What the test registers is removed after it."""
    import loaded_files

    with loaded_files.own_registry():
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This project's cache folder for the test, not created yet."""
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The best device here, for tests that run everywhere."""
    from compare.device import pick

    return pick()


@pytest.fixture
def card() -> torch.device:
    """The current GPU, for tests that need one."""
    return torch.device("cuda", torch.cuda.current_device())
