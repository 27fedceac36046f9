"""Burst and sustained load, and the state of the card beside the samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import pytest
import torch

import made_up
from compare.device import clock_readers
from compare.model.result import Card, Timing
from compare.records import archive
from compare.records.encoding import decode, encode
from compare.report import markdown, terminal
from compare.report.summary import View
from compare.timing import figures
from compare.timing import rounds as timing_rounds
from compare.timing import sustained as load
from compare.timing.ceilings import CeilingMeter, Loads
from compare.timing.gpu_clock import ALLOWED_MS, Monitor
from compare.timing.statistics import estimate
from fake_clock import QUICK, World, rounds_of, timing
from loops import for_each


def heated(slow: float = 1.0, heats_s: float = 0.1, host_us: float = 10.0) -> World:
    """A card on which a call takes up to ``slow`` times longer under sustained load."""
    world = World()
    world.slow, world.heats_s, world.host_us = slow, heats_s, host_us
    return world


def endured(world: World, us: float) -> tuple[list[float], list[float], bool]:
    """Times of bursts and of sustained load, and whether these settled."""
    timer = world.implementation("triton.a", 2 * us)  # in this world a warm call takes half
    burst = load.bursts(timer, us, world.host_us, world.sleep)
    steady, settled = load.sustained(timer, world, us, world.host_us)
    assert not any(reading.exposed for reading in (*burst, *steady))
    return [reading.gpu_us for reading in burst], [reading.gpu_us for reading in steady], settled


def test_a_burst_is_over_before_the_cap_and_sustained_load_is_under_it() -> None:
    for us in (3.0, 50.0, 2000.0, 40_000.0):
        burst_us, sustained_us, settled = endured(heated(slow=1.25), us)
        assert median(burst_us) == pytest.approx(us, rel=0.05)
        assert median(sustained_us) == pytest.approx(1.25 * us, rel=0.02)
        assert (len(burst_us), settled) == (load.BURSTS, True)


def test_it_ends_though_nothing_settles_and_says_so() -> None:
    world = heated(slow=30.0, heats_s=8.0)
    *_, settled = endured(world, 500.0)
    assert not settled
    assert world.seconds < (1 + load.BURSTS) * load.PAUSE_S + load.MOST_S + 1.0


@for_each("us, host_us", [(1.0, 100.0), (3.0, 10.0), (100.0, 10.0), (1e5, 10.0)])
def test_no_batch_keeps_the_host_for_long(us: float, host_us: float) -> None:
    world = heated(host_us=host_us)
    endured(world, us)
    limits_us = {"burst": load.BURST_HOST_US, "sustained": load.BATCH_HOST_US}
    for kind, most_us in limits_us.items():
        assert all(n == 1 or n * host_us <= 1.01 * most_us for n in world.repeats[kind, "triton.a"])
    sustained = world.repeats["sustained", "triton.a"]
    grown = [repeats for repeats in sustained if repeats < max(sustained)]
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(grown))


def test_rounds_measure_both_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_rounds, "bursts", partial(load.bursts, sleep=lambda seconds: None))
    for asked in (False, True):
        world = World()
        world.waiting = {("burst", "triton.a")}
        fakes = world.implementation("torch.eager", 100), world.implementation("triton.a", 50)
        rounds = rounds_of(world, *fakes, plan=replace(QUICK, sustained=asked))
        rounds.run(budget_s=1)
        found = timing(rounds, "triton.a")
        sustained = found.sustained_us and found.sustained_us.median
        assert (found.burst_us is not None, sustained) == (asked, 25 if asked else None)  # warm: half
        assert any("burst and sustained times include host time" in note for note in found.notes) == asked


def test_both_are_a_table_of_their_own_and_in_the_files() -> None:
    case = made_up.case()
    row = figures.row_of(case, "cupy.online")
    both = replace(row.timing, burst_us=estimate([40.0] * 7), sustained_us=estimate([50.0] * 7))
    comparison = made_up.comparison(made_up.with_row(case, row.label, timing=both))
    text = terminal.render(comparison, 200)
    table = text[text.index(f"Back to back on {made_up.CASE}, warm") :].split("\n\n")[0]
    assert [line.split()[-1] for line in table.splitlines() if line.startswith(row.label)] == ["1.25"]
    assert "Back to back" in markdown.dumps([comparison])
    line = made_up.in_csv(comparison)[row.label]
    assert (line["burst_us"], line["sustained_us"]) == ("40.0", "50.0")
    (read,) = archive.loads(archive.dumps([comparison]))
    assert figures.row_of(read.cases[0], row.label).timing == decode(Timing, encode(both))
    assert "Back to back" not in terminal.render(made_up.comparison(), 200)


# --------------------------------------------------------------------------- the card


class Driver:
    """A driver that takes ``answer_ms`` for each answer."""

    def __init__(self, answer_ms: float = 0.03) -> None:
        self.seconds, self.answer_ms, self.mhz = 0.0, answer_ms, 1980.0
        self.asked: list[str] = []

    def now_s(self) -> float:
        return self.seconds

    def read(self, name: str) -> float | str:
        self.asked.append(name)
        self.seconds += self.answer_ms / 1e3
        values = {"power_w": 512.5, "temperature_c": 61.0, "throttle": "power cap", "memory_mhz": 2619.0}
        return values.get(name, self.mhz)

    def monitor(self) -> Monitor:
        names = "sm_mhz", "power_w", "temperature_c", "throttle", "memory_mhz"
        return Monitor({name: partial(self.read, name) for name in names}, self.now_s)


@for_each("answer_ms", [0.01, 0.05, 0.3, 2.0, 50.0])
def test_asking_takes_at_most_a_millisecond_a_round_on_average(answer_ms: float) -> None:
    driver = Driver(answer_ms)
    monitor = driver.monitor()
    rounds, rows = 400, 16
    for _ in range(rounds):
        for _ in range(rows):
            monitor.clock_mhz()
        monitor.end_round()
    of_one_round_ms = (rows + 4) * answer_ms
    assert of_one_round_ms <= 1e3 * driver.seconds <= rounds * ALLOWED_MS + of_one_round_ms
    if of_one_round_ms < ALLOWED_MS:
        assert driver.asked.count("sm_mhz") == rounds * (rows + 1)
    card = monitor.card()
    assert sum(card.asking_ms) == pytest.approx(1e3 * driver.seconds, rel=0.01)


def test_the_card_is_kept_round_by_round() -> None:
    driver = Driver()
    monitor = driver.monitor()
    monitor.end_round()
    monitor.restart()  # that was the warm-up
    for driver.mhz in (1980.0, 1410.0):
        assert monitor.clock_mhz() == driver.mhz
        monitor.end_round()
    card = monitor.card()
    assert card.sm_mhz == (1980.0, 1410.0)
    assert card.power_w == (512.5, 512.5)
    assert card.temperature_c == (61.0, 61.0)
    assert card.throttle == ("power cap", "power cap")
    assert "memory_mhz" not in driver.asked


def test_a_driver_that_does_not_answer_is_not_asked_twice() -> None:
    asked: list[int] = []

    def refuses() -> float:
        asked.append(1)
        raise OSError("not supported")

    monitor = Monitor({"sm_mhz": refuses})
    assert monitor.clock_mhz() is None
    assert monitor.clock_mhz() is None
    monitor.end_round()
    assert monitor.card() is None
    assert len(asked) == 1
    assert Monitor(clock_readers(torch.device("cpu"))).clock_mhz() is None


def held(clocks: dict[str, float]) -> tuple[Timing, Card | None]:
    """Times on a card whose clock depends on the implementation, and the card's state."""
    driver = Driver(0.0)
    world = World()

    def acts(mhz: float) -> Callable[[int], None]:
        def act(number: int) -> None:
            driver.mhz = mhz

        return act

    fakes = [world.implementation(label, 100, act=acts(mhz)) for label, mhz in clocks.items()]
    copy, read = (world.implementation(label, 100).call for label in ("copy", "read"))
    meter = CeilingMeter(world, Loads(copy, {"sum": read}, 1 << 20), driver.monitor())
    rounds = rounds_of(world, *fakes, ceilings=meter)
    rounds.run(budget_s=1)
    return timing(rounds, "triton.a"), meter.monitor.card()


