"""The machine: which device to use, what it can run, and what to write beside every figure.

Nothing here asks a GPU anything at import, and nothing changes a setting of the card.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pynvml

from compare.model.architecture import LIMITS, Limits
from compare.model.op import ARCHITECTURE, LIBRARY, Implementation, UsageError, way_of
from compare.model.result import Environment
from compare.registry import ROOT
from cuda_impl import build

if TYPE_CHECKING:
    import torch

CPU_MULTIPROCESSORS = 4
"""What an implementation is told on a CPU: few, as the interpreter runs programs one by one, yet enough
that a persistent kernel has blocks to share its work among."""

_UNKNOWN = LIMITS[120]
"""In place of an architecture that is not known, for launches captured without a GPU."""

captured_arch: ContextVar[str | None] = ContextVar("captured_arch", default=None)
"""What meta tensors stand for while launches are captured: ``sm_90``."""

STATIC_ARCHS = ("sm_75", "sm_80", "sm_90a")
"""Compiled for where there is no GPU to ask and ``--arch`` is not given."""

_HOPPER = 90

_PACKAGES = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings", "numpy", "nvidia-cuda-nvrtc")

_CLOCK_EVENTS = {
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SwThermalSlowdown": "thermal",
    "HwThermalSlowdown": "hardware thermal",
    "HwPowerBrakeSlowdown": "power brake",
    "SyncBoost": "sync boost",
    "ApplicationsClocksSetting": "clocks set by the administrator",
    "DisplayClockSetting": "display clock",
}


class Declared(Protocol):
    """What decides where an implementation runs."""

    @property
    def label(self) -> str: ...
    @property
    def requires(self) -> str | None: ...
    @property
    def triton(self) -> str: ...
    @property
    def without_gpu(self) -> bool: ...
    @property
    def emulated(self) -> bool: ...


def imported_torch() -> Any:
    """PyTorch, imported when it is first needed: `list` and `map` do without its seconds."""
    importlib.import_module("numpy")  # before PyTorch, which imports it from C++ and there drops a Ctrl-C
    return importlib.import_module("torch")


def pick(name: str = "auto") -> torch.device:
    """The device of that name: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.

    Raises:
        UsageError: there is no such device here.
    """
    cuda = imported_torch().cuda
    if name == "auto":
        name = "cuda" if cuda.is_available() else "cpu"
    if name == "cpu":
        return _device("cpu")
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise UsageError(f"--device {name}: write auto, cpu, cuda or cuda:NUMBER")
    if not cuda.is_available():
        raise UsageError(
            f"--device {name}: torch sees no GPU. "
            "'python -m compare doctor' says why; without --device the CPU is used"
        )
    count = cuda.device_count()
    index = int(match[1]) if match[1] else cuda.current_device()
    if index >= count:
        raise UsageError(f"--device {name}: this machine has {count} GPU(s), cuda:0 to cuda:{count - 1}")
    return _device("cuda", index)


def _device(*words: str | int) -> torch.device:
    device: torch.device = imported_torch().device(*words)
    return device


def arch(device: torch.device) -> str | None:
    """``sm_90`` for a GPU, None for a CPU; for meta tensors the architecture being captured."""
    if device.type == "cuda":
        properties = _properties(device)
        return f"sm_{properties.major}{properties.minor}"
    return captured_arch.get() if device.type == "meta" else None


def default_archs(device: torch.device) -> tuple[str, ...]:
    """What is compiled for where ``--arch`` is not given: a GPU's own architecture, or `STATIC_ARCHS`."""
    here = arch(device)
    return STATIC_ARCHS if here is None else (here,)


def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors a launch may count on; cheap enough to ask at every launch."""
    if device.type == "cuda":
        return int(_properties(device).multi_processor_count)
    return _captured().multiprocessors if device.type == "meta" else CPU_MULTIPROCESSORS


def shared_bytes_of_a_block(device: torch.device) -> int:
    """The most shared memory that a launch may ask for; the CPU build of kernels allows what sm_90 has."""
    if device.type == "cuda":
        return int(_properties(device).shared_memory_per_block_optin)
    return (_captured() if device.type == "meta" else LIMITS[_HOPPER]).block_shared_bytes


def _captured() -> Limits:
    """Of the architecture being captured."""
    name = captured_arch.get()
    return LIMITS.get(capability(name), _UNKNOWN) if name else _UNKNOWN


def uuid(device: torch.device) -> str | None:
    """A GPU's, as NVML has it: ``GPU-...``; None: a CPU."""
    return f"GPU-{_properties(device).uuid}" if device.type == "cuda" else None


def l2_bytes(device: torch.device) -> int:
    """Size of a GPU's L2 cache."""
    return int(_properties(device).L2_cache_size)


def supports(impl: Implementation, device: torch.device) -> str | None:
    """None where ``impl`` can run on ``device``, else the reason: ``needs sm_90, this is sm_75``."""
    return runs_on(impl, arch(device))


def runs_on(impl: Declared, here: str | None) -> str | None:
    """`supports` for an architecture; None: a CPU."""
    way = way_of(impl.label)
    if way == LIBRARY:
        return _no_library() if here else "needs a GPU: CUDA's library has no CPU version"
    if here is None and not impl.without_gpu:
        return "needs a GPU: its kernels have no CPU version"
    if reason := outdated(impl):
        return reason
    if impl.requires is None:
        return None
    if here is not None:
        return lacks(impl.requires, here)
    if capability(impl.requires) < _HOPPER:
        return None
    if way == "cuda":
        if impl.emulated:
            return None
        return f"needs {impl.requires}'s own units: the CPU build has none"
    if impl.requires.endswith("a"):
        return f"needs {impl.requires}'s own units: Triton's interpreter has none"
    return None


