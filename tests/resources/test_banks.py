"""Bank conflicts: the arithmetic, that it is of the kernels' own addresses, and what a GPU counts."""

from __future__ import annotations

import csv
import io
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from compare.model.op import UsageError
from compare.registry import ROOT
from compare.resources.banks import WARP, Access, conflicts, times_served
from cuda_impl import flags
from cuda_impl.launches import transpose
from loops import for_each
from tools.docs import blocks

LANES = range(WARP)


@for_each(
    "addresses,lane_bytes,served,more",
    [
        ([4 * lane for lane in LANES], 4, 1, 0),  # neighbours
        ([0 for _ in LANES], 4, 1, 0),  # one word for all
        ([2 * lane for lane in LANES], 2, 1, 0),  # two lanes a word
        ([8 * lane for lane in LANES], 4, 2, 1),
        ([128 * lane for lane in LANES], 4, 32, 31),  # a column of 32 words a row
        ([132 * lane for lane in LANES], 4, 1, 0),
        ([64 * lane for lane in LANES], 2, 16, 15),
        ([16 * lane for lane in LANES], 16, 4, 0),  # by quarters
        ([256 * lane for lane in LANES], 16, 32, 28),
        ([8 * lane for lane in LANES], 8, 2, 0),  # by halves
        ([16 * lane for lane in LANES], 8, 4, 2),
        ([0, 128], 4, 2, 1),  # two lanes alone
    ],
)
def test_turns_are_counted(addresses: list[int], lane_bytes: int, served: int, more: int) -> None:
    access = Access("load", tuple(addresses), lane_bytes)
    assert (times_served(access), conflicts(access)) == (served, more)


