"""``python -m compare doctor``: what this machine can run and, for what it cannot, the command that fixes it.

Packages, and modules of the project that need them, are imported by name in their check: any may be missing,
and the check then reports it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from compare.command_line import options, status
from compare.model.op import UsageError
from compare.registry import ROOT
from compare.report import plots
from compare.report.steps import Steps, steps

if TYPE_CHECKING:
    from compare.model.result import Calibration

_EPILOG = """\
examples:
  python -m compare doctor
  python -m compare doctor --calibrate

exit status:
  0  a comparison has everything it needs; with --calibrate: the result is stored
  2  something is missing; or a mistake in the command, or no GPU to calibrate
"""

PIP = f"{shlex.quote(sys.executable)} -m pip install"
REQUIREMENTS = f"{PIP} -r {shlex.quote(str(ROOT / 'requirements.txt'))}"
CUDA_TORCH = f"{PIP} --force-reinstall --index-url https://pypi.org/simple 'torch>=2.11'"

_VL_CONVERT = "vl-convert-python>=1.9"
NEEDED, OPTIONAL = False, True

_LEAST_CAPABILITY = 75
_NVIDIA = "0x10de"
_OTHERS = ("numpy", "rich", "tabulate", "pygments", "jinja2", "filelock")
"""Packages of requirements.txt that no other check covers."""
_DISTRIBUTIONS = {  # how one installs, and what it calls g++, Python's headers and the driver
    "debian": ("sudo apt-get install -y", "g++", "python{v}-dev", "nvidia-driver"),
    "fedora": ("sudo dnf install -y", "gcc-c++", "python{v}-devel", "akmod-nvidia"),
    "suse": ("sudo zypper install -y", "gcc-c++", "python{p}-devel", ""),
    "arch": ("sudo pacman -S --noconfirm", "gcc", "python", "nvidia-open"),
}
_FAMILIES = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "What this machine can run and, for what is missing, the command that fixes it."
    parser.epilog = _EPILOG
    parser.add_argument(
        "--calibrate", action="store_true", help="measure the least difference that counts on this GPU"
    )
    options.add_verbose(parser.add_argument)


def run(arguments: argparse.Namespace) -> int:
    """Show what is missing, or calibrate; the exit status.

    Raises:
        UsageError: there is no GPU to calibrate, or the result cannot be kept.
    """
    if not arguments.calibrate:
        return status.USAGE if report() else status.SUCCESS
    with steps(arguments.verbose) as told:
        return calibrate(told)


# --------------------------------------------------------------------------- the table


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
    return [_look(*check) for check in _CHECKS]


def report() -> bool:
    """Print what `diagnose` found; return whether something is missing that a comparison needs."""
    capabilities = diagnose()
    print(render(capabilities, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    return any(not each.ok and not each.optional for each in capabilities)


def render(capabilities: Sequence[Capability], width: int | None = None) -> str:
    """A table of at most ``width`` columns (None: no limit), then every command once.

    Made of plain strings: a table is shown without any package too.
    """
    header = ("", "what", "used for", "version, or problem")
    rows = [
        ("ok" if c.ok else "-" if c.optional else "MISSING", c.name, c.purpose, c.detail)
        for c in capabilities
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    if width is not None:
        left = width - sum(widths[:2]) - 6
        most = max(12, 2 * left // 5)
        widths[2:] = [min(widths[2], most), min(widths[3], max(12, left - most))]
    lines = [header, tuple("-" * each for each in widths), *rows]
    text = "\n".join(_set(line, widths) for line in lines)
    for command in dict.fromkeys(c.fix for c in capabilities if c.fix):
        names = ", ".join(c.name for c in capabilities if c.fix == command)
        text += f"\n\nTo fix {names}:\n  {command}"
    return text


def _set(cells: Sequence[str], widths: Sequence[int]) -> str:
    """A line of the table, or several where a cell is wider than its column."""
    wrapped = [textwrap.wrap(cell, width or 1) or [""] for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped))
    filled = [[*cell, *[""] * (height - len(cell))] for cell in wrapped]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in zip(*filled, strict=True))


def _look(name: str, purpose: str, check: Callable[[], str], optional: bool) -> Capability:
    try:
        return Capability(name, purpose, True, check(), optional=optional)
    except Missing as missing:
        return Capability(name, purpose, False, str(missing), missing.fix, optional)
    except Exception as error:  # a broken installation may raise anything
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return Capability(name, purpose, False, why, REQUIREMENTS, optional)


# --------------------------------------------------------------------------- checks: a version, or Missing


def _torch() -> str:
    torch = importlib.import_module("torch")
    return f"{torch.__version__}, {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPU only'}"


def _gpu() -> str:
    torch = importlib.import_module("torch")
    with warnings.catch_warnings(record=True) as caught:  # torch warns of a driver that is too old
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
    why = str(caught[0].message).partition("(")[0].strip() if caught else "torch finds no device"
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
    compiler = _built("gxx", lambda _: _unset("CXX") or system_package(0))
    return f"{_output_of(compiler, '-dumpfullversion')} at {compiler}"


def _gcc() -> str:
    def fix(error: str) -> str:
        return _unset("CC") or error.partition(": ")[2].partition(" (")[0]

    compiler = _built("gcc", fix)
    _built("make_tool", fix)
    return f"{_output_of(compiler, '-dumpfullversion')} at {compiler}"


def _nvcc() -> str:
    compiler = _built("nvcc", lambda _: _unset("CUDA_HOME") or REQUIREMENTS)
    release = _output_of(str(compiler), "--version").rpartition("release ")[2].partition(",")[0]
    return f"{release} at {compiler}"


def _cuda_headers() -> str:
    folder = _built("cuda_include", lambda _: REQUIREMENTS)
    _check_files(folder, ("cuda_fp16.h", "cuda_bf16.h"), f"{folder} lacks")
    return str(folder)


def _python_headers() -> str:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        raise Missing(f"no {header}", system_package(1))
    return str(header.parent)


def _nvrtc() -> str:
    _, major, minor = _imported("cuda.bindings.nvrtc", "cuda-bindings").nvrtcVersion()
    return f"{major}.{minor}"


def _disassembler() -> str:
    tools = importlib.import_module("cuda_impl.build").triton_nvidia() / "bin"
    _check_files(tools, ("ptxas", "cuobjdump", "nvdisasm"), "Triton's wheel carries no")
    return f"with ptxas and nvdisasm at {tools}"


def _others() -> str:
    lacking = [name for name in _OTHERS if importlib.util.find_spec(name) is None]
    if lacking:
        raise Missing(f"no {', '.join(lacking)}", REQUIREMENTS)
    return ", ".join(_OTHERS)


def _clang_format() -> str:
    beside = Path(sys.executable).parent / "clang-format"  # installed into an environment not activated
    program = str(beside) if beside.is_file() else shutil.which("clang-format")
    if program is None:
        raise Missing("not on PATH", f"{PIP} clang-format")
    return _output_of(program, "--version").rpartition("version ")[2]


def _isolation() -> str:
    found = importlib.import_module("compare.sandbox.isolation").found()
    why = f" ({'; '.join(found.refused)})" if found.refused else ""
    if not found.holds:
        raise Missing(f"a user's file runs with all your rights{why}")
    return f"{found}{why}"


def _cache() -> str:
    fix = "export COMPARE_CACHE_DIR=/tmp/gpu-three-ways"
    return _writable(_built("cache_dir", lambda _: fix), fix)


def _calibration() -> str:
    torch = importlib.import_module("torch")
    calibration = importlib.import_module("compare.timing.calibration")
    if not torch.cuda.is_available():
        raise Missing("no GPU to calibrate; recorded speeds bring their own")
    found = calibration.stored(torch.cuda.get_device_properties(torch.cuda.current_device()).name)
    if not found.created:
        fix = f"{shlex.quote(sys.executable)} -m compare doctor --calibrate"
        raise Missing("not done on this machine; wide limits are built in", fix)
    return f"{', '.join(f'{size.share:.1%}' for size in found.classes)} by size, on {found.created[:10]}"


def _results() -> str:
    folder = ROOT / "results"
    if not folder.is_dir():
        raise Missing(f"no {folder}", f"mkdir -p {shlex.quote(str(folder))}")
    _writable(folder, f"chmod u+w {shlex.quote(str(folder))}")
    records = sorted({record.parent.name for record in folder.glob("*/*.json")})
    return f"records of {', '.join(records)}" if records else "no records yet"


_CHECKS = (
    ("Python", "everything", lambda: f"{platform.python_version()} at {sys.executable}", NEEDED),
    ("PyTorch", "the torch way, and every tensor", _torch, NEEDED),
    ("GPU", "speeds measured here, not replayed from results/", _gpu, OPTIONAL),
    ("NVML", "clocks, power and temperature beside the figures", _nvml, OPTIONAL),
    ("Triton", "the triton way", lambda: _version("triton"), NEEDED),
    ("cupy", "CUDA kernels compiled at run time", _cupy, NEEDED),
    ("g++", "pybind11 modules; CUDA kernels on the CPU", _gxx, NEEDED),
    ("Python headers", "pybind11 modules", _python_headers, NEEDED),
    ("pybind11", "CUDA kernels built ahead of time", lambda: _version("pybind11"), NEEDED),
    ("nvcc", "CUDA kernels built ahead of time", _nvcc, NEEDED),
    ("CUDA headers", "half precision in CUDA kernels", _cuda_headers, NEEDED),
    ("NVRTC", "registers and shared memory without running", _nvrtc, NEEDED),
    ("gcc, make", "programs without Python", _gcc, OPTIONAL),
    ("cuobjdump", "spills and machine code size", _disassembler, NEEDED),
    ("other packages", "figures, screens and locks", _others, NEEDED),
    ("clang-format", "'make test' and 'make format'", _clang_format, OPTIONAL),
    ("matplotlib", "'map --plot', effort against speed", lambda: _installed(plots.REQUIREMENT), OPTIONAL),
    ("vl-convert", "'--html', the figures of the report", lambda: _installed(_VL_CONVERT), OPTIONAL),
    ("isolation", "files given with --load", _isolation, OPTIONAL),
    ("cache", "compiled kernels between runs", _cache, NEEDED),
    ("calibration", "what counts as a difference in speed", _calibration, OPTIONAL),
    ("results", "recorded speeds; --record writes here", _results, OPTIONAL),
)


# --------------------------------------------------------------------------- what checks share


def _imported(module: str, called: str = "") -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Missing(f"{called} cannot be imported ({error})".lstrip(), REQUIREMENTS) from error


def _version(module: str) -> str:
    return str(_imported(module).__version__)


def _installed(requirement: str) -> str:
    """The version of the package that ``requirement`` names, as ``matplotlib>=3.9``."""
    try:
        return importlib.metadata.version(re.split("[<>=]", requirement)[0])
    except importlib.metadata.PackageNotFoundError:
        raise Missing("not installed", f"{PIP} {shlex.quote(requirement)}") from None


def _built(finder: str, fix: Callable[[str], str]) -> Any:
    """What a finder of `cuda_impl.build` finds; `Missing`, with the ``fix`` of its error, if it does not."""
    build = importlib.import_module("cuda_impl.build")
    try:
        return getattr(build, finder)()
    except build.BuildError as error:
        raise Missing(str(error).partition(":")[0], fix(str(error))) from error


def _unset(variable: str) -> str:
    return f"unset {variable}" if os.environ.get(variable) else ""


def _check_files(folder: Path, names: Sequence[str], text: str) -> None:
    lacking = [name for name in names if not (folder / name).is_file()]
    if lacking:
        raise Missing(f"{text} {', '.join(lacking)}", REQUIREMENTS)


def _writable(folder: Path, fix: str) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        raise Missing(f"cannot write {folder} ({error.strerror})", fix) from error


def _output_of(program: str, option: str) -> str:
    done = subprocess.run([program, option], capture_output=True, text=True, timeout=10, check=True)
    return " ".join(done.stdout.split())


def system_package(which: int) -> str:
    """The command that installs g++ (0) or Python's headers (1) on this distribution."""
    install, *packages = _DISTRIBUTIONS[_distribution()]
    major, minor = sys.version_info[:2]
    return f"{install} {packages[which].format(v=f'{major}.{minor}', p=f'{major}{minor}')}"


