"""Rounds over a fake clock: the order of samples, when they stop, and what follows from them."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from compare.model.result import Timing
from compare.timing.rounds import Plan, Rounds, reference
from compare.timing.stopwatch import HOT_CALLS
from fake_clock import QUICK, Fake, World, rounds_of, timing
from loops import for_each


def ran(world: World, *fakes: Fake, budget_s: float = 1.0, **options: Any) -> Rounds:
    rounds = rounds_of(world, *fakes, **options)
    rounds.run(budget_s)
    return rounds


def eager(world: World, us: float = 100, **options: Any) -> Fake:
    return world.implementation("torch.eager", us, **options)


def samples(found: Timing) -> list[int]:
    """The number of cold, warm, graph and after-idle samples."""
    each = found.cold_us, found.warm_us, found.graph_us, found.after_idle_us
    return [len(times.samples) if times else 0 for times in each]


# --------------------------------------------------------------------------- the rule to stop by


def test_it_stops_once_the_ratio_is_known_to_one_percent() -> None:
    counts = {}
    for noise in (0.001, 0.02, 0.05):
        world = World()
        fast = world.implementation("triton.fast", 50, noise=noise)
        rounds = ran(world, eager(world, noise=noise), fast, budget_s=60)
        (ratio,) = timing(rounds, "triton.fast").ratios
        assert rounds.converged
        assert ratio.against == "torch.eager"
        assert ratio.value.high <= 1.01 * ratio.value.median
        assert ratio.value.low >= 0.99 * ratio.value.median
        assert ratio.value.median == pytest.approx(2, rel=0.02)
        counts[noise] = timing(rounds, "triton.fast").rounds
    assert counts[0.001] == Plan.min_rounds < counts[0.02] < counts[0.05]


def test_a_single_implementation_converges_on_its_own_time() -> None:
    rounds = ran(world := World(), eager(world, noise=0.03), budget_s=60)
    cold = timing(rounds, "torch.eager").cold_us
    assert rounds.converged
    assert cold.high <= 1.01 * cold.median


def test_it_ends_with_the_budget_and_says_so() -> None:
    world = World()
    slow = world.implementation("triton.slow", 1000, noise=0.5)
    rounds = ran(world, eager(world, 1000, noise=0.5), slow, budget_s=0.5)
    assert 0.5 <= world.seconds < 0.6
    assert not timing(rounds, "triton.slow").converged


def test_it_ends_after_so_many_rounds_of_which_the_first_alone_sample_more_than_cold_times() -> None:
    world = World()
    found = timing(ran(world, eager(world, 1, noise=1.0), budget_s=1e9), "torch.eager")
    assert samples(found) == [Plan.max_rounds, *[Plan.warm_rounds] * 3]


def test_short_rounds_are_spread_over_time() -> None:
    world = World()
    plan = Plan(warm_up_s=0.1, min_s=0.5, max_rounds=10_000)
    ran(world, eager(world, 5), world.implementation("triton.same", 5), plan=plan, budget_s=60)
    assert world.seconds >= 0.5


@for_each("us, host_us, repeats", [(5, 7.0, 20), (5000, 7.0, 1), (5, 100.0, 5)])
def test_calls_that_are_long_or_slow_to_launch_are_repeated_less(
    us: float, host_us: float, repeats: int
) -> None:
    world = World()
    world.host_us = host_us
    ran(world, eager(world, us), budget_s=10)
    assert world.repeats["warm", "torch.eager"][-1] == repeats


# --------------------------------------------------------------------------- interleaving


def test_a_slow_row_sits_out_rounds_for_the_others() -> None:
    """As a naive matmul that takes a thousand times as long."""
    world = World()
    quick = [world.implementation(f"triton.q{i}", 100.0, noise=0.01) for i in range(8)]
    slow = world.implementation("cupy.naive", 300_000.0, level="naive")
    rounds = ran(world, eager(world), *quick, slow, budget_s=5.0)
    found = timing(rounds, "cupy.naive")
    assert samples(found) == [Plan.min_slow, 1, 0, 1]
    said = f"timed in {Plan.min_slow} of {rounds.count} rounds: these used its share of the time"
    assert said in found.notes
    assert [ratio.against for ratio in found.ratios] == ["torch.eager"]
    assert rounds.converged
    for fake in quick:
        assert timing(rounds, fake.label).rounds == rounds.count >= QUICK.min_rounds


@for_each("us, first_ms", [(100.0, (50.0, 0.1)), (7_000.0, (12.0, 12.0))])
def test_a_first_call_that_is_slow_makes_no_row_slow(us: float, first_ms: tuple[float, ...]) -> None:
    world, calls = World(), iter(first_ms)
    fake = eager(world, us)
    fake.first = lambda: next(calls)  # type: ignore[method-assign]
    found = timing(ran(world, fake, budget_s=1e-6), "torch.eager")
    assert found.first_call_ms == first_ms[0]
    assert samples(found)[:2] == [Plan.min_rounds] * 2


@for_each("least, slow", [(10, 3), (30, 5)])
def test_no_row_starves_whatever_the_budget(least: int, slow: int) -> None:
    """As matmul's default case, whose naive kernels take hundreds of milliseconds a call."""
    world = World()
    quick = [world.implementation(f"triton.q{i}", 9_000.0) for i in range(20)]
    naive = [world.implementation(f"cupy.n{i}", 270_000.0, level="naive") for i in range(3)]
    plan = replace(QUICK, min_rounds=least, min_slow=slow)
    rounds = ran(world, eager(world, 180.0), *quick, *naive, plan=plan, budget_s=0.1)
    assert {timing(rounds, fake.label).rounds for fake in quick} == {least} == {rounds.count}
    assert {timing(rounds, fake.label).rounds for fake in naive} == {slow}


