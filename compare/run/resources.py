"""Inspect a case: registers, shared memory and code of every kernel, compiled for and watched on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from compare.checking.check import HELPED, note_on_helpers
from compare.device import default_archs, lacks
from compare.model.op import Implementation
from compare.model.result import DOES_NOT_COMPILE, UNREAD, Row
from compare.resources.kernels import borrowed, helped
from compare.resources.static import Refused, Request, Resources, keep, kept, key_of
from compare.run.checking import SLOW_TO_START
from compare.run.compiling import Compilation, from_cubins
from compare.run.context import CaseResult, Context
from compare.run.verdict import verdict
from compare.worker.buffers import CaseBuffers
from compare.worker.checking import Checking
from compare.worker.messages import FindKernels
from compare.worker.parallel import run_parallel
from compare.worker.timing import Cheated


def profile_case(context: Context, result: CaseResult, buffers: CaseBuffers, *, last: bool) -> None:
    """Read every kernel that a call launches from the profiler, on the GPU.

    A user's implementation that had kernels of PyTorch's do its work is refused.

    Args:
        context: the run.
        result: of which case; its correct rows, PyTorch's own among them, are profiled.
        buffers: the memory that the judge and the workers share for this case.
        last: nothing is asked of the workers afterwards, so each ends when it is done.
    """
    impls = [entry.impl for entry in result.correct()]
    if not impls:
        return
    launched: dict[str, list[str]] = {}
    card = torch.cuda.get_device_name(context.device)
    keys = {
        impl.label: key_of(Request(context.op, impl, result.case, default_archs(context.device)[0]), card)
        for impl in impls
        if not (impl.user_file or impl.untuned or impl.label in SLOW_TO_START)  # those compile anew
    }

    def take(impl: Implementation, kernels: Resources) -> None:
        launched[impl.label] = [] if isinstance(kernels, Exception) else [each.kernel for each in kernels]
        entry = result.entries[impl.label]
        entry.row = with_resources(entry.row, {"": kernels}, on_gpu=True)

    for impl in impls:
        earlier = kept(keys[impl.label]) if impl.label in keys else None
        if earlier is not None:
            if last:
                context.pool.dismiss(impl)
            take(impl, earlier)
    buffers.put(context.inputs(result.case), 0)
    buffers.poison()
    places = buffers.places
    own: dict[str, list[str]] = {}

    def profiled(impl: Implementation) -> Resources:
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

    unknown = [impl for impl in impls if impl.label not in launched]
    context.meter.say(f"profiling the kernels of {len(unknown)}")
    width = Checking(context.op, result.case, context.device, context.pool, {}).width(len(unknown))
    for impl, kernels in run_parallel(profiled, unknown, width, context.pool.close):
        take(impl, kernels)
        if impl.label in keys and isinstance(kernels, tuple) and kernels:  # a first profile may be empty
            keep(keys[impl.label], kernels)
    _refuse_borrowers(context, result, launched, own)


def _refuse_borrowers(
    context: Context,
    result: CaseResult,
    launched: Mapping[str, Sequence[str]],
    own: Mapping[str, Sequence[str]],
) -> None:
    """Refuse users' implementations that had kernels of PyTorch's do their work.

    Where the check took PyTorch's operators for helpers, their kernels are counted instead.

    Args:
        context: the run.
        result: of which case.
        launched: the names of all kernels that ran, by label.
        own: the names of those that an implementation launches itself, by label.
    """
    impls = [entry.impl for label, entry in result.entries.items() if label in launched]
    torchs = [impl.label for impl in impls if impl.way == "torch" and not impl.user_file]
    pytorchs = [name for label in torchs for name in launched[label]]
    for impl in impls:
        if not impl.user_file or impl.way == "torch" or impl.label not in own:
            continue
        entry, ran = result.entries[impl.label], launched[impl.label]
        theirs = borrowed(ran, own[impl.label], pytorchs, context.op.is_copy_only)
        if not theirs:
            continue
        counts = helped(entry.row.resources, theirs, launched.get(context.op.baseline, ()))
        agreement = entry.row.agreement
        notes = agreement.notes if agreement else ()
        if agreement and counts and any(note.endswith(HELPED) for note in notes):
            others = (note for note in notes if not note.endswith(HELPED))
            notes = (*others, note_on_helpers(*counts, theirs))
            entry.row = replace(entry.row, agreement=replace(agreement, notes=notes))
            continue
        problem = f"it ran PyTorch's {', '.join(theirs)}, which it does not launch itself"
        entry.refuse(Cheated(f"own work: {problem}"))


def compile_case(context: Context, result: CaseResult, compilation: Compilation) -> None:
    """Read what every kernel takes, for each architecture that it was compiled for."""
    refused = ("disagrees", "impossible", "failed")
    entries = {label: entry for label, entry in result.entries.items() if entry.row.status not in refused}
    with context.meter.part(f"compiling for {', '.join(context.archs)}", len(context.impls)) as part:
        compiled = compilation.results(part)
    later = [
        Request(context.op, entry.impl, result.case, arch)
        for entry in entries.values()
        if entry.impl.user_file or (entry.impl.stand_in and entry.impl.parameters)
        for arch in context.archs_of(entry.impl)
    ]
    compiled += from_cubins(later, timeout_s=context.options.timeout_s)
    by_label: dict[str, dict[str, Resources]] = {label: {} for label in entries}
    for request, kernels in zip((*compilation.requests, *later), compiled, strict=True):
        if request.case == result.case and request.impl.label in entries:
            by_label[request.impl.label][request.arch] = kernels
    for label, by_arch in by_label.items():
        entries[label].row = with_resources(entries[label].row, by_arch, on_gpu=context.on_gpu)
    for entry in result.entries.values():
        entry.row = with_needs(entry.row, entry.impl, context.archs)


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
        _, why = verdict(next(iter(refused.values())))
        reason = f"{DOES_NOT_COMPILE} {', '.join(refused)}: {why}"
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