def test_a_ratio_of_two_clocks_is_flagged() -> None:
    found, card = held({"torch.eager": 1980.0, "triton.a": 1410.0})
    assert "it ran at 1410 MHz and torch.eager at 1980 MHz: part of their ratio" in found.notes
    assert found.sm_mhz == 1410.0
    assert len(card.power_w) == found.rounds
    found, _ = held({"torch.eager": 1980.0, "triton.a": 1965.0})
    assert not any("MHz" in note for note in found.notes)


def test_the_screen_and_the_record_hold_the_card() -> None:
    card = Card((1980.0, 1755.0), (310.0, 698.4), (45.0, 61.0), ("none", "power cap"), (0.1, 0.1))
    comparison = made_up.comparison(replace(made_up.case(), card=card))
    line = "The card meanwhile: 1755 to 1980 MHz, 310 to 698 W, 45 to 61 °C, clock held down by power cap."
    assert line in terminal.render(comparison, 200, View(details=True))
    assert line in markdown.dumps([comparison])
    (read,) = archive.loads(archive.dumps([comparison]))
    assert read.cases[0].card == card
    assert "The card" not in terminal.render(made_up.comparison(), 200, View(details=True))


# --------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.alone
def test_asking_a_real_driver_is_quick(card: torch.device) -> None:
    monitor = Monitor(clock_readers(card))
    for _ in range(50):
        for _ in range(16):
            monitor.clock_mhz()
        monitor.end_round()
    state = monitor.card()
    assert min(state.sm_mhz) > 0
    assert sum(state.asking_ms) / 50 <= ALLOWED_MS + 0.5
