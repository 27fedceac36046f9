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

from compare.spec import Timing
from compare.timing.rounds import Plan, reference
from fake_clock import QUICK, World, rounds_of, timing

# --------------------------------------------------------------------------- the rule to stop by


def test_it_stops_once_the_ratio_is_known_to_one_percent() -> None:
    counts = {}
    for noise in (0.001, 0.02, 0.05):
        world = World()
        rounds = rounds_of(
            world,
            world.implementation("torch.eager", 100, noise=noise),
            world.implementation("triton.fast", 50, noise=noise),
        )
        rounds.run(budget_s=60)
        (ratio,) = timing(rounds, "triton.fast").ratios
        assert rounds.converged
        assert ratio.against == "torch.eager"
        assert ratio.value.high <= 1.01 * ratio.value.median
        assert ratio.value.low >= 0.99 * ratio.value.median
        assert ratio.value.median == pytest.approx(2, rel=0.02)
        counts[noise] = timing(rounds, "triton.fast").rounds
    assert counts[0.001] == Plan.min_rounds < counts[0.02] < counts[0.05]


def test_only_the_first_rounds_sample_more_than_cold_times() -> None:
    world = World()
    rounds = rounds_of(world, world.implementation("torch.eager", 100, noise=0.5))
    rounds.run(budget_s=60)
    found = timing(rounds, "torch.eager")
    cold, *others = (
        len(each.samples) for each in (found.cold_us, found.warm_us, found.graph_us, found.launch_us) if each
    )
    assert cold > Plan.warm_rounds
    assert others == [Plan.warm_rounds] * 3


def test_it_ends_with_the_budget_and_says_so() -> None:
    world = World()
    rounds = rounds_of(
        world,
        world.implementation("torch.eager", 1000, noise=0.5),
        world.implementation("triton.slow", 1000, noise=0.5),
    )
    rounds.run(budget_s=0.5)
    assert 0.5 <= world.seconds < 0.6
    assert not timing(rounds, "triton.slow").converged


def test_it_ends_after_so_many_rounds() -> None:
    world = World()
    rounds = rounds_of(world, world.implementation("torch.eager", 1, noise=1.0))
    rounds.run(budget_s=1e9)
    assert timing(rounds, "torch.eager").rounds == Plan.max_rounds


def test_short_rounds_are_spread_over_time() -> None:
    world = World()
    pair = world.implementation("torch.eager", 5), world.implementation("triton.same", 5)
    rounds_of(world, *pair, plan=Plan(warm_up_s=0.1, min_s=0.5, max_rounds=10_000)).run(budget_s=60)
    assert world.seconds >= 0.5
    assert {world.repeats["warm", label][-1] for label in ("torch.eager", "triton.same")} == {20}


def test_long_calls_are_not_repeated_within_a_sample() -> None:
    world = World()
    rounds_of(world, world.implementation("torch.eager", 5000)).run(budget_s=10)
    assert world.repeats["warm", "torch.eager"][-1] == 1


def test_calls_that_are_slow_to_launch_are_repeated_less() -> None:
    world = World()
    world.host_us = 100.0
    rounds_of(world, world.implementation("torch.eager", 5)).run(budget_s=10)
    assert world.repeats["warm", "torch.eager"][-1] == 5


def test_a_single_implementation_converges_on_its_own_time() -> None:
    world = World()
    rounds = rounds_of(world, world.implementation("torch.eager", 100, noise=0.03))
    rounds.run(budget_s=60)
    cold = timing(rounds, "torch.eager").cold_us
    assert rounds.converged
    assert cold is not None
    assert cold.high <= 1.01 * cold.median


# --------------------------------------------------------------------------- interleaving


def test_a_slow_row_sits_out_rounds_for_the_others() -> None:
    """As a naive matmul that takes a thousand times as long."""
    world = World()
    quick = [world.implementation(f"triton.q{i}", 100.0, noise=0.01) for i in range(8)]
    slow = world.implementation("cupy.naive", 300_000.0, level="naive")
    rounds = rounds_of(world, world.implementation("torch.eager", 100.0), *quick, slow)
    rounds.run(5.0)
    found = timing(rounds, "cupy.naive")
    assert found.cold_us
    assert found.rounds == len(found.cold_us.samples) == Plan.min_slow
    assert found.warm_us
    assert len(found.warm_us.samples) == 1  # as many calls as four cold samples would take
    assert (
        f"timed in {Plan.min_slow} of {len(rounds.samples)} rounds: these used its share of the time"
        in found.notes
    )
    assert found.graph_us is None
    assert [ratio.against for ratio in found.ratios] == ["torch.eager"]
    assert rounds.converged
    for fake in quick:
        assert timing(rounds, fake.label).rounds == len(rounds.samples) >= QUICK.min_rounds


