"""The clock: GPU and host time of a call.  Nothing here combines samples.

A GPU time is the time between two events on torch's current stream.  The host must enqueue the call before
the GPU reaches the first event, or launch overhead would count as the kernel's time.  So a kernel that only
waits comes before the events, and each sample is checked: the first event must not have completed when the
last is enqueued.  A sample that fails the check is taken again behind a longer wait.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch

from compare.device import l2_bytes

try:
    from cuda.bindings import driver
except ImportError:
    driver = None

Call = Callable[[], object]

FLUSH_L2 = 4
"""Bytes read before a cold sample, as a multiple of the L2's size.  Reading leaves no dirty lines, whose
write-back would fall into the call."""

ROTATED_L2 = 2
"""Least size of all sets of inputs together, as a multiple of the L2's size; at most `MOST_SETS` sets."""
MOST_SETS = 8

FIRST_WAIT_US = 60.0
LONGEST_WAIT_US = 20_000.0


BackToBack = Literal["warm", "graph", "burst", "sustained"]
"""Kinds of sample that repeat the call: in a round, as a CUDA graph, after a pause, and under load."""
Kind = Literal["cold", "hot", BackToBack]

HOT_BLOCKS = 25
"""Blocks of a hot reading.  The first fifth is dropped: caches and branch predictors are still cold."""
HOT_CALLS = 10
"""Timed calls of a block, behind one untimed call.  The launch queue holds about 1,000 launches: the host
waits for the GPU only if a call launches more than 90 kernels."""
HOT_KEPT = HOT_BLOCKS - HOT_BLOCKS // 5
"""Blocks that count: 200 calls."""
HOT_TOTAL = HOT_BLOCKS * (1 + HOT_CALLS)


@dataclass(frozen=True)
class Reading:
    """One sample: GPU and host time of a call in microseconds (in a batch: GPU mean, host median)."""

    gpu_us: float
    host_us: float
    exposed: bool = False
    """The GPU time contains host time: the host was slower than the GPU."""
    after_idle_us: float = 0.0
    """Host time of the untimed call before a batch, which is the first after idle; 0 without such a call."""


@dataclass(frozen=True)
class HotReading:
    """Microseconds a call, for each block that counts of calls back to back; shorter where the time ended."""

    host_us: tuple[float, ...]
    """Host time until the calls returned."""
    back_to_back_us: tuple[float, ...]
    """By the GPU's clock, with nothing that hides the launches."""


class Clock(Protocol):
    """The clock of a run."""

    def now_s(self) -> float:
        """Seconds of a monotonic clock."""

    def empty_us(self) -> float:
        """Time between two events with nothing between them."""


class Stopwatch(Clock, Protocol):
    """Times calls of its own process.  Samples of one name share the learnt wait."""

    behind: Call | None
    """Enqueued right behind the last event of every sample, and waited for; not timed."""

    @property
    def cycles_per_us(self) -> float | None:
        """Rate of the kernel that waits, for stopwatches of other processes on the same GPU."""

    def cold(self, name: str, call: Call, written: int = 0) -> Reading:
        """One call with a cold L2.

        ``written``: bytes that the call writes.  As many lines of the L2 are dirty before it, at most all.
        They are evicted during the call, as the call's own are after it: it pays for what it writes.
        """

    def warm(self, name: str, call: Call, repeats: int) -> Reading:
        """``repeats`` calls back to back, after an untimed one."""

    def hot(self, call: Call, limit_s: float) -> HotReading:
        """Calls back to back in blocks, until ``limit_s`` is over."""

    def capture(self, call: Call) -> Call:
        """``call`` as a CUDA graph; the result replays it.  Raises where it cannot be captured."""


class Timer(Protocol):
    """One implementation, ready to be timed: `compare.worker.timing.RemoteTimer`, and a fake in tests."""

    output_dtype: str | None
    """The output's dtype, known after `first`."""

    def first(self) -> float:
        """Host time of a call and of its GPU work, in ms."""

    def capture(self) -> None:
        """Capture a CUDA graph of the call.  Raises where it cannot be captured."""

    def cold(self, number: int) -> Reading:
        """One call with a cold L2, in a round of that number; the sets of inputs rotate."""

    def warm(self, number: int, repeats: int, kind: BackToBack = "warm") -> Reading:
        """``repeats`` calls back to back, or replays of the captured graph, after an untimed one."""

    def hot(self, limit_s: float) -> HotReading:
        """Calls back to back in blocks, until ``limit_s`` is over."""


def how_many_sets(size: int, device: torch.device) -> int:
    """Number of sets of inputs to rotate through, where a set takes ``size`` bytes."""
    return max(1, min(math.ceil(ROTATED_L2 * l2_bytes(device) / max(size, 1)), MOST_SETS))


def host_ms(call: Call, device: torch.device) -> float:
    """Host time in ms, from an idle GPU until the call has returned and its GPU work is done."""
    torch.cuda.synchronize(device)
    begin = time.perf_counter_ns()
    call()
    torch.cuda.synchronize(device)
    return (time.perf_counter_ns() - begin) / 1e6


_SampleKey = tuple[Literal["cold", "warm", "empty"], str]
"""Kind and name of a sample: each has its own learnt wait."""


