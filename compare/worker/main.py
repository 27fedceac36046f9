"""The worker's half: one implementation in its own process, which handles the judge's requests.

The judge runs nothing from an answer, and an answer affects one implementation's row only.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from msgspec import structs

from compare import registry
from compare.checking.guarded_memory import memory_of
from compare.checking.reference import Outputs
from compare.checking.stage import LocalStage, tensors_of
from compare.code_size.count import launched
from compare.model.op import Implementation, UsageError

# Everything needed later is imported here, so that the server imports it once for all workers.
from compare.replay import figures
from compare.replay.arena import Arena, Pool, whole
from compare.replay.images import compiled
from compare.replay.nodes import Recording
from compare.replay.player import Player
from compare.replay.record import Recorder
from compare.replay.sources import Sources
from compare.resources.compiler import Compiler
from compare.resources.profiler import from_profiler, kernels_of_its_own
from compare.sandbox import isolation, kernel, limits
from compare.sandbox.isolation import Hidden, Isolation
from compare.sandbox.words import instead_of, raised_in
from compare.timing.stopwatch import HotReading, Kind, Reading, Stopwatch, host_ms
from compare.tuning.autotune import watched
from compare.worker import late, messages, own_code, tracing
from compare.worker.channel import Channel
from compare.worker.memory import Placement, SharedMemory, tensor_in
from compare.worker.messages import Answer, NumberedRequest
from triton_impl.notes import taken
from triton_impl.recorded_device import answer_for_gpu

ReadingT = TypeVar("ReadingT", Reading, HotReading)

_NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""Text of PyTorch's RuntimeError on a CPU that is out of memory."""


def main(
    connection: int,
    output: int,
    lifeline: int,
    host_bytes: int | None,
    box: tuple[Isolation, Path, Hidden] | None,
) -> None:
    """Handle requests until the judge closes the connection.

    Args:
        connection: file descriptor of the channel to the judge.
        output: as of `compare.sandbox.limits.confine`.
        lifeline: as there.
        host_bytes: as there.
        box: the isolation, the folder to write to, and what is hidden, for a user's file.
    """
    late.ignore()
    limits.confine(connection, output, lifeline, host_bytes)
    if box is not None:
        kernel.end_with_parent()  # the lifeline's signal would not end a stopped process
        found, private, hidden = box
        isolation.enter(found, private, lifeline, gpu=host_bytes is None, hidden=hidden)
        kernel.end_with_parent()  # this may be another process now
    signal.signal(signal.SIGINT, signal.default_int_handler)
    late.prepare()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - Python's own was on a descriptor that is closed
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    gc.freeze()  # the server's imports are never garbage: scanning them costs time
    serve(Channel(socket.socket(fileno=connection), from_judge=True))


def serve(channel: Channel) -> None:
    """Receive requests and answer them."""
    forks: list[bool] = []
    # A fork could answer in place of this process.
    os.register_at_fork(before=lambda: forks.append(True), after_in_child=partial(os._exit, 1))
    handlers = Handlers(channel)
    while True:
        try:
            message = channel.receive()
        except EOFError:
            return
        assert message is not None
        asked = messages.read_request(message)
        answer = answered(handlers, asked)
        channel.send(messages.encode(structs.replace(answer, forked=bool(forks))))


def answered(handlers: Handlers, asked: NumberedRequest) -> Answer:
    """The answer to a request."""
    try:
        return Answer(asked.number, value=handlers.handle(asked.request))
    except BaseException as error:  # user code may raise anything
        if isinstance(error, late.TookTooLong):
            late.ignore()
        raised, lost = _error(error, handlers.file, gpu=handlers.on_gpu), handlers.recover()
        traceback.clear_frames(error.__traceback__)  # frees the memory that the frames hold
        return Answer(asked.number, raised=raised, lost=lost)


def _error(error: BaseException, file: str, *, gpu: bool) -> messages.Error:
    kind: Literal["failed", "unavailable", "memory"] = "failed"
    if isinstance(error, (NotImplementedError, UsageError)):
        kind = "unavailable"
    name, text, where = raised_in(file, error)
    if instead := instead_of(error, gpu=gpu):
        kind, text = "unavailable", instead
    if isinstance(error, SystemExit):
        text = f"exit({error.code})"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or _NO_MEMORY in text:
        kind = "memory"
    trace = "".join(traceback.format_exception(error))
    return messages.Error(kind, name, text[:2000], where, trace[-8000:])


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


