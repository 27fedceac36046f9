"""A user's file runs in workers only, and a file that cannot be loaded says why."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from compare.spec import UsageError
from compare.worker import user_files
from loaded_files import BEGINNING, compared, rows_of, written

pytestmark = pytest.mark.usefixtures("own_registry")


def test_a_file_is_not_run_by_the_judge(tmp_path: Path) -> None:
    text = f"open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}} ')\n"
    rows = rows_of(compared(tmp_path / "nosy.py", text, "triton.right"))
    assert rows["triton.right"].status == "ok"
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2  # one that describes it, one that runs it
    assert str(os.getpid()) not in pids


def test_one_whose_code_cannot_be_counted_is_checked_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "made.py"
    made = "@own('made')\ndef made(x, y): return added(x, y)"
    row = rows_of(compared(file, f"exec({made!r})\n", "triton.made"))["triton.made"]
    assert row.status == "ok"
    assert row.reason.startswith(f"code size unread: its function is not found in {file}")
    assert row.source_hash


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("os._exit(3)", "exit code 3 in loading it"),
        ("time.sleep(100)", "took longer than 2 s, the limit for loading it"),
        ("1 / 0", "ZeroDivisionError at line 18"),
        ("time.perf_counter_ns = lambda: 0", "replaced time.perf_counter_ns"),
        ("implementation('vector_add', 'torch.eager', rung='vendor')(added)", "has a torch.eager already"),
    ],
)
def test_a_file_that_cannot_be_loaded(code: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        user_files.load([written(tmp_path / "mine.py", code + "\n")], 2.0)


def test_a_file_for_an_op_that_does_not_exist(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BEGINNING.replace('"vector_add"', '"vector_ad"'))
    with pytest.raises(UsageError, match=r"triton\.right: no op 'vector_ad': did you mean vector_add"):
        user_files.load([str(file)], 60.0)
