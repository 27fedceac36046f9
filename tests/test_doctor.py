"""The doctor never raises, and shows the command that fixes each problem."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compare.command_line import installed
from compare.command_line.status import SUCCESS, USAGE
from compare.commands import doctor
from compare.commands.doctor import Capability
from compare.registry import ROOT
from loops import for_each

build = pytest.importorskip("cuda_impl.build")


@pytest.fixture(autouse=True)
def _forget() -> None:
    """Clear the finders' caches: these tests change what there is to find."""
    for finder in (build.nvcc, build.gxx, build.gcc, build.make_tool, build.cuda_include):
        finder.cache_clear()


def found(name: str) -> Capability:
    return next(capability for capability in doctor.diagnose() if capability.name == name)


def test_everything_is_there_or_says_why() -> None:
    for capability in doctor.diagnose():
        assert capability.detail
        assert capability.purpose
        assert not (capability.ok and capability.fix)
        if not capability.ok and not capability.optional:
            assert capability.fix


def test_an_import_is_kept_until_a_package_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    module = tmp_path / "slow_to_import.py"
    module.write_text("raise OSError('a library is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):  # what failed is tried again
        with pytest.raises(OSError, match="a library is missing"):
            installed.check_import("slow_to_import")
    module.write_text("")
    os.utime(module, ns=(1, 1))
    installed.check_import("slow_to_import")
    monkeypatch.delitem(sys.modules, "slow_to_import")
    installed.check_import("slow_to_import")
    assert "slow_to_import" not in sys.modules
    os.utime(module, ns=(2, 2))
    installed.check_import("slow_to_import")
    assert "slow_to_import" in sys.modules


def test_the_build_of_torch_is_read_from_its_files() -> None:
    build = installed.torch_build()
    assert (build.version, build.cuda) == (torch.__version__, torch.version.cuda)


@for_each(
    "module, name",
    [
        ("torch", "PyTorch"),
        ("triton", "Triton"),
        ("triton", "cuobjdump"),
        ("cupy", "cupy"),
        ("pybind11", "pybind11"),
        ("cuda.bindings.nvrtc", "NVRTC"),
        ("pynvml", "NVML"),
        ("tabulate", "other packages"),
    ],
)
def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, None)  # makes its import fail
        missing = found(name)
    assert not missing.ok
    assert "requirements.txt" in missing.fix
    assert sys.executable in missing.fix


def test_a_package_that_breaks_on_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise OSError('libnvrtc.so.13: cannot open')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    broken = found("cupy")
    assert not broken.ok
    assert "libnvrtc.so.13" in broken.detail


def test_a_folder_of_cupy_s_that_cannot_be_made(impossible_cupy_folder: Path) -> None:
    missing = found("cupy")
    assert missing.detail.startswith(f"cannot write {impossible_cupy_folder} (")
    assert missing.fix.startswith("export CUPY_CACHE_DIR=")


def test_no_compilers_on_the_path_or_a_wrong_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("CUDA_HOME", "/no/such/toolkit")
    assert found("g++").fix == "unset CXX"
    assert found("nvcc").fix == "unset CUDA_HOME"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX")
    build.gxx.cache_clear()
    missing = found("g++")
    assert (missing.ok, missing.fix) == (False, doctor.GXX)


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("in the way")
    missing = found("cache")
    assert not missing.ok
    assert missing.fix.startswith("export COMPARE_CACHE_DIR=")


def test_results_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(doctor, "RECORDS", tmp_path / "results")
    missing = found("results")
    assert (missing.ok, missing.fix) == (False, f"mkdir -p {tmp_path / 'results'}")
    (tmp_path / "results" / "card").mkdir(parents=True)
    (tmp_path / "results" / "card" / "softmax.json").write_text("{}")
    assert found("results").detail == "records of card"
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "results").chmod(0o500)
    assert "chmod u+w" in found("results").fix


def test_no_gpu_is_no_fault_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(installed, "gpu", lambda: None)
    monkeypatch.setattr(doctor, "_card_present", lambda: False)
    gpu = found("GPU")
    assert (gpu.ok, gpu.optional, gpu.fix) == (False, True, "")


def test_a_card_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(installed, "gpu", lambda: None)
    monkeypatch.setattr(doctor, "_card_present", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "torch>=2.11" in found("GPU").fix
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert found("GPU").fix == "unset CUDA_VISIBLE_DEVICES"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert found("GPU").fix == doctor.DRIVER


def test_a_table_and_each_command_once() -> None:
    capabilities = [
        Capability("one", "this", True, "1.0"),
        Capability("two", "that", False, "not there", "fix it"),
        Capability("three", "those", False, "not there either", "fix it"),
        Capability("four", "nothing much", False, "absent", optional=True),
    ]
    text = doctor.render(capabilities)
    assert text.count("fix it") == 1
    assert "To fix two, three:" in text
    assert text.count("MISSING") == 2


def test_the_exit_status_says_whether_anything_needed_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = Capability("extra", "comfort", False, "absent", optional=True)
    monkeypatch.setattr(doctor, "diagnose", lambda: [extra])
    assert doctor.report() == SUCCESS
    monkeypatch.setattr(doctor, "diagnose", lambda: [extra, Capability("g++", "all", False, "absent", "x")])
    assert doctor.report() == USAGE
    assert "absent" in capsys.readouterr().out


def test_without_any_package_there_is_a_table_too() -> None:
    words = [sys.executable, "-S", "-m", "compare", "doctor"]  # without site-packages
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "")
    assert re.search(rf"(?m)^ok +Python +[\d.]+ at {re.escape(sys.executable)}$", done.stdout)
    assert re.search(r"(?m)^MISSING  PyTorch +the torch way, .*No module named 'torch'$", done.stdout)
    assert re.search(r"(?m)^MISSING  other packages +.*: no numpy, rich, tabulate,", done.stdout)
    assert "-m pip install -r" in done.stdout


@pytest.mark.gpu
def test_the_card_is_found() -> None:
    gpu = found("GPU")
    assert gpu.ok
    assert torch.cuda.get_device_name() in gpu.detail
    (properties, card) = (torch.cuda.get_device_properties(0), installed.gpu())
    assert (card.name, card.memory_bytes) == (properties.name, properties.total_memory)
    assert card.capability == 10 * properties.major + properties.minor
    assert found("NVML").ok