def test_a_slow_baseline_is_in_every_round() -> None:
    world = World()
    quick = [world.implementation(f"triton.q{i}", 100.0, noise=0.01) for i in range(8)]
    rounds = ran(world, eager(world, 300_000.0), *quick, budget_s=9.0)
    assert timing(rounds, "torch.eager").rounds == timing(rounds, "triton.q3").rounds == rounds.count


def test_two_share_all_of_the_time() -> None:
    world = World()
    slow = world.implementation("cupy.naive", 300_000.0, noise=0.1)
    rounds = ran(world, eager(world), slow, budget_s=5.0)
    assert 4.0 < world.seconds < 6.0
    assert timing(rounds, "cupy.naive").rounds >= 5


def test_every_round_has_an_order_of_its_own_which_the_seed_decides() -> None:
    labels = ["torch.eager", "torch.compile", "triton.a", "cupy.a", "pybind.a"]

    def order(seed: int) -> list[tuple[str, ...]]:
        world = World()
        fakes = [world.implementation(label, 100, noise=0.05) for label in labels]
        ran(world, *fakes, seed=seed, budget_s=60)
        return world.order()

    found = order(1)
    assert all(sorted(names) == sorted(labels) for names in found)
    assert len(set(found)) > 20
    for place in range(len(labels)):
        count = Counter(names[place] for names in found)
        assert min(count.values()) > 0.5 * len(found) / len(labels)  # none is always first
    assert found == order(1)
    assert found[:5] != order(2)[:5]


def test_a_drift_of_the_clocks_moves_no_ratio() -> None:
    world = World()
    world.drift = lambda seconds: 1 + 6 * seconds  # the card slows down all the while
    fakes = eager(world, noise=0.01), world.implementation("triton.fast", 80, noise=0.01)
    found = timing(ran(world, *fakes, plan=Plan(warm_up_s=0.0, min_s=0.3), budget_s=60), "triton.fast")
    assert max(found.cold_us.samples) > 1.3 * min(found.cold_us.samples)
    assert found.ratios[0].value.median == pytest.approx(1.25, rel=0.01)


# --------------------------------------------------------------------------- results


@for_each("before_ms, first_ms", [(321.0, 321.0), (None, 0.1)])
def test_every_kind_of_time_is_named(before_ms: float | None, first_ms: float) -> None:
    """The first call is timed where it was not before."""
    found = timing(ran(world := World(), eager(world), first_ms=before_ms), "torch.eager")
    launch = found.hot_launch_us, found.back_to_back_us, found.after_idle_us
    medians = [e and e.median for e in (found.cold_us, found.warm_us, found.graph_us, *launch)]
    assert medians == [100, 50, 50, 7, 50, 70]
    assert found.first_call_ms == pytest.approx(first_ms)
    assert samples(found)[0] == found.rounds == Plan.min_rounds


