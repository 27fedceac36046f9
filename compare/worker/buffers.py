"""A worker as a `compare.checking.stage.Stage`: inputs and outputs go through shared memory."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress

import torch

from compare.capture import meta_inputs
from compare.checking.guarded_memory import POISON
from compare.checking.reference import Outputs
from compare.checking.stage import CallResult
from compare.model.op import Case, Op
from compare.timing.stopwatch import how_many_sets
from compare.worker import messages
from compare.worker.memory import ALIGNMENT, Placement, SharedMemory, places_of, room
from compare.worker.process import Worker

_SHIFTS = 64
"""Start addresses of the inputs, so that an implementation cannot rely on one."""

_LONGEST, _MOST = 300, 10
"""Characters of what a worker says of a call, and how many of a kind."""

_STAGED_BYTES = 256 << 20
"""On larger inputs a kernel runs so long that cold TLBs and instruction caches do not matter."""


class CaseBuffers:
    """The shared memory of one case: inputs, read by all workers, and behind them outputs, written by one at
    a time.

    The judge keeps the reference elsewhere.

    Args:
        expected: meta tensors like the outputs.
        timed: allocate every set of inputs that timing rotates through, and one more set for the next values;
            else one set, at one of many start addresses.
    """

    def __init__(
        self, op: Op, case: Case, device: torch.device, expected: Outputs, *, timed: bool = False
    ) -> None:
        self.starts = 1 if timed else _SHIFTS
        """Number of possible start addresses of the inputs, `ALIGNMENT` apart."""
        self.set_bytes = room(meta_inputs(op, case))
        self.sets = how_many_sets(self.set_bytes, device) if timed and device.type == "cuda" else 1
        """Number of sets of inputs."""
        staged = timed and self.set_bytes <= _STAGED_BYTES
        self.next_values_offset = self.sets * self.set_bytes if staged else None
        """Offset of the next values in bytes; None where the inputs are too large for it to matter."""
        self._holders: set[Worker] = set()
        self._laid_out: set[Worker] = set()
        """Those that know the present layout."""
        self.memory = SharedMemory(self._lay_out(op, case, expected), device)

    def _lay_out(self, op: Op, case: Case, expected: Outputs) -> int:
        """Plan where inputs and outputs lie; the bytes that they need."""
        self.expected = expected
        self._options = dict(op.options(case))
        size = (self.sets + (self.next_values_offset is not None)) * self.set_bytes
        self._outputs_offset = size + (self.starts - 1) * ALIGNMENT
        outputs = [torch.empty(x.shape, dtype=x.dtype, device="meta") for x in expected.values()]
        self._outputs = dict(zip(expected, places_of(outputs, self._outputs_offset), strict=True))
        self._placed: tuple[torch.Tensor, ...] = ()
        self.places: tuple[Placement, ...] = ()
        """Of the inputs copied last."""
        return self._outputs_offset + room(outputs)

    def change(self, op: Op, case: Case, expected: Outputs) -> None:
        """Use the memory for another case, which is not timed; allocates anew only where that needs more."""
        self.set_bytes = room(meta_inputs(op, case))
        size = self._lay_out(op, case, expected)
        self._laid_out.clear()
        if size > self.memory.size:
            self.__exit__()
            self.memory = SharedMemory(2 * size, self.memory.device)

    def __enter__(self) -> CaseBuffers:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the memory back from the workers, and free it."""
        self.take_back([*self._holders])
        self._placed = ()
        self.memory.close()

    def hand_to(self, worker: Worker) -> None:
        """Share the memory with a worker, once; and each layout of it."""
        if worker in self._laid_out:
            return
        if worker in self._holders:
            worker.ask(messages.LayOut(self._outputs, self._options), "taking its inputs")
        else:
            memory = self.memory
            request = messages.Share(memory.size, memory.handle, self._outputs, self._options)
            worker.send(request, memory.descriptors)
            worker.receive("taking its inputs")
        self._holders.add(worker)
        self._laid_out.add(worker)

    def take_back(self, workers: Collection[Worker]) -> None:
        """Take the memory back from some workers."""
        holders = [worker for worker in workers if worker in self._holders]
        self._holders.difference_update(holders)
        self._laid_out.difference_update(holders)
        for worker in holders:
            worker.ask_back()
        for worker in holders:
            if worker.alive:
                with suppress(Exception):
                    worker.receive("giving back its inputs")

    def put(self, inputs: Sequence[torch.Tensor], start: int) -> tuple[torch.Tensor, ...]:
        """Copy inputs into shared memory at ``start``, unless they were the last ones copied."""
        if inputs is not self._placed:
            self.places = tuple(self.memory.put(inputs, start))
            self._placed = tuple(self.memory.tensor(place) for place in self.places)
        return self._placed

    def poison(self, poison: int = POISON) -> None:
        """Fill the outputs' memory with poison, and wait for it: CUDA does not order two processes' work."""
        self.memory.bytes[self._outputs_offset :].view(torch.int16).fill_(poison)
        if self.memory.device.type == "cuda":
            torch.cuda.synchronize(self.memory.device)

    def take(self) -> Outputs:
        """A copy of the outputs; poisons the shared memory."""
        outputs = {name: self.memory.tensor(place).clone() for name, place in self._outputs.items()}
        self.poison()
        return outputs


def _cut(text: str | None) -> str | None:
    """What a worker says, short enough for a row's reason."""
    return None if text is None else text[:_LONGEST]


class WorkerStage:
    """`compare.checking.stage.Stage` on a worker."""

    watched = False
    """Check every access to memory of a CUDA kernel: on a CPU."""
    thread_order = ""
    """Of a CUDA kernel on a CPU: ``reverse``, ``apart``."""

    def __init__(self, worker: Worker, buffers: CaseBuffers, building: bool = True) -> None:
        self._worker, self._buffers = worker, buffers
        self._step = "building and the first call" if building else "a call"
        self._start = 0
        self._count = 0

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._count += 1
        if self._count != 2:  # the second call: new values at the same address; later: new addresses
            self._start = secrets.randbelow(self._buffers.starts) * ALIGNMENT
        return self._buffers.put(inputs, self._start)

    def call(self, expected: Outputs, poison: int = POISON) -> CallResult:
        buffers, worker = self._buffers, self._worker
        buffers.hand_to(worker)
        buffers.poison(poison)
        request = messages.CheckCall(buffers.places, poison, self.watched, self.thread_order)
        called = worker.ask(request, self._step)
        self._step = "a call"
        most = sorted(called.borrowed.items(), key=lambda item: -item[1].values)
        return CallResult(
            buffers.take() if called.problem is None else None,
            _cut(called.problem),
            tuple(cut for each in called.violations[:_MOST] if (cut := _cut(each))),
            called.guarded,
            _cut(called.shared),
            {_cut(name) or "": did for name, did in most[:_MOST]},
            called.launched,
            tuple(cut for each in called.notes[:_MOST] if (cut := _cut(each))),
        )
