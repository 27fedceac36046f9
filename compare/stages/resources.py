"""Inspect a case: registers, shared memory and code of every kernel, compiled for and watched on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from compare.device import default_archs, lacks
from compare.model.op import Case, Implementation
from compare.model.result import UNREAD, WRONG, Row
from compare.resources import profiles
from compare.resources.kernels import borrowed
from compare.resources.static import Compiling, Refused, Request, Resources
from compare.stages.checking import SLOW_TO_START
from compare.stages.context import Checked, Context
from compare.stages.verdict import verdict
from compare.worker.buffers import CaseBuffers
from compare.worker.checking import Checking
from compare.worker.messages import FindKernels
from compare.worker.parallel import run_parallel
from compare.worker.timing import Cheated

_Names = Mapping[str, Sequence[str]]
"""Of kernels, by label."""
_LESS_URGENT = 10
"""Added to the nice value of what compiles while first calls are timed."""


@dataclass(frozen=True)
class Compilation:
    """Other processes that compile, while workers are checked, what no earlier run left behind."""

    requests: tuple[Request, ...]
    compiling: Compiling

    @classmethod
    def begin(cls, context: Context) -> Compilation:
        """Start compiling all kernels whose resources are read, except users' files: those have to be
        correct first."""
        requests = tuple(
            Request(context.op, impl, step.case, arch)
            for step in context.steps
            if step.inspect
            for impl in context.impls
            if not impl.user_file and not impl.stand_in
            for arch in context.archs_of(impl)
        )
        nice = _LESS_URGENT if context.on_gpu else 0
        return cls(requests, Compiling(requests, nice, context.options.timeout_s))

    def wait(self, context: Context) -> None:
        """Wait until all is compiled, as that would disturb the timing."""
        context.meter.say(f"compiling for {', '.join(context.archs)}")
        self.compiling.results()

    def stop(self) -> None:
        self.compiling.stop()


def profile_case(
    context: Context, case: Case, checked: Sequence[Checked], buffers: CaseBuffers, *, last: bool
) -> Iterator[tuple[str, Resources]]:
    """Every kernel that a call launches, as the profiler sees it on the GPU: by label, as they get done.

    A user's implementation that had kernels of PyTorch's do its work is `Cheated`.

    Args:
        context: the run.
        case: on which inputs.
        checked: the implementations that are still correct, and PyTorch's own among them.
        buffers: the memory that the judge and the workers share for this case.
        last: nothing is asked of the workers afterwards, so each ends when it is done.
    """
    if not checked:
        return
    impls = [one.impl for one in checked]
    ran: dict[str, list[str]] = {}
    card = torch.cuda.get_device_name(context.device)
    requests = {
        impl.label: Request(context.op, impl, case, default_archs(context.device)[0])
        for impl in impls
        if not (impl.user_file or impl.untuned or impl.label in SLOW_TO_START)  # those compile anew
    }
    for impl in impls:
        if impl.label in requests and (kernels := profiles.kept(requests[impl.label], card)):
            if last:
                context.pool.dismiss(impl)
            ran[impl.label] = [kernel.kernel for kernel in kernels]
            yield impl.label, kernels
    buffers.put(context.inputs(case), 0)
    buffers.poison()
    places = buffers.places
    own: dict[str, list[str]] = {}

    def watched(impl: Implementation) -> Resources:
        try:
            worker = context.pool.of(impl)
            buffers.hand_to(worker)
            profile = worker.ask(FindKernels(places), "being profiled")
            own[impl.label] = [*profile.own]
            return profile.kernels
        except Exception as error:
            return error
        finally:
            if last:
                context.pool.dismiss(impl)

    unknown = [impl for impl in impls if impl.label not in ran]
    context.meter.say(f"profiling the kernels of {len(unknown)}")
    width = Checking(context.op, case, context.device, context.pool, {}).width(len(unknown))
    for impl, found in run_parallel(watched, unknown, width, context.pool.close):
        ran[impl.label] = [] if isinstance(found, Exception) else [kernel.kernel for kernel in found]
        if impl.label in requests and not isinstance(found, Exception):
            profiles.keep(requests[impl.label], card, found)
        yield impl.label, found
    yield from _borrowing(context, impls, ran, own)


def _borrowing(
    context: Context, impls: Sequence[Implementation], ran: _Names, own: _Names
) -> Iterator[tuple[str, Cheated]]:
    """Users' implementations that had kernels of PyTorch's do their work."""
    torchs = [impl for impl in impls if impl.way == "torch" and not impl.user_file]
    pytorchs = [name for impl in torchs for name in ran[impl.label]]
    for impl in impls:
        if not impl.user_file or impl.way == "torch" or impl.label not in own:
            continue
        if theirs := borrowed(ran[impl.label], own[impl.label], pytorchs, context.op.is_copy_only):
            problem = f"it ran PyTorch's {', '.join(theirs)}, which it does not launch itself"
            yield impl.label, Cheated(f"own work: {problem}")


def compile_case(
    context: Context, case: Case, checked: Sequence[Checked], compilation: Compilation
) -> dict[str, dict[str, Resources]]:
    """What every kernel takes, by label and by the architecture that it was compiled for."""
    with context.meter.part(f"compiling for {', '.join(context.archs)}", len(context.impls)) as part:
        found = compilation.compiling.results(lambda done, total: part(done / total))
    theirs = [
        Request(context.op, one.impl, case, arch)
        for one in checked
        if one.impl.user_file or (one.impl.stand_in and one.impl.parameters)
        for arch in context.archs_of(one.impl)
    ]
    later = Compiling(theirs, timeout_s=context.options.timeout_s)
    try:
        found += later.results()
    finally:
        later.stop()
    by_label: dict[str, dict[str, Resources]] = {one.row.label: {} for one in checked}
    for request, result in zip((*compilation.requests, *theirs), found, strict=True):
        if request.case == case and request.impl.label in by_label:
            by_label[request.impl.label][request.arch] = result
    return by_label


def with_resources(row: Row, found: Mapping[str, Resources], *, on_gpu: bool) -> Row:
    """``row`` with the resources of its kernels by architecture, and why some are not known.

    What no compiler takes, for whichever architecture, runs nowhere, though a CPU may have run it.
    """
    errors = {arch: error for arch, error in found.items() if isinstance(error, Exception)}
    read = [kernel for kernels in found.values() if not isinstance(kernels, Exception) for kernel in kernels]
    row = replace(row, resources=(*row.resources, *read))
    refused = {arch: error for arch, error in errors.items() if isinstance(error, Refused)}
    nowhere = len(errors) == len(found)
    if refused:
        _, said = verdict(next(iter(refused.values())))
        reason = f"does not compile for {', '.join(refused)}: {said}"
        not_taken = all(isinstance(error, (Refused, NotImplementedError)) for error in errors.values())
        if nowhere and not_taken and not on_gpu:
            return replace(row, status="failed", reason=reason, timing=None, recorded=None)
        return replace(row, reason="; ".join(filter(None, (row.reason, reason))))
    if errors and not row.reason:
        status, reason = verdict(next(iter(errors.values())))
        if nowhere and row.agreement is None and status == "unavailable":
            return replace(row, status=status, reason=reason)
        archs = "" if nowhere else f" for {', '.join(errors)}"
        return replace(row, reason=f"{UNREAD}{archs}: {reason}")
    return row


def with_needs(row: Row, impl: Implementation, archs: Sequence[str]) -> Row:
    """``row`` with the reason why none of ``archs``, for which kernels are compiled, has what it needs."""
    if row.reason or impl.requires is None or impl.way == "torch":
        return row
    if not archs or not all(lacks(impl.requires, arch) for arch in archs):
        return row
    return replace(row, reason=f"{UNREAD} for {', '.join(archs)}: needs {impl.requires}")


def inspectable(row: Row) -> bool:
    """Whether the kernels of a row are compiled: not if it is wrong or failed."""
    return row.status not in (*WRONG, "failed")
