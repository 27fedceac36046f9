"""Timing: the rounds over a clock of our own making; on a GPU, the clock itself."""

from __future__ import annotations

import contextlib
import gc
import statistics
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from compare import registry
from compare.spec import Case, Implementation, Op, Timing, case
from compare.timing import ceilings, measure
from compare.timing.measure import Interrupted
from compare.timing.rounds import Contest, Plan, reference
from compare.timing.stopwatch import CudaStopwatch
from fake_clock import QUICK, World, contest, timing

# --------------------------------------------------------------------------- the rule to stop by


def test_it_stops_once_the_ratio_is_known_to_one_percent() -> None:
    rounds = {}
    for noise in (0.001, 0.02, 0.05):
        world = World()
        held = contest(
            world,
            world.implementation("torch.eager", 100, noise=noise),
            world.implementation("triton.fast", 50, noise=noise),
        )
        held.run(budget_s=60)
        (ratio,) = timing(held, "triton.fast").ratios
        assert held.converged
        assert ratio.against == "torch.eager"
        assert ratio.value.high <= 1.01 * ratio.value.median
        assert ratio.value.low >= 0.99 * ratio.value.median
        assert ratio.value.median == pytest.approx(2, rel=0.02)
        rounds[noise] = timing(held, "triton.fast").rounds
    assert rounds[0.001] == Plan.min_rounds < rounds[0.02] < rounds[0.05]


def test_it_ends_with_the_budget_and_says_so() -> None:
    world = World()
    held = contest(
        world,
        world.implementation("torch.eager", 1000, noise=0.5),
        world.implementation("triton.slow", 1000, noise=0.5),
    )
    held.run(budget_s=0.5)
    assert 0.5 <= world.seconds < 0.6
    assert not timing(held, "triton.slow").converged


def test_it_ends_after_so_many_rounds() -> None:
    world = World()
    held = contest(world, world.implementation("torch.eager", 1, noise=1.0))
    held.run(budget_s=1e9)
    assert timing(held, "torch.eager").rounds == Plan.max_rounds


def test_short_rounds_are_spread_over_time() -> None:
    world = World()
    pair = world.implementation("torch.eager", 5), world.implementation("triton.same", 5)
    contest(world, *pair, plan=Plan(warm_up_s=0.1, min_s=0.5, max_rounds=10_000)).run(budget_s=60)
    assert world.seconds >= 0.5
    assert {world.repeats["torch.eager"], world.repeats["triton.same"]} == {20}


def test_long_calls_are_not_repeated_within_a_sample() -> None:
    world = World()
    contest(world, world.implementation("torch.eager", 5000)).run(budget_s=10)
    assert world.repeats["torch.eager"] == 1


def test_calls_that_are_slow_to_launch_are_repeated_less() -> None:
    world = World()
    world.host_us = 100.0
    contest(world, world.implementation("torch.eager", 5)).run(budget_s=10)
    assert world.repeats["torch.eager"] == 5


def test_a_single_implementation_converges_on_its_own_time() -> None:
    world = World()
    held = contest(world, world.implementation("torch.eager", 100, noise=0.03))
    held.run(budget_s=60)
    cold = timing(held, "torch.eager").cold_us
    assert held.converged
    assert cold is not None
    assert cold.high <= 1.01 * cold.median


# --------------------------------------------------------------------------- interleaving


def test_who_is_slow_sits_out_rounds_for_the_others() -> None:
    """As a naive product does, that takes a thousand times as long."""
    world = World()
    quick = [world.implementation(f"triton.q{i}", 100.0, noise=0.01) for i in range(8)]
    slow = world.implementation("cupy.naive", 300_000.0, rung="naive")
    held = contest(world, world.implementation("torch.eager", 100.0), *quick, slow)
    held.run(5.0)
    found = timing(held, "cupy.naive")
    assert found.cold_us
    assert found.rounds == len(found.cold_us.samples) == 1
    assert f"timed in 1 of {len(held.rounds)} rounds: they took all of its share of the time" in found.notes
    assert [ratio.against for ratio in found.ratios] == ["torch.eager"]
    assert held.converged
    for impl in quick:
        assert timing(held, impl.label).rounds == len(held.rounds) >= QUICK.min_rounds


