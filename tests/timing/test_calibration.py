"""What counts as a difference: equals are not called different, real differences are."""

from __future__ import annotations

import itertools
import math
import os
import re
import statistics as standard
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import made_up
from compare import cli, registry
from compare.command_line import installed
from compare.command_line.status import SUCCESS, USAGE
from compare.commands import doctor
from compare.model.op import UsageError
from compare.model.op import case as case_of
from compare.model.result import Calibration, Estimate, Options, Ratio, SizeClass, Timing
from compare.records import archive
from compare.report import tables, terminal
from compare.report.sentences import sentences
from compare.report.summary import View
from compare.timing import calibration, figures, statistics
from compare.timing.calibration import BUILT_IN
from compare.timing.statistics import estimate
from compare.worker import calibration as calibrating
from compare.worker.pool import WorkerPool
from fake_clock import QUICK, World, rounds_of, timing
from in_workers import settings_on
from loops import for_each

TICK_US = 0.032


def noisy_gpu(seed: int, noise: float) -> World:
    """A clock like a GPU's: its speed drifts, some samples are outliers, and it counts in ticks."""
    world = World(seed)
    world.graphs, world.tick_us = False, TICK_US
    heat = world.random.uniform(-2e-4, 2e-4)
    speed = 1.0

    def drift(seconds: float) -> float:
        nonlocal speed
        speed += world.random.gauss(0, noise / 4) + heat + 0.02 * (1 - speed)
        late = world.random.random() < 0.03
        return speed * (1 + world.random.expovariate(5) if late else 1.0)

    world.drift = drift
    return world


def series(seed: int, us: float, noise: float, copies: int) -> list[tuple[float, ...]]:
    world = noisy_gpu(seed, noise)
    equals = [world.implementation(f"torch.equal{n}", us, noise=noise) for n in range(copies)]
    rounds = rounds_of(world, *equals, seed=seed)
    rounds.run(60)
    found = [result for result in rounds.results().values() if isinstance(result, Timing)]
    return [timing.cold_us.samples for timing in found if timing.cold_us]


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> Estimate:
    return estimate([b / a for a, b in zip(mine, theirs, strict=True)])


# --------------------------------------------------------------------------- the rule


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.003, 0.02])
@pytest.mark.parametrize("us", [2.0, 20.0, 500.0])
def test_of_200_pairs_of_equals_at_most_one_in_a_hundred_is_called_different(us: float, noise: float) -> None:
    runs = [series(seed, us, noise, calibrating.COPIES) for seed in range(4)]
    found = calibration.derived(runs, "now")
    different = pairs = 0
    for seed in range(1000, 1025):
        held = series(seed, us, noise, 16)
        for mine, theirs in zip(held[::2], held[1::2], strict=True):
            limit = calibration.detectable(standard.median(mine), found)
            pairs += 1
            different += statistics.differs(statistics.widened(ratio(mine, theirs), limit))
    assert pairs == 200
    assert different <= 2


def test_the_spread_of_samples_alone_would_call_more_of_them_different() -> None:
    """The reason for the part between processes."""
    runs = [series(seed, 500.0, 0.01, calibrating.COPIES) for seed in range(4)]
    found = calibration.derived(runs, "now")
    (over_100_us,) = (size for size in found.classes if size.pairs)
    assert over_100_us.apart > 0.01 * over_100_us.pairs
    assert over_100_us.largest < over_100_us.share


@for_each("us, slower", [(2.0, 1.10), (20.0, 1.05), (500.0, 1.03)])
def test_a_real_difference_is_called_one(us: float, slower: float) -> None:
    runs = [series(seed, us, 0.005, calibrating.COPIES) for seed in range(4)]
    limit = calibration.detectable(us, calibration.derived(runs, "now"))
    called = []
    for seed in range(20):
        world = noisy_gpu(seed, 0.005)
        times_us = {"torch.eager": us, "torch.slow": slower * us}
        fakes = [world.implementation(label, each, noise=0.005) for label, each in times_us.items()]
        rounds = rounds_of(world, *fakes, seed=seed)
        rounds.run(60)
        called.append(statistics.verdict(timing(rounds, "torch.slow").ratios[0].value, limit))
    assert called.count("slower") >= 19
    assert "faster" not in called


