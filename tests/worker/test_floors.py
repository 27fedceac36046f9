"""The floor of each route's launch overhead."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from compare import registry
from compare.model.op import case
from compare.model.result import Timing
from compare.worker.floors import ROUTES, floors_us
from cuda_impl.build import BuildError
from host_stopwatch import HostStopwatch
from in_workers import settings_on
from in_workers import timed as timed_in_workers
from loaded_files import CPU


def test_a_route_that_cannot_be_built_has_no_floor() -> None:
    def lacking(error: Exception) -> Callable[[torch.Tensor], Callable[[], object]]:
        def make(x: torch.Tensor) -> Callable[[], object]:
            raise error

        return make

    routes = {
        "torch": ROUTES["torch"],
        "cupy": lacking(BuildError("no cupy")),
        "triton": lacking(ModuleNotFoundError("No module named 'triton'")),
    }
    floors = floors_us(CPU, HostStopwatch(CPU), routes)
    assert set(floors) == {"torch"}
    assert 0 < floors["torch"] < 1e4
    assert gc.isenabled()


@pytest.mark.thorough
def test_the_floor_of_pybind_is_a_new_tensor_and_a_launch() -> None:
    x = torch.ones(3, 5)
    y = ROUTES["pybind"](x)()
    assert isinstance(y, torch.Tensor)
    assert y.shape == x.shape
    assert y.data_ptr() != x.data_ptr()


@pytest.mark.gpu
@pytest.mark.alone
def test_no_row_is_below_the_floor_of_its_route(card: torch.device) -> None:
    floors = floors_us(card)
    assert set(floors) == set(ROUTES)
    op = registry.get_op("vector_add")
    labels = ["triton.blocked", "cupy.vectorized", "pybind.vectorized"]
    impls = registry.implementations(op.name, [op.baseline, *labels])
    results = timed_in_workers(op, impls, case("fp32", N=1 << 14), settings_on(card, 0.5), card)
    for label in labels:
        result = results[label]
        assert isinstance(result, Timing)
        assert floors[label.partition(".")[0]] <= 1.1 * result.hot_launch_us.median
