"""The pages of docs/ops/: each has its picture, a table of figures, and a section for every level."""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

import made_up
from compare import registry
from compare.model.op import UsageError
from compare.records import archive
from compare.registry import ROOT
from loops import for_each
from tools.docs import blocks, levels, pictures

PAGES = ROOT / "docs" / "ops"
FOLDERS = {"torch": "torch_impl/", "triton": "triton_impl/", "cupy": "cuda_impl/", "library": "cuda_impl/"}

OPS = registry.op_names()
MOST_LINES = 500
"""Of a page."""
FEWEST, MOST = 5, 15
"""Lines of an excerpt; a function that is shorter stands there whole."""


@functools.cache
def page(op: str) -> str:
    return (PAGES / f"{op}.md").read_text()


@functools.cache
def sections(op: str) -> dict[str, tuple[int, str]]:
    """For each name in backticks in a heading: the section's number and its text."""
    parts = re.split(r"(?m)^(?=##+ )", page(op))
    return {
        name: (number, part)
        for number, part in enumerate(parts)
        for name in re.findall(r"`([\w.]+)`", part.partition("\n")[0])
    }


def heading_of(label: str) -> str:
    way, _, variant = label.partition(".")
    return label if way in ("torch", "library") else variant


def excerpts(text: str) -> list[tuple[str, int, int]]:
    """File, first and last line of each excerpt."""
    found = re.findall(r"(?m)^\[`(.+)`\]\(.+\), lines (\d+) to (\d+):$", text)
    return [(file, int(first), int(last)) for file, first, last in found]


def is_whole(file: str, first: int, last: int) -> bool:
    """Whether the lines are a function from its first line to its last."""
    lines = ["", *(ROOT / file).read_text().splitlines()]
    after = next((line for line in lines[last + 1 :] if line), "")
    begins = re.match(r"@|def |template|__global__|[\w:]+ \w+\(", lines[first])
    return bool(begins) and not after.startswith((" ", "}"))


def test_pages_say_what_is_computed_and_who_computes_what() -> None:
    wrong = {}
    for op in OPS:
        text = page(op)
        title, second, *_ = text.split("\n\n")
        wanted = {
            "title": title.startswith(f"# {op}"),
            "what to learn": second.startswith("After reading this page you can "),
            "the command": f"`python -m compare show {op}`" in text,
            "one table of figures": text.count(f"<!-- generated: gain {op} -->") == 1,
            "no other op's": len(re.findall("<!-- generated: gain ", text)) == 1,
            f"at most {MOST_LINES} lines": text.count("\n") <= MOST_LINES,
            "its end": f"generated: abstraction {op} -->" in text[text.rindex("\n## ") :],
            **{
                heading: f"\n## {heading}\n" in text
                for heading in ("What is computed", "Who computes what", "Figures")
            },
        }
        wrong[op] = [what for what, there in wanted.items() if not there]
    assert {op: missing for op, missing in wrong.items() if missing} == {}


def test_pages_have_their_picture_with_a_text_for_who_does_not_see_it() -> None:
    wrong = {}
    for op in OPS:
        found = re.findall(r"^!\[(.*)\]\((.*)\)$", page(op), re.MULTILINE)
        described = json.loads((PAGES / f"{op}.json").read_text())
        if found != [(described["alt"], f"{op}.svg")] or len(described["alt"]) <= 100:
            wrong[op] = found
        elif (PAGES / f"{op}.svg").read_text() != pictures.draw(PAGES / f"{op}.json"):
            wrong[op] = ["make docs"]
    assert wrong == {}