@for_each(
    "addresses,lane_bytes,message",
    [((0,), 3, "1, 2, 4, 8 or 16"), ((), 4, "0 lanes"), ((0,) * 33, 4, "33 lanes"), ((2,), 4, "address 2")],
)
def test_what_is_no_access_is_refused(addresses: tuple[int, ...], lane_bytes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Access("load", addresses, lane_bytes)


# --------------------------------------------------------------------------- transpose's levels

SOURCE = (flags.KERNELS / "transpose.cuh").read_text()


def code_of(variant: str) -> str:
    """The text of a kernel of transpose.cuh."""
    return SOURCE.partition(f"transpose_{variant}_kernel(")[2].partition("\n}\n")[0]


def evaluated(expression: str, **names: int) -> int:
    return int(eval(expression.replace("/", "//"), {"TILE": 32, **names}))


@pytest.mark.parametrize("layout", transpose.PLACES)
def test_tiles_lie_where_the_kernels_put_them(layout: str) -> None:
    place, code = transpose.PLACES[layout], code_of(layout.lower())
    (width,) = re.findall(r"T tile\[TILE\]\[(.+)\];", code)
    (stored,) = re.findall(r"tile\[(.+)\]\[(.+)\] = x_ptr", code)
    (loaded,) = re.findall(r"= tile\[(.+)\]\[(.+)\];", code)
    for row in range(32):
        for column in range(32):
            names_of = {stored: {"warp": row, "lane": column}, loaded: {"warp": column, "lane": row}}
            for (m, n), names in names_of.items():
                at = evaluated(f"({m}) * ({width}) + ({n})", i=0, **names)
                assert at == place(row, column), (row, column)
    assert len({place(row, column) for row in range(32) for column in range(32)}) == 32 * 32


def place_of(variant: str) -> tuple[str, str, str]:
    """The two parameters and the expression of a kernel's own `swizzle` or `place`."""
    places = r"(?:swizzle|place) = \[\]\(int (\w+), int (\w+)\) \{\s*return (.+);\s*\};"
    (place,) = re.findall(places, code_of(variant))
    return place


@for_each(
    "variant, rows, columns, place, constants",
    [
        ("vectorized", 64, 16, partial(transpose.packed_place, itemsize=4), {"ACROSS": 16, "VEC": 4}),
        ("vectorized", 128, 16, partial(transpose.packed_place, itemsize=2), {"ACROSS": 16, "VEC": 8}),
        ("windowed", 64, 64, transpose.windowed_place, {"COLUMNS": 64}),
    ],
)
def test_vectors_and_words_lie_where_the_kernels_put_them(
    variant: str, rows: int, columns: int, place: Callable[[int, int], int], constants: dict[str, int]
) -> None:
    m, n, expression = place_of(variant)
    places = {at: place(*at) for at in itertools.product(range(rows), range(columns))}
    for (row, column), expected in places.items():
        assert evaluated(expression, **constants, **{m: row, n: column}) == expected, (row, column)
    assert len(set(places.values())) == rows * columns


@for_each("itemsize, worst", [(4, 31), (2, 15)])
def test_each_level_has_the_conflicts_that_its_name_promises(itemsize: int, worst: int) -> None:
    found = {
        variant: [conflicts(access) for access in accesses]
        for variant, accesses in transpose.shared_accesses(itemsize).items()
    }
    assert found == {
        "naive": [],
        "shared": [0, worst],
        "padded": [0, 0],
        "swizzled": [0, 0],
        "vectorized": [0, 0],
        "windowed": [0, 1],
    }


def test_documents_can_show_them(tmp_path) -> None:
    block = "<!-- generated: banks {} -->\n<!-- end -->\n"
    text = blocks.rewritten(block.format("transpose"), tmp_path)
    rows = [line for line in text.splitlines() if line.startswith("| shared")]
    assert len(rows) == 4  # a store and a load, for elements of 4 bytes and of 2
    assert any(" 32 |" in row for row in rows)
    with pytest.raises(UsageError, match="shared_accesses"):
        blocks.rewritten(block.format("vector_add"), tmp_path)


VARIANTS = ("shared", "padded", "swizzled", "vectorized")
COUNTERS = {
    "load": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "store": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
}
RUN = """
import sys, torch
from compare import registry
(impl,) = registry.implementations("transpose", [f"cupy.{sys.argv[1]}"])
impl.run(torch.rand(1024, 1024, device="cuda"))
torch.cuda.synchronize()
"""

SIZE = 1024
"""Rows and columns of what RUN transposes, in fp32."""


def counted(ncu: str, variant: str) -> dict[str, float]:
    """Nsight Compute's counters over a whole kernel, by their names; skips where they may not be read."""
    # Without "none" it would hold the clocks of a card that others may be measuring on.
    command = [ncu, "--csv", "--clock-control", "none", "--kernel-name", "regex:transpose"]
    command += ["--metrics", ",".join(COUNTERS.values())]
    done = subprocess.run(
        [*command, sys.executable, "-c", RUN, variant], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        pytest.skip("needs leave to read the GPU's counters (ERR_NVGPUCTRPERM)")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows = csv.DictReader(io.StringIO("\n".join(lines)))
    return {row["Metric Name"]: float(row["Metric Value"].replace(",", "")) for row in rows}


def hold_against(variant: str, found: dict[str, float]) -> None:
    """Every warp's accesses are like the first one's."""
    for access in transpose.shared_accesses(4)[variant]:
        # Each access of a warp moves 32 lanes' bytes, and all of x passes through shared memory.
        accesses = SIZE * SIZE * 4 // (WARP * access.lane_bytes)
        expected = accesses * conflicts(access)
        # The counter also has the few turns that the copy between L1 and shared memory takes from a warp.
        assert found[COUNTERS[access.kind]] == pytest.approx(expected, rel=0.05, abs=0.05 * accesses)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gpu_counts_as_many(variant: str) -> None:
    ncu = shutil.which("ncu")
    if ncu is None:
        pytest.skip("needs Nsight Compute (ncu), and there is none")
    hold_against(variant, counted(ncu, variant))
