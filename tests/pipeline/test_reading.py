"""What is read from the compilers' texts: instructions, passes, source lines, differences."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

from compare.model.op import CudaLaunch
from compare.pipeline import cuda_way, reading, screen
from compare.pipeline.differences import differences
from compare.pipeline.reading import source_map, traced
from compare.pipeline.records import CompilerStage, Opened
from compare.resources.sass.disassembly import Instruction, instructions
from compare.resources.sass.instruction_mix import mix
from loops import for_each

ARCH = "sm_80"

SASS = """
.text.f:
\t//## File "/k.py", line 3
        /*0000*/                   LDG.E.64 R2, [R4] ;
        /*0010*/              @!P0 HMMA.16816.F32 R0, R4, R8, R0 ;
\t//## File "/k.py", line 4
        /*0020*/                   LDGSTS.E.BYPASS.128 [R2], [R4.64] ;
        /*0030*/                   UTMALDG.2D [UR8], [UR4] ;
        /*0040*/                   STL.64 [R1], R2 ;
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0060*/                   MUFU.EX2 R0, R1 ;
        /*0070*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0080*/                   STS.128 [R2], R4 ;
        /*0090*/                   NOP;
"""


def test_the_mix_groups_what_the_machine_does():
    assert {group: dict(kinds) for group, kinds in mix(instructions(SASS)).items()} == {
        "global loads": {"64 bits": 1, "128 bits by LDGSTS": 1, "TMA": 1},
        "shared stores": {"128 bits": 1},
        "local stores": {"64 bits": 1},
        "matrix": {"HMMA.16816": 1, "HGMMA.64x128x16": 1},
        "MUFU": {"EX2": 1},
        "barriers": {"BAR": 1},
        "padding": {"NOP": 1},
    }


def made_up(label: str, *opcodes: str, ttir: str = "") -> Opened:
    stages = (CompilerStage("ttir", "make_ttir", ttir.encode()),)
    rows = tuple(Instruction(16 * i, opcode, opcode) for i, opcode in enumerate(opcodes))
    return Opened("op", label, "N=1,fp32", ARCH, "f", stages, instructions=rows)


def test_differences_name_their_evidence():
    ttir = "tt.func public @f(%x_ptr: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %N: i32) attributes {"
    narrow = made_up("triton.a", "LDG.E", "FFMA", "FMUL", "FMUL", "STL", ttir=ttir)
    wide = made_up("cupy.a", "LDG.E.128", "HMMA.16816.F32", "LDG.E", "LDGSTS.E.BYPASS.128")
    tiles = made_up("cupy.b", "LDG.E", "UTMALDG.2D", "FFMA", "FMUL", "FMUL", "STL", ttir=ttir)
    found = {one.what: one.evidence for one in differences([narrow, wide, tiles])}
    assert found == {
        "widest load from global memory": (
            "triton.a: 4 bytes (1 LDG.E), and its TTIR does not say that N is a multiple of 16",
            "cupy.a: 16 bytes (1 LDG.E.128, 1 LDGSTS.E.BYPASS.128)",
            "cupy.b: by TMA (1 UTMALDG.2D)",
        ),
        "multiplies with": ("triton.a, cupy.b: 1 FFMA, 2 FMUL", "cupy.a: 1 HMMA.16816"),
        "local memory (spills)": ("triton.a, cupy.b: 0 LDL, 1 STL", "cupy.a: none"),
        "asynchronous copies": ("triton.a: none", "cupy.a: 1 LDGSTS", "cupy.b: 1 UTMALDG"),
    }
    assert differences([wide, wide]) == []


DUMP = """\
// ===== compare: ttir
// -----// IR Dump Before Inliner (inline) ('builtin.module' operation) //----- //
#loc = loc("a.py":1:0)
module {
  tt.func @f(%x: i32 loc("x"(#loc))) {
    %0 = tt.a %x : i32 loc(#loc1)
  } loc(#loc)
} loc(#loc)
// -----// IR Dump Before CSE (cse) ('builtin.module' operation) //----- //
#loc = loc("a.py":2:0)
module {
  tt.func @f(%x: i32 loc("x"(#loc))) {
    %0 = tt.a %x : i32 loc(#loc2)
  } loc(#loc)
} loc(#loc)
// ===== compare: llir
// ===== compare: end
module {
  tt.func @f(%x: i32) {
    %0 = llvm.a %x : i32 loc(#loc2)
  }
}
"""


def test_a_pass_that_moved_locations_only_changed_nothing():
    inline, cse = reading.passes(DUMP)
    assert (inline.name, inline.stage, inline.changed) == ("inline", "ttir", False)
    assert (cse.name, cse.changed) == ("cse", True)
    assert "-    %0 = tt.a %x : i32\n+    %0 = llvm.a %x : i32" in reading.diff(cse)
    assert reading.diff(inline) == ""


TRACED = {
    "ttir": (
        '#loc = loc("/k.py":1:0)\n#loc1 = loc("/k.py":3:2)\n'
        '#loc2 = loc("/lib.py":9:2)\n#loc3 = loc("/k.py":7:2)\n#loc4 = loc("x"(#loc1))\n'
        "#loc5 = loc(callsite(#loc2 at #loc3))\n"
        "%0 = tt.a loc(#loc4)\n%1 = tt.b loc(#loc5)\n",
        [("%0 = tt.a", (3,)), ("%1 = tt.b", (7,))],
    ),
    "llir": (  # not followed, and without its notes
        "define void @f() !dbg !2 {\n  %1 = add i32 1, 2, !dbg !5\n  ret void, !dbg !4\n}\n"
        '!1 = !DIFile(filename: "k.py", directory: "/")\n',
        [("define void @f() {", ()), ("  %1 = add i32 1, 2", ()), ("  ret void", ()), ("}", ())],
    ),
    "ptx": (
        '.file 1 "/k.py"\n.loc 1 3 2, function_name $a, inlined_at 1 7 2\nadd.s32 %r1, %r2, %r3;\n'
        "{ mov.b32 %f1, {0,%rs1};}\n.loc 1 7 2\nret; // here\n.section .debug_info\n{\n.b8 1\n}\n",
        [("add.s32 %r1, %r2, %r3;", (3, 7)), ("{ mov.b32 %f1, {0,%rs1};}", (3, 7)), ("ret; // here", (7,))],
    ),
    "sass": (
        '\t//## File "/k.py", line 3 inlined at "/k.py", line 7\n\t//## File "/k.py", line 7\n'
        '        /*0000*/                   MOV R1, R2 ;\n\t//## File "/lib.py", line 9\n'
        "        /*0010*/                   EXIT ;\n",
        [
            ("/*0000*/      MOV R1, R2 ;", (3, 7)),
            ("/*0010*/      EXIT ;", ()),
        ],
    ),
}
"""Of each stage a text, and its lines with the lines of ``/k.py`` that they come from."""


@for_each("name", TRACED)
def test_a_line_is_traced_through_what_was_inlined(name: str):
    text, expected = TRACED[name]
    stage = CompilerStage(name, "", text.encode())
    source = CompilerStage("source", "Python", b"first\nsecond\n", file="/k.py", first_line=3)
    opened = Opened("op", "triton.a", "N=1", ARCH, "f", (source, stage))
    assert [(line.text, line.lines) for line in traced(opened, stage)] == expected
    assert [line.lines for line in traced(opened, source)] == [(3,), (4,)]


def test_the_source_is_the_file_that_defines_the_kernel():
    launch = CudaLaunch("matmul", "matmul_wgmma_kernel<__half, true, true, 3>", (1, 1, 1), (128, 1, 1))
    stage = cuda_way._source(launch)
    assert stage.file.endswith("kernels/matmul/09_wgmma.cuh")
    assert b"void matmul_wgmma_kernel(" in stage.content


def test_one_source_line_beside_what_it_became(tmp_path: Path):
    source = tmp_path / "k.py"
    source.write_text("first\nsecond\n")
    ptx = f'.file 1 "{tmp_path}" "k.py"\n\t.loc 1 2 0\n\tadd.s32 %r1, %r2, %r3; // here\n\tret;\n'
    row = Instruction(0, "IADD3", "IADD3 R1, R2", str(source), 2)
    opened = Opened(
        "op", "cupy.a", "N=1", ARCH, "f", (CompilerStage("ptx", "NVRTC", ptx.encode()),), instructions=(row,)
    )
    (line,) = source_map(opened)
    assert (line.text, line.sass) == ("second", ["IADD3 R1, R2"])
    assert line.ptx == ["add.s32 %r1, %r2, %r3;", "ret;"]
    assert "k.py:2  second" in screen.mapped(opened).body


@for_each("module", ["cuda_way", "reading", "records"])
def test_the_examples_in_the_sources_hold(module: str):
    result = doctest.testmod(importlib.import_module(f"compare.pipeline.{module}"))
    assert result.attempted
    assert not result.failed