class Handlers:
    """What a worker holds, and its answer to each request."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._device = torch.device("cpu")
        self._impl: Implementation | None = None
        self._stage: LocalStage | None = None
        self._memory: SharedMemory | None = None
        self._outputs: Outputs = {}
        """Tensors in the shared memory."""
        self._options: dict[str, Any] = {}
        self._bench: _Bench | None = None
        self._recorder: Recorder | None = None
        self._player: Player | None = None
        self._arena: Arena | None = None
        self._compiler = Compiler()

    def handle(self, request: messages.WorkerRequest[Any]) -> Any:
        """The value of the answer; its type is the request's type argument."""
        match request:
            case messages.Setup():
                self._begin(request)
            case messages.Connect():
                return self._connect()
            case messages.Load():
                self._load(request)
            case messages.Choose():
                self._choose(request)
            case messages.LimitMemory():
                self._limit(request.nbytes)
            case messages.Rest():
                return self._rest()
            case messages.Share():
                self._share(request)
            case messages.LayOut():
                self._lay_out(request)
            case messages.GiveBack():
                self._give_back()
            case messages.First():
                return self._first(request)
            case messages.CheckCall():
                return self._call(request)
            case messages.Reserve():
                self._reserve(request)
            case messages.Record():
                return self._record(request)
            case messages.Compile():
                return tuple(compiled(request.sources, request.arch))
            case messages.Replay():
                self._replay(request)
            case messages.FindKernels():
                return self._find_kernels(request)
            case messages.Trace():
                return tracing.trace(self.impl, request.case)
            case messages.FindLaunched():
                return launched(self.impl)
            case messages.ReadResources():
                return self._compiler.resources(
                    self.impl, request.case, request.arch, disassemble=request.disassemble
                )
            case messages.ReadSources():
                return figures.sources(self.impl, request.case, request.arch)
            case messages.ReadFigures():
                return figures.read(request.kernels, request.arch, multiplies=request.multiplies)
            case messages.Enter():
                self._enter(request)
            case _:
                return self._time(request)
        return None

    def _time(self, request: messages.WorkerRequest[Any]) -> Any:
        """The value of the answer to a request that times."""
        match request:
            case messages.Prepare():
                return self._prepare()
            case messages.CallAgain():
                return self._call_again()
            case messages.Cold():
                return self.bench.cold(request.which)
            case messages.Warm():
                return self.bench.warm(request.kind, request.which, request.repeats)
            case messages.Hot():
                return self.bench.hot(request.limit_s)
            case messages.Capture():
                self.bench.capture()
        return None

    @property
    def impl(self) -> Implementation:
        assert self._impl is not None
        return self._impl

    @property
    def on_gpu(self) -> bool:
        return self._device.type == "cuda"

    @property
    def file(self) -> str:
        """The file of the implementation; empty before one is chosen."""
        return self._impl.origin if self._impl else ""

    # ----------------------------------------------------------------------- once

    def _begin(self, request: messages.Setup) -> None:
        if request.nice:  # isolated, it may not even ask
            os.nice(request.nice)
        os.environ.update(request.environment)
        self._device = torch.device(request.device)
        for module in request.modules:
            importlib.import_module(module)

    def _connect(self) -> float:
        begin = time.perf_counter()
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.ones(1, device=self._device)
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def _load(self, request: messages.Load) -> None:
        if self._device.type == "cpu":
            answer_for_gpu()
            # Inductor asks for it where PyTorch is built without CUDA.
            torch.cuda.get_device_properties(0).gcnArchName = ""
        if request.own_code:
            own_code.enter()
        with self._recorder.allocating() if self._recorder else nullcontext():
            for file in request.files:
                registry.load(file, request.op)

    def _choose(self, request: messages.Choose) -> None:
        label, parameters = request.label, request.parameters
        impls = {impl.label: impl for impl in registry.implementations(request.op)}
        if label not in impls:
            raise UsageError(f"its file does not register {label} when it is run")
        impl = impls[label]
        self._impl = registry.with_parameters(impl, label, parameters) if parameters else impl
        self._stage = LocalStage(self._impl, self._device)

    def _limit(self, nbytes: int) -> None:
        if self._device.type == "cuda":
            total = torch.cuda.get_device_properties(self._device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total), self._device)

    def _rest(self) -> messages.Held:
        if self._impl is not None:
            self._stage = LocalStage(self._impl, self._device)
        if self._device.type != "cuda":
            return messages.Held(0, 0)
        gc.collect()
        held_bytes = torch.cuda.max_memory_reserved(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        return messages.Held(held_bytes, torch.cuda.memory_allocated(self._device) + _of_cupy())

    def _share(self, request: messages.Share) -> None:
        descriptors = [*self._channel.descriptors]
        self._channel.descriptors.clear()
        self._give_back()
        self._memory = SharedMemory(request.size, self._device, request.handle, descriptors)
        self._lay_out(request)

    def _lay_out(self, request: messages.Share | messages.LayOut) -> None:
        assert self._memory is not None
        self._outputs = {name: self._memory.tensor(place) for name, place in request.outputs.items()}
        self._options = request.options

    def _give_back(self) -> None:
        """Unmap the shared memory."""
        memory, self._memory, self._outputs = self._memory, None, {}
        if memory is None:
            return
        self._bench = None
        gc.enable()
        self._rest()
        memory.close()

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

    def _first(self, request: messages.First) -> messages.FirstCall:
        tensors = self._tensors(request.inputs)
        with watched(request.known) as found:
            ms = first_call_ms(self.impl.given(self._options), tensors, self._device)
        return messages.FirstCall(ms, tuple(dict.fromkeys(found)))

    def _call(self, request: messages.CheckCall) -> messages.Called:
        assert self._stage is not None
        self._stage.impl = self.impl.given(self._options)
        self._stage.place(self._tensors(request.inputs))
        expected = {name: torch.empty_like(x, device="meta") for name, x in self._outputs.items()}
        with self._instruments(request):
            called = self._stage.call(expected, request.poison)
        if called.outputs is not None:
            for name, shared_output in self._outputs.items():
                shared_output.copy_(called.outputs[name])
            self._synchronize()
        notes = taken() if self.impl.way == "triton" else ()
        return messages.Called(
            called.problem,
            called.violations,
            called.guarded,
            called.shared,
            dict(called.borrowed),
            called.launched,
            notes,
        )

    @contextmanager
    def _instruments(self, request: messages.CheckCall) -> Iterator[None]:
        """On a CPU: the thread order of the request, and accesses to memory checked."""
        if self._device.type != "cpu" or self._memory is None:
            yield
            return
        os.environ["HOST_THREAD_ORDER"] = request.thread_order
        base = self._memory.bytes.data_ptr()
        arena = base, base + self._memory.bytes.nbytes
        inputs = [(base + each.start, base + each.start + each.nbytes) for each in request.inputs]
        if self.impl.way == "triton":
            from triton_impl.addresses import within  # imports Triton, which takes a second

            with within([arena], inputs):
                yield
        elif request.watched:
            from cuda_impl.watch import watched  # builds what checks, where that is asked for

            with watched([arena], inputs):
                yield
        else:
            yield

    def _tensors(self, places: Sequence[Placement]) -> tuple[torch.Tensor, ...]:
        assert self._memory is not None
        return tuple(self._memory.tensor(place) for place in places)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    # ----------------------------------------------------------------------- recording, replaying

    def _reserve(self, request: messages.Reserve) -> None:
        self._arena = Arena(request.nbytes, self._device)
        sources = Sources(self._device)
        sources.watch()
        pool = Pool(request.library, self._arena, request.inputs_bytes)
        self._recorder = Recorder(self._arena, pool, sources)

    def _record(self, request: messages.Record) -> Recording:
        assert self._recorder is not None
        shared, tensors = self._tensors(request.inputs), self._in_arena(request.inputs, request.shift)
        for x, value in zip(tensors, shared, strict=True):
            memory_of(x).copy_(memory_of(value))
        return self._recorder.record(partial(self.impl.given(self._options).call, *tensors))

    def _replay(self, request: messages.Replay) -> None:
        recording = request.recording
        self._arena = Arena(whole(recording.used_bytes), self._device)
        self._player = Player(recording, request.images, self._arena, request.inputs_bytes)
        self._impl = Implementation("", "replay", "naive", self._player)

    def _in_arena(self, places: Sequence[Placement], shift: int = 0) -> tuple[torch.Tensor, ...]:
        """Tensors that lie in the arena as these lie in shared memory."""
        moved = (replace(place, start=place.start - places[0].start + shift) for place in places)
        return tuple(tensor_in(self._arena, place) for place in moved)

    # ----------------------------------------------------------------------- resources

    def _find_kernels(self, request: messages.FindKernels) -> messages.Profile:
        tensors, impl = self._tensors(request.inputs), self.impl.given(self._options)
        return messages.Profile(tuple(from_profiler(impl, tensors)), tuple(kernels_of_its_own(impl, tensors)))

    # ----------------------------------------------------------------------- time

    def _call_again(self) -> str | None:
        dtypes = self.bench.first()
        self._synchronize()  # the judge times the whole call
        return dtypes

    def _enter(self, request: messages.Enter) -> None:
        tensors = [self._tensors(places) for places in request.sets]
        values = self._tensors(request.coming)
        module, _, name = request.stopwatch.partition(":")
        make = getattr(importlib.import_module(module), name)
        watch = make(self._device, request.cycles_per_us)
        impl = self.impl.given(self._options)
        if self._player is None:
            self._bench = _Bench(impl, tensors, values, self._outputs, watch)
        else:
            own = self._in_arena(request.sets[0])
            self._bench = _ReplayBench(self._player, own, tensors, impl, values, self._outputs, watch)
        self._bench.tidy = request.tidy

    def _prepare(self) -> float:
        for which in range(len(self.bench.calls)):
            self.bench.prepare(which)
        self._synchronize()
        begin = time.perf_counter()
        self.bench.prepare(0)
        self._synchronize()
        return (time.perf_counter() - begin) * 1e3

    @property
    def bench(self) -> _Bench:
        assert self._bench is not None
        return self._bench


class _Bench:
    """The implementation while it is being timed.

    Args:
        sets: of inputs.
        coming: values copied into a set right before its cold sample; empty: none.
        shared_outputs: tensors like the outputs, in shared memory.
        watch: the clock.
    """

    tidy = False
    """Free memory after every sample."""

    def __init__(
        self,
        impl: Implementation,
        sets: list[tuple[torch.Tensor, ...]],
        coming: tuple[torch.Tensor, ...],
        shared_outputs: Outputs,
        watch: Stopwatch,
    ) -> None:
        self._call, self._sets = impl.call, sets
        self._op, self._prepare = impl.op, impl.prepare
        self._prepared: list[tuple[torch.Tensor, ...] | None] = [None] * len(sets)
        self._shared_outputs, self._watch = shared_outputs, watch
        self._written = sum(x.numel() * x.itemsize for x in shared_outputs.values())
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
        for output, shared_output in zip(
            tensors_of(self._output), self._shared_outputs.values(), strict=False
        ):
            if type(output) is torch.Tensor and output.shape == shared_output.shape:
                shared_output.copy_(output)

    def first(self) -> str | None:
        """The outputs' dtypes after a first call."""
        self.calls[0]()
        dtypes = [getattr(output, "dtype", None) for output in tensors_of(self._output)]
        return None if None in dtypes else ", ".join(map(str, dtypes))

    def cold(self, which: int) -> Reading:
        if self._coming or self.tidy:
            # Another process used the GPU before. An untimed call warms TLBs and instruction caches, and gets
            # memory from the driver, so that only the L2 is cold in the timed call.
            self.calls[which]()
        for x, value in zip(self._memory[which], self._coming, strict=bool(self._coming)):
            x.copy_(value)  # new values: nothing remembered from the untimed call is of use
        self.prepare(which)
        return self._reading(self._watch.cold("cold", self.calls[which], self._written))

    def warm(self, kind: Kind, which: int, repeats: int) -> Reading:
        self.prepare(which)
        return self._reading(self._watch.warm(kind, self.call(kind, which), repeats))

    def hot(self, limit_s: float) -> HotReading:
        self.prepare(0)
        return self._reading(self._watch.hot(self.calls[0], limit_s))

    def _reading(self, reading: ReadingT) -> ReadingT:
        if self.tidy:
            self._output = None
            torch.cuda.empty_cache()
        return reading

    def capture(self) -> None:
        self._graph = self._watch.capture(self.calls[0])
        self._of_graph, self._output = self._output, None
        # The graph keeps one output. The capture stream's cached block is of no further use, and those of all
        # workers together may not fit.
        torch.cuda.empty_cache()


class _ReplayBench(_Bench):
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
        shared_outputs: Outputs,
        watch: Stopwatch,
    ) -> None:
        self._player, self._own = player, [memory_of(x) for x in own]
        self._shared = [[memory_of(x) for x in tensors] for tensors in shared]
        self._which = 0
        super().__init__(impl, [own] * len(shared), coming, shared_outputs, watch)

    def _fetch(self, which: int) -> None:
        self._which = which
        for x, value in zip(self._own, self._shared[which], strict=True):
            x.copy_(value)
        self._player.reset()

    def prepare(self, which: int) -> None:
        self._player.reset()

    def cold(self, which: int) -> Reading:
        self._fetch(which)
        return super().cold(which)

    def _deliver(self) -> None:
        super()._deliver()
        for x, value in zip(self._own, self._shared[self._which], strict=True):
            value.copy_(x)  # the judge sees whether an input was written to