@for_each("us", [1.0, 10.0, 1000.0])
def test_launch_overhead_does_not_depend_on_gpu_time(us: float) -> None:
    """No less work by the host for a long kernel: as many calls, in one request."""
    world = World()
    found = timing(ran(world, eager(world, us)), "torch.eager")
    assert found.hot_launch_us.median == 7.0
    assert len(found.hot_launch_us.samples) * HOT_CALLS == 200
    assert found.back_to_back_us.median == max(7.0, us / 2)
    readings = world.log.count(("hot", "torch.eager"))
    assert readings == (10 if us < 100 else 1)


@for_each("us, host_us, hot", [(2500.0, 7.0, 0), (100.0, 4000.0, 1), (20_000.0, 7.0, 0)])
def test_where_so_many_calls_take_too_long_there_is_no_launch_overhead(
    us: float, host_us: float, hot: int
) -> None:
    """Known before from the GPU time, or found out where the host is slow."""
    world = World()
    world.host_us = host_us
    found = timing(ran(world, eager(world, us)), "torch.eager")
    assert (found.hot_launch_us, found.back_to_back_us) == (None, None)
    assert "launch overhead not measured: 275 calls take over 0.5 s" in found.notes
    assert world.log.count(("hot", "torch.eager")) == hot
    assert found.after_idle_us is not None


@for_each(
    "noise, launch_us", [((1.0,), 7.0), ((3.0, 1.0), 7.0), ((3.0,) * 3, 7.0), ((4.0, *(3.0,) * 9), 14.0)]
)
def test_of_a_launch_overhead_that_scatters_the_lowest_reading_counts(
    noise: tuple[float, ...], launch_us: float
) -> None:
    """Other processes only add to it."""
    world = World()
    world.noisy_hot = list(noise)
    found = timing(ran(world, eager(world, 10.0)), "torch.eager")
    assert found.hot_launch_us.median == launch_us


def test_a_row_that_is_cold_only_has_no_warm_times() -> None:
    world = World()
    rounds = rounds_of(world, eager(world), world.implementation("triton.mine", 50))
    entry = rounds.entries["triton.mine"]
    entry.cold_only, entry.unverified, entry.notes = True, "its own word", ["a note"]
    rounds.run(1.0)
    found = timing(rounds, "triton.mine")
    assert samples(found) == [Plan.min_rounds, 0, 0, Plan.min_rounds]
    assert found.ratios[0].value.median == 2
    assert (found.unverified, found.notes[0]) == ("its own word", "a note")
    assert found.notes[1].startswith("no warm times: ")


def test_outliers_are_kept_and_flagged() -> None:
    world = World()
    late = iter([False] * 8 + [True] + [False] * 10_000)
    world.drift = lambda seconds: 50.0 if next(late) else 1.0
    found = timing(ran(world, eager(world), first_ms=1.0, plan=replace(QUICK, warm_rounds=0)), "torch.eager")
    assert sum(sample > 1000 for sample in found.cold_us.samples) == 1
    assert any("1 of 10 cold samples are outliers (kept)" in note for note in found.notes)


def test_host_time_in_a_gpu_time_is_noted() -> None:
    world = World()
    world.waiting = {("cold", "torch.item")}
    rounds = ran(world, eager(world, 2), world.implementation("torch.item", 100))
    (note,) = timing(rounds, "torch.item").notes
    assert "include host time" in note


@for_each("us, said", [(2, True), (3.5, True), (4.5, False)])
def test_a_time_of_less_than_four_empty_pairs_is_at_the_clock_s_resolution(us: float, said: bool) -> None:
    world = World()
    world.event_us = 1.0
    rounds = ran(world, world.implementation("triton.short", us), eager(world, 9))
    short, long = (timing(rounds, label).notes for label in ("triton.short", "torch.eager"))
    noted = "at the clock's resolution: an empty pair of events reads 1.0 us"
    assert any(noted in note for note in short) is said
    assert any("an empty pair of events reads 1.0 us" in note for note in long)
    assert not any("resolution" in note for note in long)


@for_each(
    "other, note",
    [
        ({"accumulator": "fp16"}, "accumulator fp16 vs fp32"),
        ({"output_dtype": "torch.float16"}, "output torch.float16 vs torch.float32"),
    ],
)
def test_unequal_terms_give_a_note_and_no_ratio(other: dict[str, Any], note: str) -> None:
    world = World()
    found = timing(
        ran(world, eager(world), world.implementation("triton.cheat", 50, **other)), "triton.cheat"
    )
    assert found.ratios == ()
    assert any(note in text for text in found.notes)


