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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from compare.model.op import CudaLaunch
from compare.pipeline import counts
from compare.pipeline.records import CompilerStage, Opened, StageFailure
from compare.pipeline.shared import one_core, with_sass
from cuda_impl import build, flags

NVCC_STAGES = (
    *("source", "host-preprocessed", "cudafe", "preprocessed", "ptx", "cubin"),
    *("fatbin", "object", "library", "sass"),
)
_HOST_HALF = ("host-preprocessed", "cudafe")
_DEVICE_HALF = ("preprocessed", "ptx", "cubin")
_JOINED = ("fatbin", "object", "library")
_MADE_BY = {"cicc": "ptx", "ptxas": "cubin", "cudafe++": "cudafe", "fatbinary": "fatbin"}


# --------------------------------------------------------------------------- NVRTC


def by_nvrtc(launch: CudaLaunch, blank: Opened) -> Opened:
    """What NVRTC makes of a launch's kernel, with the options that cupy passes."""
    opened = replace(blank, kernel=launch.kernel, stages=(_source(launch),))
    options = (*flags.nvrtc(blank.arch, build.cuda_include()), "-default-device", "-Xptxas=-v", "--time=-")
    with one_core():
        begin = time.perf_counter()
        try:
            made = build.compile_nvrtc(launch.source, (launch.kernel,), options)
        except build.BuildError as error:
            return replace(opened, failure=_failure("ptx", str(error)))
        all_ms = (time.perf_counter() - begin) * 1e3
    log, ptx_ms, cubin_ms = phases(made.log)
    command = "nvrtcCompileProgram " + shlex.join(options)
    ops = counts.of("ptx", made.ptx.decode())
    ptx = CompilerStage("ptx", "NVRTC", made.ptx, all_ms if ptx_ms is None else ptx_ms, ops, command)
    cubin = CompilerStage("cubin", "NVRTC (ptxas)", made.cubin, cubin_ms, {}, command, log)
    return with_sass(replace(opened, stages=(*opened.stages, ptx, cubin)), made.mangled[launch.kernel])


def phases(log: str) -> tuple[str, float | None, float | None]:
    """NVRTC's log without its table of times, and the ms until there was PTX and from then on.

    >>> phases("info\\n\\nFile name, phase name, metric, unit\\nk.cu, CUDA C++ Frontend, 58, ms\\n"
    ...     "k.cu, NVVM Optimizer, 19, ms\\nk.cu, PTX Translation, 17, ms\\n")
    ('info', 77.0, 17.0)
    """
    said, heading, table = log.partition("File name, phase name, metric, unit")
    took = dict(re.findall(r", ([^,\n]+), ([\d.]+), ms", table))
    if not heading or "PTX Translation" not in took:
        return log.strip(), None, None
    cubin_ms = float(took.pop("PTX Translation"))
    return said.strip(), sum(map(float, took.values())), cubin_ms


# --------------------------------------------------------------------------- nvcc