def test_a_first_call_that_keeps_the_host_busy_makes_no_row_slow() -> None:
    world = World()
    fake = world.implementation("torch.eager", 100.0)
    calls = iter((50.0, 0.1))
    fake.first = lambda: next(calls)  # type: ignore[method-assign]
    rounds = rounds_of(world, fake)
    rounds.run(budget_s=1e-6)
    found = timing(rounds, "torch.eager")
    assert found.first_call_ms == 50.0
    assert found.warm_us
    assert found.rounds == len(found.warm_us.samples) == Plan.min_rounds


def test_a_row_is_slow_by_the_time_that_it_shows() -> None:
    world = World()
    fake = world.implementation("torch.eager", 7_000.0)
    fake.first = lambda: 12.0  # type: ignore[method-assign]
    rounds = rounds_of(world, fake)
    rounds.run(budget_s=1e-6)
    assert timing(rounds, "torch.eager").rounds == Plan.min_rounds


@pytest.mark.parametrize(("least", "slow"), [(10, 3), (30, 5)])
def test_no_row_starves_whatever_the_budget(least: int, slow: int) -> None:
    """As matmul's default case, whose naive kernels take hundreds of milliseconds a call."""
    world = World()
    quick = [world.implementation(f"triton.q{i}", 9_000.0) for i in range(20)]
    naive = [world.implementation(f"cupy.n{i}", 270_000.0, level="naive") for i in range(3)]
    plan = replace(QUICK, min_rounds=least, min_slow=slow)
    rounds = rounds_of(world, world.implementation("torch.eager", 180.0), *quick, *naive, plan=plan)
    rounds.run(0.1)
    assert {timing(rounds, fake.label).rounds for fake in quick} == {least}
    assert {timing(rounds, fake.label).rounds for fake in naive} == {slow}
    assert len(rounds.samples) == least


def test_a_slow_baseline_is_in_every_round() -> None:
    world = World()
    quick = [world.implementation(f"triton.q{i}", 100.0, noise=0.01) for i in range(8)]
    rounds = rounds_of(world, world.implementation("torch.eager", 300_000.0), *quick)
    rounds.run(9.0)
    assert timing(rounds, "torch.eager").rounds == timing(rounds, "triton.q3").rounds == len(rounds.samples)


def test_two_share_all_of_the_time() -> None:
    world = World()
    slow = world.implementation("cupy.naive", 300_000.0, noise=0.1)
    rounds = rounds_of(world, world.implementation("torch.eager", 100.0), slow)
    rounds.run(5.0)
    assert 4.0 < world.seconds < 6.0
    assert timing(rounds, "cupy.naive").rounds >= 5


def test_every_round_has_an_order_of_its_own() -> None:
    world = World()
    labels = ["torch.eager", "torch.compile", "triton.a", "cupy.a", "pybind.a"]
    fakes = [world.implementation(label, 100, noise=0.05) for label in labels]
    rounds_of(world, *fakes).run(budget_s=60)
    order = world.order()
    assert all(sorted(names) == sorted(labels) for names in order)
    assert len(set(order)) > 20
    for place in range(len(labels)):
        count = Counter(names[place] for names in order)
        assert min(count.values()) > 0.5 * len(order) / len(labels)  # none is always first


def test_the_seed_decides_the_order() -> None:
    def order(seed: int) -> list[tuple[str, ...]]:
        world = World()
        fakes = [world.implementation(f"triton.{name}", 100, noise=0.05) for name in "abcd"]
        rounds_of(world, *fakes, seed=seed).run(budget_s=0.2)
        return world.order()

    assert order(1) == order(1)
    assert order(1)[:5] != order(2)[:5]


def test_a_drift_of_the_clocks_moves_no_ratio() -> None:
    world = World()
    world.drift = lambda seconds: 1 + 6 * seconds  # the card slows down all the while
    rounds = rounds_of(
        world,
        world.implementation("torch.eager", 100, noise=0.01),
        world.implementation("triton.fast", 80, noise=0.01),
        plan=Plan(warm_up_s=0.0, min_s=0.3),
    )
    rounds.run(budget_s=60)
    found = timing(rounds, "triton.fast")
    assert found.cold_us is not None
    assert max(found.cold_us.samples) > 1.3 * min(found.cold_us.samples)
    assert found.ratios[0].value.median == pytest.approx(1.25, rel=0.01)


