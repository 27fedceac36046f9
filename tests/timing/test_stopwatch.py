"""The stopwatch on a simulated GPU: it reads the kernel's time, however slow the host."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from triton.testing import do_bench

from compare.timing import stopwatch
from compare.timing.stopwatch import HOT_CALLS, HOT_KEPT, HOT_TOTAL, Call, CudaStopwatch, Reading, host_ms
from loops import for_each

LAUNCH_US = 5.0
QUEUE = 1000
"""Launches that a GPU holds; the next one waits."""


class SimulatedGpu:
    """A host and a GPU, each at its own time in microseconds; the GPU works off a queue."""

    def __init__(self) -> None:
        self.host_us = 0.0
        self.free_us = 0.0
        """When the GPU has finished all enqueued work."""
        self.work: list[str] = []
        self.queued: list[float] = []
        """When each launch in the queue will have ended; its length is limited, as a GPU's is."""
        self.waited_us = 0.0
        """For room in the queue."""

    def launch(self, what: str, us: float, host_us: float = LAUNCH_US) -> None:
        self.host_us += host_us
        self.queued = [at for at in self.queued if at > self.host_us]
        if len(self.queued) >= QUEUE:
            self.waited_us += self.queued[-QUEUE] - self.host_us
            self.host_us = self.queued[-QUEUE]
        self.queued.append(max(self.free_us, self.host_us) + us)
        self.free_us = max(self.free_us, self.host_us) + us
        self.work.append(what)

    def wait(self) -> None:
        self.host_us = max(self.host_us, self.free_us)

    def kernel(self, us: float, host_us: float = LAUNCH_US) -> Callable[[], None]:
        return lambda: self.launch("kernel", us, host_us)


class Event:
    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu, self.at_us = gpu, 0.0

    def record(self) -> None:
        self.gpu.launch("event", 0.0, host_us=1.0)
        self.at_us = self.gpu.free_us

    def query(self) -> bool:
        return self.at_us <= self.gpu.host_us

    def synchronize(self) -> None:
        self.gpu.host_us = max(self.gpu.host_us, self.at_us)

    def elapsed_time(self, end: Event) -> float:
        return (end.at_us - self.at_us) / 1e3


class Scratch:
    """The stopwatch's buffer, of 4-byte elements."""

    def __init__(self, gpu: SimulatedGpu, size: int) -> None:
        self.gpu, self.size = gpu, size

    def __getitem__(self, part: slice) -> Scratch:
        return Scratch(self.gpu, part.stop)

    def zero_(self) -> None:
        self.gpu.launch(f"write {4 * self.size}", 1.0)


L2 = 1 << 20
FLUSH = f"read {4 * L2}"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    gpu = SimulatedGpu()
    cuda = SimpleNamespace(
        Event=lambda enable_timing: Event(gpu),
        Stream=lambda device: None,
        _sleep=lambda cycles: gpu.launch("sleep", cycles / 1000),
        synchronize=lambda device: gpu.wait(),
    )
    pretend = SimpleNamespace(
        cuda=cuda,
        float32=torch.float32,
        zeros=lambda size, **_: Scratch(gpu, size),
        empty=lambda *_, **__: None,
        sum=lambda scratch, *_, **__: gpu.launch(f"read {4 * scratch.size}", 70.0),
    )
    monkeypatch.setattr(stopwatch, "torch", pretend)
    monkeypatch.setattr(stopwatch, "l2_bytes", lambda device: L2)
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter_ns=lambda: int(gpu.host_us * 1e3)))
    return gpu


@pytest.fixture
def watch(gpu: SimulatedGpu) -> CudaStopwatch:
    return CudaStopwatch(torch.device("cuda", 0))


@for_each("us, host_us", itertools.product([1.0, 3.0, 5000.0], [0.5, 30.0, 130.0, 900.0, 4000.0]))
def test_a_launch_is_not_timed_as_the_kernel(
    us: float, host_us: float, gpu: SimulatedGpu, watch: CudaStopwatch
) -> None:
    call, name = gpu.kernel(us, host_us), f"{us} {host_us}"
    for _ in range(3):
        for reading in (watch.cold(name, call), watch.warm(name, call, 3)):
            assert reading.gpu_us == pytest.approx(us)
            assert reading.host_us == pytest.approx(host_us)
            assert not reading.exposed


