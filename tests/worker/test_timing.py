"""Workers timed: their samples interleaved, and verified from outside."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from unittest import mock

import pytest
import torch

from compare import registry
from compare.model.op import case
from compare.model.result import Timing
from compare.timing.rounds import Interrupted, Plan, Result
from compare.worker import user_files
from compare.worker.process import Ended, Raised
from compare.worker.timing import NOT_RECORDED, Cheated, Subject, measure
from in_workers import settings_on
from in_workers import timed as timed_in_workers
from loaded_files import CPU, implemented, own_registry, written

CASE = case("fp32", N=1 << 16)
BEGINNING = """
calls = 0
kept = {}


def late():
    global calls
    calls += 1
    return calls > 20
"""

CHEATS = {
    "by_pointer": (
        "key = x.data_ptr()\n    if key not in kept: kept[key] = added(x, y)\n    return kept[key].clone()",
        "wrong in a (cold|warm) sample on new inputs",
    ),
    "lazy_later": ("return torch.empty_like(x) if late() else added(x, y)", "sample on new inputs"),
    "in_a_thread": (
        "z = torch.full_like(x, 0.0)\n"
        "    def late():\n        time.sleep(0.002); z.copy_(added(x, y))\n"
        "    threading.Thread(target=late).start()\n    return z",
        "wrong in a (cold|warm) sample",
    ),
    "aliasing": ("x.numpy()[:] += y.numpy()\n    return x", "argument 0 was written to|wrong in a"),
    "leaves": ("if late(): os._exit(3)\n    return added(x, y)", "exit code 3"),
    "no_time": (
        "if late(): time.perf_counter_ns = lambda: 0\n    return added(x, y)",
        "its clock read -?[0-9]",
    ),
    "raises": ("if late(): raise ValueError('no more')\n    return added(x, y)", "no more"),
}


FEW = Plan(min_rounds=30, max_rounds=30, min_s=0.0, warm_up_s=0.0, slow_ms=math.inf)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    return timed(tmp_path_factory.mktemp("timed"), {name: code for name, (code, _) in CHEATS.items()}, FEW)


def timed(folder: Path, codes: dict[str, str], plan: Plan, device: torch.device = CPU) -> dict[str, Result]:
    op = registry.get_op("vector_add")
    text = BEGINNING + "".join(implemented(name, code, "") for name, code in codes.items())
    with own_registry():
        user_files.load([written(folder / "cheats.py", text)])
        labels = ("torch.eager", "triton.right", *(f"triton.{name}" for name in codes))
        impls = registry.implementations("vector_add", labels)
        settings = settings_on(device, plan=plan)
        return timed_in_workers(op, impls, CASE, settings, device, dict.fromkeys(labels, 1.0))


def test_an_interruption_keeps_the_times_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("in_workers.measure", functools.partial(measure, progress=progress))
    with pytest.raises(Interrupted) as interrupted:
        timed(tmp_path, {}, Plan(min_s=0.0, warm_up_s=0.0))
    partial = interrupted.value.partial
    assert {label: found.unverified for label, found in partial.items() if isinstance(found, Timing)} == {
        "torch.eager": "",
        "triton.right": NOT_RECORDED,
    }
    assert isinstance(interrupted.value, KeyboardInterrupt)  # code that does not know it treats it as Ctrl-C


def test_inputs_that_do_not_fit_are_an_error_of_all() -> None:
    op = registry.get_op("vector_add")
    impls = registry.implementations(op.name, ["torch.*"])
    subject = Subject(op, impls, CASE, CPU, {}, mock.Mock(), mock.Mock())
    error = torch.cuda.OutOfMemoryError("CUDA out of memory")
    with mock.patch("compare.worker.timing.Examiner", side_effect=error):
        assert measure(subject, settings_on(CPU)) == {impl.label: error for impl in impls}


def test_honest_ones_have_their_times(results: dict[str, Result]) -> None:
    for label in ("torch.eager", "triton.right"):
        found = results[label]
        assert isinstance(found, Timing), found
        assert found.rounds == 30
        assert found.first_call_ms == 1.0
        assert found.cold_us is not None
        assert (found.warm_us is None) == (found.graph_us is None) == (label == "triton.right")
        assert found.hot_launch_us is not None
        assert found.after_idle_us is not None
        assert 1 < found.cold_us.median < 1e5
        assert found.unverified == (NOT_RECORDED if label == "triton.right" else "")
    ratios = results["triton.right"].ratios  # type: ignore[union-attr]
    assert [ratio.against for ratio in ratios] == ["torch.eager"]


@pytest.mark.parametrize(
    "labels",
    [
        ["torch.fp16"],
        pytest.param(["torch.fp16", "cupy.streamk", "pybind.streamk"], marks=pytest.mark.thorough),
    ],
    ids=",".join,
)
def test_prepared_weights_are_those_of_each_sample_and_a_note(labels: list[str]) -> None:
    """The judge's samples have new weights; a call with old ones would be wrong."""
    op = registry.get_op("w4a16_matmul")
    settings = settings_on(CPU, plan=FEW)
    c = case("fp16", M=3, N=40, K=264)
    found = timed_in_workers(
        op, registry.implementations(op.name, labels), c, settings, CPU, dict.fromkeys(labels, 1.0)
    )
    for label in labels:
        timing = found[label]
        assert isinstance(timing, Timing), timing
        assert timing.notes[0].startswith("weights prepared offline, untimed: ")


