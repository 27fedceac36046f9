"""A CUDA kernel on its way, by both routes.

nvcc is a driver of other programs: its own ``--dryrun`` says which, and these very commands are run, one by
one.  NVRTC does all of it in the calling process, and hands out PTX and the cubin only.
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

from compare.pipeline import counts
from compare.pipeline.records import Failure, Opened, Stage
from compare.pipeline.shared import with_sass
from compare.spec import CudaLaunch
from cuda_impl import build, flags

NVCC_STAGES = (
    *("source", "host-preprocessed", "cudafe", "preprocessed", "ptx", "cubin"),
    *("fatbin", "object", "library", "sass"),
)
NVRTC_STAGES = ("source", "ptx", "cubin", "sass")


# --------------------------------------------------------------------------- NVRTC


def by_nvrtc(launch: CudaLaunch, arch: str, blank: Opened) -> Opened:
    """What NVRTC makes of a launch's kernel, with the options that cupy passes."""
    opened = replace(blank, kernel=launch.kernel, stages=(_source(launch),))
    options = (*flags.nvrtc(arch, build.cuda_include()), "-default-device", "-Xptxas=-v")
    virtual = tuple(option.replace("-arch=sm_", "-arch=compute_") for option in options)
    mangled = ""
    for name, product, chosen in (("ptx", "PTX", virtual), ("cubin", "CUBIN", options)):
        begin = time.perf_counter()
        try:
            made, names, log = build.compile_nvrtc(launch.source, (launch.kernel,), chosen, product)  # type: ignore[arg-type]
        except build.BuildError as error:
            return replace(opened, failure=_failure(name, str(error)))
        took_ms = (time.perf_counter() - begin) * 1e3
        content = made.rstrip(b"\0") if name == "ptx" else made
        stage = Stage(
            name,
            "NVRTC" if name == "ptx" else "NVRTC, from source",
            content,
            took_ms,
            counts.of(name, content.decode()) if name == "ptx" else {},
            "nvrtcCompileProgram " + shlex.join(chosen),
            log,
        )
        opened = replace(opened, stages=(*opened.stages, stage))
        mangled = names[launch.kernel]
    return with_sass(opened, mangled)


# --------------------------------------------------------------------------- nvcc


def by_nvcc(launch: CudaLaunch, blanks: Sequence[Opened], folder: Path, pool: ThreadPoolExecutor) -> list[Opened]:
    """What nvcc and all that it calls make of a launch's kernel, for several architectures in one go.

    Args:
        launch: whose kernel.
        blanks: what is known already, one for each architecture.
        folder: for the files in between.
        pool: which disassembles.

    Returns:
        One for each of ``blanks``; the stages that are the same for all architectures are in each.
    """
    source = folder / "kernel.cu"
    source.write_text(build.instances(launch.source, (launch.kernel,)))
    archs = tuple(blank.arch for blank in blanks)
    host = ["-ccbin", build.gxx(), "-Xcompiler=-fPIC", "-shared", "-cudart=none"]
    command = [str(build.nvcc()), *host, *flags.nvcc(archs, parallel=()), str(source), "-o", str(folder / "kernel.so")]
    plan = subprocess.run(
        [*command, "--dryrun", "--keep", "--keep-dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    environment, steps = planned(plan.stderr)
    opened = [replace(blank, kernel=launch.kernel, stages=(_source(launch),)) for blank in blanks]
    if plan.returncode != 0:
        return [replace(one, failure=_failure("host-preprocessed", plan.stderr)) for one in opened]
    for step in steps:
        name, code = stage_of(step)
        mine = [i for i, one in enumerate(opened) if code in ("", _code(one.arch))]
        if all(opened[i].failure for i in mine):
            continue
        stage = _run(step, name, environment, folder)
        for i in mine:
            if not opened[i].failure:
                opened[i] = _with(opened[i], stage)
    return list(pool.map(lambda one: with_sass(one, _mangled(one)), opened))


def planned(dryrun: str) -> tuple[dict[str, str], list[str]]:
    """The variables that nvcc sets, and the commands it runs, from what ``--dryrun`` prints.

    >>> planned('#$ TOP=/cuda\\n#$ "$TOP/cicc" k.ii -o "k.ptx"\\n')
    ({'TOP': '/cuda'}, ['"$TOP/cicc" k.ii -o "k.ptx"'])
    """
    variables: dict[str, str] = {}
    steps = []
    for line in dryrun.splitlines():
        if not line.startswith("#$ "):
            continue
        if match := re.match(r"#\$ (\w+)=(.*)", line):
            variables[match[1]] = match[2].strip()
        else:
            steps.append(line.removeprefix("#$ ").strip())
    return variables, steps


def stage_of(step: str) -> tuple[str, str]:
    """The stage that a command of nvcc's makes, and the architecture it does so for; empty: for all.

    >>> stage_of("ptxas -arch=sm_90a k.compute_90a.ptx -o k.compute_90a.cubin")
    ('cubin', '90a')
    """
    words = shlex.split(step)
    tool = Path(words[0]).name
    code = re.search(r"(?:compute|sm)_(\d+[af]?)", step.rpartition(" -o ")[2])
    if tool in ("cicc", "ptxas"):
        return ("ptx" if tool == "cicc" else "cubin"), code[1] if code else ""
    if tool == "cudafe++":
        return "cudafe", ""
    if tool == "fatbinary":
        return "fatbin", ""
    if "-E" in words:
        return ("preprocessed", code[1]) if code else ("host-preprocessed", "")
    return ("object", "") if "-c" in words else ("library", "")


def _run(step: str, name: str, environment: dict[str, str], folder: Path) -> Stage | Failure:
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
    return Stage(name, Path(shlex.split(step)[0]).name, content, took_ms, ops, step, done.stdout.strip())


def _product(step: str) -> str:
    """The file that a command writes."""
    words = shlex.split(step)
    for option in ("--gen_c_file_name", "-o"):
        if option in words and not (option == "--gen_c_file_name" and "-o" in words):
            return words[words.index(option) + 1]
    return next(word.partition("=")[2] for word in words if word.startswith("--create="))


def _with(opened: Opened, made: Stage | Failure) -> Opened:
    if isinstance(made, Failure):
        return replace(opened, failure=made)
    return replace(opened, stages=(*opened.stages, made))


def _mangled(opened: Opened) -> str:
    """The kernel as its PTX names it: the only entry there is."""
    ptx = opened.stage("ptx")
    entry = re.search(r"\.entry (\w+)", ptx.text) if ptx else None
    return entry[1] if entry else ""


def _code(arch: str) -> str:
    return flags.target(arch).removeprefix("sm_")


def _source(launch: CudaLaunch) -> Stage:
    """The kernel's own file, or the text that a file of the user's has."""
    path = flags.KERNELS / f"{launch.source}.cuh"
    text = path.read_text() if launch.source.isidentifier() else launch.source
    return Stage("source", "CUDA C++", text.encode())


def _failure(stage: str, message: str) -> Failure:
    place = re.search(r"([^\s()\"]+\.(?:cuh|cu|h|cpp))\((\d+)\)", message)
    return Failure(stage, message.strip(), f"{place[1]}:{place[2]}" if place else "")
