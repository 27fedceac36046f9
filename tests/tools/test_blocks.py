"""The generated blocks of the documents, from what is recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import made_up
from compare import registry
from compare.records import archive
from compare.spec import Comparison, UsageError
from compare.timing import figures
from made_up import APART, one
from tools.docs import blocks

PAGE = "before\n<!-- generated: {} -->\nold\n<!-- end -->\nafter\n"


@pytest.fixture
def recorded(tmp_path: Path) -> Comparison:
    comparison = made_up.comparison()
    archive.record(comparison, tmp_path)
    return comparison


@pytest.mark.parametrize("kind", ["results", "sweep", "screen", "kernels"])
def test_blocks_are_made_from_the_records(kind: str, recorded: Comparison, tmp_path: Path) -> None:
    made = blocks.rewritten(PAGE.format(f"{kind} softmax"), tmp_path)
    assert made.startswith("before\n<!-- generated: ")
    assert made.endswith("<!-- end -->\nafter\n")
    assert "\nold\n" not in made
    assert "cupy.onepass" in made
    assert blocks.rewritten(made, tmp_path) == made


def test_a_row_whose_source_changed_says_so_in_the_documents(recorded: Comparison, tmp_path: Path) -> None:
    made = blocks.rewritten(PAGE.format("results softmax"), tmp_path)
    # The hashes of the made-up record are none of the real sources'.
    assert "torch.eager *" in made


def test_cases_and_rows_come_as_from_one_run(recorded: Comparison, tmp_path: Path) -> None:
    (case,) = recorded.cases
    labels = [row.label for row in case.rows]
    assert labels == list(recorded.code_sizes)
    assert case.ceilings is not None
    slower = replace(case.ceilings, copy_gbs=case.ceilings.copy_gbs / 2)
    once_more = replace(case, rows=case.rows[-1:], ceilings=slower)
    again = replace(recorded, cases=(once_more,), created="2099-01-01T00:00:00+00:00")
    archive.record(again, tmp_path)
    told = blocks.recorded(registry.get_op("softmax"), tmp_path)
    assert told is not None
    assert told.created == again.created
    assert [row.label for row in told.cases[0].rows] == labels
    assert list(told.code_sizes) == labels
    share = {row.label: figures.share_of_copy(told.cases[0], row) for row in told.cases[0].rows}
    for kept in case.rows[:-1]:  # of what its own run reached
        assert share[kept.label] == pytest.approx(figures.share_of_copy(case, kept), rel=1e-4)
    assert share[labels[-1]] == pytest.approx(
        2 * (figures.share_of_copy(case, case.rows[-1]) or 0.0), rel=1e-4
    )
    other = replace(again, cases=(made_up.case("M=1,N=1024,fp32"),), created="2100-01-01T00:00:00+00:00")
    archive.record(other, tmp_path)
    told = blocks.recorded(registry.get_op("softmax"), tmp_path)
    assert told is not None
    assert told.created == again.created  # the screen's
    assert [case.case for case in told.cases] == [recorded.cases[0].case, "M=1,N=1024,fp32"]


@pytest.mark.parametrize(
    ("what", "command"), [("results softmax", "softmax --record"), ("map", "--sweep --record")]
)
def test_a_block_without_a_record_says_what_to_run(what: str, command: str, tmp_path: Path) -> None:
    made = blocks.rewritten(PAGE.format(what), tmp_path)
    assert "Nothing is recorded yet" in made
    assert command in made


@pytest.mark.parametrize("what", ["results sofmax", "tables softmax", "pages of-no-folder", ""])
def test_an_unknown_block_is_refused(what: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="generated"):
        blocks.rewritten(PAGE.format(what), tmp_path)


def test_a_folder_is_a_list_of_its_pages_by_their_titles() -> None:
    made = blocks.rewritten(PAGE.format("pages adr"))
    for page in (blocks.ROOT / "docs" / "adr").glob("*.md"):
        assert f"- [{page.read_text().splitlines()[0][2:]}](adr/{page.name})" in made


@pytest.mark.parametrize(
    ("what", "link"), [("implementations", "docs/ops/{0}.md"), ("figures", "ops/{0}.md")]
)
def test_every_op_leads_to_its_page(what: str, link: str) -> None:
    made = blocks.rewritten(PAGE.format(what))
    assert [op for op in registry.op_names() if f"]({link.format(op)})" not in made] == []


def test_a_block_that_is_never_closed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="end"):
        blocks.rewritten("<!-- generated: results softmax -->\nlost", tmp_path)


def test_seeded_bugs_are_a_table_of_what_caught_them_where(tmp_path):
    assert "make mutations" in blocks.rewritten(PAGE.format("mutations"), tmp_path)
    entry = {
        "op": "softmax",
        "label": "triton.online",
        "bug": "off-by-one mask",
        "what": "one too many",
        "file": "triton_impl/softmax.py",
        "needs": "",
        "instruments": {"cpu": "check", "cuda": "check"},
        "caught": {"cpu": {"by": "interpreter", "found": "guard zones", "case": ""}},
    }
    elsewhere = {
        "bug": "32-bit offset",
        "needs": "much memory",
        "instruments": {"cpu": "", "cuda": "huge"},
        "caught": {"cuda": {"by": "check", "found": "values", "case": "", "on": "a card"}},
    }
    (tmp_path / "mutations.json").write_text(json.dumps({"mutations": [entry, {**entry, **elsewhere}]}))
    made = blocks.rewritten(PAGE.format("mutations"), tmp_path)
    cells = [
        [cell.strip() for cell in line.split("|")[-3:-1]] for line in made.splitlines() if "online" in line
    ]
    assert cells == [["interpreter: guard zones", "not run yet"], ["needs much memory", "check: values"]]
    assert "2 bugs. Without a GPU 1 of the 1 that can show there have been caught." in made
    assert "On a GPU (a card) 1 of the 2" in made


@pytest.mark.parametrize(
    ("kind", "says"), [("map", made_up.CASE), ("wins", "alone"), ("effort", "torch.naive")]
)
def test_the_map_is_written_into_documents(kind: str, says: str, tmp_path: Path) -> None:
    archive.record(one(APART), tmp_path)
    made = blocks.rewritten(PAGE.format(kind), tmp_path)
    assert says in made
    assert "NVIDIA H100" in made or kind == "wins"
    assert blocks.rewritten(made, tmp_path) == made
