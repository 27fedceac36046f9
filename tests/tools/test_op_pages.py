"""The pages of docs/ops/: each has its picture, and a section with excerpts and a gain for every level."""

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
from compare.code_size.sources import KERNELS
from compare.records import archive
from compare.registry import ROOT
from compare.spec import UsageError
from tools.docs import blocks, levels, pictures

PAGES = ROOT / "docs" / "ops"
FOLDERS = {"torch": "torch_impl/", "triton": "triton_impl/", "cupy": "cuda_impl/", "library": "cuda_impl/"}

every_op = pytest.mark.parametrize("op", registry.op_names())


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


@every_op
def test_a_page_says_what_is_computed_and_who_computes_what(op: str) -> None:
    assert page(op).startswith(f"# {op}")
    assert page(op).split("\n\n")[1].startswith("After reading this page you can ")
    for heading in ("What is computed", "Who computes what", "Figures"):
        assert f"\n## {heading}\n" in page(op)
    for block in (f"results {op}", f"sweep {op}"):
        assert f"<!-- generated: {block} -->" in page(op)


@every_op
def test_a_page_has_its_picture_with_a_text_for_who_does_not_see_it(op: str) -> None:
    (found,) = re.findall(r"^!\[(.*)\]\((.*)\)$", page(op), re.MULTILINE)
    told = json.loads((PAGES / f"{op}.json").read_text())
    assert found == (told["alt"], f"{op}.svg")
    assert len(told["alt"]) > 100
    assert (PAGES / f"{op}.svg").read_text() == pictures.draw(PAGES / f"{op}.json")


@every_op
def test_every_level_has_a_section_with_excerpts_and_its_gain(op: str) -> None:
    by_way: dict[str, list[int]] = defaultdict(list)
    for impl in registry.implementations(op):
        if impl.route == "pybind":  # the same kernels as cupy's
            continue
        assert heading_of(impl.label) in sections(op), impl.label
        number, text = sections(op)[heading_of(impl.label)]
        by_way[impl.route].append(number)
        assert f"<!-- generated: excerpt {FOLDERS[impl.route]}" in text, impl.label
        way = impl.route if impl.route in ("torch", "library") else impl.variant
        assert re.search(rf"<!-- generated: gain {op} {way}( \S+)? -->", text), impl.label
    for way, numbers in by_way.items():
        assert numbers == sorted(numbers), f"{way}: not in the registry's order"


@every_op
def test_excerpts_and_names_are_of_what_there_is(op: str) -> None:
    labels = [impl.label for impl in registry.implementations(op)]
    known = {name for label in labels for name in (label, label.partition(".")[2])}
    levels_told = {name for name, (_, part) in sections(op).items() if "generated: excerpt" in part}
    assert levels_told <= known
    for words, body in re.findall(
        r"(?ms)^<!-- generated: excerpt ([^\n]*) -->\n(.*?)\n<!-- end -->$", page(op)
    ):
        assert body == levels.excerpt(words)


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


