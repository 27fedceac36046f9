"""What this machine can run and, for what is missing, the command that fixes it.

examples:
  python -m compare doctor
  python -m compare doctor --calibrate

exit status:
  0  a comparison has everything it needs; with --calibrate: the result is stored
  2  something is missing; or a mistake in the command, or no GPU to calibrate
"""

from __future__ import annotations

import argparse
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
import textwrap
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.command_line import installed, options, status
from compare.model.op import UsageError
from compare.places import IS_CHECKOUT, RECORDS, RESULTS, to_install
from compare.report.steps import Steps, steps

if TYPE_CHECKING:
    from compare.model.result import Calibration

PIP = f"{shlex.quote(sys.executable)} -m pip install"
CUDA_TORCH = f"{PIP} --force-reinstall --index-url https://pypi.org/simple 'torch>=2.11'"

GXX = "sudo apt-get install -y g++ make # dnf, zypper: gcc-c++ make; pacman: gcc make"
PYTHON_HEADERS = "sudo apt-get install -y python{}.{}-dev  # dnf, zypper: python3-devel".format(
    *sys.version_info
)
DRIVER = "sudo ubuntu-drivers install  # elsewhere: its NVIDIA driver; of a container: docker run --gpus all"

_LEAST_CAPABILITY = 75
_OTHERS = ("numpy", "rich", "tabulate", "pygments", "jinja2", "filelock")
"""Packages of requirements.txt that no other check covers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibrate", action="store_true", help="measure the least difference that counts on this GPU"
    )
    options.add_verbose(parser.add_argument)


def run(arguments: argparse.Namespace) -> int:
    """Show what is missing, or calibrate; the exit status."""
    if not arguments.calibrate:
        return report()
    with steps(arguments.verbose) as log:
        return calibrate(log)


# --------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Capability:
    """One thing a comparison uses, its version or why it is missing, and the command that fixes that."""

    name: str
    purpose: str
    ok: bool
    detail: str
    fix: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Check:
    """A line of the table: ``version`` raises if the thing is missing, and ``fix`` is the command then."""

    name: str
    purpose: str
    version: Callable[[], str]
    fix: str = to_install()
    optional: bool = False
    """A comparison works without it."""
    for_checkout: bool = False
    """An installed copy has no use for it."""


class Missing(Exception):
    """Why something is missing, and the command that fixes it; None: that of its `Check`."""

    def __init__(self, why: str, fix: str | None = None) -> None:
        super().__init__(why)
        self.fix = fix


def diagnose() -> list[Capability]:
    """Check everything that a comparison uses.  Never raises; takes little longer than importing torch."""
    return [_look(check) for check in _CHECKS if IS_CHECKOUT or not check.for_checkout]


def report() -> int:
    """Print what `diagnose` found; the exit status."""
    capabilities = diagnose()
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    print(render(capabilities, shutil.get_terminal_size().columns if narrow else None))
    return status.SUCCESS if all(each.ok or each.optional for each in capabilities) else status.USAGE


def render(capabilities: Sequence[Capability], width: int | None = None) -> str:
    """A table of at most ``width`` columns (None: no limit), then every command once.

    Made of plain strings: a table is shown without any package too.
    """
    rows = [("", "what", "version, or what is lost and why")]
    for c in capabilities:
        mark = "ok" if c.ok else "-" if c.optional else "MISSING"
        rows.append((mark, c.name, c.detail if c.ok else f"{c.purpose}: {c.detail}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        widths[2] = min(widths[2], max(12, width - sum(widths[:2]) - 4))
    rows.insert(1, ("-" * widths[0], "-" * widths[1], "-" * widths[2]))
    text = ""
    for row in rows:  # of several lines where a cell is wider than its column
        cells = [textwrap.wrap(cell, column or 1) for cell, column in zip(row, widths, strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            text += "  ".join(map(str.ljust, line, widths)).rstrip() + "\n"
    for command in dict.fromkeys(c.fix for c in capabilities if c.fix):
        names = ", ".join(c.name for c in capabilities if c.fix == command)
        text += f"\nTo fix {names}:\n  {command}\n"
    return text.rstrip("\n")


def _look(check: Check) -> Capability:
    try:
        return Capability(check.name, check.purpose, True, check.version(), optional=check.optional)
    except Missing as missing:
        why, fix = str(missing), check.fix if missing.fix is None else missing.fix
    except ImportError as error:
        why, fix = f"cannot be imported: {error}", to_install()
    except Exception as error:  # a broken installation may raise anything
        why, fix = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", check.fix
    return Capability(check.name, check.purpose, False, why, fix, check.optional)


# --------------------------------------------------------------------------- checks: a version, or an error


def _torch() -> str:
    installed.check_import("torch")
    build = installed.torch_build()
    if build is None:
        raise Missing("it does not say its version")
    return f"{build.version}, {f'CUDA {build.cuda}' if build.cuda else 'CPU only'}"


def _gpu() -> str:
    if gpu := installed.gpu():
        return _served(gpu)
    if not _card_present() and not Path("/dev/dxg").exists():
        raise Missing("no NVIDIA card in this machine")
    return _gpu_of_torch()


def _served(gpu: installed.Gpu) -> str:
    if gpu.capability < _LEAST_CAPABILITY:
        raise Missing(f"{gpu.name} is {gpu.arch}; the kernels need sm_{_LEAST_CAPABILITY}")
    return f"{gpu.name}, {gpu.arch}, {gpu.memory_bytes / 2**30:.0f} GiB"


def _gpu_of_torch() -> str:
    """The GPU that PyTorch finds; else why it finds none."""
    torch = importlib.import_module("torch")
    with warnings.catch_warnings(record=True) as caught:  # torch warns of a driver that is too old
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if available:
        card = torch.cuda.get_device_properties(torch.cuda.current_device())
        return _served(installed.Gpu(card.name, 10 * card.major + card.minor, card.total_memory))
    if not _card_present():
        raise Missing("no NVIDIA card in this machine")
    if not torch.version.cuda:
        raise Missing("torch is built without CUDA", CUDA_TORCH)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        raise Missing(f"hidden by CUDA_VISIBLE_DEVICES={hidden!r}", "unset CUDA_VISIBLE_DEVICES")
    if not Path("/proc/driver/nvidia/version").exists():
        raise Missing("there is a card, but no NVIDIA driver is loaded", DRIVER)
    why = str(caught[0].message).partition("(")[0].strip() if caught else "torch finds no device"
    raise Missing(f"the driver does not serve CUDA {torch.version.cuda}: {why}", DRIVER)


def _card_present() -> bool:
    """Whether the PCI bus or the driver knows an NVIDIA card; containers show one of the two."""
    if Path("/dev/nvidiactl").exists():
        return True
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        with suppress(OSError):
            is_display = (vendor.parent / "class").read_text().startswith("0x03")
            if is_display and vendor.read_text().strip() == "0x10de":
                return True
    return False


def _nvml() -> str:
    pynvml = importlib.import_module("pynvml")
    if not _card_present():
        raise Missing("no NVIDIA card to ask")
    pynvml.nvmlInit()
    return f"{importlib.metadata.version('nvidia-ml-py')}, driver {pynvml.nvmlSystemGetDriverVersion()}"


def _compiler(finder: str, variable: str) -> str:
    """The release and path of a program that an environment variable may name."""
    program = str(_built(finder, variable))
    option = "--version" if finder == "nvcc" else "-dumpfullversion"
    done = subprocess.run([program, option], capture_output=True, text=True, timeout=10, check=True)
    return f"{done.stdout.rpartition('release ')[2].partition(',')[0].strip()} at {program}"


def _gcc() -> str:
    _built("make_tool")
    return _compiler("gcc", "CC")


def _tools() -> str:
    folder = importlib.import_module("cuda_impl.build").triton_nvidia() / "bin"
    lacking = [name for name in ("ptxas", "cuobjdump", "nvdisasm") if not (folder / name).is_file()]
    if lacking:
        raise Missing(f"Triton's wheel carries no {', '.join(lacking)}")
    return f"with ptxas and nvdisasm at {folder}"


def _others() -> str:
    lacking = [name for name in _OTHERS if importlib.util.find_spec(name) is None]
    if lacking:
        raise Missing(f"no {', '.join(lacking)}")
    return ", ".join(_OTHERS)


def _python_headers() -> str:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        raise Missing(f"no {header}")
    return str(header.parent)


def _isolation() -> str:
    isolation = importlib.import_module("compare.sandbox.isolation").found()
    why = f" ({'; '.join(isolation.refused)})" if isolation.refused else ""
    if not isolation.holds:
        raise Missing(f"a user's file runs with all your rights{why}")
    return f"{isolation}{why}"


def _calibration() -> str:
    name = installed.gpu_name()
    if name is None:
        raise Missing("no GPU to calibrate; recorded speeds bring their own", "")
    calibration = importlib.import_module("compare.timing.calibration")
    stored = calibration.stored(name)
    if not stored.created:
        raise Missing("not done on this machine; wide limits are built in")
    return f"{', '.join(f'{size.share:.1%}' for size in stored.classes)} by size, on {stored.created[:10]}"


def _results() -> str:
    if not IS_CHECKOUT:
        with suppress(OSError):
            RESULTS.mkdir(parents=True, exist_ok=True)
    if not RESULTS.is_dir():
        raise Missing(f"no {RESULTS}", f"mkdir -p {shlex.quote(str(RESULTS))}")
    _writable(RESULTS)
    records = sorted({record.parent.name for each in {RECORDS, RESULTS} for record in each.glob("*/*.json")})
    return f"records of {', '.join(records)}" if records else "no records yet"


def _package(name: str, module: str = "") -> Callable[[], str]:
    """The check of a package: its version, and that its ``module`` can be imported."""

    def version() -> str:
        if module:
            installed.check_import(module)
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise Missing("not installed") from None

    return version


def _built(finder: str, variable: str = "") -> Any:
    """What a finder of `cuda_impl.build` finds, where ``variable`` points if that is set."""
    build = importlib.import_module("cuda_impl.build")
    try:
        return getattr(build, finder)()
    except build.BuildError as error:
        fix = f"unset {variable}" if os.environ.get(variable) else None
        raise Missing(str(error).partition(":")[0], fix) from error


def _writable(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        raise Missing(f"cannot write {folder} ({error.strerror})") from error


_CALIBRATE = f"{shlex.quote(sys.executable)} -m compare doctor --calibrate"
_CACHE, _CUPY_CACHE = "export COMPARE_CACHE_DIR=/tmp/gpu-three-ways", "export CUPY_CACHE_DIR=/tmp/cupy"

_CHECKS = (
    Check("Python", "everything", lambda: f"{platform.python_version()} at {sys.executable}"),
    Check("PyTorch", "the torch way, and every tensor", _torch),
    Check("GPU", "speeds measured here, not recorded ones", _gpu, "", True),
    Check("NVML", "clocks, power and temperature beside the figures", _nvml, "", True),
    Check("Triton", "the triton way", _package("triton", "triton")),
    Check("cupy", "CUDA kernels compiled at run time", lambda: str(_built("cupy").__version__), _CUPY_CACHE),
    Check("g++", "pybind11 modules; CUDA kernels on the CPU", lambda: _compiler("gxx", "CXX"), GXX),
    Check("Python headers", "pybind11 modules", _python_headers, PYTHON_HEADERS),
    Check("pybind11", "CUDA kernels built ahead of time", _package("pybind11", "pybind11")),
    Check("nvcc", "CUDA kernels built ahead of time", lambda: _compiler("nvcc", "CUDA_HOME")),
    Check("CUDA headers", "half precision in CUDA kernels", lambda: str(_built("cuda_include"))),
    Check(
        "NVRTC",
        "registers and shared memory without running",
        _package("cuda-bindings", "cuda.bindings.nvrtc"),
    ),
    Check("gcc, make", "programs without Python", _gcc, GXX, True),
    Check("cuobjdump", "spills and machine code size", _tools),
    Check("other packages", "figures, screens and locks", _others),
    Check(
        "clang-format",
        "'make test' and 'make format'",
        _package("clang-format"),
        f"{PIP} clang-format",
        optional=True,
        for_checkout=True,
    ),
    Check(
        "matplotlib", "'map --plot', effort against speed", _package("matplotlib"), to_install("plot"), True
    ),
    Check(
        "vl-convert",
        "'--html', figures of the report",
        _package("vl-convert-python"),
        to_install("html"),
        True,
    ),
    Check("tornado", "'serve', the page to edit kernels in", _package("tornado"), to_install("serve"), True),
    Check("copydetect", "'grade --similar'", _package("copydetect"), to_install("labs"), True),
    Check("Dask", "'--cluster', many GPUs", _package("distributed"), to_install("cluster"), True),
    Check("dask-jobqueue", "'--cluster slurm.toml'", _package("dask-jobqueue"), to_install("cluster"), True),
    Check("isolation", "files given with --load", _isolation, "", True),
    Check("cache", "compiled kernels between runs", lambda: _writable(_built("cache_dir")), _CACHE),
    Check("calibration", "what counts as a difference in speed", _calibration, _CALIBRATE, True),
    Check("results", "recorded speeds; --record writes here", _results, f"chmod u+w '{RESULTS}'", True),
)


# --------------------------------------------------------------------------- --calibrate


def calibrate(log: Steps | None) -> int:
    """Measure the least difference in speed that this GPU can tell apart, keep and show it."""
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
    with of_run("calibrating", log) as progress:
        measured = calibrating.measured(
            device, lambda share: progress("timing calls against themselves", share)
        )
    try:
        path = calibration.store(name, measured)
    except OSError as error:
        raise UsageError(f"the calibration could not be kept: {error}. Set COMPARE_CACHE_DIR") from None
    print(f"{name}: calls against themselves in other processes\n\n{resolution(measured)}\n\nkept in {path}")
    return status.SUCCESS


def resolution(calibration: Calibration) -> str:
    """The least difference that counts, a line for each class of times."""
    from compare.report import terminal
    from compare.report.tables import Table

    counted = ("pairs of\nequals", "interval\nexcludes 1", "largest\ndifference")
    rows, above = [], 0.0
    for size in calibration.classes:
        reach = f"from {above:.0f} us" if size.below_us == float("inf") else f"below {size.below_us:.0f} us"
        seen = (str(size.pairs), str(size.apart), f"{size.largest:.2%}") if size.pairs else ("none", "-", "-")
        rows.append((reach, *seen, f"{size.share:.2%}"))
        above = size.below_us
    (table,) = terminal.layout(
        Table("", ("time", *counted, "smallest that\ncounts"), tuple(rows)), terminal.PROSE_WIDTH
    )
    return f"{table}\n\nand nowhere less than the clock's step of {calibration.tick_us * 1e3:.0f} ns"
