"""The worker's half: one implementation in its own process, which handles the judge's requests.

A request is a JSON object with a number and what to ``do``; the answer has the same number.  The judge runs
nothing from an answer, and an answer affects one implementation's row only.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from compare import registry
from compare.checking.guarded_memory import memory_of
from compare.checking.reference import Outputs
from compare.checking.stage import LocalStage, tensors_of
from compare.code_size.count import Launched, code_size, launched
from compare.code_size.hashes import source_hash
from compare.code_size.sources import code_of

# Everything needed later is imported here, so that the server imports it once for all workers.
from compare.records.encoding import decode, encode
from compare.replay.arena import Arena, Pool, whole
from compare.replay.images import compiled
from compare.replay.nodes import Recording, Sourced
from compare.replay.player import Player
from compare.replay.record import Recorder
from compare.replay.sources import Sources
from compare.resources.profiler import from_profiler, kernels_of_its_own
from compare.sandbox import isolation, kernel, limits
from compare.sandbox.isolation import Isolation
from compare.sandbox.words import raised_in
from compare.spec import Implementation, Tuning, UsageError
from compare.timing.stopwatch import Kind, Reading, Stopwatch, host_ms
from compare.tuning.autotune import watched
from compare.worker.foreign import Description
from compare.worker.memory import Place, View, mailboxes, of_kinds, tensor_in

__all__ = ["main"]

_NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""Text of PyTorch's RuntimeError on a CPU that is out of memory."""


def main(
    connection: Connection, lifeline: Connection, host_bytes: int | None, box: tuple[Isolation, Path] | None
) -> None:
    """Handle requests until the judge closes the connection.

    Args:
        connection: to the judge.
        lifeline: closes when the judge exits.
        host_bytes: as of `compare.sandbox.limits.confine`.
        box: the isolation, and the folder to write to, for a user's file.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the judge, until this leaves its terminal
    try:
        output = reduction.recv_handle(connection)
    except (EOFError, OSError):  # the judge has already ended
        return
    limits.confine(connection.fileno(), output, lifeline.fileno(), host_bytes)
    if box is not None:
        kernel.end_with_parent()  # the lifeline's signal would not end a stopped process
        isolation.enter(*box, lifeline.fileno(), gpu=host_bytes is None)
        kernel.end_with_parent()  # this may be another process now
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - Python's own was on a descriptor that is closed
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    gc.freeze()  # the server's imports are never garbage: scanning them costs time
    _Desk(connection).serve()


class _Desk:
    """Receives requests and answers them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._forked = False
        self._work = _Work(connection)
        # A fork could answer in place of this process.
        os.register_at_fork(before=self._note_fork, after_in_child=partial(os._exit, 1))

    def _note_fork(self) -> None:
        self._forked = True

    def serve(self) -> None:
        while True:
            try:
                request = json.loads(self._connection.recv_bytes())
            except EOFError:
                return
            answer = self._answer(request["do"], request.get("with", {}))
            answer |= {"number": request["number"], "forked": self._forked}
            self._connection.send_bytes(json.dumps(answer).encode())

    def _answer(self, what: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"answer": getattr(self._work, what)(**arguments)}
        except BaseException as error:  # user code may raise anything
            told = {"raised": _told(error, self._work.file), "lost": self._work.recover()}
            traceback.clear_frames(error.__traceback__)  # frees the memory that the frames hold
            return told


def _told(error: BaseException, file: str) -> dict[str, str]:
    kind = "failed"
    if isinstance(error, (NotImplementedError, UsageError)):
        kind = "unavailable"
    name, text, where = raised_in(file, error)
    if isinstance(error, SystemExit):
        text = f"exit({error.code})"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or _NO_MEMORY in text:
        kind = "memory"
    trace = "".join(traceback.format_exception(error))
    return {"kind": kind, "name": name, "text": text[:2000], "where": where, "trace": trace[-8000:]}


def _line_in(file: str, impl: Implementation) -> int:
    """Line of an implementation's code in ``file``; 0 where it is in another file or made by exec."""
    code = code_of(impl.run)
    return code.co_firstlineno if Path(code.co_filename) == Path(file).absolute() else 0