def test_a_missing_baseline_is_said() -> None:
    world = World()
    rounds = ran(world, world.implementation("triton.a", 10), baseline="torch.eager")
    assert timing(rounds, "triton.a").notes == ("no ratio to torch.eager: it was not timed",)


def test_a_ratio_to_the_reference_of_a_level_stands_beside_the_one_to_the_baseline() -> None:
    by_level = {
        "naive": ("torch.naive", "cupy.scalar"),
        "tiled": ("triton.onepass", "triton.online", "cupy.online", "cupy.vectorized"),
        "vendor": ("torch.eager", "torch.compile"),
        "hopper": ("cupy.cluster",),
    }
    levels = {label: level for level, labels in by_level.items() for label in labels}
    references = {
        "torch.compile": "torch.eager",
        "cupy.scalar": "torch.naive",
        "cupy.online": "triton.online",
        "cupy.vectorized": "triton.onepass",
    }
    world = World()
    fakes = [world.implementation(label, 2.0 ** len(label), level=level) for label, level in levels.items()]
    impls = [fake.impl for fake in fakes]
    assert {label: reference(label, impls) for label in levels} == dict.fromkeys(levels) | references
    rounds = ran(world, *fakes, baseline="torch.naive")
    ratios = {ratio.against: ratio.value.median for ratio in timing(rounds, "cupy.online").ratios}
    assert ratios == {"torch.naive": 1.0, "triton.online": 4.0}
    assert timing(rounds, "torch.naive").ratios == ()


def test_times_of_nothing_give_no_ratio_and_no_crash() -> None:
    world = World()
    rounds = ran(world, eager(world, 0), world.implementation("triton.a", 0), budget_s=0.1)
    assert timing(rounds, "triton.a").ratios == ()


# --------------------------------------------------------------------------- containment


def fail_at(number: int, error: BaseException) -> Callable[[int], None]:
    def act(count: int) -> None:
        if count == number:
            raise error

    return act


@for_each("number", [1, 2, 3, 4, 5, 6, 9])
def test_one_that_raises_is_its_own_affair(number: int) -> None:
    world, error = World(), torch.cuda.OutOfMemoryError("40 GB")
    broken = world.implementation("triton.broken", 50, act=fail_at(number, error))
    right = world.implementation("triton.right", 50, noise=0.01)
    rounds = ran(world, eager(world, noise=0.01), broken, right, budget_s=60)
    results = rounds.results()
    assert list(results) == ["torch.eager", "triton.broken", "triton.right"]
    assert results["triton.broken"] is error
    assert timing(rounds, "triton.right").ratios[0].value.median == pytest.approx(2, rel=0.02)
    assert rounds.converged


def test_a_failing_baseline_leaves_the_others_their_times() -> None:
    world = World()
    baseline = eager(world, act=fail_at(8, ValueError("broken")))
    found = timing(ran(world, baseline, world.implementation("triton.a", 50)), "triton.a")
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
    failing = ran(world, eager(world, act=act))
    gc.collect()
    assert isinstance(failing.results()["torch.eager"], MemoryError)
    assert [held() for held in held_by] == [None]


def test_no_graph_is_a_note() -> None:
    world = World()
    world.graphs = False
    found = timing(ran(world, eager(world)), "torch.eager")
    assert found.graph_us is None
    assert found.notes == ("no CUDA graph: RuntimeError: operation not permitted when stream is capturing",)


def test_progress_is_told_after_every_round() -> None:
    world = World()
    told: list[float] = []
    rounds = rounds_of(world, eager(world, 1000, noise=0.5))
    rounds.run(0.1, told.append)
    assert len(told) == timing(rounds, "torch.eager").rounds
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_ctrl_c_keeps_every_whole_round_and_first_calls() -> None:
    for number in (50, 4, 1):  # in a round, in the warm-up, at the first call
        world = World()
        stopped = world.implementation("triton.a", 100, noise=0.2, act=fail_at(number, KeyboardInterrupt()))
        rounds = rounds_of(world, eager(world, noise=0.2), stopped)
        with pytest.raises(KeyboardInterrupt):
            rounds.run(budget_s=60)
        if number > 4:
            counts = {timing(rounds, label).rounds for label in ("torch.eager", "triton.a")}
            assert counts == {rounds.count}
            assert rounds.count > 0
        else:
            found = timing(rounds, "torch.eager")
            assert found.first_call_ms is not None
            assert found.cold_us is None
            assert list(rounds.results()) == ["torch.eager", "triton.a"][: min(number, 2)]