def wrong_levels(op: str) -> list[str]:
    """What a page lacks of its levels' sections, and sections that are not in the registry's order."""
    by_way: dict[str, list[int]] = defaultdict(list)
    wrong = []
    for impl in registry.implementations(op):
        if impl.route == "pybind":  # the same kernels as cupy's
            continue
        if heading_of(impl.label) not in sections(op):
            wrong.append(f"{impl.label}: no heading")
            continue
        number, text = sections(op)[heading_of(impl.label)]
        by_way[impl.route].append(number)
        own = [each for each in excerpts(text) if each[0].startswith(FOLDERS[impl.route])]
        if not any(last - first + 1 >= FEWEST or is_whole(file, first, last) for file, first, last in own):
            wrong.append(f"{impl.label}: no excerpt of {FEWEST} lines, or of a whole function")
    wrong += [f"{way}: not in order" for way, numbers in by_way.items() if numbers != sorted(numbers)]
    return wrong


def test_every_level_has_a_section_with_a_short_excerpt() -> None:
    assert {op: wrong for op in OPS if (wrong := wrong_levels(op))} == {}
    long = [(op, *each) for op in OPS for each in excerpts(page(op)) if each[2] - each[1] + 1 > MOST]
    assert long == []


def test_a_whole_function_is_told_from_a_part_of_one() -> None:
    lines = (ROOT / "torch_impl/softmax.py").read_text().splitlines()
    first = next(i for i, line in enumerate(lines, 1) if line.startswith("def "))
    last = next(i for i, line in enumerate(lines, 1) if i > first and not line) - 1
    assert is_whole("torch_impl/softmax.py", first, last)
    assert not is_whole("torch_impl/softmax.py", first, first)
    assert not is_whole("torch_impl/softmax.py", first + 1, last)


def test_excerpts_and_names_are_of_what_there_is() -> None:
    wrong: dict[str, set[str]] = defaultdict(set)
    for op in OPS:
        labels = [impl.label for impl in registry.implementations(op)]
        known = {name for label in labels for name in (label, label.partition(".")[2])}
        wrong[op] |= {name for name, (_, part) in sections(op).items() if excerpts(part)} - known
        blocks_of = re.findall(r"(?ms)^<!-- generated: excerpt ([^\n]*) -->\n(.*?)\n<!-- end -->$", page(op))
        wrong[op] |= {words for words, body in blocks_of if body != levels.excerpt(words)}
    assert {op: names for op, names in wrong.items() if names} == {}


def test_an_excerpt_is_the_lines_from_the_last_of_the_texts() -> None:
    made = levels.excerpt("triton_impl/softmax.py 'def softmax_onepass_kernel' 'row_max =' +2")
    lines = (ROOT / "triton_impl/softmax.py").read_text().splitlines()
    first = int(re.search(r"#L(\d+)-L", made)[1])  # type: ignore[index]
    assert f"](../../triton_impl/softmax.py#L{first}-L{first + 1}), lines {first} to {first + 1}:" in made
    code = made.partition("```python\n")[2].removesuffix("\n```").splitlines()
    assert code == [line.strip() for line in lines[first - 1 : first + 1]]
    assert code[0] == "row_max = tl.max(x, axis=1, keep_dims=True)"  # online's comes earlier


def test_an_excerpt_keeps_indentation_beside_directives() -> None:
    made = levels.excerpt(
        "cuda_impl/kernels/softmax/tile.cuh 'void load_tile(' 'nothing[v]' '#pragma unroll' +2"
    )
    assert "```cuda\n#pragma unroll\nfor (int p" in made


@for_each(
    "words, says",
    [
        ("triton_impl/softmax.py +3", "write a file"),
        ("triton_impl/softmax.py 'row_max ='", "write a file"),
        ("triton_impl/sofmax.py 'row_max =' +2", "there is no triton_impl/sofmax.py"),
        ("triton_impl/softmax.py 'row_maximum =' +2", "'row_maximum =' is not in"),
        ("triton_impl/softmax.py 'def split' 'def pack' +2", "'def pack' is not in"),
        ("triton_impl/softmax.py 'def in_gluon' +200", "ends at line"),
        ("", "write a file"),
    ],
)
def test_an_excerpt_of_what_does_not_exist_is_a_mistake(words: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        levels.excerpt(words)


def test_a_gain_is_over_the_level_before_it_in_the_same_way(tmp_path: Path) -> None:
    archive.record(made_up.comparison(), tmp_path)
    made = blocks.rewritten("<!-- generated: gain softmax -->\n<!-- end -->\n", tmp_path)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in made.splitlines() if " * " in line]
    gains = {row[0].removesuffix(" *"): row[-1] for row in rows}
    assert {label: gain.split()[-1] for label, gain in gains.items()} == {
        "torch.naive": "-",
        "torch.eager": "naive",
        "torch.compile": "eager",
        "triton.online": "-",
        "triton.onepass": "online",
        "cuda.online": "-",
        "cuda.onepass": "online",
    }
    triton = made_up.MEDIANS_US["triton.online"][1] / made_up.MEDIANS_US["triton.onepass"][1]
    assert float(gains["triton.onepass"].split()[0]) == pytest.approx(triton, rel=0.01)
    assert blocks.rewritten(made, tmp_path) == made