@for_each(
    "median, low, high, verdict",
    [
        (1.05, 1.03, 1.07, "faster"),
        (0.95, 0.94, 0.97, "slower"),
        (1.005, 1.001, 1.009, "same"),  # the interval excludes 1, by less than can be told apart
        (1.00, 0.995, 1.006, "same"),
        (1.00, 0.90, 1.10, "ambiguous"),
        (1.05, 0.99, 1.11, "ambiguous"),
        (1.012, 1.002, 1.03, "ambiguous"),
        (0.991, 0.9901, 0.9999, "same"),
    ],
)
def test_verdicts(median: float, low: float, high: float, verdict: str) -> None:
    assert statistics.verdict(Estimate(median, low, high), 0.01) == verdict
    mirrored = {"faster": "slower", "slower": "faster"}.get(verdict, verdict)
    assert statistics.verdict(Estimate(1 / median, 1 / high, 1 / low), 0.01) == mirrored


def test_a_class_without_pairs_keeps_its_built_in_limit() -> None:
    found = calibration.derived([[(20.0, 20.032, 20.064)] * 2], "now")
    assert [size.pairs for size in found.classes] == [0, 1, 0]
    assert found.classes[0] == BUILT_IN.classes[0]
    assert found.classes[2] == BUILT_IN.classes[2]
    assert found.classes[1].share == calibration.LEAST  # equal to the last digit, which proves little
    assert found.tick_us == 0.032
    with pytest.raises(ValueError, match="no measurement has two series"):
        calibration.derived([], "now")


