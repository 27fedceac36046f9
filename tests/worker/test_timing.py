"""Workers timed: their samples interleaved, and verified from outside."""

from __future__ import annotations

import math
import re
from pathlib import Path
from unittest import mock

import pytest
import torch

from compare import registry
from compare.checking.reference import expected_outputs
from compare.checking.tolerance import ToleranceFromBaseline
from compare.spec import Timing, case
from compare.timing.rounds import Interrupted, Plan, Progress, Result
from compare.timing.statistics import estimate
from compare.worker import user_files
from compare.worker.exchange import Exchange
from compare.worker.process import Ended, Raised
from compare.worker.timing import (
    NOT_RECORDED,
    Cheated,
    Examiner,
    Remote,
    Replayed,
    Subject,
    _verified,
    measure,
)
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
        "wrong in a (cold|warm|graph) sample on new inputs",
    ),
    "lazy_later": ("return torch.empty_like(x) if late() else added(x, y)", "sample on new inputs"),
    "in_a_thread": (
        "z = torch.full_like(x, 0.0)\n"
        "    def late():\n        time.sleep(0.002); z.copy_(added(x, y))\n"
        "    threading.Thread(target=late).start()\n    return z",
        "wrong in a (cold|warm|graph) sample",
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


def timed(
    folder: Path,
    codes: dict[str, str],
    plan: Plan,
    progress: Progress | None = None,
    device: torch.device = CPU,
) -> dict[str, Result]:
    op = registry.get_op("vector_add")
    text = BEGINNING + "".join(implemented(name, code, "") for name, code in codes.items())
    with own_registry():
        user_files.load([written(folder / "cheats.py", text)], 60.0)
        labels = ("torch.eager", "triton.right", *(f"triton.{name}" for name in codes))
        impls = registry.implementations("vector_add", labels)
        settings = settings_on(device, plan=plan)
        return timed_in_workers(op, impls, CASE, settings, device, dict.fromkeys(labels, 1.0), progress)


def test_an_interruption_keeps_no_times_that_nothing_has_confirmed(tmp_path: Path) -> None:
    def interrupting(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as interrupted:
        timed(tmp_path, {}, Plan(min_s=0.0, warm_up_s=0.0), interrupting)
    assert set(interrupted.value.partial) == {"torch.eager"}
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
        assert found.warm_us is not None
        assert found.graph_us is not None
        assert found.launch_us is not None
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


def test_bytes_are_changed_to_values_that_bytes_can_hold() -> None:
    op, c = registry.get_op("histogram"), case("uint8", N=64, SKEW=0)
    with Exchange(op, c, CPU, expected_outputs(op, c, CPU), timed=True) as exchange:
        exam = Examiner(op, c, CPU, exchange, ToleranceFromBaseline.local(op, c, CPU))
        changes = exam.changes(0, 50)
        exam.apply(0, changes)
    assert all(4 <= value < 8 for value in changes["values"])


class Seen:
    """Batches whose replays take ``us`` by the judge's clock."""

    def __init__(self, us: float) -> None:
        self._us = us

    def roughly_us(self, claimed_us: float) -> float:
        return 2 * self._us

    def slope_us(self, at_most_us: float) -> float:
        return self._us


def verified(
    own: dict[str, tuple[float, float]], claimed_us: float, seen_us: float, overhead_us: float = 0.0
) -> Result:
    """The result of a replayed row beside ``own`` rows; of each the time claimed and the one seen, in us."""
    rows = {**own, "triton.mine": (claimed_us, seen_us)}
    results = {
        label: Timing(cold_us=estimate([us + 1]), warm_us=estimate([us]), graph_us=estimate([us]))
        for label, (us, _) in rows.items()
    }
    remotes = {
        label: mock.Mock(spec=Remote, foreign=label == "triton.mine", seen_us=rows[label][1])
        for label in rows
    }
    mine = Replayed(mock.Mock(spec=Remote, foreign=True, sets=1, seen_us=seen_us), remotes.pop("triton.mine"))
    with (
        mock.patch("compare.worker.timing._overhead_us", return_value=overhead_us),
        mock.patch("compare.worker.timing._Batches", lambda remote, exam: Seen(remote.seen_us)),
    ):
        found = _verified(results, remotes | {"triton.mine": mine}, mock.Mock(), mock.Mock(), CPU)
    assert not found.keys() & own.keys()  # trusted
    return found.get("triton.mine", results["triton.mine"])


def unverified(result: Result) -> str:
    assert isinstance(result, Timing)
    return result.unverified


def test_the_share_that_own_rows_show_is_accepted_and_one_clearly_below_is_unverified() -> None:
    own = {"torch.eager": (98.0, 100.0), "triton.tiled": (85.0, 100.0)}
    assert not unverified(verified(own, 85.0, 100.0))
    assert not unverified(verified(own, 0.71 * 85.0, 100.0))
    reason = unverified(verified(own, 0.69 * 85.0, 100.0))
    assert reason.startswith("58.6 us a call, while replays of its CUDA graph take 100 us each")
    assert unverified(verified({"torch.eager": (98.0, 100.0)}, 0.69 * 98, 100.0))


def test_without_an_own_row_the_share_is_the_margin() -> None:
    assert not unverified(verified({}, 71.0, 100.0))
    assert unverified(verified({}, 69.0, 100.0))


def test_where_own_rows_are_far_slower_than_they_claim_a_row_is_unverified() -> None:
    reason = unverified(verified({"torch.eager": (50.0, 100.0)}, 100.0, 100.0))
    assert "the project's own rows ran at 0.5 of their speed" in reason


def test_a_host_slower_than_the_gpu_is_no_contradiction() -> None:
    """Replays of a very short kernel take as long as the host needs to launch them."""
    assert not unverified(verified({}, 2.0, 10.0, overhead_us=9.0))
    assert unverified(verified({}, 2.0, 100.0, overhead_us=9.0))


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
    assert any("no CUDA graph" in note for note in waits.notes)
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
def test_a_burst_is_no_slower_than_sustained_load(card: torch.device) -> None:
    op = registry.get_op("matmul")
    impls = registry.implementations(op.name, [op.baseline])
    settings = settings_on(card, 2.0, Plan(sustained=True))
    (found,) = timed_in_workers(op, impls, case("bf16", M=8192, N=8192, K=8192), settings, card).values()
    assert isinstance(found, Timing)
    assert found.burst_us is not None
    assert found.sustained_us is not None
    assert found.burst_us.median <= 1.02 * found.sustained_us.median