def test_a_slow_baseline_is_in_every_round() -> None:
    world = World()
    quick = [world.implementation(f"triton.q{i}", 100.0, noise=0.01) for i in range(8)]
    held = contest(world, world.implementation("torch.eager", 300_000.0), *quick)
    held.run(9.0)
    assert timing(held, "torch.eager").rounds == timing(held, "triton.q3").rounds == len(held.rounds)


def test_two_share_all_of_the_time() -> None:
    world = World()
    slow = world.implementation("cupy.naive", 300_000.0, noise=0.1)
    held = contest(world, world.implementation("torch.eager", 100.0), slow)
    held.run(5.0)
    assert 4.0 < world.seconds < 6.0
    assert timing(held, "cupy.naive").rounds >= 5


def test_every_round_has_an_order_of_its_own() -> None:
    world = World()
    labels = ["torch.eager", "torch.compile", "triton.a", "cupy.a", "pybind.a"]
    impls = [world.implementation(label, 100, noise=0.05) for label in labels]
    contest(world, *impls).run(budget_s=60)
    order = world.order()
    assert all(sorted(names) == sorted(labels) for names in order)
    assert len(set(order)) > 20
    for place in range(len(labels)):
        count = Counter(names[place] for names in order)
        assert min(count.values()) > 0.5 * len(order) / len(labels)  # nobody is always first


def test_the_seed_decides_the_order() -> None:
    def order(seed: int) -> list[tuple[str, ...]]:
        world = World()
        impls = [world.implementation(f"triton.{name}", 100, noise=0.05) for name in "abcd"]
        contest(world, *impls, seed=seed).run(budget_s=0.2)
        return world.order()

    assert order(1) == order(1)
    assert order(1)[:5] != order(2)[:5]


def test_a_drift_of_the_clocks_moves_no_ratio() -> None:
    world = World()
    world.drift = lambda seconds: 1 + 2 * seconds  # the card slows down all the while
    held = contest(
        world,
        world.implementation("torch.eager", 100, noise=0.01),
        world.implementation("triton.fast", 80, noise=0.01),
        plan=Plan(warm_up_s=0.0, min_s=0.3),
    )
    held.run(budget_s=60)
    found = timing(held, "triton.fast")
    assert found.cold_us is not None
    assert max(found.cold_us.samples) > 1.3 * min(found.cold_us.samples)
    assert found.ratios[0].value.median == pytest.approx(1.25, rel=0.01)


def test_an_implementation_against_itself_is_no_faster() -> None:
    apart = 0
    for seed in range(200):
        world = World(seed)
        held = contest(
            world,
            world.implementation("torch.eager", 100, noise=0.01),
            world.implementation("torch.again", 100, noise=0.01),
            seed=seed,
        )
        held.run(budget_s=60)
        value = timing(held, "torch.again").ratios[0].value
        apart += not value.low <= 1 <= value.high
    assert apart <= 20


def test_inputs_rotate() -> None:
    seen: list[int] = []

    def run(which: int) -> None:
        seen.append(which)

    world = World()
    impl = Implementation("op", "torch.eager", "vendor", run)  # type: ignore[arg-type]
    Contest("torch.eager", [impl], [(0,), (1,), (2,)], world, QUICK).run(budget_s=0.01)
    assert set(seen) == {0, 1, 2}
    assert abs(seen.count(1) - seen.count(2)) <= 3  # the graph and the warm-up are of the first alone


# --------------------------------------------------------------------------- results


def test_every_kind_of_time_is_named() -> None:
    world = World()
    held = contest(world, world.implementation("torch.eager", 100), first_calls_ms={"torch.eager": 321.0})
    held.run(budget_s=1)
    found = timing(held, "torch.eager")
    assert found.cold_us is not None
    assert found.warm_us is not None
    assert found.graph_us is not None
    assert found.launch_us is not None
    assert found.first_call_ms == 321.0
    medians = [e.median for e in (found.cold_us, found.warm_us, found.graph_us, found.launch_us)]
    assert medians == [100, 50, 50, 7]
    assert len(found.cold_us.samples) == found.rounds == Plan.min_rounds


def test_the_first_call_is_timed_where_it_was_not_before() -> None:
    def act(count: int) -> None:
        if count == 1:
            world.seconds += 1

    world = World()
    held = contest(world, world.implementation("torch.eager", 100, act=act))
    held.run(budget_s=1)
    assert timing(held, "torch.eager").first_call_ms == pytest.approx(0.1)


