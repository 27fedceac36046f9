"""Predictions beside measurements: what counts as right, and how far off a number may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

import made_up
from compare.labs import prediction
from compare.labs.lab import Prediction
from compare.labs.prediction import ScoredPrediction, outcome, outcomes, read, standard
from compare.labs.running import Run
from compare.registry import get_op
from compare.spec import WAYS

FASTEST = Prediction("fastest", "?", "fastest", made_up.CASE, choices=("torch.eager", "triton.onepass"))


def of(asked: Prediction, answer: str | float | None) -> ScoredPrediction:
    return outcome(asked, answer, Run(made_up.comparison()))


def test_the_fastest_of_the_choices() -> None:
    found = of(FASTEST, "triton.onepass")
    assert (found.measured, found.score) == ("triton.onepass", 1.0)
    assert of(FASTEST, "torch.eager").score == 0.0
    assert of(FASTEST, None).score is None


def test_choices_within_noise_are_all_right() -> None:
    asked = replace(FASTEST, choices=("cupy.onepass", "pybind.onepass"))
    assert {of(asked, choice).score for choice in asked.choices} == {1.0}


def test_ways_can_be_chosen() -> None:
    asked = standard(get_op("softmax"))[0]
    assert asked.choices == WAYS
    assert of(asked, "cuda").score == 1.0
    assert of(asked, "torch").score == 0.0


@pytest.mark.parametrize(("predicted", "score"), [(40, 1.0), (43, 1.0), (80, 0.0), (20, 0.0), (56.5685, 0.5)])
def test_a_number_scores_by_its_factor(predicted: float, score: float) -> None:
    asked = Prediction("registers", "?", "registers", made_up.CASE, label="triton.onepass")
    found = of(asked, predicted)
    assert found.measured == 40
    assert found.score == pytest.approx(score, abs=1e-3)


def test_a_measurement_of_0_has_to_be_met() -> None:
    made = made_up.with_row(
        made_up.case(), "triton.onepass", resources=(made_up.kernel("x", static_shared_bytes=0),)
    )
    asked = Prediction("shared", "?", "shared_bytes", made_up.CASE, label="triton.onepass")
    run = Run(made_up.comparison(made))
    assert [outcome(asked, answer, run).score for answer in (0, 64)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("measure", "label", "about"),
    [
        ("speedup", "triton.onepass", 72.4 / 47.9),
        ("time_us", "torch.naive", 251.0),
        ("lines", "triton.onepass", 33),
    ],
)
def test_what_is_measured(measure: str, label: str, about: float) -> None:
    asked = Prediction("it", "?", measure, made_up.CASE, label=label, against="torch.eager")  # type: ignore[arg-type]
    assert of(asked, 1).measured == pytest.approx(about, rel=0.01)


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


def test_what_limits_the_fastest() -> None:
    assert of(Prediction("binding", "?", "binding", made_up.CASE), "memory").score == 1.0


def test_what_was_not_measured_says_why() -> None:
    asked = replace(FASTEST, case="M=1,N=1,fp32")
    assert of(asked, "torch.eager").origin == "the case was not run"
    assert outcome(asked, "torch.eager", Run(None, "no compiler")).origin == "no compiler"
    untimed = tuple(replace(row, timing=None) for row in made_up.rows())
    run = Run(made_up.comparison(made_up.case(made=untimed)))
    assert outcome(FASTEST, "torch.eager", run).score is None


@pytest.mark.parametrize("text", ["cupy.onepass", "", "1.5"])
def test_a_choice_is_one_of_the_choices(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected one of torch.eager, triton.onepass"):
        read(FASTEST, text)


@pytest.mark.parametrize(
    ("text", "number"), [("1.5x", 1.5), ("40", 40), ("93 %", 93), ("64 B", 64), (12, 12), ("47.6 us", 47.6)]
)
def test_a_number_may_have_its_unit(text: str, number: float) -> None:
    assert read(replace(FASTEST, measure="speedup"), text) == number


@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf", "1e999"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number of 0 or more"):
        read(replace(FASTEST, measure="registers"), text)
