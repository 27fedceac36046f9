"""A worker as a `compare.checking.stage.Stage`: inputs and outputs go through memory that both see."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from compare.capture import meta_inputs
from compare.checking.guarded_memory import POISON
from compare.checking.stage import CallResult
from compare.spec import Case, Op
from compare.timing.stopwatch import how_many_sets
from compare.worker.memory import ALIGNMENT, Memory, Place, room
from compare.worker.process import Worker

_SHIFTS = 64
"""How many places inputs may begin at, so that no address can be counted on."""

_STAGED_BYTES = 256 << 20
"""Kernels on larger inputs run so long that a cold address or instruction does not show."""


class Exchange:
    """The memory of one case: inputs, which workers read, and one output, which one worker at a time
    writes.  The judge makes it, and keeps what it compares with elsewhere.

    Args:
        op, case, device: whose inputs.
        expected: a meta tensor like the output.
        timed: with room for as many sets of inputs as timing rotates through, and one more to put values in
            that are to come; else for a single set, which may begin at many places.
    """

    def __init__(
        self, op: Op, case: Case, device: torch.device, expected: torch.Tensor, *, timed: bool = False
    ) -> None:
        self.set_bytes = room(meta_inputs(op, case))
        self.sets = how_many_sets(self.set_bytes, device) if timed and device.type == "cuda" else 1
        """Of inputs that there is room for."""
        self.coming = self.sets * self.set_bytes if timed and self.set_bytes <= _STAGED_BYTES else None
        """Where values lie that are to come, None where inputs are too large for it to matter."""
        self.expected = expected
        size = (self.sets + (self.coming is not None)) * self.set_bytes
        self.inputs = Memory(size + (0 if timed else _SHIFTS * ALIGNMENT), device)
        self.outputs = Memory(expected.numel() * expected.itemsize, device)
        self._mailbox = self.outputs.tensor(Place.of(_plain(expected), 0))
        self._holders: set[Worker] = set()
        self._placed: tuple[torch.Tensor, ...] = ()
        self.places: list[Place] = []

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hand_to(self, worker: Worker) -> None:
        """Make sure that a worker sees it."""
        if worker not in self._holders:
            worker.share("inputs", self.inputs)
            worker.share("outputs", self.outputs)
            self._holders.add(worker)

    def put(self, inputs: Sequence[torch.Tensor], start: int) -> tuple[torch.Tensor, ...]:
        """Place inputs; those that lie there already stay where they are."""
        if inputs is not self._placed:
            self.places = self.inputs.put(inputs, start)
            self._placed = tuple(self.inputs.tensor(place) for place in self.places)
        return self._placed

    def as_json(self) -> list[dict[str, Any]]:
        """Where the inputs lie that were placed last."""
        return [place.as_json() for place in self.places]

    def poison(self) -> None:
        """Leave nothing in the output's memory that anybody could take for an answer."""
        self.outputs.bytes.view(torch.int16).fill_(POISON)
        self._settle()

    def take(self) -> torch.Tensor:
        """A copy of the output; what is in the shared memory is gone then."""
        output = self._mailbox.clone()
        self.poison()
        return output

    def _settle(self) -> None:
        """Before a worker is asked: CUDA knows no order between two processes' work."""
        if self.inputs.device.type == "cuda":
            torch.cuda.synchronize(self.inputs.device)

    def close(self) -> None:
        """Take it back from the workers, and free it."""
        for worker in self._holders:
            worker.ask_back(("inputs", "outputs"))
        for worker in self._holders:
            if worker.alive:
                with suppress(Exception):
                    worker.receive("giving back its inputs")
        self._placed = ()
        self._mailbox = torch.empty(0)
        self.inputs.close()
        self.outputs.close()


class WorkerStage:
    """`compare.checking.stage.Stage` on a worker."""

    def __init__(self, worker: Worker, exchange: Exchange, building: bool = True) -> None:
        self._worker, self._exchange = worker, exchange
        self._step = "building and the first call" if building else "a call"
        self._start = 0
        self._count = 0

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._count += 1
        if self._count != 2:  # other values at the same address first, then other addresses
            self._start = secrets.randbelow(_SHIFTS) * ALIGNMENT
        return self._exchange.put(inputs, self._start)

    def call(self, expected: torch.Tensor) -> CallResult:
        exchange, worker = self._exchange, self._worker
        exchange.hand_to(worker)
        exchange.poison()
        told = worker.ask(
            "call",
            self._step,
            inputs=exchange.as_json(),
            outputs=0,
            **shape_of(expected),
        )
        self._step = "a call"
        output = exchange.take() if told["problem"] is None else None
        return CallResult(
            output,
            told["problem"],
            tuple(told["violations"]),
            bool(told["guarded"]),
            told["shared"],
            tuple(told["borrowed"]),
        )


def shape_of(expected: torch.Tensor) -> dict[str, Any]:
    """An output's shape and dtype, as requests have them."""
    return {"shape": list(expected.shape), "dtype": str(expected.dtype).removeprefix("torch.")}


def _plain(expected: torch.Tensor) -> torch.Tensor:
    return torch.empty(expected.shape, dtype=expected.dtype, device="meta")
