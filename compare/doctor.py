"""What this machine can run and, for what it cannot, the exact command that fixes it.

Packages, and modules of the project that need them, are imported by name in their check: any may be missing,
and the check then reports it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from compare.registry import ROOT

PIP = f"{shlex.quote(sys.executable)} -m pip install"
COMPARE = f"{shlex.quote(sys.executable)} -m compare"
REQUIREMENTS = f"{PIP} -r {shlex.quote(str(ROOT / 'requirements.txt'))}"
CUDA_TORCH = f"{PIP} --force-reinstall --index-url https://pypi.org/simple 'torch>=2.11'"

_LEAST_CAPABILITY = 75
_NVIDIA = "0x10de"
_OTHERS = ("numpy", "rich", "tabulate", "pygments", "jinja2", "filelock")
"""Packages of requirements.txt that no other check covers."""
_SYSTEM_PACKAGES = {  # how a distribution installs, and what it calls g++ and Python's headers
    "debian": ("sudo apt-get install -y", "g++", "python{v}-dev"),
    "fedora": ("sudo dnf install -y", "gcc-c++", "python{v}-devel"),
    "suse": ("sudo zypper install -y", "gcc-c++", "python{p}-devel"),
    "arch": ("sudo pacman -S --noconfirm", "gcc", "python"),
}


@dataclass(frozen=True)
class Capability:
    """One thing a comparison uses, whether it is here, and what to do if not."""

    name: str
    purpose: str
    """Its use."""
    ok: bool
    detail: str
    """Its version, or why it is missing."""
    fix: str = ""
    """The command that fixes it; empty where nothing is missing or no command helps."""
    optional: bool = False
    """A comparison works without it."""


class Missing(Exception):
    """What is missing, and the command that fixes it."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix


def diagnose() -> list[Capability]:
    """Check everything that a comparison uses.  Never raises; takes little longer than importing torch."""
    return [
        _look("Python", "everything", _python),
        _look("PyTorch", "the torch way, and every tensor", _torch),
        _look("GPU", "speeds measured here, not replayed from results/", _gpu, optional=True),
        _look("NVML", "clocks, power and temperature beside the figures", _nvml, optional=True),
        _look("Triton", "the triton way", lambda: _version("triton")),
        _look("cupy", "CUDA kernels compiled at run time", _cupy),
        _look("g++", "pybind11 modules; CUDA kernels on the CPU", _gxx),
        _look("Python headers", "pybind11 modules", _python_headers),
        _look("pybind11", "CUDA kernels built ahead of time", lambda: _version("pybind11")),
        _look("nvcc", "CUDA kernels built ahead of time", _nvcc),
        _look("CUDA headers", "half precision in CUDA kernels", _cuda_headers),
        _look("NVRTC", "registers and shared memory without running", _nvrtc),
        _look("gcc, make", "programs without Python", _gcc, optional=True),
        _look("cuobjdump", "spills and machine code size", _disassembler),
        _look("other packages", "figures, screens and locks", _others),
        _look("clang-format", "'make test' and 'make format'", _clang_format, optional=True),
        _look("matplotlib", "'map --plot', effort against speed", _matplotlib, optional=True),
        _look("vl-convert", "'--html', the figures of the report", _vl_convert, optional=True),
        _look("isolation", "files given with --load", _isolation, optional=True),
        _look("cache", "compiled kernels between runs", _cache),
        _look("calibration", "what counts as a difference in speed", _calibration, optional=True),
        _look("results", "recorded speeds; --record writes here", _results, optional=True),
    ]


