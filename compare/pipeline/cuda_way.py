"""A CUDA kernel stage by stage, by both routes.

nvcc calls other programs: ``nvcc --dryrun`` lists the commands, and they are run one by one.  NVRTC compiles
in the calling process and returns only PTX and the cubin.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from compare.model.op import CudaLaunch
from compare.pipeline.records import CompilerStage, Opened, StageFailure
from cuda_impl import build, flags

NVCC_STAGES = (
    *("source", "module", "host-preprocessed", "cudafe", "preprocessed", "ptx", "cubin"),
    *("fatbin", "object", "library", "sass"),
)
_MADE_BY = {"cicc": "ptx", "ptxas": "cubin", "cudafe++": "cudafe", "fatbinary": "fatbin"}


# --------------------------------------------------------------------------- NVRTC


def by_nvrtc(launch: CudaLaunch, blank: Opened) -> Opened:
    """What NVRTC makes of a launch's kernel, with the options that cupy passes.

    Raises:
        BuildError: NVRTC is not installed.
    """
    opened = replace(blank, kernel=launch.kernel, stages=(_source(launch),))
    build.nvrtc_library()
    options = (*build.nvrtc_options(launch.source, blank.arch), "-default-device", "-Xptxas=-v", "--time=-")
    begin = time.perf_counter()
    try:
        product = build.compile_nvrtc(launch.source, (launch.kernel,), options)
    except build.BuildError as error:
        return opened.plus(_failure("ptx", str(error)))
    all_ms = (time.perf_counter() - begin) * 1e3
    log, ptx_ms, cubin_ms = phases(product.log)
    command = "nvrtcCompileProgram " + shlex.join(options)
    ptx = CompilerStage("ptx", "NVRTC", product.ptx, all_ms if ptx_ms is None else ptx_ms, command)
    cubin = CompilerStage("cubin", "NVRTC (ptxas)", product.cubin, cubin_ms, command, log)
    return replace(opened, symbol=product.mangled[launch.kernel], stages=(*opened.stages, ptx, cubin))


def phases(log: str) -> tuple[str, float | None, float | None]:
    """NVRTC's log without its table of times, and the ms until there was PTX and from then on.

    >>> phases("info\\n\\nFile name, phase name, metric, unit\\nk.cu, CUDA C++ Frontend, 58, ms\\n"
    ...     "k.cu, NVVM Optimizer, 19, ms\\nk.cu, PTX Translation, 17, ms\\n")
    ('info', 77.0, 17.0)
    """
    report, heading, table = log.partition("File name, phase name, metric, unit")
    ms = dict(re.findall(r", ([^,\n]+), ([\d.]+), ms", table))
    if not heading or "PTX Translation" not in ms:
        return log.strip(), None, None
    cubin_ms = float(ms.pop("PTX Translation"))
    return report.strip(), sum(map(float, ms.values())), cubin_ms


# --------------------------------------------------------------------------- nvcc


def by_nvcc(launch: CudaLaunch, blank: Opened, folder: Path) -> Opened:
    """Every stage of nvcc for a launch's kernel, a file of its own; intermediate files go to ``folder``.

    The module that holds the kernel, with others and the host code, is shown and not compiled.
    """
    opened = replace(blank, kernel=launch.kernel, stages=(_source(launch), _module(blank)))
    source = folder / "kernels.cu"
    source.write_text(build.instances(launch.source, [launch.kernel]))
    host = ["-ccbin", build.gxx(), "-Xcompiler=-fPIC", "-shared", "-cudart=none"]
    device = [word for word in flags.nvcc((blank.arch,)) if not word.startswith(build.SIDE_BY_SIDE)]
    command = [str(build.nvcc()), *host, *device, str(source), "-o", str(folder / "kernels.so")]
    dryrun = subprocess.run(
        [*command, "--dryrun", "--keep", "--keep-dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    if dryrun.returncode != 0:
        return opened.plus(_failure("host-preprocessed", dryrun.stderr))
    environment, steps = planned(dryrun.stderr)
    for step in steps:
        opened = opened.plus(_run(step, environment, folder))
        if opened.failure:
            return opened
    return replace(opened, symbol=_symbol(launch, opened))


def _symbol(launch: CudaLaunch, opened: Opened) -> str:
    """The kernel's mangled name, from NVRTC's front end: nvcc's is equal.  Without NVRTC from the PTX."""
    try:
        build.nvrtc_library()
    except build.BuildError:
        ptx = opened.stage("ptx")
        entries = re.findall(r"\.entry\s+(\w+)", ptx.text if ptx else "")
        return next((entry for entry in entries if launch.kernel.partition("<")[0] in entry), "")
    arch = opened.arch
    options = (*build.nvrtc_options(launch.source, arch), "-default-device", "--fdevice-syntax-only")
    return build.compile_nvrtc(launch.source, (launch.kernel,), options).mangled[launch.kernel]


