"""Ceilings: what a copy, a read and a product reach, sampled beside the rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from compare.timing.ceilings import PRODUCT, CeilingMeter, Loads, _product, measure_ceilings
from fake_clock import World, rounds_of, timing


def test_ceilings_are_medians_and_the_floors_limit_is_the_fastest_sample() -> None:
    """The card is at something else at the beginning."""
    world = World()
    calls = {
        label: world.implementation(label, us, noise=0.001).call
        for label, us in {"copy": 700.0, "slow": 500.0, "fast": 350.0}.items()
    }
    world.drift = lambda seconds: 1.16 if len(world.log) < 30 else 1.0
    meter = CeilingMeter(world, Loads(calls.pop("copy"), calls, 1 << 30))
    assert meter.read_by == "fast"
    for _ in range(60):
        meter.sample()
    found = meter.ceilings()
    assert found.copy_gbs == pytest.approx(2 * (1 << 30) / 700e-6 / 1e9, rel=0.01)
    assert found.read_gbs == pytest.approx((1 << 30) / 350e-6 / 1e9, rel=0.01)
    assert found.best_gbs == pytest.approx((1 << 30) / 350e-6 / 1e9, rel=0.01)


def test_products_of_two_dtypes_are_two_ceilings() -> None:
    world = World()
    labels = {"copy": 700.0, "read": 350.0, "fp16": 200.0, "own": 400.0}
    calls = {label: world.implementation(label, us, noise=0.01).call for label, us in labels.items()}
    moves = Loads(calls["copy"], {"sum": calls["read"]}, 1 << 30)
    of_fp16_alone = CeilingMeter(world, replace(moves, product=calls["fp16"]))
    meter = CeilingMeter(world, replace(moves, product=calls["fp16"], own_product=calls["own"]))
    neither = CeilingMeter(world, moves)
    for each in (meter, of_fp16_alone, neither):
        for _ in range(5):
            each.sample()
    flops = 2 * PRODUCT**3
    warm = 0.5  # of cold, in this world
    assert meter.ceilings().matmul_tflops == pytest.approx(flops / 200e-6 / warm / 1e12, rel=0.05)
    assert meter.ceilings().product_tflops == pytest.approx(flops / 400e-6 / warm / 1e12, rel=0.05)
    own = of_fp16_alone.ceilings().product_tflops
    assert own == pytest.approx(flops / 200e-6 / warm / 1e12, rel=0.05)
    assert neither.ceilings().product_tflops is None


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_the_library_multiplies_eight_bits(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(64, 32), torch.randn(64, 32)
    product = _product(dtype, a, b)
    found, wide = product(), a @ b.t()
    assert isinstance(found, torch.Tensor)
    scale = 32 * 32 if dtype == "int8" else 1
    assert (found.float() / scale - wide).norm() < 0.1 * wide.norm()

    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("needs sm_89")

    monkeypatch.setattr(torch, "_int_mm", refused)
    monkeypatch.setattr(torch, "_scaled_mm", refused)
    assert _product(dtype, a, b) is None


def test_ceilings_are_sampled_in_every_round() -> None:
    world = World()
    copy, read = (world.implementation(label, 100).call for label in ("copy", "read"))
    meter = CeilingMeter(world, Loads(copy, {"sum": read}, 1 << 20))
    world.log.clear()
    rounds = rounds_of(world, world.implementation("torch.eager", 100), ceilings=meter)
    rounds.run(budget_s=1)
    warm_up = 1
    assert world.log.count(("cold", "copy")) == timing(rounds, "torch.eager").rounds + warm_up


@pytest.mark.gpu
@pytest.mark.alone
def test_the_ceilings_of_this_card_are_of_one_size(card: torch.device) -> None:
    first, second = measure_ceilings(card), measure_ceilings(card)
    assert first.copy_gbs == pytest.approx(second.copy_gbs, rel=0.02)
    assert first.read_gbs == pytest.approx(second.read_gbs, rel=0.02)
    assert 0.9 < first.read_gbs / first.copy_gbs < 1.5