def test_outliers_are_kept_and_flagged() -> None:
    world = World()
    slow = iter([False] * 8 + [True] + [False] * 10_000)
    world.drift = lambda seconds: 50.0 if next(slow) else 1.0
    held = contest(world, world.implementation("torch.eager", 100))
    held.run(budget_s=1)
    found = timing(held, "torch.eager")
    everything = [e.samples for e in (found.cold_us, found.warm_us, found.graph_us) if e]
    assert sum(sample > 1000 for samples in everything for sample in samples) == 1
    assert found.cold_us is not None
    if max(found.cold_us.samples) > 1000:
        assert any("1 of 10 cold samples are outliers (kept)" in note for note in found.notes)


def test_what_distorts_a_time_is_noted() -> None:
    world = World()
    world.event_us, world.waiting = 1.0, {"torch.item"}
    held = contest(world, world.implementation("torch.eager", 2), world.implementation("torch.item", 100))
    held.run(budget_s=1)
    assert any("empty pair of events reads 1.0 us" in note for note in timing(held, "torch.eager").notes)
    assert any("hold host time" in note for note in timing(held, "torch.item").notes)
    assert len(timing(held, "torch.item").notes) == 1


@pytest.mark.parametrize(
    ("other", "note"),
    [
        ({"accumulator": "fp16"}, "computed in fp16 against fp32"),
        ({"output": torch.empty(0, dtype=torch.float16)}, "output in torch.float16 against torch.float32"),
    ],
)
def test_unequal_terms_give_a_note_and_no_ratio(other: dict[str, Any], note: str) -> None:
    world = World()
    single = torch.empty(0, dtype=torch.float32)
    held = contest(
        world,
        world.implementation("torch.eager", 100, output=single),
        world.implementation("triton.cheat", 50, **{"output": single, **other}),
    )
    held.run(budget_s=1)
    found = timing(held, "triton.cheat")
    assert found.ratios == ()
    assert any(note in text for text in found.notes)


def test_a_missing_baseline_is_said() -> None:
    world = World()
    held = Contest("torch.eager", [world.implementation("triton.a", 10)], [()], world, QUICK)
    held.run(budget_s=1)
    assert timing(held, "triton.a").notes == ("no ratio to torch.eager: it was not timed",)


def test_references() -> None:
    world = World()

    def impl(label: str, rung: str) -> Implementation:
        return world.implementation(label, 1, rung=rung)

    impls = [
        impl("torch.naive", "naive"),
        impl("torch.eager", "vendor"),
        impl("torch.compile", "vendor"),
        impl("triton.onepass", "tiled"),
        impl("triton.online", "tiled"),
        impl("cupy.scalar", "naive"),
        impl("cupy.online", "tiled"),
        impl("cupy.vectorized", "tiled"),
        impl("cupy.cluster", "hopper"),
    ]
    assert {i.label: reference(i.label, impls) for i in impls} == {
        "torch.naive": None,
        "torch.eager": None,
        "torch.compile": "torch.eager",
        "triton.onepass": None,
        "triton.online": None,
        "cupy.scalar": "torch.naive",
        "cupy.online": "triton.online",
        "cupy.vectorized": "triton.onepass",
        "cupy.cluster": None,
    }


def test_a_ratio_to_the_rung_stands_beside_the_one_to_the_baseline() -> None:
    world = World()
    held = contest(
        world,
        world.implementation("torch.eager", 100),
        world.implementation("triton.online", 50, rung="tiled"),
        world.implementation("cupy.online", 40, rung="tiled"),
    )
    held.run(budget_s=1)
    ratios = {ratio.against: ratio.value.median for ratio in timing(held, "cupy.online").ratios}
    assert ratios == {"torch.eager": 2.5, "triton.online": 1.25}
    assert timing(held, "torch.eager").ratios == ()


def test_times_of_nothing_give_no_ratio_and_no_crash() -> None:
    world = World()
    held = contest(world, world.implementation("torch.eager", 0), world.implementation("triton.a", 0))
    held.run(budget_s=0.1)
    assert timing(held, "triton.a").ratios == ()


# --------------------------------------------------------------------------- containment