def test_a_cold_call_comes_after_the_flush_and_a_warm_one_after_itself(
    gpu: SimulatedGpu, watch: CudaStopwatch
) -> None:
    def work(take: Callable[[], Reading]) -> list[str]:
        gpu.work.clear()
        take()
        return gpu.work

    call = gpu.kernel(3)
    assert work(lambda: watch.cold("a", call)) == [FLUSH, "sleep", "event", "kernel", "event"]
    assert work(lambda: watch.warm("a", call, 2)) == ["kernel", "sleep", "event", "kernel", "kernel", "event"]
    # As many lines are dirty before a cold call as it writes.
    for written, dirty in ((8000, 8000), (3 * L2, L2)):
        assert work(lambda written=written: watch.cold("a", call, written))[:2] == [FLUSH, f"write {dirty}"]  # type: ignore[misc]


def test_a_sample_is_over_when_what_comes_behind_it_is(gpu: SimulatedGpu, watch: CudaStopwatch) -> None:
    """As with the copy of an output for the judge: half a copy would look like missing work."""
    watch.behind = gpu.kernel(700.0)
    for take in (lambda: watch.cold("a", gpu.kernel(3)), lambda: watch.warm("a", gpu.kernel(3), 2)):
        assert take().gpu_us == pytest.approx(3)
        assert gpu.host_us >= gpu.free_us


@for_each("us, launches", itertools.product([1.0, 300.0, 20_000.0], [1, 20, 80]))
def test_hot_calls_never_wait_for_the_gpu(
    us: float, launches: int, gpu: SimulatedGpu, watch: CudaStopwatch
) -> None:
    """Whatever the GPU time, and however many kernels a call launches, up to 90."""

    def call() -> None:
        for _ in range(launches):
            gpu.launch("kernel", us)

    gpu.work.clear()
    reading = watch.hot(call, 1e6)
    assert gpu.waited_us == 0
    assert gpu.work.count("kernel") == launches * HOT_TOTAL
    assert reading.host_us == pytest.approx([launches * LAUNCH_US] * HOT_KEPT)
    assert HOT_KEPT * HOT_CALLS >= 200
    # What limits calls back to back is the slower of the two, here give or take the event's own launch.
    slower_us = launches * max(us, LAUNCH_US)
    assert reading.back_to_back_us == pytest.approx([slower_us] * HOT_KEPT, abs=1.0)


def test_the_first_fifth_of_the_hot_blocks_is_dropped(gpu: SimulatedGpu, watch: CudaStopwatch) -> None:
    calls = itertools.count()

    def call() -> None:
        gpu.launch("kernel", 3.0, host_us=90.0 if next(calls) < HOT_TOTAL / 5 else LAUNCH_US)

    assert watch.hot(call, 10.0).host_us == pytest.approx([LAUNCH_US] * HOT_KEPT)


def test_the_first_call_after_a_drain_is_not_hot(gpu: SimulatedGpu, watch: CudaStopwatch) -> None:
    calls = itertools.count()

    def call() -> None:
        gpu.launch("kernel", 3.0, host_us=90.0 if next(calls) % (1 + HOT_CALLS) == 0 else LAUNCH_US)

    assert watch.hot(call, 10.0).host_us == pytest.approx([LAUNCH_US] * HOT_KEPT)


@for_each("us, host_us, calls", [(10_000.0, 5.0, 56), (3.0, 200_000.0, 1), (3.0, 20_000.0, 23)])
def test_hot_calls_end_with_the_time(
    us: float, host_us: float, calls: int, gpu: SimulatedGpu, watch: CudaStopwatch
) -> None:
    """No block begins that the host would not finish in time, and what a caller would free is delivered."""
    behind: list[str] = []
    watch.behind = lambda: behind.append("copy")
    gpu.work.clear()
    reading = watch.hot(gpu.kernel(us, host_us), 0.5)
    assert len(reading.host_us) == len(reading.back_to_back_us) < HOT_KEPT
    assert gpu.work.count("kernel") == calls
    assert behind == ["copy"]
    assert gpu.host_us >= gpu.free_us


