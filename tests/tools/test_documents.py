"""The documents as a whole: every page is reachable, every link leads somewhere, no table stands twice."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compare.registry import ROOT
from tools.docs import blocks

PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES]
INDEX = ROOT / "docs" / "index.md"


def prose(file: Path) -> str:
    """A document without its code blocks."""
    return re.sub(r"(?ms)^\s*```.*?^\s*```$", "", file.read_text())


def links(file: Path) -> list[tuple[Path, str]]:
    """File and anchor of every relative link and picture."""
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(file)))
    parts = [target.partition("#") for target in targets if "://" not in target]
    return [((file.parent / path).resolve() if path else file, anchor) for path, _, anchor in parts]


def anchors(file: Path) -> set[str]:
    """What GitHub makes of headings: lower case, no punctuation, `-` for a space, `-1` for a second one."""
    found: dict[str, int] = defaultdict(int)
    names = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", prose(file)):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def broken(file: Path) -> list[str]:
    return [
        f"{target.name}#{anchor}"
        for target, anchor in links(file)
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target))
    ]


def tables(file: Path) -> set[str]:
    return {table.strip() for table in re.findall(r"(?m)(?:^\|.*\n)+", prose(file) + "\n")}


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(file: Path) -> None:
    assert broken(file) == []


def test_a_broken_link_or_anchor_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One: `two`\n```\n# code\n[x](gone.md)\n```\n## It's\n## It's\n")
    (tmp_path / "b.md").write_text(
        "[a](a.md#one-two) [b](a.md#its-1)\n[c](a.md#code) ![d](gone.svg) [e](#here) [f](https://x.y/#z)\n"
    )
    assert broken(tmp_path / "b.md") == ["a.md#code", "gone.svg#", "b.md#here"]


def test_the_index_links_every_page_and_the_readme_the_index() -> None:
    linked = {target for target, _ in links(INDEX)}
    assert [str(page.relative_to(ROOT)) for page in PAGES if page != INDEX and page not in linked] == []
    assert INDEX in {target for target, _ in links(ROOT / "README.md")}


def test_no_table_stands_in_two_documents() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for file in DOCUMENTS:
        for table in (each for each in tables(file) if each.count("\n") > 4):  # the op's counts may be equal
            where[table].append(str(file.relative_to(ROOT)))
    assert {table.partition("\n")[0]: files for table, files in where.items() if len(files) > 1} == {}
    assert len(where) > 100


def test_no_table_of_an_op_is_generated_into_two_documents() -> None:
    """``sweep all`` holds the same table as ``sweep softmax``, though headings and records may differ."""
    asked = [(name, f) for f in DOCUMENTS for name in re.findall(r"<!-- generated: (.+) -->", f.read_text())]
    for name, file in asked:
        kind, _, op = name.partition(" ")
        if kind == "excerpt":
            continue
        others = {f"{kind} all", name} if op else {name}
        assert [other for other, f in asked if other in others and f != file] == [], f"{name} of {file.name}"


def test_the_readme_shows_the_screen_and_the_picture_first() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    first = "\n".join(lines[:40])
    for shown in (
        "make compare",
        "make test",
        "<!-- generated: screen softmax -->",
        "WHY ",
        "docs/effort.svg",
    ):
        assert shown in first
    assert len(lines) <= 200


@pytest.mark.parametrize("picture", sorted(blocks.PICTURES), ids=str)
def test_pictures_are_xml_for_light_and_dark_that_a_document_shows(picture: Path) -> None:
    svg = ElementTree.fromstring((ROOT / picture).read_text())
    assert int(svg.attrib["width"]) <= 900
    assert svg.findtext("{http://www.w3.org/2000/svg}title")
    assert "prefers-color-scheme: dark" in (ROOT / picture).read_text()
    assert ROOT / picture in {target for file in DOCUMENTS for target, _ in links(file)}