@pytest.mark.parametrize("name", CHEATS)
def test_what_goes_wrong_while_it_is_timed_is_its_own_affair(name: str, results: dict[str, Result]) -> None:
    found = results[f"triton.{name}"]
    assert isinstance(found, (Cheated, Ended, Raised)), found
    assert re.search(CHEATS[name][1], str(found)), str(found)


@pytest.mark.gpu
@pytest.mark.alone
def test_mishaps_on_a_gpu_cost_no_other_its_times(tmp_path: Path, card: torch.device) -> None:
    codes = {
        "waits": "z = x + y\n    z[0].item()\n    return z",
        "greedy": "return torch.empty(1 << 50, device=x.device)",
        "wild": "return x[torch.full((1 << 16,), 1 << 40, device=x.device)]",
    }
    found = timed(tmp_path, codes, Plan(), device=card)
    eager, waits = found["torch.eager"], found["triton.waits"]
    assert isinstance(eager, Timing)
    assert eager.graph_us is not None
    assert not any("waits" in note for note in eager.notes)
    assert isinstance(waits, Timing)
    assert waits.graph_us is None
    assert any("include host time" in note for note in waits.notes)
    assert isinstance(found["triton.greedy"], MemoryError)
    assert isinstance(found["triton.wild"], (Ended, Raised))  # an illegal access is no crash of the judge


@pytest.mark.gpu
@pytest.mark.alone
def test_a_kernel_of_over_ten_ms_is_sampled_less_often(card: torch.device) -> None:
    op = registry.get_op("matmul")
    impls = registry.implementations(op.name, [op.baseline, "cupy.naive"])
    settings = settings_on(card, 0.1, Plan())
    found = timed_in_workers(op, impls, case("bf16", M=2048, N=2048, K=2048), settings, card)
    counts = {label: result.rounds for label, result in found.items() if isinstance(result, Timing)}
    assert counts["cupy.naive"] == Plan.min_slow
    assert counts[op.baseline] >= Plan.min_rounds


@pytest.mark.gpu
@pytest.mark.alone
def test_launch_overhead_depends_on_neither_gpu_time_nor_run(card: torch.device) -> None:
    """Within 20% where the GPU time is 60 times as long, and within 10% from run to run."""
    op = registry.get_op("vector_add")
    labels = ["torch.eager", "triton.blocked", "cupy.vectorized", "pybind.vectorized"]
    impls = registry.implementations(op.name, labels)

    def launches_us(N: int) -> list[float]:
        results = timed_in_workers(op, impls, case("fp32", N=N), settings_on(card, 0.5), card)
        timings = [results[label] for label in labels]
        return [each.hot_launch_us.median for each in timings]  # type: ignore[union-attr]

    short, again, long = launches_us(1 << 12), launches_us(1 << 12), launches_us(1 << 26)
    assert again == pytest.approx(short, rel=0.1)
    assert long == pytest.approx(short, rel=0.2)


@pytest.mark.gpu
@pytest.mark.alone
def test_a_burst_is_no_slower_than_sustained_load(card: torch.device) -> None:
    op = registry.get_op("matmul")
    impls = registry.implementations(op.name, [op.baseline])
    settings = settings_on(card, 2.0, Plan(sustained=True))
    (found,) = timed_in_workers(op, impls, case("bf16", M=8192, N=8192, K=8192), settings, card).values()
    assert isinstance(found, Timing)
    assert found.burst_us.median <= 1.02 * found.sustained_us.median