def test_a_gain_of_no_op_is_a_mistake_and_without_a_record_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no op 'sofmax'"):
        blocks.rewritten("<!-- generated: gain sofmax -->\n<!-- end -->\n", tmp_path)
    made = blocks.rewritten("<!-- generated: gain softmax -->\n<!-- end -->\n", tmp_path)
    assert "Nothing is recorded yet of M=4096,N=4096,fp32." in made


SVG = "{http://www.w3.org/2000/svg}"


def wrong_in_picture(op: str) -> list[str]:
    text = (PAGES / f"{op}.svg").read_text()
    svg = ElementTree.fromstring(text)
    width, height = int(svg.attrib["width"]), int(svg.attrib["height"])
    first, *rectangles = svg.findall(f"{SVG}rect")
    edges = [[float(each.attrib[name]) for name in ("x", "y", "width", "height")] for each in rectangles]
    checks = {
        "its width": width == pictures.WIDTH,
        "its background": (first.attrib["class"], first.attrib["width"]) == ("page", str(width)),
        "rectangles": bool(edges),
        "all within": all(x >= 0 <= y and x + w <= width and y + h <= height for x, y, w, h in edges),
        "a dark theme": "prefers-color-scheme: dark" in text,
    }
    return [what for what, right in checks.items() if not right]


def test_pictures_fit_a_page_and_have_their_own_background() -> None:
    assert {op: wrong for op in OPS if (wrong := wrong_in_picture(op))} == {}


def described(tmp_path: Path, **changes: object) -> Path:
    """softmax's description, changed."""
    told = json.loads((PAGES / "softmax.json").read_text())
    path = tmp_path / "softmax.json"
    path.write_text(json.dumps(told | changes))
    return path


def test_a_chosen_cell_and_parts_have_their_colours(tmp_path: Path) -> None:
    cuda = {"title": "t", "cells": ["w0 w1:~a w1:~b (none)"], "width": 200, "height": 20, "notes": []}
    warp = {"title": "w1: lanes", "cells": ["0 …"], "width": 80, "height": 20, "notes": []}
    data = [{"title": "x", "cells": ["0 1*"], "width": 80, "height": 20}]
    drawn = ElementTree.fromstring(pictures.draw(described(tmp_path, cuda=cuda, warp=warp, data=data)))
    kinds = [each.attrib["class"] for each in drawn.findall(f"{SVG}rect")]
    kinds = [kind for kind in kinds if kind not in ("page", "panel")]
    assert kinds == ["plain", "chosen", "chosen", "part0", "part1", "part1", "more", "part1", "more"]
    assert "w1: a" in [each.text for each in drawn.findall(f"{SVG}text")]


@for_each(
    "changes, says",
    [
        ({"steps": [["load", "x" * 60, ""]]}, "longer than"),
        ({"data": [{"title": "x", "cells": ["0"], "width": 900, "height": 20}]}, "wider than"),
        (
            {"warp": {"title": "w9: lanes", "cells": ["0"], "width": 80, "height": 20, "notes": []}},
            "begin it with one of w0, w1",
        ),
    ],
)
def test_what_does_not_fit_is_a_mistake(changes: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        pictures.draw(described(tmp_path, **changes))