def _of_cupy() -> int:
    """GPU memory in use by cupy, in bytes, after its pool has freed the unused blocks."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return 0
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    return int(pool.used_bytes())


def first_call_ms(impl: Implementation, inputs: Sequence[Any], device: torch.device) -> float:
    """Host time of the first call until its GPU work is done, in ms.

    The CUDA context must exist already, or its creation would count: making the inputs creates it.
    """
    with torch.cuda.device(device):
        return host_ms(partial(impl.call, *inputs), device)


class _Work:
    """The requests: one public method each, with a result that JSON can hold."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._device = torch.device("cpu")
        self._impl: Implementation | None = None
        self._stage: LocalStage | None = None
        self._views: dict[str, View] = {}
        self._bench: _Bench | None = None
        self._recorder: Recorder | None = None
        self._player: Player | None = None
        self._arena: Arena | None = None

    @property
    def impl(self) -> Implementation:
        assert self._impl is not None
        return self._impl

    @property
    def file(self) -> str:
        """The file of the implementation; empty before one is chosen."""
        return self._impl.origin if self._impl else ""

    # ----------------------------------------------------------------------- once

    def begin(self, device: str, environment: dict[str, str], modules: list[str]) -> None:
        """Import ``modules``; the device's context is created by `connect`."""
        os.environ.update(environment)
        self._device = torch.device(device)
        for module in modules:
            importlib.import_module(module)

    def connect(self) -> float:
        """Create the device's context; returns the seconds that it took."""
        begin = time.perf_counter()
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.ones(1, device=self._device)
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def load(self, files: list[str]) -> dict[str, Any]:
        """Load a user's files; returns what the last one registered."""
        loaded = registry.Loaded((), ())
        with self._recorder.allocating() if self._recorder else nullcontext():
            for file in files:
                loaded = registry.load(file)
        return {
            "ops": loaded.ops,
            "implementations": [
                {
                    "op": impl.op,
                    "label": impl.label,
                    "level": impl.level,
                    "requires": impl.requires,
                    "accumulator": impl.accumulator,
                    "without_gpu": impl.without_gpu,
                    "algorithm": impl.algorithm,
                    "tunable": dict(impl.tunable),
                    "defaults": {
                        name: default
                        for name, default in registry.keywords(impl.run).items()
                        if name in dict(impl.tunable)
                    },
                    "line": _line_in(files[-1], impl),
                }
                for impl in loaded.implementations
            ],
        }

    def choose(self, op: str, label: str, parameters: dict[str, int]) -> None:
        """Select the implementation of all later requests, with these parameters in place of its own."""
        impl = next(i for i in registry.implementations(op) if i.label == label)
        self._impl = registry.with_parameters(impl, label, parameters) if parameters else impl
        self._stage = LocalStage(self._impl, self._device)

    def limit(self, nbytes: int) -> None:
        """Limit the GPU memory that PyTorch may allocate."""
        if self._device.type == "cuda":
            total = torch.cuda.get_device_properties(self._device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total), self._device)

    def rest(self) -> dict[str, int]:
        """Free the memory not needed between requests.

        Returns:
            The peak of GPU memory that PyTorch reserved (``held_bytes``), and the memory still allocated
            after caches are freed (``kept_bytes``).
        """
        if self._impl is not None:
            self._stage = LocalStage(self._impl, self._device)
        if self._device.type != "cuda":
            return {"held_bytes": 0, "kept_bytes": 0}
        gc.collect()
        held_bytes = torch.cuda.max_memory_reserved(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        return {
            "held_bytes": held_bytes,
            "kept_bytes": torch.cuda.memory_allocated(self._device) + _of_cupy(),
        }

    def view(self, name: str, memory: dict[str, Any]) -> None:
        """Map memory that the judge shares, in place of the memory of that name."""
        self.leave([name])
        self._views[name] = View(memory, self._connection, self._device)

    def leave(self, names: list[str]) -> None:
        """Unmap shared memory."""
        views = [view for view in (self._views.pop(name, None) for name in names) if view is not None]
        if not views:
            return
        self._bench = None
        gc.enable()
        self.rest()
        for view in views:
            view.close()

    def recover(self) -> str | None:
        """After an error: why this process cannot go on, or None."""
        if self._device.type != "cuda":
            return None
        try:
            gc.collect()
            torch.cuda.synchronize()
            # torch's next launch raises an error that another library left unread.
            torch.ones(1, device=self._device)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception as error:
            return str(error).partition("\n")[0]
        return None

    # ----------------------------------------------------------------------- agreement

    def first(
        self, inputs: list[dict[str, Any]], known: list[dict[str, Any]], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Host time of the first call (``ms``), and the configurations found or ``known`` (``tunings``)."""
        tensors = self._tensors(inputs)
        with watched([decode(Tuning, tuning) for tuning in known]) as found:
            ms = first_call_ms(self.impl.given(options), tensors, self._device)
        return {"ms": ms, "tunings": [encode(tuning) for tuning in dict.fromkeys(found)]}

    def call(
        self, inputs: list[dict[str, Any]], expected: dict[str, Any], options: dict[str, Any], poison: int
    ) -> dict[str, Any]:
        """A checked call; its outputs go into the shared memory."""
        assert self._stage is not None
        outputs = of_kinds(expected)
        self._stage.impl = self.impl.given(options)
        self._stage.place(self._tensors(inputs))
        called = self._stage.call(outputs, poison)
        if called.outputs is not None:
            for name, mailbox in mailboxes(self._views["outputs"], outputs).items():
                mailbox.copy_(called.outputs[name])
            self._synchronize()
        return {
            "problem": called.problem,
            "violations": called.violations,
            "guarded": called.guarded,
            "shared": called.shared,
            "borrowed": called.borrowed,
            "launched": called.launched,
        }

    def _tensors(self, places: list[dict[str, Any]]) -> tuple[torch.Tensor, ...]:
        return tuple(self._views["inputs"].tensor(Place.from_json(place)) for place in places)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    # ----------------------------------------------------------------------- recording, replaying

    def arena(self, library: str, inputs_bytes: int, nbytes: int) -> None:
        """Prepare to record, before a user's file is loaded: PyTorch then allocates behind the inputs."""
        self._arena = Arena(nbytes, self._device)
        sources = Sources(self._device)
        sources.watch()
        self._recorder = Recorder(self._arena, Pool(library, self._arena, inputs_bytes), sources)

    def record(self, inputs: list[dict[str, Any]], shift: int, options: dict[str, Any]) -> Any:
        """A `Recording` of a call on these inputs, ``shift`` bytes from the arena's beginning."""
        assert self._recorder is not None
        shared, tensors = self._tensors(inputs), self._in_arena(inputs, shift)
        for x, value in zip(tensors, shared, strict=True):
            memory_of(x).copy_(memory_of(value))
        return encode(self._recorder.record(partial(self.impl.given(options).call, *tensors)))

    def compile(self, sources: list[dict[str, Any]], arch: str) -> list[str]:
        """Machine code of a recording's sources."""
        return [b64encode(image).decode() for image in compiled(decode(Sourced, {"all": sources}).all, arch)]

    def replay(self, recording: dict[str, Any], images: list[str], inputs_bytes: int) -> None:
        """Take a recording's calls as the implementation of all later requests."""
        told = decode(Recording, recording)
        self._arena = Arena(whole(told.used_bytes), self._device)
        self._player = Player(told, [b64decode(image) for image in images], self._arena, inputs_bytes)
        self._impl = Implementation("", "replay", "naive", self._player)

    def _in_arena(self, places: list[dict[str, Any]], shift: int = 0) -> tuple[torch.Tensor, ...]:
        """Tensors that lie in the arena as these lie in shared memory."""
        found = [Place.from_json(place) for place in places]
        moved = (replace(place, start=place.start - found[0].start + shift) for place in found)
        return tuple(tensor_in(self._arena, place) for place in moved)

    # ----------------------------------------------------------------------- resources, code

    def profile(self, inputs: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
        """Resources of every kernel of a call (``kernels``), and those its host code launches (``own``)."""
        tensors, impl = self._tensors(inputs), self.impl.given(options)
        kernels = [asdict(kernel) for kernel in from_profiler(impl, tensors)]
        return {"kernels": kernels, "own": kernels_of_its_own(impl, tensors)}

    def launched(self) -> Any:
        """`compare.code_size.count.Launched` as JSON."""
        return encode(launched(self.impl))

    def hashes(self, described: list[dict[str, Any]]) -> dict[str, Any]:
        """The source hashes of implementations whose file this process has not loaded."""
        return {"hashes": [source_hash(Description(**each).stand_in()) for each in described]}

    def size(self, described: dict[str, Any], launched: dict[str, Any]) -> Any:
        """The code size of such an implementation, which launches these kernels."""
        return encode(code_size(Description(**described).stand_in(), decode(Launched, launched)))

    # ----------------------------------------------------------------------- time

    def enter(
        self,
        sets: list[list[dict[str, Any]]],
        coming: list[dict[str, Any]],
        expected: dict[str, Any],
        options: dict[str, Any],
        stopwatch: str,
        cycles_per_us: float | None,
        tidy: bool,
    ) -> None:
        """Prepare timing on these sets of inputs; ``coming``: the places of their next values.

        Others prepare at the same time, so the clock's rate is the one that the judge has measured.
        """
        tensors = [self._tensors(places) for places in sets]
        values = self._tensors(coming)
        shared = mailboxes(self._views["outputs"], of_kinds(expected))
        module, _, name = stopwatch.partition(":")
        make = getattr(importlib.import_module(module), name)
        watch = make(self._device, cycles_per_us)
        impl = self.impl.given(options)
        if self._player is None:
            self._bench = _Bench(impl, tensors, values, shared, watch, tidy)
        else:
            own = self._in_arena(sets[0])
            self._bench = _Replay(self._player, own, tensors, impl, values, shared, watch, tidy)

    def prepare(self) -> float:
        """Prepare the weights of all sets of inputs; returns the time that one takes, in ms."""
        for which in range(len(self.bench.calls)):
            self.bench.prepare(which)
        self._synchronize()
        begin = time.perf_counter()
        self.bench.prepare(0)
        self._synchronize()
        return (time.perf_counter() - begin) * 1e3

    def first_again(self) -> str | None:
        dtype = self.bench.first()
        self._synchronize()  # the judge times the whole call
        return dtype

    def cold(self, which: int) -> dict[str, Any]:
        return self.bench.cold(which)

    def warm(self, kind: Kind, which: int, repeats: int) -> dict[str, Any]:
        """A sample of repeated calls (``warm``, ``burst``, ``sustained``) or replays (``graph``)."""
        return self.bench.warm(kind, which, repeats)

    def capture(self) -> None:
        self.bench.capture()

    @property
    def bench(self) -> _Bench:
        assert self._bench is not None
        return self._bench


class _Bench:
    """The implementation while it is being timed.

    Args:
        sets: of inputs.
        coming: values copied into a set right before its cold sample; empty: none.
        mailboxes: tensors like the outputs, in shared memory.
        watch: the clock.
        tidy: free memory after every sample.
    """

    def __init__(
        self,
        impl: Implementation,
        sets: list[tuple[torch.Tensor, ...]],
        coming: tuple[torch.Tensor, ...],
        mailboxes: Outputs,
        watch: Stopwatch,
        tidy: bool,
    ) -> None:
        self._call, self._sets = impl.call, sets
        self._op, self._prepare = impl.op, impl.prepare
        self._prepared: list[tuple[torch.Tensor, ...] | None] = [None] * len(sets)
        self._mailboxes, self._watch, self._tidy = mailboxes, watch, tidy
        self._written = sum(x.numel() * x.itemsize for x in mailboxes.values())
        self._coming = [memory_of(x) for x in coming]
        self._memory = [[memory_of(x) for x in tensors] for tensors in sets]
        self._output: Any = None
        self._of_graph: Any = None
        self.calls = [partial(self._run, which) for which in range(len(sets))]
        self._graph: Callable[[], object] | None = None
        watch.behind = self._deliver
        gc.collect()
        gc.disable()  # a collection during a launch would delay the host

    def _run(self, which: int) -> None:
        self._output = None  # frees its memory for the next output
        prepared = self._prepared[which]
        if prepared is None:
            self._output = self._call(*self._sets[which])
        else:
            self._output = self._call(*self._sets[which], prepared=prepared)

    def prepare(self, which: int) -> None:
        """Prepare a set's weights from its present values, at the same addresses: a graph holds them."""
        if self._prepare is None:
            return
        weights = registry.get_op(self._op).weights_of(self._sets[which])
        old, new = self._prepared[which], self._prepare(*weights)
        if old is None:
            self._prepared[which] = new
        else:
            for x, value in zip(old, new, strict=True):
                x.copy_(value)

    def _replay(self) -> None:
        assert self._graph is not None
        self._output = None
        self._graph()
        if self._output is None:  # a replay writes into the captured call's output, and returns nothing
            self._output = self._of_graph

    def call(self, kind: Kind, which: int) -> Callable[[], object]:
        return self._replay if kind == "graph" else self.calls[which]

    def _deliver(self) -> None:
        """Copy the outputs to the judge; enqueued right behind the timed work, so later writes are missed."""
        for output, mailbox in zip(tensors_of(self._output), self._mailboxes.values(), strict=False):
            if type(output) is torch.Tensor and output.shape == mailbox.shape:
                mailbox.copy_(output)

    def first(self) -> str | None:
        """The outputs' dtypes after a first call."""
        self.calls[0]()
        dtypes = [getattr(output, "dtype", None) for output in tensors_of(self._output)]
        return None if None in dtypes else ", ".join(map(str, dtypes))

    def cold(self, which: int) -> dict[str, Any]:
        if self._coming or self._tidy:
            # Another process used the GPU before. An untimed call warms TLBs and instruction caches, and gets
            # memory from the driver, so that only the L2 is cold in the timed call.
            self.calls[which]()
        for x, value in zip(self._memory[which], self._coming, strict=bool(self._coming)):
            x.copy_(value)  # new values: nothing remembered from the untimed call is of use
        self.prepare(which)
        return self._reading(self._watch.cold("cold", self.calls[which], self._written))

    def warm(self, kind: Kind, which: int, repeats: int) -> dict[str, Any]:
        self.prepare(which)
        return self._reading(self._watch.warm(kind, self.call(kind, which), repeats))

    def _reading(self, reading: Reading) -> dict[str, Any]:
        if self._tidy:
            self._output = None
            torch.cuda.empty_cache()
        return asdict(reading)

    def capture(self) -> None:
        self._graph = self._watch.capture(self.calls[0])
        self._of_graph, self._output = self._output, None
        # The graph keeps one output. The capture stream's cached block is of no further use, and those of all
        # workers together may not fit.
        torch.cuda.empty_cache()


class _Replay(_Bench):
    """A recording while it is being timed: all sets of inputs are copied to the recorded addresses.

    Before each timed call all memory of the call is poisoned, as nothing may be left from an earlier one.
    """

    def __init__(
        self,
        player: Player,
        own: tuple[torch.Tensor, ...],
        shared: list[tuple[torch.Tensor, ...]],
        impl: Implementation,
        coming: tuple[torch.Tensor, ...],
        mailboxes: Outputs,
        watch: Stopwatch,
        tidy: bool,
    ) -> None:
        self._player, self._own = player, [memory_of(x) for x in own]
        self._shared = [[memory_of(x) for x in tensors] for tensors in shared]
        self._which = 0
        super().__init__(impl, [own] * len(shared), coming, mailboxes, watch, tidy)

    def _fetch(self, which: int) -> None:
        self._which = which
        for x, value in zip(self._own, self._shared[which], strict=True):
            x.copy_(value)
        self._player.reset()

    def prepare(self, which: int) -> None:
        self._player.reset()

    def cold(self, which: int) -> dict[str, Any]:
        self._fetch(which)
        return super().cold(which)

    def _deliver(self) -> None:
        super()._deliver()
        for x, value in zip(self._own, self._shared[self._which], strict=True):
            value.copy_(x)  # the judge sees whether an input was written to
