"""Which thread holds which element: Triton's answer against the rules as written down elsewhere; drawings."""

from __future__ import annotations

import doctest
import importlib
import io
from itertools import product

import pytest
import triton

from compare.toolchain.pipeline.layouts import Layout, layouts
from compare.toolchain.pipeline.records import Opened, Stage
from compare.toolchain.pipeline.report import highlight
from compare.toolchain.pipeline.report.layouts import described, drawn, drawn_memory

KNOWS_MEMORY = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 7)


def of(definitions: str, *tensors: str) -> dict[str, Layout]:
    """The layouts of a made-up TTGIR that has these tensors, by name."""
    uses = "\n".join(f"    %{i} = tt.x %a : {tensor} loc(#loc1)" for i, tensor in enumerate(tensors))
    text = (
        f'{definitions}\n#loc1 = loc("k.py":3:4)\n#smem = #ttg.shared_memory\n'
        'module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, '
        'ttg.target = "cuda:80", "ttg.threads-per-warp" = 32 : i32} {\n'
        f"{uses}\n}}\n"
    )
    stage = Stage("ttgir", "make_ttgir", text.encode())
    found = layouts(Opened("op", "triton.a", "N=1", "sm_80", "f", (stage,)))
    return {layout.name: layout for layout in found}


BLOCKED = (
    "#blocked = #ttg.blocked<"
    "{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [2, 2], order = [1, 0]}>"
)
MMA = (
    "#mma = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [2, 2], instrShape = [16, 8]}>"
)
SHARED = "#shared = #ttg.swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [1, 0]}>"


def test_a_blocked_layout_is_blocks_in_blocks():
    layout = of(BLOCKED, "tensor<64x64xf16, #blocked>")["#blocked"]
    for (row, column), who in layout.holders().items():
        lane = row % 8 * 4 + column // 8 % 4
        warp = row // 8 % 2 * 2 + column // 32 % 2
        assert who == {(warp, lane)}
    assert len(layout.holders()) == 64 * 64


@pytest.mark.thorough
def test_the_sums_of_mma_lie_as_the_ptx_manual_has_them():
    """PTX ISA, mma.m16n8k16, accumulators: groupID = lane >> 2, column = 2 * (lane % 4) + (i & 1)."""
    layout = of(MMA, "tensor<32x16xf32, #mma>")["#mma"]
    for lane, i in product(range(32), range(4)):
        row, column = (lane >> 2) + 8 * (i >= 2), 2 * (lane % 4) + (i & 1)
        assert layout.holders()[row, column] == {(0, lane)}
        assert layout.holders()[row + 16, column] == {(2, lane)}
        assert layout.holders()[row, column + 8] == {(1, lane)}


def test_a_slice_is_held_by_all_that_differed_along_the_dimension_only():
    name = "#ttg.slice<{dim = 1, parent = #blocked}>"
    layout = of(BLOCKED, "tensor<64x64xf16, #blocked>", f"tensor<64xf16, {name}>")[name]
    for (row,), who in layout.holders().items():
        lanes = {row % 8 * 4 + i for i in range(4)}
        assert who == set(product({row // 8 % 2 * 2, row // 8 % 2 * 2 + 1}, lanes))
    assert "each element 8 times" in described(layout, 100)
    assert "#blocked without its dimension 1" in described(layout, 100)
    assert "w0-1 l4-7" in described(layout, 100)


@pytest.mark.skipif(not KNOWS_MEMORY, reason="this Triton does not say how shared memory is laid out")
def test_shared_memory_is_swizzled():
    layout = of(SHARED, "!ttg.memdesc<3x16x32xf16, #shared, #smem, mutable>")["#shared"]
    assert layout.shape == (16, 32)
    for offset in range(16 * 32):
        row, place = divmod(offset, 32)
        column = (place // 8 ^ row // 2 % 4) * 8 + place % 8
        assert layout.at(offset=offset) == (row, column)
    first, second = drawn_memory(layout, 100)[1:3]
    assert first.split()[:6] == ["byte", "0", "0:0-7", "0:8-15", "0:16-23", "0:24-31"]
    assert second.split()[:4] == ["byte", "128", "2:8-15", "2:0-7"]


def test_the_older_triton_is_not_asked_what_would_end_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    layout = of(SHARED, "!ttg.memdesc<16x32xf16, #shared, #smem>")["#shared"]
    assert "3.7 and later do" in layout.unknown
    assert "3.7 and later do" in described(layout, 100)


def test_a_drawing_joins_what_is_alike_and_fits_the_terminal():
    layout = of(BLOCKED, "tensor<64x64xf16, #blocked>", "tensor<64x64xi1, #blocked>")["#blocked"]
    assert layout.dtype == "f16"
    lines = drawn(layout, 100)
    assert lines[0].strip() == "which warp:"
    assert [line.split() for line in lines[1:4]] == [
        ["0-31", "32-63"],
        ["0-7", "w0", "w1"],
        ["8-15", "w2", "w3"],
    ]
    lanes = lines[lines.index("  which lane:") + 1 :]
    assert lanes[0].split() == ["0-7", "8-15", "16-23", "24-31", "32-39", "40-47", "48-55", "56-63"]
    assert lanes[2].split()[:5] == ["1", "w0", "l4", "w0", "l5"]
    assert lanes[-1].strip() == "..."
    for width in (40, 60, 80):
        assert all(len(line) <= width for line in described(layout, width).splitlines()[1:])


def test_a_layout_that_is_refused_says_why():
    layout = of("", "tensor<64x64xf16, #nowhere>")["#nowhere"]
    assert layout.unknown.startswith("Triton does not say")
    assert layout.unknown in " ".join(described(layout, 100).split())


@pytest.mark.parametrize("module", ["toolchain.pipeline.layouts", "toolchain.pipeline.report.layouts"])
def test_the_examples_in_the_sources_hold(module: str):
    result = doctest.testmod(importlib.import_module(f"compare.{module}"))
    assert result.attempted
    assert not result.failed


# --------------------------------------------------------------------------- colours


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


TEXTS = [
    highlight.Code(
        "// triton.a", "#blocked = #ttg.blocked<{order = [1, 0]}>\n  %0 = tt.load %x : f32 loc(#loc1)", "mlir"
    ),
    highlight.Code("// cupy.a", "/*0000*/  @!P0 LDG.E.128 R12, desc[UR4][R2.64] ;", "sass"),
    highlight.Code("// cupy.a", "3 bytes that are no text"),
]


def plain(stream: io.StringIO) -> str:
    highlight.put(TEXTS, stream)
    return stream.getvalue()


def test_a_pipe_gets_the_text_as_it_is():
    assert plain(io.StringIO()) == "\n".join(f"{one.head}\n{one.body}\n" for one in TEXTS)


def test_a_terminal_gets_colours_unless_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = plain(Terminal())
    assert "\x1b[" in shown
    assert "tt.load" in shown
    monkeypatch.setenv("NO_COLOR", "1")
    assert plain(Terminal()) == plain(io.StringIO())


@pytest.mark.parametrize("name", ["mlir", "sass"])
def test_no_character_is_lost_to_colours(name: str):
    text = '  %x:2 = "ttg.a"() {b = dense<0.5e-1> : tensor<4xf32>} loc(#loc)\n\t.L_x_1:\n'
    text += "  /*0010*/ BRA `(.L_x_1) ; §\n"
    assert "".join(value for _, value in highlight.lexer(name).get_tokens(text)) == text
