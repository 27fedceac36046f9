"""The four pages that a newcomer reads first: short, in order, and with no word before its explanation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compare.registry import ROOT
from processes import command
from tools.docs import blocks, stages

PAGES = [
    page
    for name in ("from-python-to-sass", "programs-and-threads", "block-size", "where-triton-ends")
    if (page := ROOT / "docs" / f"{name}.md").is_file()
]
"""In the order in which they are read: a word explained on one is known on the next."""
MOST_LINES = 250
WORDS = r"""
accumulators? | AOT | arithmetic intensity | assembl\w+ | atomics? | ballots? | bandwidth | banks? | bank
conflicts? | barriers? | bf16 | blocks? | BLOCK_SIZE | cache hits? | caches? | ceilings? | cicc | clusters?
| coalesced | compilers? | compute bound | constexprs? | CUDA C\+\+ | cubins? | distributed shared memory |
FLOPs? | FMA | fp16 | fp32 | fp64 | fp8 | fragments? | global memory | Gluon | GPUs? | grids? | hash(?:es)?
| in flight | instructions? | intrinsics? | IR | JIT | kernels? | L1 | L2 | lanes? | latency |
launch(?:es|ed)? | layouts? | ldmatrix | LLVM IR | loop-carried | machine code | masks? | mbarriers? |
memory bound | MLIR | MMA | multicast | multiprocessors? | nvcc | NVRTC | occupancy | operands? |
pass(?:es)? | persistent | phases? | pipelining | pointers? | predicates? | programs? | ptxas | PTX |
registers? | resident | SASS | shared memory | shuffles? | SIMT | sm_75 | sm_80 | sm_90 | spill(?:s|ed)? |
stages? | strides? | swizzles? | tensor cores? | TF32 | threads? | throughput | tiles? | TMA | transactions?
| Triton | TTGIR | TTIR | vectori[sz]ed | warpgroups? | warps? | wavefronts? | wgmma
"""
"""What somebody who knows Python and no GPU does not know."""


def prose(text: str) -> str:
    """Paragraphs and lists: no headings, tables, pictures, generated blocks or code; a link is its text."""
    text = re.sub(r"(?ms)^<!-- generated: .*?^<!-- end -->$|^```.*?^```$", "", text)
    text = re.sub(r"(?m)^(?:#+ |\|).*$|!\[[^]]*\]\([^)]*\)|`[^`\n]*`", "", text)
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)


def unexplained(texts: list[str]) -> list[str]:
    """The words whose first occurrence in the texts, read one after the other, is not a bold one."""
    text = "\n".join(map(prose, texts))
    words = re.split(r"\s+\|\s+", WORDS.strip())
    firsts = [re.search(rf"(?<![\w-]){word}(?![\w-])", text, re.IGNORECASE) for word in words]
    return [each[0] for each in firsts if each and text[: each.start()].count("**") % 2 == 0]


def test_no_word_is_used_before_it_is_explained() -> None:
    assert unexplained([page.read_text() for page in PAGES]) == []


def test_a_word_before_its_explanation_is_found() -> None:
    text = (
        "# Warps\nA warp is used. A **warp** is 32 **threads**.\n`lane` ![lane](x.svg)\n- A [register](y.md)."
    )
    assert unexplained([text]) == ["register", "warp"]
    assert unexplained(["A **warp** is.", "A warp, in a **program**."]) == []


def test_the_pages_are_short_and_lead_to_the_next() -> None:
    lines = {page.name: page.read_text().count("\n") for page in PAGES}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
    assert all("\n\nAfter reading this page you can " in page.read_text() for page in PAGES)


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_excerpts_are_what_the_pinned_compilers_make(page: Path) -> None:
    if not stages.pinned(*stages.PACKAGES):
        pytest.skip(
            f"constraints.txt pins other versions of {' and '.join(stages.PACKAGES)} than are installed"
        )
    assert blocks.stale([page]) == {}, "make docs writes them anew"


@pytest.mark.thorough
def test_the_tool_checks_the_exercises(tmp_path: Path) -> None:
    """Each answer that the page gives is what the command says, or makes it say so."""
    page = (ROOT / "docs" / "programs-and-threads.md").read_text()
    (exercise,) = re.findall(r"(?ms)^```python\n(import.*?)^```$", page)
    words = re.search(r"(?m)^python -m compare (vector_add --load \S+ --case \S+)$", page)
    file = tmp_path / "my_add.py"
    arguments = words[1].replace("my_add.py", str(file)).split()

    def shown(text: str) -> tuple[int, str]:
        file.write_text(text)
        done = command(*arguments)
        return done.returncode, " ".join(done.stdout.split())

    status, screen = shown(exercise)
    assert status == 1
    assert [
        left for left in ("452", "196") if f"{left} of 2500 elements were not written" not in screen
    ] == []
    for wrong, right in (
        ("programs = N // 1024", "programs = triton.cdiv(N, 1024)"),
        ("blocks = N // 256", "blocks = -(-N // 256)"),
    ):
        assert f"`{right}`" in page
        exercise = exercise.replace(wrong, right)
    status, screen = shown(exercise)
    assert status == 1
    assert "is its mask missing?" in screen
    assert "is a mask or a bound missing?" in screen
    for wrong, right in (
        ("    z_ptr[n] =", "    if (n < N) z_ptr[n] ="),
        ("tl.load(x_ptr + n)", "tl.load(x_ptr + n, mask=n < N)"),
        ("tl.load(y_ptr + n))", "tl.load(y_ptr + n, mask=n < N), mask=n < N)"),
    ):
        exercise = exercise.replace(wrong, right)
    status, screen = shown(exercise)
    assert (status, "CORRECT" in screen, "WRONG" in screen) == (0, True, False), screen
