"""What is installed, and which GPU there is, without importing PyTorch: that takes seconds."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID


@dataclass(frozen=True)
class TorchBuild:
    """What a wheel of PyTorch is."""

    version: str
    cuda: str | None
    """``13.0``; None: it is built without."""


@dataclass(frozen=True)
class Gpu:
    """A GPU, as its driver describes it."""

    name: str
    capability: int
    """90 for ``sm_90``."""
    memory_bytes: int
    uuid: str = ""
    """As NVML has it, ``GPU-...``; empty: not asked for."""

    @property
    def arch(self) -> str:
        return f"sm_{self.capability}"


def torch_build() -> TorchBuild | None:
    """Of the installed PyTorch; None if it is missing or does not say."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = ""
    with suppress(OSError):
        text = Path(spec.origin).with_name("version.py").read_text()
    version, cuda = (
        re.search(rf"(?m)^{name}\b[^=\n]*= *['\"](.+)['\"]", text) for name in ("__version__", "cuda")
    )
    return TorchBuild(version[1], cuda[1] if cuda else None) if version else None


def gpu() -> Gpu | None:
    """The first GPU that CUDA counts; None without one, or where its driver does not serve this PyTorch."""
    return next(iter(gpus()), None)


def gpus() -> list[Gpu]:
    """The GPUs that CUDA counts; none where their driver does not serve this PyTorch."""
    torch = torch_build()
    if torch is None or torch.cuda is None:
        return []
    with suppress(Exception):  # of the bindings without a driver, too
        driver = importlib.import_module("cuda.bindings.driver")
        _checked(driver.cuInit(0))
        if _checked(driver.cuDriverGetVersion()) // 1000 >= int(torch.cuda.partition(".")[0]):
            return [_described(driver, index) for index in range(_checked(driver.cuDeviceGetCount()))]
    return []


def _described(driver: Any, index: int) -> Gpu:
    device = _checked(driver.cuDeviceGet(index))
    attributes = driver.CUdevice_attribute
    major, minor = (
        _checked(
            driver.cuDeviceGetAttribute(
                getattr(attributes, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"), device
            )
        )
        for part in ("MAJOR", "MINOR")
    )
    return Gpu(
        _checked(driver.cuDeviceGetName(256, device)).partition(b"\0")[0].decode(),
        10 * major + minor,
        int(_checked(driver.cuDeviceTotalMem(device))),
        f"GPU-{UUID(bytes=bytes(_checked(driver.cuDeviceGetUuid(device)).bytes))}",
    )


def gpu_name() -> str | None:
    """Of the first GPU that CUDA counts; None without one."""
    first = gpu()
    return first.name if first else None


def _checked(answer: tuple[Any, ...]) -> Any:
    """The value of a driver's answer; raises if that is an error."""
    error, *values = answer
    if error:
        raise OSError(str(error))
    return values[0] if values else None


def check_import(module: str) -> None:
    """Import a module, unless an earlier run of this installation has imported it.

    Any package that is installed or removed since changes the folder of the packages, and so the name under
    which that is kept.

    Raises:
        Exception: what the import raises.
    """
    spec = importlib.util.find_spec(module)
    name = ""
    with suppress(ImportError, OSError):  # without its packages there is no cache
        result_cache = importlib.import_module("compare.records.result_cache")
        packages = Path(sysconfig.get_paths()["purelib"])
        origin = Path(str(spec and spec.origin))
        stamps = (f"{path} {path.stat().st_mtime_ns}" for path in (packages, origin))
        name = result_cache.key(sys.executable, sys.version, module, *stamps)
    if name and result_cache.read("imported", name):
        return
    importlib.import_module(module)
    if name:
        result_cache.write("imported", name, True)