def report() -> bool:
    """Print what `diagnose` found; return whether something is missing that a comparison needs."""
    found = diagnose()
    print(render(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    return any(not capability.ok and not capability.optional for capability in found)


def render(found: list[Capability], width: int | None = None) -> str:
    """A table of at most ``width`` columns (None: no limit), then every command once."""
    rows = [("ok" if c.ok else "-" if c.optional else "MISSING", c.name, c.purpose, c.detail) for c in found]
    limits = None
    if width is not None:
        left = width - sum(max(len(row[i]) for row in rows) + 2 for i in (0, 1)) - 2
        limits = [None, None, max(12, 2 * left // 5), max(12, left - 2 * left // 5)]
    headers = ("", "what", "used for", "version, or problem")
    try:
        tabulate = importlib.import_module("tabulate").tabulate
        text = str(tabulate(rows, headers, "simple", maxcolwidths=limits, maxheadercolwidths=limits))
    except ImportError:  # tabulate itself is missing: the table must still be shown
        text = _aligned([headers, *rows])
    fixes = dict.fromkeys(c.fix for c in found if c.fix)
    for command in fixes:
        names = ", ".join(c.name for c in found if c.fix == command)
        text += f"\n\nTo fix {names}:\n  {command}"
    return text


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _look(name: str, purpose: str, check: Callable[[], str], *, optional: bool = False) -> Capability:
    try:
        return Capability(name, purpose, True, check(), optional=optional)
    except Missing as missing:
        return Capability(name, purpose, False, str(missing), missing.fix, optional)
    except Exception as error:  # a broken installation may raise anything
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return Capability(name, purpose, False, why, REQUIREMENTS, optional)


# --------------------------------------------------------------------------- checks: a version, or Missing


def _imported(module: str, called: str = "") -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Missing(f"{called} cannot be imported ({error})".lstrip(), REQUIREMENTS) from error


def _version(module: str) -> str:
    return str(_imported(module).__version__)


def _python() -> str:
    return f"{platform.python_version()} at {sys.executable}"


def _torch() -> str:
    torch = importlib.import_module("torch")
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return f"{torch.__version__}, {cuda}"


def _gpu() -> str:
    torch = importlib.import_module("torch")
    with warnings.catch_warnings(record=True) as said:  # torch warns of a driver that is too old
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if available:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        capability = 10 * properties.major + properties.minor
        if capability < _LEAST_CAPABILITY:
            raise Missing(f"{properties.name} is sm_{capability}; the kernels need sm_{_LEAST_CAPABILITY}")
        return f"{properties.name}, sm_{capability}, {properties.total_memory / 2**30:.0f} GiB"
    if not _card_present():
        raise Missing("no NVIDIA card in this machine; speeds are replayed")
    if not torch.version.cuda:
        raise Missing("torch is built without CUDA", CUDA_TORCH)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        raise Missing(f"hidden by CUDA_VISIBLE_DEVICES={hidden!r}", "unset CUDA_VISIBLE_DEVICES")
    if not Path("/proc/driver/nvidia/version").exists():
        raise Missing("there is a card, but no NVIDIA driver is loaded", driver_command())
    why = str(said[0].message).partition("(")[0].strip() if said else "torch finds no device"
    raise Missing(f"the driver does not serve CUDA {torch.version.cuda}: {why}", driver_command())


def _card_present() -> bool:
    """Whether the PCI bus or the driver knows an NVIDIA card; containers show one of the two."""
    if Path("/dev/nvidiactl").exists():
        return True
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        with suppress(OSError):
            is_display = (vendor.parent / "class").read_text().startswith("0x03")
            if is_display and vendor.read_text().strip() == _NVIDIA:
                return True
    return False


def _nvml() -> str:
    pynvml = _imported("pynvml")
    version = importlib.metadata.version("nvidia-ml-py")
    if not _card_present():
        raise Missing(f"{version}, but no NVIDIA card to ask")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Missing(f"{version}, but the driver does not answer: {error}") from error
    return f"{version}, driver {pynvml.nvmlSystemGetDriverVersion()}"


def _cupy() -> str:
    try:
        return _version("cupy")
    except OSError as error:
        if error.filename is None:  # a library that it cannot load
            raise
        why = f"cannot write {error.filename} ({error.strerror})"
        raise Missing(why, "export CUPY_CACHE_DIR=/tmp/cupy") from error


def _gxx() -> str:
    build = importlib.import_module("cuda_impl.build")
    try:
        compiler = build.gxx()
    except build.BuildError as error:
        fix = "unset CXX" if os.environ.get("CXX") else system_package(0)
        raise Missing(str(error).partition(":")[0], fix) from error
    return f"{_version_of(compiler, '-dumpfullversion')} at {compiler}"


def _gcc() -> str:
    build = importlib.import_module("cuda_impl.build")
    try:
        compiler = build.gcc()
        build.make_tool()
    except build.BuildError as error:
        fix = "unset CC" if os.environ.get("CC") else str(error).partition(": ")[2].partition(" (")[0]
        raise Missing(str(error).partition(":")[0], fix) from error
    return f"{_version_of(compiler, '-dumpfullversion')} at {compiler}"


def _python_headers() -> str:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        raise Missing(f"no {header}", system_package(1))
    return str(header.parent)


def _nvcc() -> str:
    build = importlib.import_module("cuda_impl.build")
    try:
        compiler = build.nvcc()
    except build.BuildError as error:
        fix = "unset CUDA_HOME" if os.environ.get("CUDA_HOME") else REQUIREMENTS
        raise Missing(str(error).partition(":")[0], fix) from error
    release = _version_of(str(compiler), "--version").rpartition("release ")[2].partition(",")[0]
    return f"{release} at {compiler}"


def _cuda_headers() -> str:
    build = importlib.import_module("cuda_impl.build")
    try:
        folder = build.cuda_include()
    except build.BuildError as error:
        raise Missing(str(error).partition(":")[0], REQUIREMENTS) from error
    lacking = [name for name in ("cuda_fp16.h", "cuda_bf16.h") if not (folder / name).is_file()]
    if lacking:
        raise Missing(f"{folder} lacks {', '.join(lacking)}", REQUIREMENTS)
    return str(folder)


def _nvrtc() -> str:
    _, major, minor = _imported("cuda.bindings.nvrtc", "cuda-bindings").nvrtcVersion()
    return f"{major}.{minor}"


def _disassembler() -> str:
    build = importlib.import_module("cuda_impl.build")
    tools = build.triton_nvidia() / "bin"
    lacking = [name for name in ("ptxas", "cuobjdump", "nvdisasm") if not (tools / name).is_file()]
    if lacking:
        raise Missing(f"Triton's wheel carries no {', '.join(lacking)}", REQUIREMENTS)
    return f"with ptxas and nvdisasm at {tools}"


def _others() -> str:
    lacking = [name for name in _OTHERS if importlib.util.find_spec(name) is None]
    if lacking:
        raise Missing(f"no {', '.join(lacking)}", REQUIREMENTS)
    return ", ".join(_OTHERS)


def _clang_format() -> str:
    beside = Path(sys.executable).parent / "clang-format"  # installed into an environment not activated
    found = str(beside) if beside.is_file() else shutil.which("clang-format")
    if found is None:
        raise Missing("not on PATH", f"{PIP} clang-format")
    return _version_of(found, "--version").rpartition("version ")[2]


def _matplotlib() -> str:
    try:
        return importlib.metadata.version("matplotlib")
    except importlib.metadata.PackageNotFoundError:
        requirement = importlib.import_module("compare.report.plots").REQUIREMENT
        raise Missing("not installed", f"{PIP} {shlex.quote(requirement)}") from None


def _vl_convert() -> str:
    try:
        return importlib.metadata.version("vl-convert-python")
    except importlib.metadata.PackageNotFoundError:
        raise Missing("not installed", f"{PIP} 'vl-convert-python>=1.9'") from None


def _isolation() -> str:
    found = importlib.import_module("compare.sandbox.isolation").found()
    why = f" ({'; '.join(found.refused)})" if found.refused else ""
    if not found.holds:
        raise Missing(f"a user's file runs with all your rights{why}")
    return f"{found}{why}"


def _cache() -> str:
    build = importlib.import_module("cuda_impl.build")
    try:
        folder = build.cache_dir()
    except build.BuildError as error:
        raise Missing(str(error).partition(":")[0], "export COMPARE_CACHE_DIR=/tmp/gpu-three-ways") from error
    return _writable(folder, "export COMPARE_CACHE_DIR=/tmp/gpu-three-ways")


def _calibration() -> str:
    torch = importlib.import_module("torch")
    calibration = importlib.import_module("compare.timing.calibration")
    if not torch.cuda.is_available():
        raise Missing("no GPU to calibrate; recorded speeds bring their own")
    found = calibration.stored(torch.cuda.get_device_properties(torch.cuda.current_device()).name)
    if not found.created:
        raise Missing("not done on this machine; wide limits are built in", f"{COMPARE} doctor --calibrate")
    return f"{', '.join(f'{size.share:.1%}' for size in found.classes)} by size, on {found.created[:10]}"


def _results() -> str:
    folder = ROOT / "results"
    if not folder.is_dir():
        raise Missing(f"no {folder}", f"mkdir -p {shlex.quote(str(folder))}")
    _writable(folder, f"chmod u+w {shlex.quote(str(folder))}")
    records = sorted({record.parent.name for record in folder.glob("*/*.jsonl")})
    return f"records of {', '.join(records)}" if records else "no records yet"


def _writable(folder: Path, fix: str) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        raise Missing(f"cannot write {folder} ({error.strerror})", fix) from error


# --------------------------------------------------------------------------- helpers


def _version_of(program: str, option: str) -> str:
    done = subprocess.run([program, option], capture_output=True, text=True, timeout=10, check=True)
    return " ".join(done.stdout.split())


def system_package(which: int) -> str:
    """The command that installs g++ (0) or Python's headers (1) on this distribution."""
    install, *packages = _SYSTEM_PACKAGES[_distribution()]
    major, minor = sys.version_info[:2]
    return f"{install} {packages[which].format(v=f'{major}.{minor}', p=f'{major}{minor}')}"


def driver_command() -> str:
    """The command that brings the NVIDIA driver: into a container from its host, else by installing it."""
    if Path("/.dockerenv").exists():
        return "docker run --gpus all ...  (start the container with the host's driver)"
    if shutil.which("ubuntu-drivers"):
        return "sudo ubuntu-drivers install"
    package = {"debian": "nvidia-driver", "fedora": "akmod-nvidia", "arch": "nvidia-open"}
    family = _distribution()
    return f"{_SYSTEM_PACKAGES[family][0]} {package[family]}" if family in package else ""


def _distribution() -> str:
    """The family this Linux belongs to, one of `_SYSTEM_PACKAGES`."""
    release: dict[str, str] = {}
    with suppress(OSError):
        release = platform.freedesktop_os_release()
    aliases = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse"}
    families = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".split()
    known = (aliases.get(family, family) for family in families)
    return next((family for family in known if family in _SYSTEM_PACKAGES), "debian")
