"""Pictures of techniques: drawn from the kernels' constants, and described in words."""

from __future__ import annotations

import contextlib
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from compare.model.op import UsageError
from compare.registry import ROOT
from cuda_impl.launches import transpose
from tools.docs import blocks, canvas, one_line, programs, sweeps, techniques, windows
from triton_impl import w4a16_matmul

SVG = "{http://www.w3.org/2000/svg}"
DESCRIBED = (
    *map(str, techniques.PICTURES),
    *("docs/ops/transpose_windowed.svg", one_line.PICTURE, programs.PICTURE),
    *(sweeps.PICTURE, sweeps.SIZES_PICTURE),
)


def texts(drawn: str) -> list[str]:
    return [str(each.text) for each in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def test_pages_describe_their_pictures_in_the_pictures_own_words() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    shown = {name: alt for alt, name in re.findall(r"!\[([^]]*)\]\(([^)]+\.svg)\)", pages)}
    wrong = {}
    for path in DESCRIBED:
        title = re.search(r'<title id="title">(.*?)</title>', (ROOT / path).read_text(), re.DOTALL)
        if shown.get(Path(path).name) != html.unescape(title[1]):
            wrong[path] = html.unescape(title[1])
    assert wrong == {}
    assert {Path(path) for path in DESCRIBED} <= set(blocks.PICTURES)


SOURCES = [
    (techniques.ring, "matmul", "STAGES", 5),
    (techniques.look_back, "compact", "ITEMS", 32),
    (techniques.tree_of_sums, "scan", "THREADS", 128),
    (programs.picture, "vector_add", "BLOCK_SIZE", 512),
]


@pytest.mark.parametrize(
    ("draw", "op", "name", "value"), SOURCES, ids=lambda each: getattr(each, "__name__", str(each))
)
def test_another_parameter_is_another_picture(
    draw: Callable[[], str], op: str, name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is, read = draw(), canvas.parameter

    def changed(of: str, label: str, asked: str) -> int:
        return value if (of, asked) == (op, name) else read(of, label, asked)

    for module in (techniques, programs):
        monkeypatch.setattr(module, "parameter", changed)
    assert draw() != as_it_is


FORMULAS = [
    (techniques.fragment, "matmul/tma_tiles.cuh", "half * 8 + lane / 4", "half * 8 + lane % 8"),
    (techniques.ping_pong, "attention/05_specialized.cuh", "multiply_pv<T>(o", "multiply_kv<T>(o"),
    (techniques.look_back, "compact/look_back.cuh", "OWN = 1, ALL = 2", "OWN = 2, ALL = 1"),
    (techniques.tree_of_sums, "scan.cuh", "group = c / WARP", "group = c / 16"),
    (techniques.schedule, "attention_backward/05_overlapped.cuh", "==t-1==", "==t-2=="),
]


@pytest.mark.parametrize(
    ("draw", "file", "is_now", "other"), FORMULAS, ids=[formula[1] for formula in FORMULAS]
)
def test_another_kernel_is_another_picture_or_none(
    draw: Callable[[], str], file: str, is_now: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / techniques.KERNELS / file).read_text()
    assert is_now in text
    as_it_is = draw()
    monkeypatch.setattr(canvas, "source", lambda asked: text.replace(is_now, other))
    with contextlib.suppress(UsageError, KeyError):
        assert draw() != as_it_is


def test_a_constant_that_is_gone_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="matches 0 texts"):
        canvas.constant("cuda_impl/kernels/transpose.cuh", "TILES_OF_NOTHING")
    with pytest.raises(UsageError, match=r"no parameter THREADS; there are .*STAGES"):
        canvas.parameter("matmul", "cupy.specialized", "THREADS")


def test_a_fragment_has_each_sum_once() -> None:
    """PTX ISA, wgmma's D: a lane has columns 2 * (lane % 4) and the next, rows lane / 4 and 8 more."""
    cells = [each for each in texts(techniques.fragment()) if re.fullmatch(r"\d+: s\d+", each)]
    assert len(cells) == 16 * 16
    assert len(set(cells)) == len(cells)
    lanes = [int(each.partition(":")[0]) for each in cells]
    assert all(lanes.count(lane) == 8 for lane in range(32))


def test_a_column_is_in_one_bank_without_a_swizzle_and_in_all_with_one() -> None:
    places = {name: {place(row, 0) % 32 for row in range(32)} for name, place in transpose.PLACES.items()}
    assert {name: len(banks) for name, banks in places.items()} == {"Shared": 1, "Padded": 32, "Swizzled": 32}
    assert [each for each in texts(techniques.banks()) if "wavefront" in each] == [
        *("shared: 32 wavefronts", "padded: 1 wavefront", "swizzled: 1 wavefront")
    ]


def test_windows_are_the_kernels() -> None:
    assert (windows.SECTOR, windows.ROWS, windows.WINDOW) == (32 // 4, 256 // 4, 256 // 4 - 32 // 4)
    assert f"window of row 2: WINDOW = {windows.WINDOW} elements" in texts(windows.windows())


def test_the_schedule_has_the_products_in_the_order_of_the_kernel() -> None:
    drawn = ElementTree.fromstring(techniques.schedule())
    bars = [each for each in drawn.iter(f"{SVG}rect") if each.attrib["class"] in ("part0", "plain")]
    kinds = [bar.attrib["class"] for bar in bars]
    assert (kinds.count("part0"), kinds.count("plain")) == (5, 3), "products, and work of the threads"
    assert [each for each in texts(techniques.schedule()) if each in ("t+1", "t-1", "store")] == [
        *("t+1", "t-1", "store")
    ]


def test_a_piece_is_drawn_in_the_order_of_its_bits() -> None:
    """docs/ops/w4a16_matmul_piece.json against the kernels that repack weights and that read them."""
    drawn = json.loads((ROOT / "docs" / "ops" / "w4a16_matmul_piece.json").read_text())
    names, sizes = (cells.replace("*", "").split() for cells in drawn["data"][0]["cells"])
    source = (ROOT / "triton_impl" / "w4a16_matmul.py").read_text()
    dims = re.search(r"reshape\(PIECES, ([\d, ]+)\)", source)
    assert (names, sizes) == (list(w4a16_matmul.PIECE_BITS[1:]), dims[1].split(", "))
    place = {"parity": 1, "step": 16, "k_half": 8}  # k = 16 * step + 8 * k_half + parity in a word
    low = [name for name in names if name in place]
    ks = [sum(place[name] * (i >> (2 - at) & 1) for at, name in enumerate(low)) for i in range(8)]
    assert drawn["data"][1]["cells"][0].replace("*", "").split() == [str(k) for k in reversed(ks)]
    assert "16 * warp + 2 * quad + row_half" in source
    rows = [cell.replace("~", " ") for line in drawn["triton"]["cells"] for cell in line.split()]
    assert rows == [f"row {quad + 8 * half}: y {2 * quad + half}" for quad in range(8) for half in range(2)]