@pytest.mark.parametrize(
    ("words", "says"),
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


LEVELS = "cuda_impl/kernels/matmul/"


def test_a_step_is_what_changes_below_the_headers() -> None:
    made = levels.step(f"{LEVELS}01_naive.cuh {LEVELS}02_coalesced.cuh").splitlines()
    changed = [line for line in made if line[:1] in ("+", "-")]
    assert "+    constexpr int BLOCK_M = THREADS / WARP, BLOCK_N = WARP;" in changed
    assert "-    constexpr int BLOCK_M = WARP, BLOCK_N = THREADS / WARP;" in changed
    assert not any("#include" in line or "level 2" in line for line in made)
    added = sum(line[0] == "+" for line in changed)
    summary = "<code>01_naive.cuh</code> to <code>02_coalesced.cuh</code>"
    assert made[:2] == ["<details>", f"<summary>{summary}: {added} lines added, {added} removed</summary>"]
    assert made[3] == "```diff"
    assert made[-3:] == ["```", "", "</details>"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (f"{LEVELS}01_naive.cuh", "write two files"),
        ("transpose naive share", "there is no transpose_share_kernel"),
        ("transposed naive shared", "there is no transposed_naive_kernel"),
        (f"{LEVELS}01_naive.cuh {LEVELS}02_coalesce.cuh", "there is no"),
    ],
)
def test_a_step_between_what_does_not_exist_is_a_mistake(words: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        blocks.rewritten(f"<!-- generated: step {words} -->\n<!-- end -->\n")


def test_a_step_between_kernels_of_a_file_is_of_these_alone() -> None:
    changed = [line for line in levels.step("transpose shared padded").splitlines() if line[:1] in ("+", "-")]
    assert [line for line in changed if line[0] == "+"] == [
        "+__global__ __launch_bounds__(THREADS) void transpose_padded_kernel(const T* __restrict__ x_ptr,",
        "+    __shared__ T tile[TILE][TILE + 1];",
    ]


@pytest.mark.parametrize("op", registry.op_names())
def test_every_level_in_cuda_shows_its_change_from_the_level_before(op: str) -> None:
    variants = [impl.variant for impl in registry.implementations(op) if impl.route == "cupy"]
    included = re.findall(r'#include "(\w+/\d\d_\w+\.cuh)"', (KERNELS / f"{op}.cuh").read_text())
    files = [KERNELS / file for file in included]
    assert [file.stem[3:] for file in files] == (variants if files else [])
    places = [str(file.relative_to(ROOT)) for file in files]
    for one, other, variant in zip(places or variants, (places or variants)[1:], variants[1:], strict=False):
        _, text = sections(op)[variant]
        step = f"<!-- generated: step {'' if files else op + ' '}{one} {other} -->"
        shared = [name for name in registry.op_names() if name != op and step in page(name)]
        assert (step in text) != any(f"]({name}.md)" in text for name in shared)


def test_a_gain_is_over_the_level_before_it_in_the_same_way(tmp_path: Path) -> None:
    archive.record(made_up.comparison(), tmp_path)
    block = "<!-- generated: gain softmax {} -->\n<!-- end -->\n"
    made = blocks.rewritten(block.format("onepass"), tmp_path)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in made.splitlines() if " vs o" in line]
    assert [row[0].removesuffix(" *") for row in rows] == ["triton.onepass", "cuda.onepass"]
    triton = made_up.MEDIANS_US["triton.online"][1] / made_up.MEDIANS_US["triton.onepass"][1]
    assert float(rows[0][-1].split()[0]) == pytest.approx(triton, rel=0.01)
    assert rows[0][-1].endswith(" vs online")
    first = blocks.rewritten(block.format("online"), tmp_path)
    assert [line.split("|")[-2].strip() for line in first.splitlines() if ".online" in line] == ["-", "-"]
    ways = blocks.rewritten(block.format("torch"), tmp_path)
    assert [line.split("|")[-2].split()[-1] for line in ways.splitlines() if "| torch." in line] == [
        "-", "naive", "eager",
    ]  # fmt: skip
    assert blocks.rewritten(ways, tmp_path) == ways


@pytest.mark.parametrize(
    ("words", "says"),
    [("softmax onepas", "no variant"), ("softmax onepass M=1,N=1,fp32", "not timed"), ("sofmax x", "no op")],
)
def test_a_gain_of_what_does_not_exist_is_a_mistake(words: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        blocks.rewritten(f"<!-- generated: gain {words} -->\n<!-- end -->\n", tmp_path)


def test_a_gain_without_a_record_says_so(tmp_path: Path) -> None:
    made = blocks.rewritten("<!-- generated: gain softmax onepass -->\n<!-- end -->\n", tmp_path)
    assert "Nothing is recorded yet of M=4096,N=4096,fp32." in made


SVG = "{http://www.w3.org/2000/svg}"


@every_op
def test_a_picture_fits_a_page_and_has_its_own_background(op: str) -> None:
    text = (PAGES / f"{op}.svg").read_text()
    svg = ElementTree.fromstring(text)
    width, height = int(svg.attrib["width"]), int(svg.attrib["height"])
    assert width == pictures.WIDTH
    page, *rectangles = svg.findall(f"{SVG}rect")
    assert (page.attrib["class"], page.attrib["width"]) == ("page", str(width))
    for each in rectangles:
        x, y, w, h = (float(each.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert x + w <= width
        assert y >= 0
        assert y + h <= height
    assert "prefers-color-scheme: dark" in text


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


@pytest.mark.parametrize(
    ("changes", "says"),
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