def _no_library() -> str | None:
    """Why a module that calls CUDA's library cannot be built here; None where it can."""
    try:
        build.cccl_include()
        build.gxx()
    except build.BuildError as error:
        return str(error)
    return None


def outdated(impl: Declared) -> str | None:
    """None where the installed Triton compiles ``impl``, else the reason."""
    if not impl.triton:
        return None
    here = importlib.metadata.version("triton")
    needed, has = (tuple(map(int, text.split(".")[:2])) for text in (impl.triton, here))
    return None if has >= needed else f"needs Triton {impl.triton}, this is {here}"


def lacks(requires: str, here: str) -> str | None:
    """None where code that needs ``requires`` runs on ``here``, else the reason."""
    needed, has = capability(requires), capability(here)
    # Code for sm_90a runs on no later architecture either.
    fits = has == needed if requires.endswith("a") else has >= needed
    return None if fits else f"needs {requires}, this is {here}"


def capability(name: str) -> int:
    """``sm_90a`` -> 90, for comparing architectures.

    Raises:
        UsageError: the name is not of that form.
    """
    match = ARCHITECTURE.fullmatch(name)
    if match is None:
        raise UsageError(f"{name!r} is no architecture; write it as sm_75 or sm_90a")
    return int(match[1])


def environment(device: torch.device) -> Environment:
    """The machine and the software; what cannot be found out is left out, and nothing here raises."""
    if device.type == "cuda":
        properties = _properties(device)
        kind: Literal["cuda", "cpu"] = "cuda"
        name, memory = str(properties.name), int(properties.total_memory)
        units: int | None = int(properties.multi_processor_count)
        l2: int | None = int(properties.L2_cache_size)
    else:
        kind, name, memory, units, l2 = "cpu", _cpu_name(), _host_memory(), None, None
    return Environment(
        device=name,
        device_type=kind,
        arch=arch(device),
        multiprocessors=units,
        memory_bytes=memory,
        l2_bytes=l2,
        driver=driver_version() if kind == "cuda" else None,
        versions=versions(),
        host=f"{platform.system()} {platform.release()}, {_cpu_name()}, {os.cpu_count()} threads",
        clocks=clocks(device, "before"),
    )


def versions() -> dict[str, str]:
    """Versions of everything a figure may depend on, by name; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    if cuda := imported_torch().version.cuda:
        found["cuda (torch)"] = cuda
    if "cupy" in sys.modules:  # importing it only to ask would cost half a second
        with suppress(Exception):
            major, minor = sys.modules["cupy"].cuda.nvrtc.getVersion()
            found["nvrtc (cupy)"] = f"{major}.{minor}"
    for user, tool in _assemblers().items():
        if version := _ptxas_version(tool):
            found[f"ptxas ({user})"] = version
    commit = project_commit()
    if commit:
        found["commit"] = commit
    return found


def _assemblers() -> dict[str, Path]:
    """The ptxas behind Triton, and the one in PyTorch's wheel, which torch.compile may have Triton use.

    Another one makes other code of the same PTX.
    """
    if named := os.environ.get("TRITON_PTXAS_PATH"):
        return {"triton": Path(named)}
    tools = {"torch": Path(imported_torch().__file__).parent / "bin" / "ptxas"}
    with suppress(ModuleNotFoundError):
        tools["triton"] = build.triton_nvidia() / "bin" / "ptxas"
    return tools


@functools.cache
def _ptxas_version(tool: Path) -> str | None:
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=10, check=True)
        found = re.search(r"\bV(\d[\d.]*)", said.stdout)
        return found[1] if found else None
    return None


@functools.cache
def project_commit(root: Path = ROOT) -> str | None:
    """This checkout's commit, with ``-dirty`` where tracked files differ from it; None outside a checkout."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    with suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return run.stdout.strip() or None
    return None


def clocks(device: torch.device, when: str) -> dict[str, float | str]:
    """The card's clocks (MHz), power (W), temperature (C) and what holds them down; keys end in ``_when``.

    Empty on a CPU and where the driver does not say.
    """
    found: dict[str, float | str] = {}
    # Every question apart: virtual GPUs answer some of them only.
    for name, read in clock_readers(device).items():
        with suppress(Exception):
            found[f"{name}_{when}"] = read()
    return found


def clock_readers(device: torch.device) -> dict[str, Callable[[], float | str]]:
    """What the card can be asked about its clocks, by name; each raises where the driver has no answer.

    Empty on a CPU and where there is no driver to ask.
    """
    readers: dict[str, Callable[[], float | str]] = {}
    if device.type != "cuda":
        return readers
    with suppress(Exception):
        pynvml.nvmlInit()
        # By UUID: NVML counts the cards otherwise than CUDA does once CUDA_VISIBLE_DEVICES is set.
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid(device))
        readers = {
            "sm_mhz": lambda: float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            "memory_mhz": lambda: float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
            "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "power_limit_w": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "temperature_c": lambda: float(
                pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
            ),
            "throttle": lambda: _throttle_reasons(handle),
        }
    return readers


def _throttle_reasons(handle: Any) -> str:
    mask = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    reasons = [
        text for name, text in _CLOCK_EVENTS.items() if mask & getattr(pynvml, f"nvmlClocksEventReason{name}")
    ]
    return ", ".join(reasons) or "none"


def driver_version() -> str | None:
    """Of the NVIDIA driver; None without one."""
    with suppress(Exception):
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None


@functools.cache
def _properties_of(index: int) -> Any:
    return imported_torch().cuda.get_device_properties(index)


def _properties(device: torch.device) -> Any:
    index = device.index
    return _properties_of(imported_torch().cuda.current_device() if index is None else index)


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _host_memory() -> int:
    with suppress(ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0