def driver_command() -> str:
    """The command that brings the NVIDIA driver: into a container from its host, else by installing it."""
    if Path("/.dockerenv").exists():
        return "docker run --gpus all ...  (start the container with the host's driver)"
    if shutil.which("ubuntu-drivers"):
        return "sudo ubuntu-drivers install"
    install, *_, driver = _DISTRIBUTIONS[_distribution()]
    return f"{install} {driver}" if driver else ""


def _distribution() -> str:
    """The family this Linux belongs to, one of `_DISTRIBUTIONS`."""
    release: dict[str, str] = {}
    with suppress(OSError):
        release = platform.freedesktop_os_release()
    families = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".split()
    known = (_FAMILIES.get(family, family) for family in families)
    return next((family for family in known if family in _DISTRIBUTIONS), "debian")


# --------------------------------------------------------------------------- --calibrate


def calibrate(told: Steps | None) -> int:
    """Measure the least difference in speed that this GPU can tell apart, keep and show it.

    Raises:
        UsageError: there is no GPU, or the result cannot be kept.
    """
    import torch

    from compare.report.progress import of_run
    from compare.timing import calibration
    from compare.worker import calibration as calibrating
    from compare.worker.start import prepare

    device = prepare(ops=sorted({op.name for op, _ in calibrating.subjects()}))
    if device.type != "cuda":
        raise UsageError(
            "--calibrate needs a GPU: without one nothing is timed. "
            "'python -m compare doctor' says why there is none"
        )
    name = torch.cuda.get_device_properties(device).name
    with of_run("calibrating", told) as progress:
        found = calibrating.measured(device, lambda share: progress("timing calls against themselves", share))
    try:
        path = calibration.store(name, found)
    except OSError as error:
        raise UsageError(f"the calibration could not be kept: {error}. Set COMPARE_CACHE_DIR") from None
    print(f"{name}: calls against themselves in other processes\n\n{resolution(found)}\n\nkept in {path}")
    return status.SUCCESS


def resolution(found: Calibration) -> str:
    """The least difference that counts, a line for each class of times."""
    from compare.report import terminal
    from compare.report.tables import Table

    rows, above = [], 0.0
    for size in found.classes:
        reach = f"from {above:.0f} us" if size.below_us == float("inf") else f"below {size.below_us:.0f} us"
        seen = (str(size.pairs), str(size.apart), f"{size.largest:.2%}") if size.pairs else ("none", "-", "-")
        rows.append((reach, *seen, f"{size.share:.2%}"))
        above = size.below_us
    headers = (
        *("time", "pairs of\nequals", "interval\nexcludes 1"),
        *("largest\ndifference", "smallest that\ncounts"),
    )
    (table,) = terminal.layout(Table("", headers, tuple(rows)), terminal.PROSE_WIDTH)
    return f"{table}\n\nand nowhere less than the clock's step of {found.tick_us * 1e3:.0f} ns"
