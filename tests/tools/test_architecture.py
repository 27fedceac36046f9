"""docs/architecture.md: its files exist, and its picture shows the code that there is."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from compare.registry import ROOT
from tools.docs import blocks

architecture = pytest.importorskip("tools.docs.architecture")

PAGE = ROOT / "docs" / "architecture.md"
DOCUMENTS = [
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if path.name != "CHANGELOG.md"  # it names removed files
]
ROOMS = "compare|ops|tools|tests|docs|torch_impl|triton_impl|cuda_impl|examples|results"


def missing_in(text: str) -> list[str]:
    """Paths and modules of the project that a text names and the project lacks."""
    paths = re.findall(rf"(?<![\w/.<-])(?:{ROOMS})(?:/[\w.-]*\w)+/?(?![\w*<{{/])", text)
    modules = re.findall(r"(?<![\w.])(?:compare|tools)(?:\.[A-Za-z_]\w*)+", text)
    folders = ROOT, ROOT / "docs"
    lost = [path for path in paths if not any((folder / path).exists() for folder in folders)]
    return lost + [m for m in modules if not is_there(m)]


def is_there(name: str) -> bool:
    """A module, or one followed by what it defines: ``compare.model.op.Op``."""
    module = name
    while not architecture.file_of(module).is_file():
        module = module.rpartition(".")[0]
    defined = name.removeprefix(module).lstrip(".").split(".")
    return all(word in architecture.file_of(module).read_text() for word in defined)


def test_files_and_modules_that_a_document_names_exist():
    printed = re.compile("(?m)^python -m compare: .*")  # a message about a reader's own file
    texts = {str(path.relative_to(ROOT)): printed.sub("", path.read_text()) for path in DOCUMENTS}
    assert {name: missing for name, text in texts.items() if (missing := missing_in(text))} == {}


def test_a_missing_file_or_module_is_found():
    text = (
        "`compare/no_such.py` `compare/timing/` `compare.timing.rounds` `compare.model` compare.model.op.Nope"
    )
    assert missing_in(text) == ["compare/no_such.py", "compare.model.op.Nope"]


def test_every_task_leads_to_a_file():
    lines = PAGE.read_text().partition("| I want to change |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(lines) >= 30
    assert [line for line in lines if not re.search(rf"\| .*`(?:{ROOMS})/", line)] == []


def test_the_page_and_the_picture_are_up_to_date():
    assert "<!-- generated: rooms -->" in PAGE.read_text()
    assert blocks.rewritten(PAGE.read_text()) == PAGE.read_text(), "make docs"
    assert architecture.picture() == (ROOT / "docs/architecture.svg").read_text(), "make docs"


def test_every_module_is_in_the_graph():
    """A folder without an ``__init__.py`` would be in no contract."""
    files = {path for top in ("compare", "tools/docs") for path in (ROOT / top).rglob("*.py")}
    assert files == {architecture.file_of(m) for m in architecture.graph().modules if "." in m} | {
        ROOT / "compare" / "__init__.py"
    }


def test_the_picture_has_every_room_and_no_other():
    drawn = {box.room for box in architecture.boxes()}
    assert drawn == architecture.PLACES.keys()
    assert {room for pair in architecture.imports() for room in pair} - {"compare.__main__"} <= drawn


def test_arrows_pass_beside_boxes_and_boxes_beside_each_other():
    boxes = architecture.boxes()
    width, height = architecture.BOX_WIDTH, architecture.BOX_HEIGHT
    for arrow in architecture.arrows(boxes):
        for x, top, bottom in re.findall(r"(\d+) (\d+)V(\d+)", arrow.path):
            for box in boxes:
                beside = abs(float(x) - box.x) > width / 2
                assert beside or not float(top) < box.y + height / 2 < float(bottom), (arrow, box)
    for box in boxes:
        assert width / 2 < box.x < architecture.WIDTH - width / 2
        assert not [b for b in boxes if b.row == box.row and 0 < abs(b.x - box.x) < width + 8]


def test_arrows_imply_every_import():
    import networkx

    arrows = architecture.arrows(architecture.boxes())
    shown = networkx.DiGraph((arrow.importer, arrow.imported) for arrow in arrows if not arrow.by_name)
    implied = set(networkx.transitive_closure(shown).edges)
    assert {pair for pair in architecture.imports() if pair[0] != "compare.__main__"} <= implied


def test_the_picture_is_xml_of_a_size_that_a_page_holds():
    svg = ElementTree.fromstring((ROOT / "docs/architecture.svg").read_text())
    assert int(svg.attrib["width"]) <= 900
    assert int(svg.attrib["height"]) <= 650
