"""Tables that commands print: seeded bugs, and exploits."""

from __future__ import annotations

from compare.registry import ROOT
from mutations import report
from tools.docs import exploits

ENTRY = {
    "op": "softmax",
    "label": "triton.online",
    "bug": "off-by-one mask",
    "what": "one too many",
    "file": "triton_impl/softmax.py",
    "needs": "",
    "instruments": {"cpu": "check", "cuda": "check"},
    "caught": {"cpu": {"by": "interpreter", "found": "guard zones", "case": ""}},
}
ELSEWHERE = {
    **ENTRY,
    "bug": "32-bit offset",
    "needs": "much memory",
    "instruments": {"cpu": "", "cuda": "huge"},
    "caught": {"cuda": {"by": "check", "found": "values", "case": "", "on": "a card"}},
}


def test_seeded_bugs_are_a_line_each_with_what_caught_them() -> None:
    assert [row[-2:] for row in report.by_bug([ENTRY, ELSEWHERE]).rows] == [
        ("interpreter: guard zones", "not run yet"),
        ("needs much memory", "check: values"),
    ]


def test_seeded_bugs_are_counted_by_op() -> None:
    other = {**ENTRY, "op": "transpose", "caught": {}}
    found = report.by_op([ENTRY, ELSEWHERE, other])
    assert found.rows == (
        ("softmax", "2", "1 of 1", "1 of 2"),
        ("transpose", "1", "not run yet", "not run yet"),
        ("all", "3", "1 of 2", "1 of 3"),
    )
    assert "a card" in found.title
    assert report.by_op([{**ELSEWHERE, "caught": {}}]).rows[0][2:] == ("-", "not run yet")


def test_exploits_are_a_line_each() -> None:
    every = exploits.every_exploit(ROOT)
    table = exploits.table(every)
    assert [row[0] for row in table.rows] == [exploit.file.stem for exploit in every]
    assert table.title.startswith(f"{len(every)} exploits")
    assert all(all(row) for row in table.rows)
