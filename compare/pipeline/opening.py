"""Captures an op's kernels and sends each through its compiler: from an op's name to `OpenedOp`."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from pathlib import Path

from compare import registry
from compare.capture import Launch, capture
from compare.device import arch as arch_of
from compare.device import default_archs, lacks, pick
from compare.model.op import LIBRARY, Case, CudaLaunch, Implementation, Op, TritonLaunch, UsageError
from compare.pipeline import cuda_way, inductor, triton_way
from compare.pipeline.records import CompilerStage, Opened, OpenedOp, OpenRequest, StageFailure
from compare.report.kernel_names import shortened
from compare.resources.sass import disassembly as sass
from cuda_impl import build

STAGES = tuple(dict.fromkeys((*triton_way.STAGES, *cuda_way.NVCC_STAGES, *inductor.STAGES)))
"""Every name of a stage; which of them a route has differs."""

_BY_TOOL = {"cicc": "ptx", "nvrtc": "ptx", "ptxas": "cubin", "cudafe++": "cudafe", "fatbinary": "fatbin"}
_BY_TOOL |= {"nvdisasm": "sass", "llvm": "llir", "make_ttir": "ttir", "make_ttgir": "ttgir"}

Begin = Callable[[str, bool], None]
"""Called before each step with its name, and whether a compilation of many kernels is part of it."""


def select(name: str) -> str:
    """A stage's name from what the user calls it: the stage, or the tool that makes it.

    Raises:
        UsageError: there is no such stage.
    """
    name = _BY_TOOL.get(name, name)
    if name not in STAGES:
        raise UsageError(registry.unknown("stage", name, (*STAGES, *_BY_TOOL)))
    return name


Progress = Callable[[str, float], None]
"""Called with the current step, and the share that is over, 0 to 1."""


def open_op(
    request: OpenRequest,
    begin: Begin = lambda step, many: None,
    progress: Progress = lambda step, done: None,
) -> OpenedOp:
    """Load the user's files, if any, and compile an op's kernels stage by stage.

    Raises:
        UsageError: there is nothing of that kind to open up.
    """
    if request.load and request.op in registry.op_names():
        registry.implementations(request.op)  # the project's own come first
    for path in request.load:
        begin(f"loading {path}", False)
        registry.load(path, request.op).check_has(request.op, path)
    op = registry.get_op(request.op)
    impls = registry.implementations(op.name, request.only)
    case = Case.parse(request.case, op) if request.case else op.cases.default
    if request.triton_only:
        impls = [impl for impl in impls if impl.way == "triton"]
        if not impls:
            raise UsageError("--passes and --pass are for Triton kernels, and --only leaves no Triton kernel")
    archs = request.archs or default_archs(pick())
    opened = open_up(op, impls, case, archs, request.dump, begin, progress)
    shown = [impl.label for impl in impls]
    opened.sort(key=lambda one: (archs.index(one.arch), shown.index(one.label)))
    return OpenedOp(op.signature, tuple(opened))


def open_up(
    op: Op,
    impls: Sequence[Implementation],
    case: Case,
    archs: Sequence[str],
    dump: bool,
    begin: Begin,
    progress: Progress,
) -> list[Opened]:
    """What each compiler makes of the kernels that ``impls`` launch; those of one implementation in order.

    CUDA's compilers run in other threads and processes while Triton compiles in this one.

    Args:
        op: what they implement.
        impls: with kernels of their own or not.
        case: what the inputs are, which decides the kernel and its specialisation.
        archs: ``sm_90``; one at least.
        dump: with every MLIR pass of Triton's.
        begin: called before each step.
        progress: called whenever a kernel has been compiled.
    """
    opened: list[Opened] = []
    jobs: list[Future[Opened]] = []
    triton: list[tuple[TritonLaunch, Opened]] = []
    # A thread for each core: each waits for one tool at a time, so that wall times are comparable.
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for impl, arch in product(impls, archs):
            blank = Opened(op.name, impl.label, str(case), arch)
            if impl.route == "torch":
                begin(f"compiling {impl.label} for {arch}", True)
                jobs += [pool.submit(_with_sass, one) for one in _of_pytorch(op, impl, case, blank, dump)]
                continue
            begin(f"finding out what {impl.label} launches for {arch}", False)
            launches = _launches(op, impl, case, blank)
            if isinstance(launches, Opened):
                opened.append(launches)
                continue
            for launch in launches:
                if isinstance(launch, TritonLaunch):
                    triton.append((launch, blank))
                else:
                    jobs.append(pool.submit(_by_cuda, launch, blank, impl.route))
        every = len(jobs) + len(triton)
        progress(f"compiling kernels, 0 of {every}", 0.0)
        for launch, blank in triton:
            begin(f"compiling {blank.label} for {blank.arch}", False)
            jobs.append(pool.submit(_with_sass, triton_way.compiled(launch, blank, dump)))
            done = sum(job.done() for job in jobs)
            progress(f"compiling kernels, {done} of {every}", done / every)
        begin("waiting for the compilers", True)
        for count, _ in enumerate(as_completed(jobs), 1):
            progress(f"compiling kernels, {count} of {every}", count / every)
        return opened + [job.result() for job in jobs]
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C starts no further compiler


def _of_pytorch(op: Op, impl: Implementation, case: Case, blank: Opened, dump: bool) -> list[Opened]:
    here = arch_of(pick())
    if here not in (None, blank.arch):
        return [replace(blank, unavailable=f"PyTorch compiles only for the GPU of this machine, {here}")]
    if why := inductor.why_not(op, impl, case):
        return [replace(blank, unavailable=why)]
    return inductor.written(op, impl, case, blank, dump)


def _launches(op: Op, impl: Implementation, case: Case, blank: Opened) -> list[Launch] | Opened:
    """Each kernel once; or ``blank`` with the reason why there is nothing to compile."""
    try:
        if impl.requires and (refusal := lacks(impl.requires, blank.arch)):
            return replace(blank, unavailable=refusal)
        if impl.route == LIBRARY:
            why = "launches a library's kernels, whose source is not here"
            return replace(blank, unavailable=f"{impl.label} {why}")
        once: dict[object, Launch] = {}
        for launch in capture(impl, op, case, blank.arch):
            if isinstance(launch, CudaLaunch):
                once.setdefault((launch.source, launch.kernel), launch)
            else:
                arguments = tuple((name, str(value)) for name, value in launch.arguments.items())
                once.setdefault((launch.kernel.fn, arguments, str(launch.options)), launch)
    except (NotImplementedError, build.BuildError) as error:
        return replace(blank, unavailable=str(error).partition("\n")[0])
    except UsageError:  # of the op
        raise
    except Exception as error:  # host code may raise anything
        return blank.plus(StageFailure("launch", f"{type(error).__name__}: {error}"))
    if not once:
        return replace(blank, unavailable=f"{impl.label} launches nothing on {case}")
    return list(once.values())


def _by_cuda(launch: CudaLaunch, blank: Opened, route: str) -> Opened:
    try:
        if route != "pybind":
            return _with_sass(cuda_way.by_nvrtc(launch, blank))
        with tempfile.TemporaryDirectory() as folder:
            return _with_sass(cuda_way.by_nvcc(launch, blank, Path(folder)))
    except build.BuildError as error:  # no compiler
        return replace(blank, kernel=launch.kernel, unavailable=str(error))


def _with_sass(one: Opened) -> Opened:
    """The same with its cubin disassembled, if there is one; in it kernels have the names of the source."""
    cubin = one.stage("cubin")
    if cubin is None or one.failure is not None:
        return one
    begin = time.perf_counter()
    try:
        text = shortened(sass.of_kernel(sass.disassembled(cubin.content), one.symbol))
    except sass.NoDisassembler as error:
        return one.plus(StageFailure("sass", str(error)))
    took_ms = (time.perf_counter() - begin) * 1e3
    instructions = sass.instructions(text)
    if not instructions:
        return one.plus(StageFailure("sass", f"nvdisasm shows no code of {one.symbol or one.kernel}"))
    stage = CompilerStage("sass", "nvdisasm", text.encode(), took_ms)
    return replace(one.plus(stage), instructions=instructions)
