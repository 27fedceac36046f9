"""Users' rows on a GPU: recorded in one worker, compiled in a second, and replayed in a third.

Only the first runs the user's host code.  What it tells is data: nodes, sources and addresses, which are
validated here.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import closing

import torch

from compare.device import arch
from compare.model.op import Case, Implementation, Op
from compare.replay.arena import GRANULE, library, whole
from compare.replay.nodes import Recording, difference, problem
from compare.worker import messages
from compare.worker.buffers import CaseBuffers
from compare.worker.memory import ALIGNMENT
from compare.worker.parallel import cores, run_parallel
from compare.worker.pool import load
from compare.worker.process import Worker
from compare.worker.server import modules_of
from compare.worker.timing import why

_WORKSPACE_BYTES = 1 << 30
_WORKSPACES = 4
"""Arena of a recording: inputs, this many times the case's bytes, and `_WORKSPACE_BYTES`."""
_AT_ONCE = 4
"""Recordings made at the same time at most: each has an arena, and two CUDA contexts,"""
_CONTEXTS_BYTES = 1 << 30
"""which take this much GPU memory."""


class Replaying:
    """The runners of users' rows on one case.  Use it as a context manager: it ends them.

    Args:
        buffers: of the timing; inputs lie in it as in a recording.
    """

    def __init__(self, op: Op, case: Case, buffers: CaseBuffers, timeout_s: float) -> None:
        self._op, self._case, self._buffers, self._timeout_s = op, case, buffers, timeout_s
        self._device = buffers.memory.device
        self._workers: list[Worker] = []
        self.runners: dict[str, Worker | str] = {}
        """By label: a worker that replays the recorded call, ready to be timed; or why it cannot be."""

    @property
    def _inputs_bytes(self) -> int:
        return whole(self._buffers.set_bytes + GRANULE)  # room to shift them

    @property
    def _arena_bytes(self) -> int:
        return self._inputs_bytes + whole(_WORKSPACES * self._op.cost(self._case).bytes + _WORKSPACE_BYTES)

    def __enter__(self) -> Replaying:
        return self

    def __exit__(self, *_: object) -> None:
        self._buffers.take_back(self._workers)
        self._stop()
        for worker in self._workers:
            worker.close()

    def prepare(self, impls: Sequence[Implementation]) -> None:
        """Record implementations, which are correct on the case, and start their runners."""

        def prepared(impl: Implementation) -> Worker | str:
            try:
                return self._runner(impl)
            except Exception as error:  # of the file, the driver or a compiler
                return why(error)

        free_bytes, _ = torch.cuda.mem_get_info(self._device)
        room = free_bytes // (self._arena_bytes + _CONTEXTS_BYTES)
        width = max(1, min(_AT_ONCE, len(impls), cores(), room))
        for impl, runner in run_parallel(prepared, impls, width, self._stop):
            self.runners[impl.label] = runner

    def _stop(self) -> None:
        for worker in self._workers:
            worker.abandon()

    def _runner(self, impl: Implementation) -> Worker:
        recording = self._recorded(impl)
        images = self._compiled(impl, recording)
        runner = self._begun("runner", impl, self._device)
        runner.ask(messages.Connect(), "starting")
        runner.ask(messages.Replay(recording, images, self._inputs_bytes), "loading a recording")
        return runner

    def _begun(
        self, who: str, impl: Implementation, device: torch.device, modules: Sequence[str] = ()
    ) -> Worker:
        who = f"the {who} of {impl.label}"
        self._workers.append(
            worker := Worker(who, device, self._timeout_s, isolated=True, hidden=impl.hidden)
        )
        worker.ask(messages.Setup(str(device), worker.environment, tuple(modules)), "starting")
        return worker

    def _recorded(self, impl: Implementation) -> Recording:
        """A recording, equal to a second one on other inputs at other addresses.

        Raises:
            ValueError: it is not, or cannot be replayed.
            Exception: what the recorder raised.
        """
        op, case, device = self._op, self._case, self._device
        nbytes = self._arena_bytes
        allocator = str(library())
        generator = torch.Generator(device).manual_seed(secrets.randbelow(1 << 62))
        found = []
        with closing(self._begun("recorder", impl, device, modules_of(op.name, impl))) as recorder:
            recorder.ask(messages.Connect(), "starting")
            recorder.ask(messages.LimitMemory(nbytes + _WORKSPACE_BYTES))
            recorder.ask(messages.Reserve(allocator, self._inputs_bytes, nbytes), "reserving addresses")
            load(recorder, op, impl)
            with CaseBuffers(op, case, device, self._buffers.expected) as own:
                own.hand_to(recorder)
                for shift in (0, ALIGNMENT * (1 + secrets.randbelow(GRANULE // ALIGNMENT - 1))):
                    own.put(op.make_inputs(case, generator, device), 0)
                    torch.cuda.synchronize(device)
                    request = messages.Record(own.places, shift)
                    found.append(recorder.ask(request, "recording its call"))
                    if wrong := problem(found[-1], self._inputs_bytes, nbytes, own.expected):
                        raise ValueError(wrong)
        if apart := difference(*found):
            raise ValueError(f"its launches depend on data: {apart}")
        return found[0]

    def _compiled(self, impl: Implementation, recording: Recording) -> tuple[bytes, ...]:
        """The machine code of a recording's sources."""
        architecture = arch(self._device)
        assert architecture is not None  # of a GPU
        with closing(self._begun("compiler", impl, torch.device("cpu"))) as compiler:
            request = messages.Compile(recording.sources, architecture)
            return compiler.ask(request, "compiling its kernels")