@for_each("idle_us", [5.0, 400.0])
def test_the_first_call_after_idle_is_told_apart(
    idle_us: float, gpu: SimulatedGpu, watch: CudaStopwatch
) -> None:
    def slow_at_first() -> Callable[[], None]:
        calls = itertools.count()
        return lambda: gpu.launch("kernel", 3.0, host_us=LAUNCH_US if next(calls) else idle_us)

    reading = watch.warm("a", slow_at_first(), 3)
    assert (reading.after_idle_us, reading.host_us) == pytest.approx((idle_us, LAUNCH_US))
    assert watch.cold("a", slow_at_first()).after_idle_us == 0


def test_one_that_waits_for_the_gpu_is_exposed_and_ends(gpu: SimulatedGpu, watch: CudaStopwatch) -> None:
    def waits() -> None:
        gpu.launch("kernel", 3.0)
        gpu.wait()

    assert watch.cold("a", waits).exposed
    assert not watch.cold("b", gpu.kernel(3)).exposed
    gpu.work.clear()
    assert watch.cold("a", waits).exposed
    assert gpu.work.count("kernel") == 1  # known by now: no more attempts


def test_a_hiccup_of_the_host_costs_a_retake_and_no_sample(gpu: SimulatedGpu, watch: CudaStopwatch) -> None:
    hiccups = iter([0.0, 3000.0] * 10)

    def call() -> None:
        gpu.launch("kernel", 3.0, host_us=LAUNCH_US + next(hiccups, 0.0))

    assert [watch.cold("a", call).gpu_us for _ in range(12)] == pytest.approx([3.0] * 12)
    assert next(hiccups, None) is None
    before_us = gpu.host_us
    assert not watch.cold("a", call).exposed
    assert gpu.host_us - before_us < 300  # the wait is as short as before


def test_a_first_call_is_timed_to_the_end_of_its_work(gpu: SimulatedGpu, watch: CudaStopwatch) -> None:
    gpu.launch("earlier work", 10_000)
    assert host_ms(gpu.kernel(2000, host_us=500), torch.device("cuda", 0)) == pytest.approx(2.5)
    assert watch.empty_us() == pytest.approx(0, abs=1e-6)