def fail_at(number: int, error: BaseException) -> Callable[[int], None]:
    def act(count: int) -> None:
        if count == number:
            raise error

    return act


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("error", [ValueError("broken"), torch.cuda.OutOfMemoryError("40 GB"), SystemExit(3)])
def test_one_that_raises_is_its_own_affair(number: int, error: BaseException) -> None:
    world = World()
    held = contest(
        world,
        world.implementation("torch.eager", 100, noise=0.01),
        world.implementation("triton.broken", 50, act=fail_at(number, error)),
        world.implementation("triton.right", 50, noise=0.01),
    )
    held.run(budget_s=60)
    results = held.results()
    assert list(results) == ["torch.eager", "triton.broken", "triton.right"]
    broken = results["triton.broken"]
    assert broken is error or (isinstance(broken, RuntimeError) and "exit(3)" in str(broken))
    assert timing(held, "triton.right").ratios[0].value.median == pytest.approx(2, rel=0.02)
    assert held.converged


def test_a_failing_baseline_leaves_the_others_their_times() -> None:
    world = World()
    held = contest(
        world,
        world.implementation("torch.eager", 100, act=fail_at(8, ValueError("broken"))),
        world.implementation("triton.a", 50),
    )
    held.run(budget_s=1)
    found = timing(held, "triton.a")
    assert found.ratios == ()
    assert "no ratio to torch.eager: it failed (ValueError: broken)" in found.notes
    assert found.rounds >= Plan.min_rounds


def test_what_a_failed_call_held_is_let_go() -> None:
    class Block:
        pass

    held_by: list[weakref.ref[Block]] = []

    def act(count: int) -> None:
        block = Block()
        held_by.append(weakref.ref(block))
        try:
            raise KeyError(block)
        except KeyError as error:
            error.args = ()
            raise MemoryError("out") from error

    world = World()
    failing = contest(world, world.implementation("torch.eager", 1, act=act))
    failing.run(budget_s=1)
    gc.collect()
    assert isinstance(failing.results()["torch.eager"], MemoryError)
    assert [reference() for reference in held_by] == [None]


def test_no_graph_is_a_note() -> None:
    world = World()

    def capture(call: Callable[[], object]) -> Callable[[], object]:
        raise RuntimeError("operation not permitted when stream is capturing\nand more lines")

    world.capture = capture  # type: ignore[method-assign]
    held = contest(world, world.implementation("torch.eager", 100))
    held.run(budget_s=1)
    found = timing(held, "torch.eager")
    assert found.graph_us is None
    assert found.notes == ("no CUDA graph: RuntimeError: operation not permitted when stream is capturing",)


def test_a_lost_gpu_costs_no_sample_taken_before() -> None:
    world = World()

    def act(count: int) -> None:
        if count == 9:
            world.lost = True

    held = contest(
        world,
        world.implementation("torch.eager", 100, noise=0.1),
        world.implementation("triton.wild", 100, noise=0.1, act=act),
    )
    held.run(budget_s=60)
    assert "illegal memory access" in str(held.results()["triton.wild"])
    found = timing(held, "torch.eager")
    assert 0 < found.rounds < Plan.min_rounds
    assert not found.converged
    assert any("triton.wild left the GPU unusable" in note for note in found.notes)


def test_a_gpu_lost_at_the_start_is_an_error_of_all() -> None:
    world = World()

    def act(count: int) -> None:
        world.lost = True

    held = contest(
        world, world.implementation("torch.eager", 100), world.implementation("triton.wild", 1, act=act)
    )
    held.run(budget_s=60)
    assert "triton.wild left the GPU unusable" in str(held.results()["torch.eager"])


def test_progress_is_told_after_every_round() -> None:
    world = World()
    told: list[float] = []
    held = contest(world, world.implementation("torch.eager", 1000, noise=0.5))
    held.run(0.5, told.append)
    assert len(told) == timing(held, "torch.eager").rounds
    assert told == sorted(told)
    assert told[-1] == 1.0


# --------------------------------------------------------------------------- measure(), without a GPU


@pytest.fixture
def world_as_gpu(monkeypatch: pytest.MonkeyPatch) -> World:
    """`measure` on the CPU, with a world's clock for the GPU's."""
    world = World()
    monkeypatch.setattr(measure, "CudaStopwatch", lambda device: world)
    monkeypatch.setattr(measure, "l2_bytes", lambda device: 1 << 20)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return world


