"""What a kernel's first warp or program accesses, on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare.labs import lab as labs
from compare.labs import traces
from compare.labs.running import HandedIn
from compare.worker.messages import TracedAccess
from right_files import ALL


def accesses(lab: str, name: str, folder: Path, *change: str) -> tuple[TracedAccess, ...]:
    right = next(each for each in ALL if each.file == name)
    text = right.text.replace(*change) if change else right.text
    (folder / name).write_text(text)
    description = labs.find(lab)
    task = next(task for task in description.task if task.file == name)
    return traces.of_task(description, task, HandedIn(folder / name), 60.0)


@pytest.mark.thorough
@pytest.mark.timeout(200)
def test_a_programs_elements_and_its_mask(tmp_path: Path) -> None:
    x, y, z = accesses("01", "triton_add.py", tmp_path)
    assert [(each.kind, each.tensor, each.bytes) for each in (x, y, z)] == [
        ("load", "x", 4),
        ("load", "y", 4),
        ("store", "z", 4),
    ]
    lines = (tmp_path / "triton_add.py").read_text().split("\n")
    assert "tl.load(x_ptr" in lines[int(x.where.partition(":")[2]) - 1]
    assert x.active.count(True) == 1000, "of N=1000"
    assert x.offsets[:3] == (0, 4, 8)


@pytest.mark.thorough
@pytest.mark.timeout(200)
def test_a_warps_lanes_and_what_a_branch_leaves_out(tmp_path: Path) -> None:
    load, store = accesses("03", "cuda_naive.py", tmp_path)
    assert (load.kind, load.tensor, store.kind, store.tensor) == ("load", "x", "store", "y")
    assert load.offsets == tuple(range(0, 128, 4)), "coalesced"
    assert store.offsets == tuple(range(0, 32 * 33 * 4, 33 * 4)), "a column of 33 rows"
    (changed, *_) = accesses("03", "cuda_naive.py", tmp_path, "if (m < M && n < N)", "if (m < M && n < 7)")
    assert changed.active == (True,) * 7 + (False,) * 25


@pytest.mark.thorough
@pytest.mark.timeout(200)
def test_a_file_that_does_not_run_has_no_pictures(tmp_path: Path) -> None:
    assert accesses("01", "triton_add.py", tmp_path, "import torch", "import torhc") == ()