def test_the_limits_grow_where_times_shrink_to_a_tick() -> None:
    fine = Calibration((SizeClass(float("inf"), 0.002),), tick_us=0.032)
    assert calibration.detectable(2.0, fine) == pytest.approx(0.016)
    assert calibration.detectable(200.0, fine) == 0.002
    assert calibration.detectable(0.0, fine) == 1.0
    shares = [calibration.detectable(us) for us in (3.0, 30.0, 300.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] >= 0.01


def test_both_parts_of_an_interval_add_up_as_squares() -> None:
    wide = statistics.widened(Estimate(2.0, 2.0 / 1.03, 2.0 * 1.03), 0.04)
    assert math.log(wide.high / 2) == pytest.approx(math.hypot(math.log(1.03), math.log(1.04)))
    assert wide.low * wide.high == pytest.approx(4.0)
    assert statistics.widened(Estimate(2.0, 1.9, 2.2), 0.0) == Estimate(
        2.0, pytest.approx(1.9), pytest.approx(2.2)
    )


OTHER_CODE = {
    ("fp8_block_matmul", "prefetched"),
    ("int8_matmul", "tensor_core"),
}
"""Variants of which cuobjdump shows the same instructions, but other registers and another order in the
pybind module than NVRTC makes: ptxas allocates by what else a module holds.  They differ by 2-4% in time."""


def test_equal_machine_code_is_called_different_in_two_percent_of_records() -> None:
    """cupy's and pybind's kernels are equal, but for `OTHER_CODE`: natural pairs in two processes."""
    pairs: dict[float, list[str]] = {size.below_us: [] for size in BUILT_IN.classes}
    different = {below_us: list[str]() for below_us in pairs}
    for run in (run for op in registry.op_names() for run in archive.runs_of(op)):
        for case in run.cases:
            for variant, routes in figures.same_variant(case).items():
                if {"cupy", "pybind"} <= routes.keys() and (run.op, variant) not in OTHER_CODE:
                    cold_us = figures.cold_us(routes["cupy"])
                    below_us = next(below_us for below_us in pairs if cold_us < below_us)
                    name = f"{run.op} {case.case} {variant}"
                    pairs[below_us].append(name)
                    different[below_us] += [name] * figures.differs(routes["cupy"], routes["pybind"])
    for below_us, found in pairs.items():
        assert len(found) >= 50
        assert len(different[below_us]) <= 0.02 * len(found), different[below_us]


# --------------------------------------------------------------------------- what is said


def close(median: float, share: float | None) -> list[str]:
    """Cells and sentences of a pair whose ratio is ``median``, give or take next to nothing."""
    kept = {label: made_up.MEDIANS_US[label] for label in ("torch.eager", "triton.online")}
    case = made_up.case(made=made_up.rows(kept))
    value = Estimate(median, median - 0.001, median + 0.001)
    for row in case.rows:
        ratios = () if row.label == "torch.eager" else (Ratio("torch.eager", value),)
        timing = replace(row.timing, ratios=ratios, detectable=share)
        case = made_up.with_row(case, row.label, timing=timing)
    (line,) = (line for line in tables.speed(case).rows if line[0] == "triton.online")
    return [line[-4], *sentences(made_up.comparison(case))]


def test_a_difference_below_what_counts_is_no_claim() -> None:
    cell, *said = close(1.03, share=0.04)
    assert cell == "within noise"
    assert not any("fastest" in text or "1.03" in text for text in said)
    cell, *said = close(1.03, share=0.02)
    assert cell == "1.03 (1.01-1.05)"
    assert any("triton.online is the fastest" in text for text in said)
    # A row without a limit of its own has the built-in one, at about 70 us.
    assert [close(ratio, share=None)[0] for ratio in (1.015, 1.03)] == ["within noise", "1.03 (1.01-1.05)"]


def test_the_screen_says_which_limits_hold() -> None:
    built_in = terminal.render(made_up.comparison(), 300, View(details=True))
    assert "5% below 10 µs, 2% below 100 µs, 1% from 100 µs (built in;" in built_in
    own = Calibration((SizeClass(10.0, 0.013, 112), SizeClass(float("inf"), 0.004, 112)), 0.032, "2026-11-21")
    text = terminal.render(
        made_up.comparison(environment=replace(made_up.H100, calibration=own)), 300, View(details=True)
    )
    assert "1.3% below 10 µs, 0.4% from 10 µs (calibrated on 2026-11-21)" in text
    assert "of equal code" not in terminal.render(
        made_up.comparison(environment=made_up.LAPTOP), 300, View(details=True)
    )


def test_a_row_keeps_the_limit_it_was_measured_with() -> None:
    marked = calibration.with_noise_floor(
        made_up.case(), Calibration((SizeClass(float("inf"), 0.03),), 0.032)
    )
    shares = {row.timing.detectable for row in marked.rows if row.timing}
    assert shares == {0.03}
    replayed = tuple(replace(row, recorded=made_up.RECORDED) for row in marked.rows)
    again = calibration.with_noise_floor(replace(marked, rows=replayed), None)
    assert {row.timing.detectable for row in again.rows if row.timing} == {0.03}
    (read,) = archive.loads(archive.dumps([made_up.comparison(marked)]))
    assert {row.timing.detectable for row in read.cases[0].rows if row.timing} == {0.03}


# --------------------------------------------------------------------------- kept by device


ONE_CLASS = '{"classes": [{"below_us": %s, "share": %s}], "tick_us": %s}'


DAMAGED = (
    *("", "{", "[]", "{}", "[" * 100_000, '{"classes": [], "tick_us": "x", "created": ""}'),
    '{"classes": [], "tick_us": 1.0}',
    *(ONE_CLASS % (10.0, share, 1.0) for share in ("1e308", "NaN", 0.0, 10**400)),
    *(ONE_CLASS % (10.0, 0.1, tick) for tick in (-1.0, "Infinity")),
    ONE_CLASS % (-1.0, 0.1, 1.0),
)


def test_a_damaged_calibration_is_refused(cache: Path) -> None:
    path = calibration.path_of("a device")
    path.parent.mkdir(parents=True)
    for text in DAMAGED:
        path.write_text(text)
        with pytest.raises(UsageError, match=f"^{re.escape(str(path))} is damaged: .* Delete it") as caught:
            calibration.stored("a device")
        assert "\n" not in str(caught.value)
    path.unlink()
    os.mkfifo(path)  # it never ends
    with pytest.raises(UsageError, match="it is no regular file"):
        calibration.stored("a device")


def test_calibrating_shows_and_keeps_by_device_and_needs_a_gpu(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["doctor", "--calibrate"]) == USAGE
    assert "needs a GPU" in capsys.readouterr().err

    found = calibration.derived([series(seed, 20.0, 0.01, 4) for seed in range(2)], "2026-11-21")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name="A card"))
    monkeypatch.setattr(calibrating, "measured", lambda *_: found)
    assert cli.main(["doctor", "--calibrate"]) == SUCCESS
    shown = capsys.readouterr().out
    (line,) = (line for line in shown.splitlines() if line.startswith("below 100 us"))
    assert line.split()[3] == "12"  # two runs of four: six pairs each
    assert str(calibration.path_of("A card")) in shown
    assert cache in calibration.path_of("A card").parents
    kept = calibration.stored("A card")
    assert (kept.created, kept.classes[1].share) == (found.created, pytest.approx(found.classes[1].share))
    assert calibration.stored("Another card") is BUILT_IN
    monkeypatch.setattr(installed, "gpu", lambda: installed.Gpu("A card", 90, 1 << 30))
    assert doctor._calibration().endswith("on 2026-11-21")