CPU = torch.device("cpu")


def vector_add() -> Op:
    return registry.get_op("vector_add")


def test_ctrl_c_keeps_every_whole_round(world_as_gpu: World) -> None:
    impls = [
        world_as_gpu.implementation("torch.eager", 100, noise=0.2),
        world_as_gpu.implementation("triton.a", 100, noise=0.2, act=fail_at(50, KeyboardInterrupt())),
    ]
    with pytest.raises(Interrupted) as caught:
        measure.measure(vector_add(), impls, case(N=64), CPU, seed=0, budget_s=60, plan=QUICK)
    partial = caught.value.partial
    rounds = {label: found.rounds for label, found in partial.items() if isinstance(found, Timing)}
    assert set(rounds) == {"torch.eager", "triton.a"}
    assert rounds["torch.eager"] == rounds["triton.a"] > 0
    assert gc.isenabled()
    assert isinstance(caught.value, KeyboardInterrupt)  # who does not know it treats it as any Ctrl-C


def test_ctrl_c_before_the_first_round_keeps_first_calls(world_as_gpu: World) -> None:
    impls = [
        world_as_gpu.implementation("torch.eager", 100),
        world_as_gpu.implementation("triton.a", 100, act=fail_at(1, KeyboardInterrupt())),
    ]
    with pytest.raises(Interrupted) as caught:
        measure.measure(vector_add(), impls, case(N=64), CPU, seed=0, budget_s=60, plan=QUICK)
    ((label, found),) = caught.value.partial.items()
    assert label == "torch.eager"
    assert isinstance(found, Timing)
    assert found.first_call_ms is not None
    assert found.cold_us is None