def test_an_implementation_against_itself_is_no_faster() -> None:
    apart = 0
    for seed in range(200):
        world = World(seed)
        rounds = rounds_of(
            world,
            world.implementation("torch.eager", 100, noise=0.01),
            world.implementation("torch.again", 100, noise=0.01),
            seed=seed,
        )
        rounds.run(budget_s=60)
        value = timing(rounds, "torch.again").ratios[0].value
        apart += not value.low <= 1 <= value.high
    assert apart <= 20


def test_inputs_rotate() -> None:
    seen: list[int] = []
    world = World()
    rounds_of(world, world.implementation("torch.eager", 100, sets=3, inputs=seen.append)).run(budget_s=0.01)
    assert set(seen) == {0, 1, 2}
    assert abs(seen.count(1) - seen.count(2)) <= 3  # the graph and the warm-up are of the first alone


# --------------------------------------------------------------------------- results


def test_every_kind_of_time_is_named() -> None:
    world = World()
    rounds = rounds_of(world, world.implementation("torch.eager", 100), first_ms=321.0)
    rounds.run(budget_s=1)
    found = timing(rounds, "torch.eager")
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
    rounds = rounds_of(world, world.implementation("torch.eager", 100, act=act))
    rounds.run(budget_s=1)
    assert timing(rounds, "torch.eager").first_call_ms == pytest.approx(0.1)


def test_outliers_are_kept_and_flagged() -> None:
    world = World()
    slow = iter([False] * 8 + [True] + [False] * 10_000)
    world.drift = lambda seconds: 50.0 if next(slow) else 1.0
    rounds = rounds_of(world, world.implementation("torch.eager", 100))
    rounds.run(budget_s=1)
    found = timing(rounds, "torch.eager")
    everything = [e.samples for e in (found.cold_us, found.warm_us, found.graph_us) if e]
    assert sum(sample > 1000 for samples in everything for sample in samples) == 1
    assert found.cold_us is not None
    if max(found.cold_us.samples) > 1000:
        assert any("1 of 10 cold samples are outliers (kept)" in note for note in found.notes)


def test_what_distorts_a_time_is_noted() -> None:
    world = World()
    world.event_us, world.waiting = 1.0, {("cold", "torch.item")}
    rounds = rounds_of(world, world.implementation("torch.eager", 2), world.implementation("torch.item", 100))
    rounds.run(budget_s=1)
    assert any("empty pair of events reads 1.0 us" in note for note in timing(rounds, "torch.eager").notes)
    assert any("include host time" in note for note in timing(rounds, "torch.item").notes)
    assert len(timing(rounds, "torch.item").notes) == 1


@pytest.mark.parametrize(("us", "said"), [(3.5, True), (4.5, False)])
def test_a_time_of_less_than_four_empty_pairs_is_at_the_clock_s_resolution(us: float, said: bool) -> None:
    world = World()
    world.event_us = 1.0
    impls = (world.implementation("triton.short", us), world.implementation("torch.eager", 9))
    rounds = rounds_of(world, *impls)
    rounds.run(budget_s=1)
    short, long = (timing(rounds, label).notes for label in ("triton.short", "torch.eager"))
    noted = "at the clock's resolution: an empty pair of events reads 1.0 us"
    assert any(noted in note for note in short) is said
    assert not any("resolution" in note for note in long)


@pytest.mark.parametrize(
    ("other", "note"),
    [
        ({"accumulator": "fp16"}, "accumulator fp16 vs fp32"),
        ({"output_dtype": "torch.float16"}, "output torch.float16 vs torch.float32"),
    ],
)
def test_unequal_terms_give_a_note_and_no_ratio(other: dict[str, Any], note: str) -> None:
    world = World()
    rounds = rounds_of(
        world, world.implementation("torch.eager", 100), world.implementation("triton.cheat", 50, **other)
    )
    rounds.run(budget_s=1)
    found = timing(rounds, "triton.cheat")
    assert found.ratios == ()
    assert any(note in text for text in found.notes)


def test_a_missing_baseline_is_said() -> None:
    world = World()
    rounds = rounds_of(world, world.implementation("triton.a", 10), baseline="torch.eager")
    rounds.run(budget_s=1)
    assert timing(rounds, "triton.a").notes == ("no ratio to torch.eager: it was not timed",)