def planned(dryrun: str) -> tuple[dict[str, str], list[str]]:
    """The variables that nvcc sets, and the commands it runs, from what ``--dryrun`` prints.

    >>> planned('#$ TOP=/cuda\\n#$ "$TOP/cicc" k.ii -o "k.ptx"\\n')
    ({'TOP': '/cuda'}, ['"$TOP/cicc" k.ii -o "k.ptx"'])
    """
    lines = [line.strip() for line in re.findall(r"(?m)^#\$ (.*)", dryrun)]
    variables = [match.groups() for line in lines if (match := re.match(r"(\w+)=(.*)", line))]
    steps = [line for line in lines if not re.match(r"\w+=", line)]
    return {name: value.strip() for name, value in variables}, steps


def stage_of(step: str) -> str:
    """The stage that a command of nvcc's makes.

    >>> stage_of("ptxas -arch=sm_90a k.ptx -o k.cubin")
    'cubin'
    """
    words = shlex.split(step)
    if stage := _MADE_BY.get(Path(words[0]).name):
        return stage
    if "-E" in words:
        return "preprocessed" if "-D__CUDA_ARCH__=" in step else "host-preprocessed"
    return "object" if "-c" in words else "library"


def _run(step: str, environment: dict[str, str], folder: Path) -> CompilerStage | StageFailure:
    begin = time.perf_counter()
    done = subprocess.run(
        ["/bin/sh", "-c", step],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | environment,
    )
    took_ms = (time.perf_counter() - begin) * 1e3
    if done.returncode != 0:
        return _failure(stage_of(step), done.stdout)
    content, tool = (folder / _product(step)).read_bytes(), Path(shlex.split(step)[0]).name
    return CompilerStage(stage_of(step), tool, content, took_ms, step, done.stdout.strip())


def _product(step: str) -> str:
    """The file that a command writes."""
    words = shlex.split(step)
    for option in ("-o", "--gen_c_file_name"):
        if option in words:
            return words[words.index(option) + 1]
    return next(word.partition("=")[2] for word in words if word.startswith("--create="))


def _source(launch: CudaLaunch) -> CompilerStage:
    """The file that defines the kernel, or the text that a file of the user's has."""
    if not launch.source.isidentifier():
        return CompilerStage("source", "CUDA C++", launch.source.encode(), file="kernels.cu")
    files = build.included(build.source_text(launch.source))
    defined = re.compile(rf"\bvoid {launch.kernel.partition('<')[0]}\(")
    path = next((path for path, text in files.items() if defined.search(text)), next(iter(files)))
    return CompilerStage("source", "CUDA C++", files[path].encode(), file=str(path))


def _module(blank: Opened) -> CompilerStage:
    """The C++ of the pybind11 module: written by hand, or generated from the op's launch tables."""
    maker = "C++ host code" if build.by_hand(blank.op) else f"generated from launches/{blank.op}.py"
    return CompilerStage("module", maker, build.module_text(blank.op).encode())


def _failure(stage: str, message: str) -> StageFailure:
    place = re.search(
        r"(?P<file>[^\s()\":]+\.(?:cuh|cu|h|cpp|py))[(:](?P<line>\d+)|line (?P<of_text>\d+) of the CUDA text",
        message,
    )
    at = f"{place['file'] or 'kernels.cu'}:{place['line'] or place['of_text']}" if place else ""
    return StageFailure(stage, message.strip(), at)