def test_inputs_that_do_not_fit_are_an_error_of_all(
    world_as_gpu: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(measure, "input_sets", full)
    impls = [world_as_gpu.implementation("torch.eager", 1), world_as_gpu.implementation("triton.a", 1)]
    found = measure.measure(vector_add(), impls, case(N=64), CPU, seed=0, budget_s=1)
    assert list(found) == ["torch.eager", "triton.a"]
    assert all(isinstance(error, torch.cuda.OutOfMemoryError) for error in found.values())


@pytest.mark.parametrize(
    ("size", "sets"), [(0, 8), (64, 8), (1 << 15, 8), (1 << 16, 4), (1 << 18, 1), (1 << 20, 1)]
)
def test_inputs_exceed_the_l2_and_are_fresh(world_as_gpu: World, size: int, sets: int) -> None:
    found = measure.input_sets(vector_add(), case(N=size), CPU, seed=0)  # two inputs of 4 bytes an element
    assert len(found) == sets
    tensors = [tensor for tensors in found for tensor in tensors]
    assert all(torch.count_nonzero(tensor) >= 0.99 * size for tensor in tensors)
    if size > 8:
        assert not any(torch.equal(tensors[0], other) for other in tensors[1:])


# --------------------------------------------------------------------------- ceilings


def test_ceilings_are_of_the_fastest_sample_and_of_the_fastest_read() -> None:
    """Where a card has been at something else for most of a short run, too."""
    world = World()
    calls = {
        label: world.implementation(label, us, noise=0.001).run
        for label, us in {"copy": 700.0, "slow": 500.0, "fast": 350.0}.items()
    }
    world.drift = lambda seconds: 1.16 if len(world.log) < 30 else 1.0
    meter = ceilings.CeilingMeter(world, calls.pop("copy"), calls, 1 << 30)
    assert meter.read_by == "fast"
    for _ in range(20):
        meter.sample()
    found = meter.ceilings()
    assert found.copy_gbs == pytest.approx(2 * (1 << 30) / 700e-6 / 1e9, rel=0.01)
    assert found.read_gbs == pytest.approx((1 << 30) / 350e-6 / 1e9, rel=0.01)


def test_products_of_two_dtypes_are_two_ceilings() -> None:
    world = World()
    labels = {"copy": 700.0, "read": 350.0, "fp16": 200.0, "own": 400.0}
    calls = {label: world.implementation(label, us, noise=0.01).run for label, us in labels.items()}
    read = {"sum": calls["read"]}
    meter = ceilings.CeilingMeter(
        world, calls["copy"], read, 1 << 30, calls["fp16"], own_product=calls["own"]
    )
    of_fp16_alone = ceilings.CeilingMeter(world, calls["copy"], read, 1 << 30, calls["fp16"])
    neither = ceilings.CeilingMeter(world, calls["copy"], read, 1 << 30)
    for each in (meter, of_fp16_alone, neither):
        for _ in range(5):
            each.sample()
    flops = 2 * ceilings.PRODUCT**3
    warm = 0.5  # of cold, in this world
    assert meter.ceilings().matmul_tflops == pytest.approx(flops / 200e-6 / warm / 1e12, rel=0.05)
    assert meter.ceilings().product_tflops == pytest.approx(flops / 400e-6 / warm / 1e12, rel=0.05)
    own = of_fp16_alone.ceilings().product_tflops
    assert own == pytest.approx(flops / 200e-6 / warm / 1e12, rel=0.05)
    assert neither.ceilings().product_tflops is None


def test_ceilings_are_sampled_in_every_round() -> None:
    world = World()
    copy, read = (world.implementation(label, 100).run for label in ("copy", "read"))
    meter = ceilings.CeilingMeter(world, copy, {"sum": read}, 1 << 20)
    world.log.clear()
    held = contest(world, world.implementation("torch.eager", 100), ceilings=meter)
    held.run(budget_s=1)
    warm_up = 1
    assert world.log.count(("cold", "copy")) == timing(held, "torch.eager").rounds + warm_up


# --------------------------------------------------------------------------- on a GPU


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def torch_op(size: int = 1 << 24) -> tuple[Op, Case]:
    return vector_add(), case(N=size)


def gpu_implementation(label: str, run: Callable[..., torch.Tensor]) -> Implementation:
    return Implementation("vector_add", label, "vendor", run)


def slept(us: float) -> Callable[..., torch.Tensor]:
    """torch's addition, launched by a host that first does something else for that long."""
    import time

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        until = time.perf_counter() + us / 1e6
        while time.perf_counter() < until:
            pass
        return torch.add(x, y)

    return run


def cold_us(found: object) -> float:
    assert isinstance(found, Timing), found
    assert found.cold_us is not None
    return found.cold_us.median


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("size", [1 << 24, 1 << 26, 1 << 28])
def test_a_copy_takes_as_long_as_by_tritons_own_timer(gpu: torch.device, size: int) -> None:
    """Of shorter ones Triton's reads a microsecond more, which does not wait between flush and call."""
    from triton.testing import do_bench

    source = torch.randn(size, device=gpu)
    target = torch.empty_like(source)
    copy = partial(target.copy_, source)
    watch = CudaStopwatch(gpu)
    copy()
    ours = statistics.median(watch.cold("copy", copy).gpu_us for _ in range(50))
    theirs = 1e3 * do_bench(copy, return_mode="median")
    assert ours == pytest.approx(theirs, rel=0.05, abs=1.0)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("size", [1 << 20, 1 << 24, 1 << 27])
def test_an_implementation_against_itself_is_within_one_percent(gpu: torch.device, size: int) -> None:
    op, sized = torch_op(size)
    impls = [gpu_implementation("torch.eager", torch.add), gpu_implementation("torch.again", torch.add)]
    found = measure.measure(op, impls, sized, gpu, seed=0, budget_s=3)["torch.again"]
    assert isinstance(found, Timing)
    assert found.ratios[0].value.median == pytest.approx(1, abs=0.01)


@pytest.mark.gpu
@pytest.mark.alone
def test_a_repeated_run_gives_the_same_ratio(gpu: torch.device) -> None:
    op, sized = torch_op()
    impls = [
        gpu_implementation("torch.eager", torch.add),
        gpu_implementation("torch.twice", lambda x, y: torch.add(torch.add(x, y), y)),
    ]
    ratios = []
    for seed in (0, 1):
        found = measure.measure(op, impls, sized, gpu, seed=seed, budget_s=3)["torch.twice"]
        assert isinstance(found, Timing)
        ratios.append(found.ratios[0].value.median)
    assert ratios[0] == pytest.approx(ratios[1], rel=0.02)


@pytest.mark.gpu
@pytest.mark.alone
def test_cold_is_slower_than_warm_where_the_data_fit_the_l2(gpu: torch.device) -> None:
    l2 = torch.cuda.get_device_properties(gpu).L2_cache_size
    op, sized = torch_op(l2 // 4 // 12)  # inputs and output take a quarter of it
    found = measure.measure(
        op, [gpu_implementation("torch.eager", torch.add)], sized, gpu, seed=0, budget_s=2
    )["torch.eager"]
    assert isinstance(found, Timing)
    assert found.warm_us is not None
    assert cold_us(found) > 1.2 * found.warm_us.median


@pytest.mark.gpu
@pytest.mark.alone
def test_a_slow_host_is_not_timed_as_the_kernel(gpu: torch.device) -> None:
    op, sized = torch_op(1024)
    impls = [gpu_implementation("torch.eager", torch.add), gpu_implementation("torch.slow", slept(300))]
    found = measure.measure(op, impls, sized, gpu, seed=0, budget_s=3)
    assert cold_us(found["torch.eager"]) < 15
    slow = found["torch.slow"]
    assert isinstance(slow, Timing)
    assert cold_us(slow) == pytest.approx(cold_us(found["torch.eager"]), abs=1.0)
    assert slow.launch_us is not None
    assert slow.launch_us.median > 300
    assert slow.warm_us is not None
    assert slow.warm_us.median < 15


@pytest.mark.gpu
@pytest.mark.alone
def test_the_first_call_holds_what_only_it_does(gpu: torch.device) -> None:
    op, sized = torch_op(1024)
    impl = gpu_implementation("torch.slow", slept(20_000))
    (inputs,) = measure.input_sets(op, sized, gpu, seed=0)[:1]
    assert 20 <= measure.first_call_ms(impl, inputs, gpu) < 60


@pytest.mark.gpu
@pytest.mark.alone
def test_one_that_waits_for_the_gpu_is_flagged(gpu: torch.device) -> None:
    def waits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.add(x, y)
        z[0].item()
        return z

    op, sized = torch_op(1024)
    impls = [gpu_implementation("torch.eager", torch.add), gpu_implementation("torch.item", waits)]
    found = measure.measure(op, impls, sized, gpu, seed=0, budget_s=3)
    item, eager = found["torch.item"], found["torch.eager"]
    assert isinstance(item, Timing)
    assert isinstance(eager, Timing)
    assert any("hold host time" in note for note in item.notes)
    assert any("no CUDA graph" in note for note in item.notes)
    assert item.graph_us is None
    assert eager.graph_us is not None
    assert not any("waits" in note for note in eager.notes)


@pytest.mark.gpu
@pytest.mark.alone
def test_out_of_memory_in_one_leaves_the_others_theirs(gpu: torch.device) -> None:
    def greedy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.empty(1 << 50, device=x.device)

    op, sized = torch_op(1024)
    impls = [gpu_implementation("torch.eager", torch.add), gpu_implementation("torch.greedy", greedy)]
    found = measure.measure(op, impls, sized, gpu, seed=0, budget_s=1)
    assert isinstance(found["torch.greedy"], torch.cuda.OutOfMemoryError)
    assert cold_us(found["torch.eager"]) > 0


@pytest.mark.gpu
@pytest.mark.alone
def test_an_illegal_access_is_an_error_and_no_crash() -> None:
    script = """
import torch
from compare import measure, registry
from compare.spec import Implementation, case

def wild(x, y):
    return x[torch.full((1 << 16,), 1 << 40, device=x.device)]

impls = [Implementation("vector_add", "torch.eager", "vendor", torch.add),
         Implementation("vector_add", "torch.wild", "vendor", wild)]
found = measure.measure(registry.get_op("vector_add"), impls, case(N=1024), torch.device("cuda", 0),
                        seed=0, budget_s=1)
print({label: type(value).__name__ for label, value in found.items()})
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=registry.ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "'torch.wild': '" in run.stdout
    assert "'torch.wild': 'Timing'" not in run.stdout


@pytest.mark.gpu
@pytest.mark.alone
def test_the_ceilings_of_this_card_are_of_one_size(gpu: torch.device) -> None:
    first, second = ceilings.measure_ceilings(gpu), ceilings.measure_ceilings(gpu)
    assert first.copy_gbs == pytest.approx(second.copy_gbs, rel=0.02)
    assert first.read_gbs == pytest.approx(second.read_gbs, rel=0.02)
    assert 0.9 < first.read_gbs / first.copy_gbs < 1.5
