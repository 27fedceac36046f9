"""Users' rows on a GPU: recorded in one worker, compiled in a second, and replayed in a third.

Only the first runs the user's host code.  What it tells is data: nodes, sources and addresses, which are
validated here.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch

from compare.device import arch
from compare.records.encoding import decode, encode
from compare.replay.arena import GRANULE, library, whole
from compare.replay.nodes import Recording, difference, problem
from compare.spec import Case, Implementation, Op
from compare.worker.exchange import Exchange
from compare.worker.memory import ALIGNMENT
from compare.worker.process import Worker
from compare.worker.server import modules_of
from compare.worker.user_files import to_load

_WORKSPACE_BYTES = 256 << 20
_WORKSPACES = 4
"""Arena of a recording: inputs, this many times the case's bytes, and `_WORKSPACE_BYTES`."""


def runner_of(impl: Implementation, op: Op, case: Case, exchange: Exchange, timeout_s: float) -> Worker:
    """A worker that replays a recorded call of ``impl``, ready to be timed; its owner closes it.

    Args:
        impl: a user's, correct on ``case``.
        exchange: of the timing; the inputs lie in it as in the recording.

    Raises:
        Exception: it cannot be recorded or replayed; the text says why.
    """
    device = exchange.inputs.device
    found = _recorded(impl, op, case, exchange, timeout_s)
    images = _compiled(impl, found, device, timeout_s)
    runner = _begun(f"the runner of {impl.label}", device, timeout_s)
    try:
        runner.ask("connect", "starting")
        runner.ask(
            "replay",
            "loading a recording",
            recording=encode(found),
            images=images,
            inputs_bytes=_inputs_bytes(exchange),
        )
    except BaseException:
        runner.close()
        raise
    return runner


def _inputs_bytes(exchange: Exchange) -> int:
    """Size of the arena's part for inputs: whole pages, with room to shift them."""
    return whole(exchange.set_bytes + GRANULE)


def _begun(who: str, device: torch.device, timeout_s: float, modules: Sequence[str] = ()) -> Worker:
    worker = Worker(who, device, timeout_s, isolated=True)
    try:
        worker.ask(
            "begin", "starting", device=str(device), environment=worker.environment, modules=list(modules)
        )
    except BaseException:
        worker.close()
        raise
    return worker


def _recorded(impl: Implementation, op: Op, case: Case, exchange: Exchange, timeout_s: float) -> Recording:
    """A recording of ``impl``, equal to a second one on other inputs at other addresses."""
    device, inputs_bytes = exchange.inputs.device, _inputs_bytes(exchange)
    nbytes = inputs_bytes + whole(_WORKSPACES * op.cost(case).bytes + _WORKSPACE_BYTES)
    allocator = str(library())
    recorder = _begun(f"the recorder of {impl.label}", device, timeout_s, modules_of(op.name))
    try:
        recorder.ask("connect", "starting")
        recorder.ask(
            "arena", "reserving addresses", library=allocator, inputs_bytes=inputs_bytes, nbytes=nbytes
        )
        recorder.ask("limit", nbytes=nbytes + _WORKSPACE_BYTES)
        recorder.ask("load", "loading its file", files=to_load(impl))
        recorder.ask(
            "choose",
            "finding it",
            op=op.name,
            label=impl.base or impl.label,
            parameters=dict(impl.parameters),
        )
        generator = torch.Generator(device).manual_seed(secrets.randbelow(1 << 62))
        found = []
        with Exchange(op, case, device, exchange.expected) as own:
            own.hand_to(recorder)
            for shift in (0, ALIGNMENT * (1 + secrets.randbelow(GRANULE // ALIGNMENT - 1))):
                own.put(op.make_inputs(case, generator, device), 0)
                torch.cuda.synchronize(device)
                told = recorder.ask(
                    "record", "recording its call", inputs=own.as_json(), shift=shift, options=own.options
                )
                found.append(decode(Recording, told))
                if wrong := problem(found[-1], inputs_bytes, nbytes, exchange.expected):
                    raise ValueError(wrong)
    finally:
        recorder.close()
    if apart := difference(*found):
        raise ValueError(f"its launches depend on data: {apart}")
    return found[0]


def _compiled(impl: Implementation, found: Recording, device: torch.device, timeout_s: float) -> list[str]:
    """The machine code of a recording's sources, in base64."""
    compiler = _begun(f"the compiler of {impl.label}", torch.device("cpu"), timeout_s)
    try:
        images: list[str] = compiler.ask(
            "compile", "compiling its kernels", sources=encode(found.sources), arch=arch(device)
        )
    finally:
        compiler.close()
    return images
