"""JUnit XML, which continuous integration shows: of comparisons, and of a lab's marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from xml.etree import ElementTree

from compare.model.result import WRONG, CaseComparison, Comparison, Mismatch
from compare.report import lines
from compare.report.lines import Line
from compare.report.tables import number, times
from compare.sandbox.words import printable
from compare.timing import figures

Kind = Literal["", "failure", "error", "skipped"]
"""What JUnit calls a result; empty: it passed."""


@dataclass(frozen=True)
class JunitCase:
    """One test of a suite."""

    group: str
    """JUnit's ``classname``."""
    name: str
    kind: Kind = ""
    message: str = ""
    """Why it did not pass, in one line."""
    output: str = ""
    """What else there is to know of it."""


@dataclass(frozen=True)
class JunitSuite:
    name: str
    created: str
    """ISO 8601, UTC."""
    cases: Sequence[JunitCase]
    properties: Mapping[str, str] = field(default_factory=dict)


def document(suites: Iterable[JunitSuite]) -> str:
    """The XML text; characters that XML does not allow become question marks."""
    root = ElementTree.Element("testsuites")
    for suite in suites:
        kinds = [case.kind for case in suite.cases]
        counts = {"tests": len(kinds), "failures": kinds.count("failure"), "errors": kinds.count("error")}
        counts["skipped"] = kinds.count("skipped")
        element = _added(root, "testsuite", name=suite.name, timestamp=suite.created)
        element.attrib |= {name: str(count) for name, count in counts.items()}
        properties = _added(element, "properties") if suite.properties else element
        for name, value in suite.properties.items():
            _added(properties, "property", name=name, value=value)
        for case in suite.cases:
            _add_case(element, case)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ElementTree.Element, case: JunitCase) -> None:
    element = _added(suite, "testcase", classname=case.group, name=case.name)
    if case.kind:
        _added(element, case.kind, message=case.message)
    if case.output:
        _added(element, "system-out").text = printable(case.output)


def _added(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, {name: printable(text) for name, text in attributes.items()})


def first_mismatch(mismatch: Mismatch) -> str:
    """``first at [0, 5]: got nan, expected 0.5; 12 of 64 elements; PATTERN``."""
    at = f"first at {list(mismatch.index)}" if mismatch.index else "the only element"
    where = f"{at}: {lines.got_and_expected(mismatch)}"
    pattern = f"; {mismatch.pattern}" if mismatch.pattern else ""
    return f"{where}; {mismatch.count} of {mismatch.of} elements{pattern}"


# --------------------------------------------------------------------------- comparisons


def dumps(comparisons: Sequence[Comparison]) -> str:
    """A suite for each op and case, a test for each implementation."""
    return document(suite for comparison in comparisons for suite in _suites(comparison))


def _suites(comparison: Comparison) -> Iterable[JunitSuite]:
    environment = comparison.environment
    properties = {"device": environment.device, "arch": environment.arch, "driver": environment.driver}
    shown = {name: text for name, text in properties.items() if text}
    shown |= {"seed": str(comparison.seed), **environment.versions}
    for case in comparison.cases:
        name = f"{comparison.op} {case.case}"
        cases = [_case(name, line, case) for line in lines.every(case)]
        yield JunitSuite(name, comparison.created, cases, shown)
    if comparison.interrupted:
        end = JunitCase(comparison.op, "whole run", "error", "interrupted: what was finished is here")
        yield JunitSuite(comparison.op, comparison.created, [end], shown)


def _case(group: str, line: Line, case: CaseComparison) -> JunitCase:
    row = line.row
    kind: Kind = ""
    message = row.reason or lines.WORDS[row.status]
    if row.status in WRONG:
        kind = "failure"
        mismatch = row.agreement.mismatch if row.agreement else None
        message += f"; {first_mismatch(mismatch)}" if mismatch else ""
    elif row.status != "ok":
        kind = "error" if row.status == "failed" else "skipped"
    elif row.agreement is None:
        kind, message = "skipped", f"not checked on this case{f': {row.reason}' if row.reason else ''}"
    return JunitCase(group, row.label, kind, message, _time(line, case))


def _time(line: Line, case: CaseComparison) -> str:
    """``GPU time, cold: 49.8 us; speedup 1.30 (1.27-1.34) vs torch.eager``; empty where it was not timed."""
    if line.us is None:
        return ""
    where = f", recorded on {line.row.recorded}" if line.row.recorded else ""
    text = f"GPU time, cold: {number(line.us, 4)} us{where}"
    if line.speedup and not line.reference:
        text += f"; speedup {times(line.speedup, line.few)} vs {figures.baseline_of(case)}"
    return text
