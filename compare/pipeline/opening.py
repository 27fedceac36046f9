"""Captures an op's kernels and sends each through its compiler: from an op's name to `OpenedOp`."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

from compare import registry
from compare.capture import Launch, capture
from compare.device import arch as arch_of
from compare.device import default_archs, lacks, pick
from compare.model.op import LIBRARY, Case, CudaLaunch, Implementation, Op, TritonLaunch, UsageError
from compare.pipeline import cuda_way, inductor, triton_way
from compare.pipeline.records import Opened, OpenedOp, OpenRequest, StageFailure
from cuda_impl import build

STAGES = tuple(dict.fromkeys((*triton_way.STAGES, *cuda_way.NVCC_STAGES, *inductor.STAGES)))
"""Every name of a stage; which of them a route has differs."""

_BY_TOOL = {"cicc": "ptx", "nvrtc": "ptx", "ptxas": "cubin", "cudafe++": "cudafe", "fatbinary": "fatbin"}
_BY_TOOL |= {"nvdisasm": "sass", "llvm": "llir", "make_ttir": "ttir", "make_ttgir": "ttgir"}

Begin = Callable[[str, bool], None]
"""Called before each step with its name, and whether a compilation of many kernels is part of it."""

_Position = tuple[int, int]
"""Where a kernel is shown: by architecture, then by implementation."""
_ForNvcc = tuple[_Position, CudaLaunch, Opened]
_Pending = tuple[Sequence[_Position], Future[list[Opened]]]


def select(name: str) -> str:
    """A stage's name from what the user calls it: the stage, or the tool that makes it.

    Raises:
        UsageError: there is no such stage.
    """
    name = _BY_TOOL.get(name, name)
    if name not in STAGES:
        raise UsageError(registry.unknown("stage", name, (*STAGES, *_BY_TOOL)))
    return name


def open_op(request: OpenRequest, begin: Begin = lambda step, many: None) -> OpenedOp:
    """Load the user's files, if any, and compile an op's kernels stage by stage.

    Raises:
        UsageError: there is nothing of that kind to open up.
    """
    if request.load and request.op in registry.op_names():
        registry.implementations(request.op)  # the project's own come first
    for path in request.load:
        begin(f"loading {path}", False)
        registry.load(path).check_has(request.op, path)
    op = registry.get_op(request.op)
    impls = registry.implementations(op.name, request.only)
    case = Case.parse(request.case, op) if request.case else op.cases.default
    if request.triton_only:
        impls = [impl for impl in impls if impl.way == "triton"]
        if not impls:
            raise UsageError("--passes and --pass are for Triton kernels, and --only leaves no Triton kernel")
    archs = request.archs or default_archs(pick())
    return OpenedOp(op.signature, tuple(open_up(op, impls, case, archs, request.dump, begin)))


def open_up(
    op: Op, impls: Sequence[Implementation], case: Case, archs: Sequence[str], dump: bool, begin: Begin
) -> list[Opened]:
    """What each compiler makes of the kernels that ``impls`` launch, by architecture, then by implementation.

    CUDA's compilers run in other threads and processes while Triton compiles in this one, at most one for
    each core.

    Args:
        op: what they implement.
        impls: with kernels of their own or not.
        case: what the inputs are, which decides the kernel and its specialisation.
        archs: ``sm_90``; one at least.
        dump: with every MLIR pass of Triton's.
        begin: called before each step.
    """
    found: dict[_Position, list[Opened]] = {}
    triton: list[tuple[_Position, TritonLaunch, Opened]] = []
    nvcc: list[_ForNvcc] = []
    pending: list[_Pending] = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:
        for (i, impl), (j, arch) in product(enumerate(impls), enumerate(archs)):
            place, blank = (j, i), Opened(op.name, impl.label, str(case), arch)
            if impl.route == "torch":
                begin(f"compiling {impl.label} for {arch}", True)
                found[place] = _of_pytorch(op, impl, case, blank, dump)
                continue
            begin(f"finding out what {impl.label} launches for {arch}", False)
            launches = _launches(op, impl, case, blank)
            if isinstance(launches, Opened):
                found[place] = [launches]
                continue
            for launch in launches:
                if isinstance(launch, TritonLaunch):
                    triton.append((place, launch, blank))
                elif impl.route == "pybind":
                    nvcc.append((place, launch, blank))
                else:
                    pending.append(([place], pool.submit(_by_cuda, [launch], [blank])))
        pending += [
            _by_nvcc(group, Path(scratch, str(number)), pool) for number, group in enumerate(_together(nvcc))
        ]
        for place, launch, blank in triton:
            begin(f"compiling {blank.label} for {blank.arch}", False)
            pending.append(([place], triton_way.compiled(launch, blank, dump, pool)))
        begin("waiting for the compilers", True)
        for places, job in pending:
            for place, opened in zip(places, job.result(), strict=True):
                found.setdefault(place, []).append(opened)
    return [opened for place in sorted(found) for opened in found[place]]


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
        return replace(blank, failure=StageFailure("launch", f"{type(error).__name__}: {error}"))
    if not once:
        return replace(blank, unavailable=f"{impl.label} launches nothing on {case}")
    return list(once.values())


def _by_nvcc(group: Sequence[_ForNvcc], folder: Path, pool: ThreadPoolExecutor) -> _Pending:
    folder.mkdir()
    places, launches, blanks = zip(*group, strict=True)
    return places, pool.submit(_by_cuda, launches, blanks, folder)


def _by_cuda(
    launches: Sequence[CudaLaunch], blanks: Sequence[Opened], folder: Path | None = None
) -> list[Opened]:
    """By nvcc, in ``folder``; without one by NVRTC."""
    pairs = list(zip(launches, blanks, strict=True))
    try:
        if folder:
            return cuda_way.by_nvcc(launches, blanks, folder)
        return [cuda_way.by_nvrtc(*pair) for pair in pairs]
    except build.BuildError as error:  # no compiler
        return [replace(blank, kernel=launch.kernel, unavailable=str(error)) for launch, blank in pairs]


def _together(nvcc: Sequence[_ForNvcc]) -> list[list[_ForNvcc]]:
    """What one call of nvcc compiles: kernels of one source for the same architectures."""
    archs: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for _, launch, blank in nvcc:
        archs[launch.source, launch.kernel][blank.arch] = None
    groups: dict[tuple[str, ...], list[_ForNvcc]] = defaultdict(list)
    for one in nvcc:
        launch = one[1]
        groups[(launch.source, *archs[launch.source, launch.kernel])].append(one)
    return list(groups.values())