def test_the_l2_lets_go_of_what_a_kernel_asked_it_to_keep(
    gpu: SimulatedGpu, watch: CudaStopwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = stopwatch.driver
    answers = iter([driver.CUresult.CUDA_SUCCESS] * 2 + [driver.CUresult.CUDA_ERROR_NOT_SUPPORTED])

    def reset() -> tuple[object]:
        gpu.work.append("reset")
        return (next(answers),)

    monkeypatch.setattr(driver, "cuCtxResetPersistingL2Cache", reset)
    watch._keeps_l2 = True
    for _ in range(4):
        gpu.work.clear()
        watch.cold("a", gpu.kernel(3))
        assert gpu.work[:2] == ["reset", FLUSH] or next(answers, None) is None
    assert "reset" not in gpu.work  # a card that has no such lines is not asked again


@pytest.mark.gpu
def test_a_real_card_has_done_what_comes_behind_a_sample(card: torch.device) -> None:
    real = CudaStopwatch(card)
    behind = torch.cuda.Event()

    def later() -> None:
        torch.cuda._sleep(10_000_000)
        behind.record()

    real.behind = later
    for take in (lambda: real.cold("a", lambda: None), lambda: real.warm("a", lambda: None, 2)):
        take()
        assert behind.query()


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_no_trace(card: torch.device) -> None:
    """Its memory is freed, and random numbers can be drawn again."""
    real = CudaStopwatch(card)

    def waits() -> None:
        torch.ones(1 << 24, device="cuda").sum().item()

    waits()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            real.capture(waits)
        gc.collect()
        torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (1 << 25)
    assert torch.rand(4, device="cuda").unique().numel() == 4


@pytest.mark.gpu
def test_a_real_card_takes_the_reset(card: torch.device) -> None:
    real = CudaStopwatch(card)
    real.cold("a", lambda: None)
    assert real._keeps_l2 or torch.cuda.get_device_capability(card) < (8, 0)


def gpu_us(readings: Iterable[Reading]) -> float:
    return statistics.median(reading.gpu_us for reading in readings)


def addition(card: torch.device, size: int) -> Call:
    x, y = (torch.randn(size, device=card) for _ in range(2))
    return partial(torch.add, x, y)


def ratio(watch: CudaStopwatch, call: Call, other: Call) -> float:
    """Cold time of ``other`` over that of ``call``, from pairs of samples in alternating order."""
    calls = {"call": call, "other": other}
    ratios = []
    for number in range(101):
        order = ("call", "other") if number % 2 else ("other", "call")
        us = {name: watch.cold(name, calls[name]).gpu_us for name in order}
        ratios.append(us["other"] / us["call"])
    return statistics.median(ratios)


@pytest.mark.gpu
@pytest.mark.alone
@for_each("size", [1 << 24, 1 << 26, 1 << 28])
def test_a_copy_takes_as_long_as_by_tritons_own_timer(size: int, card: torch.device) -> None:
    """Large copies: Triton's timer, without a wait after the flush, reads 1 us more on short ones."""
    source = torch.randn(size, device=card)
    target = torch.empty_like(source)
    copy = partial(target.copy_, source)
    watch = CudaStopwatch(card)
    copy()
    ours = gpu_us(watch.cold("copy", copy, 4 * size) for _ in range(50))
    theirs = 1e3 * do_bench(copy, return_mode="median")
    assert ours == pytest.approx(theirs, rel=0.05, abs=1.0)


@pytest.mark.gpu
@pytest.mark.alone
@for_each("size", [1 << 20, 1 << 24, 1 << 27])
def test_a_call_beside_itself_takes_as_long(size: int, card: torch.device) -> None:
    """Within a percent, or 0.3 us: a name's learnt wait moves a short call's time."""
    watch, add = CudaStopwatch(card), addition(card, size)
    us = gpu_us(watch.cold("add", add) for _ in range(50))
    assert ratio(watch, add, add) == pytest.approx(1, abs=max(0.01, 0.3 / us))


@pytest.mark.gpu
@pytest.mark.alone
def test_cold_is_slower_than_warm_where_the_data_fit_the_l2(card: torch.device) -> None:
    l2 = torch.cuda.get_device_properties(card).L2_cache_size
    add, watch = addition(card, l2 // 4 // 12), CudaStopwatch(card)  # inputs and output fill a quarter
    cold = gpu_us(watch.cold("a", add) for _ in range(50))
    assert cold > 1.2 * gpu_us(watch.warm("a", add, 5) for _ in range(50))


@pytest.mark.gpu
@pytest.mark.alone
@for_each("size", [1 << 12, 1 << 26])
def test_launch_overhead_is_that_of_a_plain_loop(size: int, card: torch.device) -> None:
    """Of 50 calls behind one another on an idle GPU, whatever the size."""
    add, watch = addition(card, size), CudaStopwatch(card)
    plain: list[float] = []
    for _ in range(21):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(50):
            add()
        plain.append((time.perf_counter_ns() - begin) / 50e3)
    hot = [statistics.median(watch.hot(add, 10.0).host_us) for _ in range(3)]
    assert min(hot) == pytest.approx(statistics.median(plain), rel=0.2)


@pytest.mark.gpu
@pytest.mark.alone
def test_a_slow_host_is_not_timed_as_the_kernel(card: torch.device) -> None:
    add, watch = addition(card, 1024), CudaStopwatch(card)

    def slow() -> None:
        until = time.perf_counter() + 300e-6
        while time.perf_counter() < until:
            pass
        add()

    alone = gpu_us(watch.cold("add", add) for _ in range(50))
    assert alone < 15
    assert gpu_us(watch.cold("slow", slow) for _ in range(50)) == pytest.approx(alone, abs=1.0)
    warm = [watch.warm("slow", slow, 2) for _ in range(50)]
    assert gpu_us(warm) < 15
    assert statistics.median(reading.host_us for reading in warm) > 300
