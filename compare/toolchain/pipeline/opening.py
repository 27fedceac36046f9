"""Captures an op's kernels and sends each through its compiler: from an op's name to `Opened`."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Protocol

from compare import registry
from compare.capture import Launch, capture
from compare.device import arch as arch_of
from compare.device import lacks, pick
from compare.spec import LIBRARY, Case, CudaLaunch, Implementation, Op, TritonLaunch, UsageError
from compare.toolchain.pipeline import cuda_way, inductor, triton_way
from compare.toolchain.pipeline.records import Failure, Opened
from cuda_impl import build

STAGES = tuple(dict.fromkeys((*triton_way.STAGES, *cuda_way.NVCC_STAGES, *inductor.STAGES)))
"""Every name of a stage; which of them a route has differs."""

_BY_TOOL = {"cicc": "ptx", "nvrtc": "ptx", "ptxas": "cubin", "cudafe++": "cudafe", "fatbinary": "fatbin"}
_BY_TOOL |= {"nvdisasm": "sass", "llvm": "llir", "make_ttir": "ttir", "make_ttgir": "ttgir"}

_Place = tuple[int, int]
"""Where a kernel is shown: by architecture, then by implementation."""
_ForNvcc = tuple[_Place, CudaLaunch, Opened]


class Begin(Protocol):
    """Called before each step."""

    def __call__(self, step: str, limited: bool = True) -> None:
        """``compiling triton.online for sm_90``, and whether the time limit holds for it."""


def unwatched(step: str, limited: bool = True) -> None:
    """Without notes and without a limit."""


def select(name: str) -> str:
    """A stage's name from what the user calls it: the stage, or the tool that makes it.

    Raises:
        UsageError: there is no such stage.
    """
    name = _BY_TOOL.get(name, name)
    if name not in STAGES:
        raise UsageError(registry.unknown("stage", name, (*STAGES, *_BY_TOOL)))
    return name


def open_up(
    op: Op,
    impls: Sequence[Implementation],
    case: Case,
    archs: Sequence[str],
    dump: bool,
    begin: Begin,
) -> list[Opened]:
    """What each compiler makes of the kernels that ``impls`` launch, by architecture, then by implementation.

    CUDA's compilers run in other threads and processes while Triton compiles in this one, at most one for
    each core.

    Args:
        case: what the inputs are, which decides the kernel and its specialisation.
        archs: ``sm_90``; one at least.
        dump: with every MLIR pass of Triton's.
        begin: called before each step; CUDA's compilers run outside of the limited steps.
    """
    found: dict[_Place, list[Opened]] = {}
    single: list[tuple[_Place, Future[Opened]]] = []
    cuda: list[tuple[Sequence[_Place], Future[list[Opened]]]] = []
    triton: list[tuple[_Place, TritonLaunch, Opened]] = []
    nvcc: list[_ForNvcc] = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:
        for (i, impl), (j, arch) in product(enumerate(impls), enumerate(archs)):
            place, blank = (j, i), Opened(op.name, impl.label, str(case), arch)
            if impl.route == "torch":
                begin(f"compiling {impl.label} for {arch}", limited=False)
                found[place] = _of_pytorch(op, impl, case, blank, dump, pool)
                continue
            begin(f"finding out what {impl.label} launches for {arch}")
            try:
                launches = _launches(op, impl, case, arch)
            except NotImplementedError as error:
                found[place] = [replace(blank, unavailable=str(error))]
                continue
            except build.BuildError as error:
                found[place] = [replace(blank, unavailable=str(error).splitlines()[0])]
                continue
            except UsageError:  # of the op
                raise
            except Exception as error:  # host code may raise anything
                failure = Failure("launch", f"{type(error).__name__}: {error}")
                found[place] = [replace(blank, failure=failure)]
                continue
            for launch in launches:
                if isinstance(launch, TritonLaunch):
                    triton.append((place, launch, blank))
                elif impl.route == "pybind":
                    nvcc.append((place, launch, blank))
                else:
                    cuda.append(([place], pool.submit(_by_cuda, [launch], [blank])))
        for number, group in enumerate(_together(nvcc)):
            folder = Path(scratch, str(number))
            folder.mkdir()
            where, launches_of, blanks = zip(*group, strict=True)
            cuda.append((where, pool.submit(_by_cuda, launches_of, blanks, folder)))
        for place, launch, blank in triton:
            begin(f"compiling {blank.label} for {blank.arch}")
            single.append((place, triton_way.compiled(launch, blank, dump, pool)))
        begin("waiting for the compilers", limited=False)
        for place, one in single:
            found.setdefault(place, []).append(one.result())
        for places, job in cuda:
            for place, opened in zip(places, job.result(), strict=True):
                found.setdefault(place, []).append(opened)
    return [opened for place in sorted(found) for opened in found[place]]


def _of_pytorch(
    op: Op, impl: Implementation, case: Case, blank: Opened, dump: bool, pool: ThreadPoolExecutor
) -> list[Opened]:
    here = arch_of(pick())
    if here not in (None, blank.arch):
        return [replace(blank, unavailable=f"PyTorch compiles only for the GPU of this machine, {here}")]
    if why := inductor.why_not(op, impl, case):
        return [replace(blank, unavailable=why)]
    return inductor.written(op, impl, case, blank, dump, pool)


def _launches(op: Op, impl: Implementation, case: Case, arch: str) -> list[Launch]:
    """Each kernel once.

    Raises:
        NotImplementedError: there is nothing to compile here; the text says why.
    """
    if impl.requires and (refusal := lacks(impl.requires, arch)):
        raise NotImplementedError(refusal)
    if impl.route == LIBRARY:
        why = "launches a library's kernels, whose source is not here"
        raise NotImplementedError(f"{impl.label} {why}")
    once: dict[object, Launch] = {}
    for launch in capture(impl, op, case, arch):
        if isinstance(launch, CudaLaunch):
            once.setdefault((launch.source, launch.kernel), launch)
        else:
            arguments = tuple((name, str(value)) for name, value in launch.arguments.items())
            once.setdefault((launch.kernel.fn, arguments, str(launch.options)), launch)
    if not once:
        raise NotImplementedError(f"{impl.label} launches nothing on {case}")
    return list(once.values())


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