# --------------------------------------------------------------------------- equals


@pytest.mark.thorough
def test_equals_are_timed_in_processes_of_their_own() -> None:
    """As implementations are; code and context lie elsewhere in each, which shows in times."""
    op, impl = calibrating.subjects()[0]
    equals = calibrating.equals(impl, 3)
    cpu = torch.device("cpu")
    with WorkerPool(op, cpu, Options.timeout_s) as pool:
        settings = settings_on(cpu, 0.1, QUICK)
        found = calibrating.cold_samples(op, equals, case_of("fp32", N=1 << 12), cpu, pool, settings)
        assert len({pool.of(one).pid for one in equals}) == 3
    assert len(found) == 3
    assert len({len(samples) for samples in found}) == 1
    assert calibration.derived([found], "now").classes


# --------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_real_equals_are_hardly_ever_called_different(card: torch.device) -> None:
    """In two of a hundred pairs, also for one kernel by both routes: its machine code is the same."""
    found = calibration.stored(torch.cuda.get_device_properties(card).name)
    if found is calibration.BUILT_IN:
        found = calibrating.measured(card)
        print(doctor.resolution(found))
    op = registry.get_op("vector_add")
    compared = []
    for pattern in ("torch.eager", "triton.*", "*.scalar", "*.vectorized"):
        routes = registry.implementations(op.name, (pattern,))
        each = [calibrating.equals(impl, 8 // len(routes)) for impl in routes]
        impls = [impl for pair in zip(*each, strict=True) for impl in pair]
        with WorkerPool(op, card, Options.timeout_s) as pool:
            for seed, power in enumerate((12, 18, 21, 24, 27)):
                settings = replace(settings_on(card, 4.0), seed=seed)
                sized = case_of("fp32", N=1 << power)
                held = calibrating.cold_samples(op, impls, sized, card, pool, settings)
                for mine, theirs in itertools.combinations(held, 2):
                    limit = calibration.detectable(standard.median(mine), found)
                    compared.append((pattern, power, ratio(mine, theirs), limit))
    different = [each for each in compared if statistics.differs(statistics.widened(*each[2:]))]
    assert len(compared) == 4 * 5 * 28
    assert len(different) <= 0.02 * len(compared), different
