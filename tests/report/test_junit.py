"""JUnit XML of comparisons: what continuous integration shows of each row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import made_up
from compare import cli
from compare.model.result import Mismatch
from compare.records import archive
from compare.report import junit

CHANGES: dict[str, dict[str, object]] = {
    "torch.naive": {"status": "unavailable", "reason": "needs sm_90", "agreement": None, "timing": None},
    "triton.online": {
        "status": "disagrees",
        "reason": "values: 12 are wrong",
        "agreement": replace(made_up.DISAGREEMENT, mismatch=Mismatch((0, 5), 0.25, 0.5, 12, 64, "tail?")),
        "timing": None,
    },
    "cupy.online": {"status": "failed", "reason": "it printed \x1b[2J & <died>", "timing": None},
    "pybind.online": {"agreement": None, "recorded": made_up.RECORDED},
}


def suites(*runs: object) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(junit.dumps(runs)))  # type: ignore[arg-type]


def test_every_row_is_a_test_of_its_op_and_case() -> None:
    case = made_up.case()
    for label, changes in CHANGES.items():
        case = made_up.with_row(case, label, **changes)
    first, second = suites(made_up.comparison(case, made_up.case("M=7,N=7,fp32")))
    assert (first.get("name"), second.get("name")) == (f"softmax {made_up.CASE}", "softmax M=7,N=7,fp32")
    counts = [first.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["9", "1", "1", "2"]
    tests = {test.get("name"): test for test in first.iter("testcase")}
    assert list(tests) == list(made_up.MEDIANS_US)
    (failure,) = tests["triton.online"].iter("failure")
    assert failure.get("message") == (
        "values: 12 are wrong; first at [0, 5]: got 0.25, expected 0.5; 12 of 64 elements; tail?"
    )
    assert [each.get("message") for each in tests["cupy.online"].iter("error")] == [
        "it printed ?[2J & <died>"
    ]
    assert [each.get("message") for each in tests["torch.naive"].iter("skipped")] == ["needs sm_90"]
    (unchecked,) = tests["pybind.online"].iter("skipped")
    assert unchecked.get("message") == "not checked on this case"
    assert "recorded on NVIDIA H100" in str(tests["pybind.online"].findtext("system-out"))
    assert len(tests["cupy.onepass"].findall("*")) == 1
    text = str(tests["cupy.onepass"].findtext("system-out"))
    assert text.startswith("GPU time, cold: 47.")
    assert text.endswith(" vs torch.eager")


def test_versions_and_device_are_properties() -> None:
    (suite,) = suites(made_up.comparison())
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties["device"] == made_up.H100.device
    assert properties["arch"] == "sm_90"
    assert properties["triton"] == made_up.H100.versions["triton"]
    (suite,) = suites(made_up.comparison(environment=made_up.LAPTOP))
    assert "driver" not in {each.get("name") for each in suite.iter("property")}


def test_an_interrupted_run_is_an_error_even_without_a_row() -> None:
    (suite,) = suites(replace(made_up.comparison(interrupted=True), cases=()))
    assert suite.get("errors") == "1"
    (error,) = suite.iter("error")
    assert str(error.get("message")).startswith("interrupted")


def test_a_kept_run_has_one_too(tmp_path: Path) -> None:
    record, file = tmp_path / "run.json", tmp_path / "junit.xml"
    record.write_text(archive.dumps([made_up.comparison()]))
    assert cli.main(["show", "softmax", "--records", str(record), "--junit", str(file)]) == 0
    (suite,) = ElementTree.fromstring(file.read_text())
    assert suite.get("tests") == "9"