def by_nvcc(launches: Sequence[CudaLaunch], blanks: Sequence[Opened], folder: Path) -> list[Opened]:
    """Every stage of nvcc for an op's kernels, for several architectures at once.

    The kernels are one file, as in the op's module.  Files with all kernels, such as the cubin, are in the
    stages of each kernel; PTX is split by kernel.  There is one launch for each of ``blanks``; intermediate
    files go to ``folder``.
    """
    source = folder / "kernels.cu"
    kernels = list(dict.fromkeys(launch.kernel for launch in launches))
    archs = tuple(dict.fromkeys(blank.arch for blank in blanks))
    source.write_text(build.instances(launches[0].source, kernels))
    host = ["-ccbin", build.gxx(), "-Xcompiler=-fPIC", "-shared", "-cudart=none"]
    device = [word for word in flags.nvcc(archs) if not word.startswith(build.SIDE_BY_SIDE)]
    command = [str(build.nvcc()), *host, *device, str(source), "-o", str(folder / "kernels.so")]
    plan = subprocess.run(
        [*command, "--dryrun", "--keep", "--keep-dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    opened = [
        replace(blank, kernel=launch.kernel, stages=(_source(launch),))
        for launch, blank in zip(launches, blanks, strict=True)
    ]
    if plan.returncode != 0:
        return [replace(one, failure=_failure("host-preprocessed", plan.stderr)) for one in opened]
    environment, steps = planned(plan.stderr)
    named = [(step, *stage_of(step)) for step in steps]

    def through(names: Sequence[str], code: str, one: Opened) -> Opened:
        for step, name, of_arch in named:
            if name in names and of_arch in ("", code) and one.failure is None:
                one = one.plus(_run(step, name, environment, folder))
        return one

    common = through(_HOST_HALF, "", blanks[0])
    with ThreadPoolExecutor(len(archs)) as pool:
        halves = list(pool.map(lambda arch: through(_DEVICE_HALF, flags.target(arch)[3:], common), archs))
    joined = blanks[0] if any(one.failure for one in halves) else through(_JOINED, "", blanks[0])
    made = {
        arch: replace(one, stages=one.stages + joined.stages, failure=one.failure or joined.failure)
        for arch, one in zip(archs, halves, strict=True)
    }
    mangled = _mangled(launches, archs[-1])
    return [_of_kernel(one, made[one.arch], mangled.get(one.kernel, "")) for one in opened]


def _of_kernel(opened: Opened, made: Opened, mangled: str) -> Opened:
    """The stages of a file with several kernels, of which PTX and SASS are one kernel's."""
    for stage in made.stages:
        if stage.name == "ptx":
            text = entry(stage.text, mangled)
            stage = replace(stage, content=text.encode(), ops=counts.of("ptx", text))
        opened = opened.plus(stage)
    return with_sass(replace(opened, failure=made.failure), mangled)


def entry(ptx: str, mangled: str) -> str:
    """The part of PTX that is one kernel's, under the head of the whole.

    >>> entry(".target sm_90\\n.visible .entry f(\\n)\\n{\\n}\\n.visible .entry g(\\n)\\n{\\n}\\n", "f")
    '.target sm_90\\n.visible .entry f(\\n)\\n{\\n}\\n'
    """
    head, *parts = re.split(r"(?m)^(?=\s*(?:\.visible |\.weak )?\.entry )", ptx)
    own = [part for part in parts if re.search(rf"\.entry {re.escape(mangled)}\b", part)]
    # What follows the last kernel - the files that lines are counted in - belongs to all of them.
    tail = re.search(r"(?m)^\s*\.file\b[\s\S]*", parts[-1]) if own and own[0] is not parts[-1] else None
    return head + "".join(own) + (tail[0] if tail else "")


def _mangled(launches: Sequence[CudaLaunch], arch: str) -> dict[str, str]:
    """The kernels' mangled names, from NVRTC's front end: nvcc's are equal."""
    names = tuple(dict.fromkeys(launch.kernel for launch in launches))
    options = (*flags.nvrtc(arch, build.cuda_include()), "-default-device", "--fdevice-syntax-only")
    try:
        return build.compile_nvrtc(launches[0].source, names, options).mangled
    except build.BuildError:
        return {}  # nvcc reports it too


def planned(dryrun: str) -> tuple[dict[str, str], list[str]]:
    """The variables that nvcc sets, and the commands it runs, from what ``--dryrun`` prints.

    >>> planned('#$ TOP=/cuda\\n#$ "$TOP/cicc" k.ii -o "k.ptx"\\n')
    ({'TOP': '/cuda'}, ['"$TOP/cicc" k.ii -o "k.ptx"'])
    """
    lines = [line.strip() for line in re.findall(r"(?m)^#\$ (.*)", dryrun)]
    variables = [match.groups() for line in lines if (match := re.match(r"(\w+)=(.*)", line))]
    steps = [line for line in lines if not re.match(r"\w+=", line)]
    return {name: value.strip() for name, value in variables}, steps


def stage_of(step: str) -> tuple[str, str]:
    """The stage that a command of nvcc's makes, and the architecture it does so for; empty: for all.

    >>> stage_of("ptxas -arch=sm_90a k.compute_90a.ptx -o k.compute_90a.cubin")
    ('cubin', '90a')
    """
    words = shlex.split(step)
    tool = Path(words[0]).name
    code = re.search(r"(?:compute|sm)_(\d+[af]?)", step.rpartition(" -o ")[2])
    if tool in _MADE_BY:
        name = _MADE_BY[tool]
    elif "-E" in words:
        name = "preprocessed" if "-D__CUDA_ARCH__=" in step else "host-preprocessed"
    else:
        name = "object" if "-c" in words else "library"
    return name, code[1] if code and name in _DEVICE_HALF else ""


def _run(step: str, name: str, environment: dict[str, str], folder: Path) -> CompilerStage | StageFailure:
    with one_core():
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
        return _failure(name, done.stdout)
    product = folder / _product(step)
    content = product.read_bytes()
    ops = counts.of(name, content.decode(errors="replace"))
    return CompilerStage(
        name, Path(shlex.split(step)[0]).name, content, took_ms, ops, step, done.stdout.strip()
    )


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


def _failure(stage: str, message: str) -> StageFailure:
    place = re.search(
        r"(?P<file>[^\s()\":]+\.(?:cuh|cu|h|cpp|py))[(:](?P<line>\d+)|line (?P<of_text>\d+) of the CUDA text",
        message,
    )
    at = f"{place['file'] or 'kernels.cu'}:{place['line'] or place['of_text']}" if place else ""
    return StageFailure(stage, message.strip(), at)
