"""A process that a tool of compute-sanitizer watches: ``python -m compare.worker.sanitized CALLS``.

It calls one implementation on small cases and drops the outputs.  What it does it writes to stderr, a
`SanitizedStep` as a line of JSON each; what the implementation's file prints goes nowhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import torch
from msgspec import Struct

from compare import registry
from compare.capture import capture
from compare.model.op import Case, CudaLaunch, Implementation, Op, UsageError
from compare.sandbox import kernel
from compare.sandbox.words import raised_in
from cuda_impl.source import place


class SanitizedCalls(Struct, frozen=True):
    """What is called."""

    op: str
    label: str
    parameters: dict[str, int]
    files: tuple[str, ...]
    """To load first."""
    device: str
    cases: list[list[str]]
    """Of each list the first that the implementation takes."""
    seccomp: bool
    """Whether the operating system's filter of system calls works here."""


class SanitizedStep(Struct, frozen=True, omit_defaults=True):
    """What has happened: the default says that CUDA has started."""

    text: str = ""
    """CUDA text that is launched."""
    places: tuple[str, ...] = ()
    """Of its lines, in the user's file: ``my_softmax.py:31``."""
    ran: str = ""
    """A case on which it was called."""
    refused: str = ""
    """Why it takes no case, in its words."""
    raised: str = ""
    """``my_softmax.py:31: RuntimeError: ...``"""


def main(words: str) -> None:
    """Make the `SanitizedCalls`."""
    calls = msgspec.json.decode(words, type=SanitizedCalls)
    os.environ["CUPY_CACHE_IN_MEMORY"] = "0"  # in memory, a kernel's text has no file name for its lines
    device = torch.device(calls.device)
    torch.ones(1, device=device)  # the tool connects: from now on no socket is needed
    torch.cuda.synchronize(device)
    if calls.seccomp:
        kernel.seccomp(gpu=True)
    steps, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)

    def write(step: SanitizedStep) -> None:
        os.write(steps, msgspec.json.encode(step) + b"\n")

    write(SanitizedStep())
    path = calls.files[-1] if calls.files else ""
    try:
        for file in calls.files:
            registry.load(file)
        for step in _called(calls, device):
            write(step)
    except BaseException as error:  # user code may raise anything
        name, text, where = raised_in(path, error)
        write(SanitizedStep(raised=f"{where or calls.label}: {name}: {text[:500]}"))


def _called(calls: SanitizedCalls, device: torch.device) -> Iterator[SanitizedStep]:
    """Call the implementation on a case of each list."""
    op = registry.get_op(calls.op)
    impl = next(each for each in registry.implementations(op.name) if each.label == calls.label)
    if calls.parameters:
        impl = registry.with_parameters(impl, calls.label, calls.parameters)
    ran: set[Case] = set()
    for texts in calls.cases:
        for case in (Case.parse(text, op) for text in texts):
            if case in ran:
                break
            yield from _texts(op, impl, case, device)
            inputs = op.make_inputs(case, torch.Generator(device).manual_seed(0), device)
            try:
                impl.given(op.options(case)).call(*inputs)
            except (NotImplementedError, UsageError) as error:
                yield SanitizedStep(refused=str(error))
                continue
            torch.cuda.synchronize(device)
            ran.add(case)
            yield SanitizedStep(ran=str(case))
            break


def _texts(op: Op, impl: Implementation, case: Case, device: torch.device) -> Iterator[SanitizedStep]:
    """The CUDA texts that a call launches, with the places of their lines: before the call, which may end
    this process."""
    with suppress(Exception):  # it refuses the case, or its launch depends on the GPU
        major, minor = torch.cuda.get_device_capability(device)
        launches = capture(impl, op, case, f"sm_{major}{minor}")
        texts = dict.fromkeys(launch.source for launch in launches if isinstance(launch, CudaLaunch))
        for text in texts:
            if not text.isidentifier():  # the name of a file of the project's
                count = text.count("\n") + 1
                yield SanitizedStep(
                    text=text, places=tuple(place(text, line) for line in range(1, count + 1))
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
