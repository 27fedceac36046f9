"""Which kernels are opened up, and by whom: from an op's name to `Opened`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from compare import registry
from compare.capture import Launch, capture
from compare.device import arch as arch_of
from compare.device import lacks, pick
from compare.pipeline import cuda_way, inductor, triton_way
from compare.pipeline.records import Opened
from compare.spec import Case, CudaLaunch, Implementation, Op, TritonLaunch, UsageError
from cuda_impl import build

STAGES = tuple(dict.fromkeys((*triton_way.STAGES, *cuda_way.NVCC_STAGES, *inductor.STAGES)))
"""Every name of a stage; which of them a route has differs."""

_BY_TOOL = {"cicc": "ptx", "nvrtc": "ptx", "ptxas": "cubin", "cudafe++": "cudafe", "fatbinary": "fatbin"}
_BY_TOOL |= {"nvdisasm": "sass", "llvm": "llir", "make_ttir": "ttir", "make_ttgir": "ttgir"}


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
    op: Op, impls: Sequence[Implementation], case: Case, archs: Sequence[str], dump: bool = False
) -> list[Opened]:
    """What each compiler makes of the kernels that ``impls`` launch, by architecture, then by implementation.

    CUDA's compilers work in other threads and processes while Triton works in this one, as many at a time
    as there are cores.

    Args:
        op: the op.
        impls: of the op.
        case: what the inputs are, which decides the kernel and its specialisation.
        archs: ``sm_90``; one at least.
        dump: with every MLIR pass of Triton's.
    """
    found: dict[tuple[int, int], list[Opened]] = {}
    disassembled: list[tuple[tuple[int, int], Future[Opened]]] = []
    waiting: list[tuple[list[tuple[int, int]], Future[list[Opened]]]] = []
    triton: list[tuple[int, int, TritonLaunch, Opened]] = []
    nvcc: list[tuple[int, int, CudaLaunch, Opened]] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        ThreadPoolExecutor() as pool,
    ):
        for i, impl in enumerate(impls):
            for j, arch in enumerate(archs):
                blank = Opened(op.name, impl.label, str(case), arch)
                if impl.route == "torch":
                    found[j, i] = _of_pytorch(op, impl, case, blank, dump, pool)
                    continue
                try:
                    launches = _launches(op, impl, case, arch)
                except NotImplementedError as error:
                    found[j, i] = [replace(blank, unavailable=str(error))]
                    continue
                except build.BuildError as error:
                    found[j, i] = [replace(blank, unavailable=str(error).splitlines()[0])]
                    continue
                for launch in launches:
                    if isinstance(launch, TritonLaunch):
                        triton.append((j, i, launch, blank))
                    elif impl.route == "pybind":
                        nvcc.append((j, i, launch, blank))
                    else:
                        waiting.append(([(j, i)], pool.submit(_nvrtc, launch, arch, blank)))
        for number, group in enumerate(_together(nvcc)):
            folder = Path(scratch, str(number))
            folder.mkdir()
            launches_of = [launch for _, _, launch, _ in group]
            blanks = [blank for *_, blank in group]
            job = pool.submit(_nvcc, launches_of, blanks, folder)
            waiting.append(([(j, i) for j, i, *_ in group], job))
        for j, i, launch, blank in triton:
            one = triton_way.compiled(launch, blank.arch, blank, dump, pool)
            disassembled.append(((j, i), one))
        for place, one in disassembled:
            found.setdefault(place, []).append(one.result())
        for places, job in waiting:
            for place, opened in zip(places, job.result(), strict=True):
                found.setdefault(place, []).append(opened)
    return [opened for place in sorted(found) for opened in found[place]]


def _of_pytorch(
    op: Op, impl: Implementation, case: Case, blank: Opened, dump: bool, pool: ThreadPoolExecutor
) -> list[Opened]:
    here = arch_of(pick())
    if here not in (None, blank.arch):
        return [replace(blank, unavailable=f"PyTorch works for the GPU at hand only, which is {here}")]
    if why := inductor.why_not(op, impl, case):
        return [replace(blank, unavailable=why)]
    return inductor.written(op, impl, case, blank, dump, pool)


def _launches(op: Op, impl: Implementation, case: Case, arch: str) -> list[Launch]:
    """Each kernel once.

    Raises:
        NotImplementedError: there is nothing to compile here; the text says why.
    """
    refusal = lacks(impl.requires, arch) if impl.requires else None
    if refusal:
        raise NotImplementedError(refusal)
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


def _nvrtc(launch: CudaLaunch, arch: str, blank: Opened) -> list[Opened]:
    try:
        return [cuda_way.by_nvrtc(launch, arch, blank)]
    except build.BuildError as error:  # no compiler
        return [replace(blank, kernel=launch.kernel, unavailable=str(error))]


def _nvcc(launches: Sequence[CudaLaunch], blanks: Sequence[Opened], folder: Path) -> list[Opened]:
    try:
        return cuda_way.by_nvcc(launches, blanks, folder)
    except build.BuildError as error:
        return [
            replace(blank, kernel=launch.kernel, unavailable=str(error))
            for launch, blank in zip(launches, blanks, strict=True)
        ]


def _together(
    nvcc: Sequence[tuple[int, int, CudaLaunch, Opened]],
) -> list[list[tuple[int, int, CudaLaunch, Opened]]]:
    """What one call of nvcc compiles: kernels of one source that are wanted for the same architectures."""
    archs: dict[tuple[str, str], list[str]] = {}
    for _, _, launch, blank in nvcc:
        archs.setdefault((launch.source, launch.kernel), []).append(blank.arch)
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[int, int, CudaLaunch, Opened]]] = {}
    for one in nvcc:
        launch = one[2]
        wanted = tuple(dict.fromkeys(archs[launch.source, launch.kernel]))
        groups.setdefault((launch.source, wanted), []).append(one)
    return list(groups.values())
