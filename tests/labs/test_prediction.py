"""Predictions beside measurements: what counts as right, and how far off a number may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

import made_up
from compare.labs import prediction
from compare.labs.lab import Measure, Prediction
from compare.labs.prediction import ScoredPrediction, outcome, outcomes, read, standard
from compare.labs.running import Run
from compare.model.op import WAYS
from compare.registry import get_op
from loops import for_each

ROUTES = ("cupy.onepass", "pybind.onepass")
FASTEST = Prediction("fastest", "?", "fastest", made_up.CASE, choices=("torch.eager", "triton.onepass"))


def of(asked: Prediction, answer: str | float | None) -> ScoredPrediction:
    return outcome(asked, answer, Run(made_up.comparison()))


WAY = standard(get_op("softmax"))[0]


@for_each(
    "asked, answer, score",
    [
        (FASTEST, "triton.onepass", 1.0),
        (FASTEST, "torch.eager", 0.0),
        (FASTEST, None, None),
        # within noise of each other: both are right
        *((replace(FASTEST, choices=ROUTES), route, 1.0) for route in ROUTES),
        (WAY, "cuda", 1.0),
        (WAY, "torch", 0.0),
        (Prediction("binding", "?", "binding", made_up.CASE), "memory", 1.0),
    ],
)
def test_a_choice_is_right_or_wrong(asked: Prediction, answer: str | None, score: float | None) -> None:
    found = of(asked, answer)
    assert found.score == score
    assert asked != FASTEST or found.measured == "triton.onepass"
    assert WAY.choices == WAYS


@for_each(
    "measure, label, answer, measured, score",
    [
        ("registers", "triton.onepass", 40, 40, 1.0),
        ("registers", "triton.onepass", 43, 40, 1.0),
        ("registers", "triton.onepass", 80, 40, 0.0),
        ("registers", "triton.onepass", 20, 40, 0.0),
        ("registers", "triton.onepass", 56.5685, 40, 0.5),
        ("speedup", "triton.onepass", 1.5, pytest.approx(72.4 / 47.9, rel=0.01), 1.0),
        ("time_us", "torch.naive", 900, pytest.approx(251.0, rel=0.01), 0.0),
        ("lines", "triton.onepass", 33, 33, 1.0),
    ],
)
def test_a_number_scores_by_its_factor(
    measure: Measure, label: str, answer: float, measured: float, score: float
) -> None:
    found = of(Prediction("it", "?", measure, made_up.CASE, label=label, against="torch.eager"), answer)
    assert found.measured == measured
    assert found.score == pytest.approx(score, abs=1e-3)


def test_a_measurement_of_0_has_to_be_met() -> None:
    made = made_up.with_row(
        made_up.case(), "triton.onepass", resources=(made_up.kernel("x", static_shared_bytes=0),)
    )
    asked = Prediction("shared", "?", "shared_bytes", made_up.CASE, label="triton.onepass")
    run = Run(made_up.comparison(made))
    assert [outcome(asked, answer, run).score for answer in (0, 64)] == [1.0, 0.0]


def test_a_run_is_limited_to_the_labels_that_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    limited: list[list[str]] = []

    def ran(op: str, cases: list[str], only: list[str], *_: object) -> Run:
        limited.append(only)
        return Run(None, "not run")

    monkeypatch.setattr(prediction, "run", ran)
    multiplies = Prediction(
        "it", "?", "instruction", made_up.CASE, "triton.onepass", choices=("FFMA", "HMMA")
    )
    outcomes([FASTEST, multiplies], {}, "softmax", "cpu", 1.0)
    outcomes(standard(get_op("softmax")), {}, "softmax", "cpu", 1.0)
    assert [set(only) for only in limited] == [{"torch.eager", "triton.onepass"}, set()]


def test_an_instruction_is_named_without_its_shape() -> None:
    multiplying = made_up.kernel("x", reader="cubin", instruction="HGMMA.64x128x16")
    made = made_up.with_row(made_up.case(), "triton.onepass", resources=(made_up.kernel("x"), multiplying))
    asked = Prediction("it", "?", "instruction", made_up.CASE, "triton.onepass", choices=("FFMA", "HGMMA"))
    found = outcome(asked, "HGMMA", Run(made_up.comparison(made)))
    assert (found.measured, found.score) == ("HGMMA", 1.0)
    with pytest.raises(ValueError, match="expected one of FFMA, HGMMA"):
        read(asked, "HGMMA.64x128x16")


def test_what_was_not_measured_says_why() -> None:
    asked = replace(FASTEST, case="M=1,N=1,fp32")
    assert of(asked, "torch.eager").origin == "the case was not run"
    assert outcome(asked, "torch.eager", Run(None, "no compiler")).origin == "no compiler"
    untimed = tuple(replace(row, timing=None) for row in made_up.rows())
    run = Run(made_up.comparison(made_up.case(made=untimed)))
    assert outcome(FASTEST, "torch.eager", run).score is None


@for_each(
    "measure, text, says",
    [
        *(("fastest", text, "one of torch.eager, triton.onepass") for text in ("cupy.onepass", "", "1.5")),
        *(("registers", text, "a number from 0 to") for text in ("many", "-1", "nan", "inf", "1e999")),
    ],
)
def test_what_is_no_answer_is_refused(measure: Measure, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"expected {says}"):
        read(replace(FASTEST, measure=measure), text)


@for_each(
    "text, number", [("1.5x", 1.5), ("40", 40), ("93 %", 93), ("64 B", 64), (12, 12), ("47.6 us", 47.6)]
)
def test_a_number_may_have_its_unit(text: str, number: float) -> None:
    assert read(replace(FASTEST, measure="speedup"), text) == number
