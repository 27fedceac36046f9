"""Excerpts of compilers' stages in documents."""

from __future__ import annotations

import re

import pytest

from compare.model.op import UsageError
from loops import for_each
from tools.docs import blocks, dots, one_line, stages
from tools.docs.stages import Kernel, Stages

MADE_UP = Stages(
    kernel="add_kernel",
    rows={
        "source": [("for n in x:", 5), ("    y = n + 1", 6)],
        "ttir": [("  %0 = tt.load %n", 5), ("  %1 = arith.addi %0, %c1", 6), ("  tt.return", 0)],
        "ptx": [
            ("\tld.global.b32 \t%r1, [%rd1];", 5),
            ("\tadd.s32 \t%r2, %r1, 1;", 6),
            ("\tadd.s32 \t%r3, %r2, 0;", 6),
        ],
    },
    tools={"source": "Python", "ttir": "make_ttir", "ptx": "LLVM"},
    changes={"tidy": ["-a = tt.dot %x", "+b = mma %x", "+other"]},
)


def test_an_excerpt_has_source_lines_gaps_and_stages() -> None:
    made = stages.excerpt(MADE_UP, "ttir", "tt.load", "+1", "tt.return", "+1", "ptx", "@y = n")
    assert made.splitlines() == [
        "```mlir",
        "// TTIR, made by make_ttir",
        "   5 %0 = tt.load %n",
        "     ...",
        "     tt.return",
        "// PTX, made by LLVM",
        "   6 add.s32 %r2, %r1, 1",
        "   6 add.s32 %r3, %r2, 0",
        "```",
    ]


def test_every_operation_is_counted_at_its_source_line() -> None:
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in stages.became(MADE_UP, "for", "y =").splitlines()
    ]
    assert rows[0] == ["line", "source", "TTIR", "PTX"]
    assert rows[2:] == [
        ["5", "`for n in x:`", "1", "1"],
        ["6", "`y = n + 1`", "1", "2"],
        ["", "all of the kernel", "3", "3"],
    ]


def test_a_pass_of_several_architectures_is_one_diff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "opened", lambda kernel: MADE_UP)
    monkeypatch.setattr(stages, "pinned", lambda *packages: True)
    made = stages.block("pass", "add triton.x sm_80,sm_90 N=1 tidy 'dot|mma'", "was")
    assert made.splitlines()[1:-1] == [
        "@@ sm_80 @@",
        "- a = tt.dot %x",
        "+ b = mma %x",
        "@@ sm_90 @@",
        "+ b = mma %x",
    ]


@for_each(
    "kind, words, says",
    [
        ("stage", "add triton.x sm_90 N=1", "and what to show"),
        ("stage", "add triton.x sm_90 N=1 ttgir x +1", "there is no stage ttgir"),
        ("stage", "add triton.x sm_90 N=1 x +1", "write a stage"),
        ("stage", "add triton.x sm_90 N=1 ttir", "which of its lines"),
        ("stage", "add triton.x sm_90 N=1 ttir tt.store +1", "'tt.store' is not there"),
        ("stage", "add triton.x sm_90 N=1 ttir tt.load +9", "no more lines"),
        ("stage", "add triton.x sm_90 N=1 ttir tt.load", "write \\+LINES"),
        ("stage", "add triton.x sm_90 N=1 ttir @z", "'z' is not in the source"),
        ("became", "add triton.x sm_90 N=1 for", "FIRST LAST"),
        ("pass", "add triton.x sm_90 N=1 tidies x", "no pass tidies changed anything; these did: tidy"),
        ("pass", "add triton.x sm_90 N=1 tidy x.y", "no line that matches"),
    ],
)
def test_a_block_of_what_does_not_exist_is_a_mistake(
    kind: str, words: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "opened", lambda kernel: MADE_UP)
    monkeypatch.setattr(stages, "pinned", lambda *packages: True)
    with pytest.raises(UsageError, match=says):
        stages.block(kind, words, "was")


def test_with_other_compilers_blocks_and_picture_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "version", lambda package: "0.1")
    assert not stages.pinned("triton")
    assert stages.block("stage", "add triton.x sm_90 N=1 ttir x +1", "was") == "was"
    assert dots.block("was") == "was"
    assert one_line.picture() == (blocks.ROOT / one_line.PICTURE).read_text()


@pytest.mark.thorough
def test_lines_of_every_stage_lead_back_to_the_source() -> None:
    """LLVM IR's too, which ``compare pipeline`` does not follow."""
    made = stages.opened(Kernel("vector_add", "triton.blocked", "sm_90", "N=4096,fp32"))
    line = next(number for text, number in made.rows["source"] if "x = tl.load" in text)
    of_load = {name: [text for text, number in rows if number == line] for name, rows in made.rows.items()}
    assert set(of_load) == set(stages.NAMES)
    loads = {"ttir": "tt.load", "ttgir": "tt.load", "llir": "ld.global", "ptx": "ld.global", "sass": "LDG"}
    assert {name for name, load in loads.items() if any(load in text for text in of_load[name])} == set(loads)
    with pytest.raises(LookupError, match="was not compiled"):
        stages.opened(Kernel("vector_add", "triton.blocked", "sm_90", "N=many,fp32"))


def test_what_is_readable_of_a_line() -> None:
    assert (
        stages.readable("        /*0290*/ @!P0 LDG.E.128 R4, desc[UR8][R2.64] ;", "sass")
        == "@!P0 LDG.E.128 R4, desc[UR8][R2.64]"
    )
    assert re.fullmatch(
        r"\s+st.shared.b32 \[ %r49 \+ 0 \], %r50",
        stages.readable("\tst.shared.b32 [ %r49 + 0 ],  %r50;", "ptx"),
    )