def test_references() -> None:
    world = World()

    levels = {
        "torch.naive": "naive",
        "torch.eager": "vendor",
        "torch.compile": "vendor",
        "triton.onepass": "tiled",
        "triton.online": "tiled",
        "cupy.scalar": "naive",
        "cupy.online": "tiled",
        "cupy.vectorized": "tiled",
        "cupy.cluster": "hopper",
    }
    impls = [world.implementation(label, 1, level=level).impl for label, level in levels.items()]
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


def test_a_ratio_to_the_level_stands_beside_the_one_to_the_baseline() -> None:
    world = World()
    rounds = rounds_of(
        world,
        world.implementation("torch.eager", 100),
        world.implementation("triton.online", 50, level="tiled"),
        world.implementation("cupy.online", 40, level="tiled"),
    )
    rounds.run(budget_s=1)
    ratios = {ratio.against: ratio.value.median for ratio in timing(rounds, "cupy.online").ratios}
    assert ratios == {"torch.eager": 2.5, "triton.online": 1.25}
    assert timing(rounds, "torch.eager").ratios == ()


def test_times_of_nothing_give_no_ratio_and_no_crash() -> None:
    world = World()
    rounds = rounds_of(world, world.implementation("torch.eager", 0), world.implementation("triton.a", 0))
    rounds.run(budget_s=0.1)
    assert timing(rounds, "triton.a").ratios == ()


# --------------------------------------------------------------------------- containment


def fail_at(number: int, error: BaseException) -> Callable[[int], None]:
    def act(count: int) -> None:
        if count == number:
            raise error

    return act


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("error", [ValueError("broken"), torch.cuda.OutOfMemoryError("40 GB")])
def test_one_that_raises_is_its_own_affair(number: int, error: Exception) -> None:
    world = World()
    rounds = rounds_of(
        world,
        world.implementation("torch.eager", 100, noise=0.01),
        world.implementation("triton.broken", 50, act=fail_at(number, error)),
        world.implementation("triton.right", 50, noise=0.01),
    )
    rounds.run(budget_s=60)
    results = rounds.results()
    assert list(results) == ["torch.eager", "triton.broken", "triton.right"]
    assert results["triton.broken"] is error
    assert timing(rounds, "triton.right").ratios[0].value.median == pytest.approx(2, rel=0.02)
    assert rounds.converged


def test_a_failing_baseline_leaves_the_others_their_times() -> None:
    world = World()
    rounds = rounds_of(
        world,
        world.implementation("torch.eager", 100, act=fail_at(8, ValueError("broken"))),
        world.implementation("triton.a", 50),
    )
    rounds.run(budget_s=1)
    found = timing(rounds, "triton.a")
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
    failing = rounds_of(world, world.implementation("torch.eager", 1, act=act))
    failing.run(budget_s=1)
    gc.collect()
    assert isinstance(failing.results()["torch.eager"], MemoryError)
    assert [reference() for reference in held_by] == [None]


def test_no_graph_is_a_note() -> None:
    world = World()
    world.graphs = False
    rounds = rounds_of(world, world.implementation("torch.eager", 100))
    rounds.run(budget_s=1)
    found = timing(rounds, "torch.eager")
    assert found.graph_us is None
    assert found.notes == ("no CUDA graph: RuntimeError: operation not permitted when stream is capturing",)


def test_progress_is_told_after_every_round() -> None:
    world = World()
    told: list[float] = []
    rounds = rounds_of(world, world.implementation("torch.eager", 1000, noise=0.5))
    rounds.run(0.1, told.append)
    assert len(told) == timing(rounds, "torch.eager").rounds
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_ctrl_c_keeps_every_whole_round() -> None:
    world = World()
    rounds = rounds_of(
        world,
        world.implementation("torch.eager", 100, noise=0.2),
        world.implementation("triton.a", 100, noise=0.2, act=fail_at(50, KeyboardInterrupt())),
    )
    with pytest.raises(KeyboardInterrupt):
        rounds.run(budget_s=60)
    counts = [timing(rounds, label).rounds for label in ("torch.eager", "triton.a")]
    assert counts[0] == counts[1] > 0


def test_ctrl_c_before_the_first_round_keeps_first_calls() -> None:
    world = World()
    rounds = rounds_of(
        world,
        world.implementation("torch.eager", 100),
        world.implementation("triton.a", 100, act=fail_at(1, KeyboardInterrupt())),
    )
    with pytest.raises(KeyboardInterrupt):
        rounds.run(budget_s=60)
    ((label, found),) = rounds.results().items()
    assert label == "torch.eager"
    assert isinstance(found, Timing)
    assert found.first_call_ms is not None
    assert found.cold_us is None
