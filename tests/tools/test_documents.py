"""The documents as a whole: they are short, every page is reachable, every link leads somewhere."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compare import cli, registry
from compare.command_line import options
from compare.registry import ROOT
from tools.docs import blocks

PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES]
INDEX = ROOT / "docs" / "index.md"
MOST_LINES, MOST_IN_ALL = 500, 10400
"""Of a page, and of all in docs/."""


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


def test_links_and_anchors_lead_somewhere() -> None:
    assert {str(file.relative_to(ROOT)): found for file in DOCUMENTS if (found := broken(file))} == {}


def test_every_command_has_the_arguments_that_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """As typed: each is parsed, and none is run.  A command's name alone is no command."""
    for file in DOCUMENTS:
        text = file.read_text()
        inline = re.findall(r"`python -m compare ([^`]+)`", text)
        lines = re.findall(r"(?m)^python -m compare ((?:.*\\\n)*.*)$", text)
        for words in (shlex.split(re.split(r" ; |; ", each)[0], comments=True) for each in inline + lines):
            command = words[0] if words[0] in options.COMMANDS else ""
            if words == [command]:
                continue
            words = words[bool(command) :]
            if words[0] in registry.collective_names():
                command = "collective"
            with contextlib.suppress(SystemExit):  # of --help and --version, which print no error
                _, rest = cli.parser_of(command).parse_known_intermixed_args(words)
                assert rest == [], (file.name, words)
            assert capsys.readouterr().err == "", (file.name, words)


def test_pages_are_short() -> None:
    lines = {str(page.relative_to(ROOT)): page.read_text().count("\n") for page in PAGES}
    long = {page: n for page, n in lines.items() if n > MOST_LINES and page != "docs/decisions.md"}
    assert long == {}
    assert sum(lines.values()) <= MOST_IN_ALL


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
    assert len(where) > 50


def test_nothing_but_an_excerpt_is_generated_twice() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for file in DOCUMENTS:
        for name in re.findall(r"(?m)^<!-- generated: (.+) -->$", file.read_text()):
            where[name].append(str(file.relative_to(ROOT)))
    assert len(where) > 50
    assert {
        name: files for name, files in where.items() if len(files) > 1 and not name.startswith("excerpt ")
    } == {}


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


def test_pictures_are_xml_for_light_and_dark_that_a_document_shows() -> None:
    linked = {target for file in DOCUMENTS for target, _ in links(file)}
    wrong = {}
    for picture in blocks.PICTURES:
        text = (ROOT / picture).read_text()
        svg = ElementTree.fromstring(text)
        checks = {
            "at most 900 pixels wide": int(svg.attrib["width"]) <= 900,
            "a title": bool(svg.findtext("{http://www.w3.org/2000/svg}title")),
            "a dark theme": "prefers-color-scheme: dark" in text,
            "shown": ROOT / picture in linked,
        }
        wrong[str(picture)] = [what for what, right in checks.items() if not right]
    assert {picture: missing for picture, missing in wrong.items() if missing} == {}
