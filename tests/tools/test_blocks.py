"""The generated blocks of the documents, from what is recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import made_up
from compare import registry
from compare.model.op import UsageError
from compare.model.result import Comparison
from compare.records import archive
from compare.timing import figures
from made_up import APART, one
from tools.docs import blocks

PAGE = "before\n<!-- generated: {} -->\nold\n<!-- end -->\nafter\n"


@pytest.fixture
def recorded(tmp_path: Path) -> Comparison:
    comparison = made_up.comparison()
    archive.record(comparison, tmp_path)
    return comparison


def test_blocks_are_made_from_the_records(recorded: Comparison, tmp_path: Path) -> None:
    says = {
        "screen softmax": "cuda.onepass",
        "gain softmax": "triton.onepass",
        "overview": "`cuda.onepass`",
        "choices": "on 1 of 1 ops: softmax triton.onepass 33.",
    }
    wrong = {}
    for what, said in says.items():
        made = blocks.rewritten(PAGE.format(what), tmp_path)
        begin, end = f"before\n<!-- generated: {what} -->\n", "\n<!-- end -->\nafter\n"
        framed = made.startswith(begin) and made.endswith(end) and "\nold\n" not in made
        if not framed or said not in made or blocks.rewritten(made, tmp_path) != made:
            wrong[what] = made
    assert wrong == {}


def test_a_row_whose_source_changed_says_so_in_the_documents(recorded: Comparison, tmp_path: Path) -> None:
    # The hashes of the made-up record are none of the real sources'.
    assert "torch.eager *" in blocks.rewritten(PAGE.format("gain softmax"), tmp_path)
    assert "`triton.onepass` *" in blocks.rewritten(PAGE.format("overview"), tmp_path)


def test_the_screen_pairs_no_samples_of_two_runs(recorded: Comparison, tmp_path: Path) -> None:
    later = one({"torch.eager": ("vendor", 144.8)}, created="2026-11-28T00:00:00+00:00")
    archive.record(later, tmp_path)
    made = blocks.rewritten(PAGE.format("screen softmax"), tmp_path)
    assert re.search(r"triton.onepass \* +47.9 +3.03x", made), made


def test_the_overview_has_the_best_of_each_way(recorded: Comparison, tmp_path: Path) -> None:
    made = blocks.rewritten(PAGE.format("overview"), tmp_path)
    lines = {line.split("](")[0].lstrip("| ["): line for line in made.splitlines() if "](ops/" in line}
    assert list(lines) == registry.op_names()
    cells = [cell.strip() for cell in lines["softmax"].split("|")[2:-1]]
    eager, triton, cuda = (
        figures.cold_us(row)
        for label in ("torch.eager", "triton.onepass", "cupy.onepass")
        if (row := figures.row_of(recorded.cases[0], label))
    )
    assert cells[0] == made_up.CASE
    assert [float(cells[i]) for i in (1, 3, 7)] == pytest.approx([eager, triton, cuda], abs=0.01)
    assert [cells[i] for i in (5, 9)] == ["33", "73"]  # lines: of CUDA cupy's, 40 of them shared
    assert float(cells[4].split()[0]) == pytest.approx(eager / triton, abs=0.01)
    assert cells[10] == "95%"
    assert {cell.strip() for cell in lines["transpose"].split("|")[3:-1]} == {"-"}  # not recorded


def test_an_op_says_what_each_level_of_abstraction_gains_and_takes(
    recorded: Comparison, tmp_path: Path
) -> None:
    made = blocks.rewritten(PAGE.format("abstraction softmax"), tmp_path)
    triton, cuda = re.findall(r"`([\w.]+)` (?:has a speedup of ([\d.]+)|is within noise)", made)
    lines = re.findall(r"for (\d+) lines of code to read and not (\d+)", made)
    rows = {row.label: figures.cold_us(row) for row in recorded.cases[0].rows}
    assert (triton[0], cuda[0]) == ("triton.onepass", "cuda.onepass")
    assert float(triton[1]) == pytest.approx(rows["torch.eager"] / rows["triton.onepass"], abs=0.01)
    assert lines == [("33", str(recorded.code_sizes["torch.eager"].lines)), ("73", "33")]
    ratio = rows["triton.onepass"] / rows["cupy.onepass"]
    assert f"CUDA's speedup over Triton is {ratio:.2f} in the median" in made
    assert blocks.rewritten(PAGE.format("abstraction topk"), tmp_path).count("Nothing is recorded yet") == 1


def test_a_block_without_a_record_says_what_to_run(tmp_path: Path) -> None:
    commands = {"screen softmax": "softmax --record", "choices": "all --sweep --record"}
    for what, command in commands.items():
        made = blocks.rewritten(PAGE.format(what), tmp_path)
        assert "Nothing is recorded yet" in made
        assert command in made


def test_an_unknown_block_is_refused(tmp_path: Path) -> None:
    mistakes = {
        "results softmax": "write .*overview.*or one of screen",
        "": "write .*overview",
        "screen": "write .*overview",
        "screen sofmax": "no op 'sofmax'",
        "pages of-no-folder": "has no pages",
    }
    for what, says in mistakes.items():
        with pytest.raises(UsageError, match=says):
            blocks.rewritten(PAGE.format(what), tmp_path)


def test_a_folder_is_a_list_of_its_pages_by_their_titles() -> None:
    made = blocks.rewritten(PAGE.format("pages ops"))
    pages = sorted((blocks.ROOT / "docs" / "ops").glob("*.md"))
    titles = [f"- [{page.read_text().splitlines()[0][2:]}](ops/{page.name})" for page in pages]
    assert made.splitlines()[2:-2] == titles


def test_every_op_leads_to_its_page(tmp_path: Path) -> None:
    for what, link in (("implementations", "docs/ops/{0}.md"), ("overview", "ops/{0}.md")):
        made = blocks.rewritten(PAGE.format(what), tmp_path)
        assert [op for op in registry.op_names() if f"]({link.format(op)})" not in made] == []


def test_a_block_that_is_never_closed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="end"):
        blocks.rewritten("<!-- generated: screen softmax -->\nlost", tmp_path)


def test_only_the_files_named_are_looked_at(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.format("pages ops"))
    assert list(blocks.stale([page])) == [page]
    page.write_text(blocks.stale([page])[page])
    assert blocks.stale([page]) == {}


def test_the_map_is_told_in_sentences(tmp_path: Path) -> None:
    archive.record(one(APART), tmp_path)
    made = blocks.rewritten(PAGE.format("choices"), tmp_path)
    assert "- CUDA is the fastest on 1 of 1 ops: softmax 1.24x in 1 of 1." in made
