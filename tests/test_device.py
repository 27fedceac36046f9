"""The machine: picking a device, what it supports, and the environment beside every figure."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from compare import device
from compare.model.op import Implementation, UsageError
from loops import for_each


def implementation(label: str, requires: str | None) -> Implementation:
    return Implementation("op", label, "tiled", lambda x: x, requires)


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, major: int, minor: int, count: int = 1) -> torch.device:
    properties = SimpleNamespace(
        name="a card",
        major=major,
        minor=minor,
        multi_processor_count=17,
        total_memory=1 << 34,
        L2_cache_size=4 << 20,
        uuid="no-such-card",
    )
    monkeypatch.setattr(device, "_properties_of", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return torch.device("cuda", 0)


def test_auto_takes_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.pick("auto") == torch.device("cpu")
    pretend_gpu(monkeypatch, 9, 0)
    assert device.pick("auto") == torch.device("cuda", 0)
    assert device.pick("cpu") == torch.device("cpu")


@for_each("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "", "cpu:0", "cuda:0 "])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="auto, cpu, cuda or cuda:NUMBER"):
        device.pick(name)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="doctor"):
        device.pick("cuda")
    pretend_gpu(monkeypatch, 9, 0, count=2)
    assert device.pick("cuda:1").index == 1
    with pytest.raises(UsageError, match=r"2 GPU\(s\), cuda:0 to cuda:1"):
        device.pick("cuda:2")


@for_each(
    "capability, label, requires, reason",
    [
        ((8, 0), "cupy.v", None, None),
        ((8, 0), "cupy.v", "sm_75", None),
        ((8, 0), "cupy.v", "sm_80", None),
        ((8, 0), "cupy.v", "sm_90", "needs sm_90, this is sm_80"),
        ((8, 0), "cupy.v", "sm_90a", "needs sm_90a, this is sm_80"),
        ((9, 0), "cupy.v", "sm_90a", None),  # which runs on sm_90 alone
        ((10, 0), "cupy.v", "sm_90", None),
        ((10, 0), "cupy.v", "sm_90a", "needs sm_90a, this is sm_100"),
        (None, "cupy.cluster", "sm_80", None),
        (None, "cupy.cluster", "sm_90", "needs sm_90's own units: the CPU build has none"),
        (None, "pybind.cluster", "sm_90", "needs sm_90's own units: the CPU build has none"),
        (None, "triton.tma", "sm_90", None),  # its interpreter has them
        (None, "triton.gluon", "sm_90a", "needs sm_90a's own units: Triton's interpreter has none"),
    ],
)
def test_what_a_gpu_or_a_cpu_supports(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int] | None,
    label: str,
    requires: str | None,
    reason: str | None,
) -> None:
    where = torch.device("cpu") if capability is None else pretend_gpu(monkeypatch, *capability)
    assert device.supports(implementation(label, requires), where) == reason


def test_what_only_a_gpu_runs_is_not_run_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    gluon = dataclasses.replace(implementation("triton.gluon", "sm_80"), without_gpu=False)
    assert "needs a GPU" in (device.supports(gluon, torch.device("cpu")) or "")
    assert device.supports(gluon, pretend_gpu(monkeypatch, 9, 0)) is None
    assert device.supports(gluon, pretend_gpu(monkeypatch, 7, 5)) == "needs sm_80, this is sm_75"


def test_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.multiprocessors(torch.device("cpu")) == 4
    assert device.multiprocessors(pretend_gpu(monkeypatch, 9, 0)) == 17
    for arch, count in (("sm_90a", 132), ("sm_90", 132), ("sm_75", 40), ("sm_999", 100)):
        token = device.captured_arch.set(arch)
        assert device.multiprocessors(torch.device("meta")) == count
        device.captured_arch.reset(token)


def test_a_requirement_that_is_no_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="sm_75"):
        device.supports(implementation("cupy.v", "hopper"), pretend_gpu(monkeypatch, 9, 0))


def test_the_environment_of_a_cpu() -> None:
    found = device.environment(torch.device("cpu"))
    assert found.device_type == "cpu"
    assert found.device
    assert found.memory_bytes > 0
    assert (found.arch, found.l2_bytes, found.driver, found.clocks) == (None, None, None, {})
    assert found.versions["torch"] == torch.__version__
    assert {"python", "triton", "numpy"} <= set(found.versions)


def test_which_ptxas_made_the_code_is_among_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", device.versions()["ptxas (triton)"])
    tool = tmp_path / "bin" / "ptxas"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho Cuda compilation tools, release 99.1, V99.1.2")
    tool.chmod(0o755)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    assert device.versions()["ptxas (torch)"] == "99.1.2"
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tool))
    assert device.versions()["ptxas (triton)"] == "99.1.2"  # which torch.compile keeps to
    assert "ptxas (torch)" not in device.versions()
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "none"))
    assert "ptxas (triton)" not in device.versions()


def test_the_environment_of_a_card_whose_driver_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    found = device.environment(pretend_gpu(monkeypatch, 9, 0))
    assert (found.device, found.arch, found.multiprocessors) == ("a card", "sm_90", 17)
    assert (found.driver, found.clocks) == (None, {})


def test_clocks_say_what_the_driver_says_and_leave_the_rest_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = pretend_gpu(monkeypatch, 9, 0)
    power_cap = pynvml.nvmlClocksEventReasonSwPowerCap

    def unsupported(*_: object) -> None:
        raise RuntimeError("not supported")

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetClockInfo", lambda _, kind: 1380 if kind == pynvml.NVML_CLOCK_SM else 2619
    )
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda _: 699_500)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetEnforcedPowerLimit", unsupported)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", lambda *_: 61)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", lambda _: power_cap)
    assert device.clocks(gpu, "after") == {
        "sm_mhz_after": 1380.0,
        "memory_mhz_after": 2619.0,
        "power_w_after": 699.5,
        "temperature_c_after": 61.0,
        "throttle_after": "power cap",
    }


def test_the_commit_says_whether_the_checkout_is_changed(tmp_path: Path) -> None:
    assert device.project_commit(tmp_path) is None

    def git(*words: str) -> str:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        run = subprocess.run(("git", *name, *words), cwd=tmp_path, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "--no-verify", "-m", "first")
    device.project_commit.cache_clear()
    clean = device.project_commit(tmp_path)
    assert clean is not None
    assert git("rev-parse", "HEAD").startswith(clean)
    (tmp_path / "file").write_text("two")
    device.project_commit.cache_clear()
    assert device.project_commit(tmp_path) == f"{clean}-dirty"
    device.project_commit.cache_clear()


@pytest.mark.gpu
def test_the_environment_of_this_card() -> None:
    gpu = device.pick("cuda")
    found = device.environment(gpu)
    assert found.device == torch.cuda.get_device_name(gpu)
    assert found.l2_bytes is not None
    assert found.l2_bytes > 1 << 20
    assert found.driver is not None
    assert float(found.clocks["sm_mhz_before"]) > 0
    assert dataclasses.replace(found, clocks=found.clocks | device.clocks(gpu, "after"))
