"""What the documents say that Triton and Gluon lack: each with a version, and true of the Triton at hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from compare.registry import ROOT
from processes import python
from tools.docs import limits
from tools.docs.triton_probes import NEWEST, PROBES, SINCE, expected

PLACES = (
    *("README.md", "docs/**/*.md", "labs/*/*.md", "labs/*/lab.toml", "labs/*/rubric.toml"),
    *("triton_impl/**/*.py", "cuda_impl/kernels/**/*.cuh", "cuda_impl/launches/*.py", "ops/*.py"),
)
LACKS = re.compile(
    r"\b(?:Triton|Gluon)(?:'s \w+)? (?:cannot|can not|has no|has none|does not support|offers no|lacks)\b"
    r"|\bcannot be (?:expressed|said) in Triton\b|Triton[^.]{0,40}\bhas no equivalent\b|\bin Triton: no\b"
)
"""How a sentence says it."""

SENTENCES = {
    "A T4 has": "tensor cores of sm_75",
    "interpreter": "gluon interpreter",
    "atomic addition in shared": "gluon atomics in shared memory",
    "Gluon has no ballot": "gluon ballot or shuffle",
    "shuffle": "ballot or shuffle",
    "allocates? no L1|NO_ALLOCATE|no equivalent": "loads that allocate no L1 line",
    r"prefetch\.global": "prefetch",
    "enumerate": "enumerate",
    r"\(\*tiles": "starred tuple",
    "arrays of tensors": "index into a tuple in a loop",
    "wgmma of int8": "wgmma of int8 with 256 columns",
    "16-byte access|loads are issued together": "access width",
    "place a counter": "layouts, lanes, warps, shared memory",
    "threads|lanes|warp|which layout|assign": "layouts, lanes, warps, shared memory",
    "shared memory": "layouts, lanes, warps, shared memory",
}
"""A word of such a sentence, and the probe that notices when it is untrue; the first that matches."""


def sentences(file: Path) -> list[str]:
    """What stands around each such statement, on one line, without comment marks and generated blocks."""
    text = re.sub(r"(?ms)^<!-- generated: .*?^<!-- end -->$", "", file.read_text())
    text = re.sub(r"\n\s*(?://+|#+ )?\s*", " ", text)
    return [text[max(0, each.start() - 100) : each.end() + 110] for each in LACKS.finditer(text)]


FILES = sorted({path for pattern in PLACES for path in ROOT.glob(pattern)})


def test_no_sentence_says_what_triton_lacks_without_a_version_and_a_probe() -> None:
    found = {str(file.relative_to(ROOT)): each for file in FILES for each in sentences(file)}
    assert len(found) > 5
    wrong = {
        f"{file.relative_to(ROOT)}: {each}"
        for file in FILES
        for each in sentences(file)
        if f"to {NEWEST}" not in each or not any(re.search(word, each) for word in SENTENCES)
    }
    assert wrong == set(), f"write '(to {NEWEST})' behind what it lacks, and add a probe to triton_probes.py"


def test_every_probe_is_known_and_every_limit_has_one() -> None:
    assert set(PROBES) == set(SINCE)
    assert set(SENTENCES.values()) <= set(SINCE)
    assert {limit.lifted_by for limit in limits.LIMITS} - {""} <= set(SINCE)


def test_the_installed_triton_has_what_the_documents_say_and_nothing_more() -> None:
    done = python(ROOT / "tools" / "docs" / "triton_probes.py", ready="triton")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, works in found["controls"].items() if not works} == set(), "the probes themselves"
    wanted = expected(found["version"])
    wrong = {name: has for name, has in found["answers"].items() if has != wanted[name]}
    assert wrong == {}, f"Triton {found['version']}: correct SINCE, and the sentences that say so"


@pytest.mark.parametrize(
    ("version", "has"), [("3.6.0", False), ("3.7.1", True), ("3.10.0", True), ("4.0", True)]
)
def test_versions_are_compared_as_numbers(version: str, has: bool) -> None:
    assert expected(version)["gluon multicast"] is has
    assert expected(version)["gluon interpreter"] is False


def test_what_lifts_a_limit_is_named_with_its_version() -> None:
    assert limits.lifted("gluon multicast") == "since 3.7"
    assert limits.lifted("gluon ballot or shuffle") == limits.lifted("") == f"no, to {NEWEST}"