class CudaStopwatch:
    """`Stopwatch` on torch's current stream of a GPU.

    Args:
        cycles_per_us: as another stopwatch has measured it; else the GPU has to be free for a moment.
    """

    def __init__(self, device: torch.device, cycles_per_us: float | None = None) -> None:
        self._device = device
        self._l2 = l2_bytes(device)
        self._scratch = torch.zeros(FLUSH_L2 * self._l2 // 4, dtype=torch.float32, device=device)
        self._sum = torch.empty((), dtype=torch.float32, device=device)
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._waits_us: dict[_SampleKey, float] = {}
        self._exposed: set[_SampleKey] = set()
        self._keeps_l2 = True
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None
        self.behind: Call | None = None
        self.cycles_per_us = cycles_per_us or self._calibrate()

    def now_s(self) -> float:
        return time.perf_counter()

    def cold(self, name: str, call: Call, written: int = 0) -> Reading:
        self._let_go_of_l2()
        return self._read(("cold", name), partial(self._flush, written), call, 1)

    def _flush(self, written: int = 0) -> None:
        torch.sum(self._scratch, (0,), out=self._sum)
        if dirty := min(written, self._l2) // 4:
            self._scratch[:dirty].zero_()

    def warm(self, name: str, call: Call, repeats: int) -> Reading:
        return self._read(("warm", name), call, call, repeats)

    def hot(self, call: Call, limit_s: float) -> HotReading:
        until_ns = time.perf_counter_ns() + limit_s * 1e9
        host_us: list[float] = []
        back_to_back_us: list[float] = []
        while len(host_us) < HOT_BLOCKS:
            begin = time.perf_counter_ns()
            call()  # wakes the GPU, and the host's code after its wait
            lead_ns = time.perf_counter_ns() - begin
            if begin + (1 + HOT_CALLS) * lead_ns > until_ns:
                break
            self._start.record()
            begin = time.perf_counter_ns()
            for _ in range(HOT_CALLS):
                call()
            host_us.append((time.perf_counter_ns() - begin) / 1e3 / HOT_CALLS)
            self._end.record()
            torch.cuda.synchronize(self._device)
            back_to_back_us.append(self._start.elapsed_time(self._end) * 1e3 / HOT_CALLS)
        if self.behind is not None:
            self.behind()
        torch.cuda.synchronize(self._device)
        first = HOT_BLOCKS - HOT_KEPT
        return HotReading(tuple(host_us[first:]), tuple(back_to_back_us[first:]))

    def _let_go_of_l2(self) -> None:
        """Reset persisting L2 lines to normal, so that the flush evicts them."""
        if self._keeps_l2:
            with suppress(Exception):
                (error,) = driver.cuCtxResetPersistingL2Cache()
                self._keeps_l2 = error == driver.CUresult.CUDA_SUCCESS
                return
            self._keeps_l2 = False  # cuda.bindings or its driver is absent

    def capture(self, call: Call) -> Call:
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        # The outer context restores the stream where the inner one fails, as the inner one does not.
        with torch.cuda.stream(self._stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # graphs without a kernel: inputs without elements
            call()  # the set-up of a stream's first call cannot be captured
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            raised: Exception | None = None
            try:
                # One pool for all graphs: outputs of replays are not read here, so they may share memory.
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    try:
                        call()
                    except Exception as error:
                        raised = error  # ending the capture raises a second, less specific error
                        raise
            except BaseException as error:
                self._abandon_capture()
                raise raised or error from None
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return graph.replay

    def _abandon_capture(self) -> None:
        """Reset torch's state after a failed capture.

        Its allocator still treats the capture as active, and refuses to free memory: end that, and free the
        graph's memory.  So does the random generator, which refuses to draw: an empty capture resets it.
        """
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
            torch._C._cuda_releasePool(torch.cuda.current_device(), self._pool)
        self._pool = None
        with suppress(RuntimeError):
            well = torch.cuda.CUDAGraph()
            with torch.cuda.graph(well, stream=self._stream, capture_error_mode="thread_local"):
                pass

    def empty_us(self) -> float:
        return self._read(("empty", ""), self._flush, lambda: None, 1).gpu_us

    def _read(self, key: _SampleKey, before: Call, call: Call, repeats: int) -> Reading:
        wait_us = self._waits_us.get(key, FIRST_WAIT_US)
        after_idle_us: float | None = None
        while True:
            begin = time.perf_counter_ns()
            before()
            if after_idle_us is None:
                after_idle_us = (time.perf_counter_ns() - begin) / 1e3 if before is call else 0.0
            torch.cuda._sleep(int(wait_us * self.cycles_per_us))
            self._start.record()
            host_us = []
            for _ in range(repeats):
                begin = time.perf_counter_ns()
                call()
                host_us.append((time.perf_counter_ns() - begin) / 1e3)
            self._end.record()
            hidden = not self._start.query()
            if self.behind is not None:
                self.behind()
            self._end.synchronize()
            if key in self._exposed:
                break
            if hidden:
                self._waits_us[key] = min(FIRST_WAIT_US + 2 * sum(host_us), LONGEST_WAIT_US)
                break
            # The host was late: by chance, or always if the call itself waits for the GPU.
            wait_us *= 2
            if wait_us > LONGEST_WAIT_US:
                self._exposed.add(key)
                self._waits_us.pop(key, None)
                break
        if self.behind is not None:
            # Another process reads the result, and CUDA does not order two processes' work.
            torch.cuda.synchronize(self._device)
        gpu_us = self._start.elapsed_time(self._end) * 1e3 / repeats
        return Reading(gpu_us, statistics.median(host_us), key in self._exposed, after_idle_us)

    def _calibrate(self) -> float:
        """Cycles of the waiting kernel per microsecond, at the busy card's clock."""
        cycles = 2_000_000
        for _ in range(3):
            self._start.record()
            torch.cuda._sleep(cycles)
            self._end.record()
            self._end.synchronize()
        busy_us: float = self._start.elapsed_time(self._end) * 1e3
        return cycles / busy_us
