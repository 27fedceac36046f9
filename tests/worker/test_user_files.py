"""A user's file runs in workers only, and a file that cannot be loaded says why."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest
import torch

from compare.cli import main
from compare.model.op import UsageError
from compare.records import archive
from compare.worker import user_files
from loaded_files import BEGINNING, compared, rows_of, written
from loops import for_each

pytestmark = pytest.mark.usefixtures("own_registry")


def test_a_file_is_not_run_by_the_judge(tmp_path: Path) -> None:
    rows = rows_of(compared(tmp_path / "nosy.py", "torch.was_here = True\n", "triton.right"))
    assert rows["triton.right"].status == "ok"
    assert not hasattr(torch, "was_here")


def test_one_whose_code_cannot_be_counted_is_checked_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "made.py"
    made = "@own('made')\ndef made(x, y): return added(x, y)"
    row = rows_of(compared(file, f"exec({made!r})\n", "triton.made"))["triton.made"]
    assert row.status == "ok"
    assert row.reason.startswith(f"code size unread: its function is not found in {file}")
    assert row.source_hash


@for_each(
    "text, timeout_s, says",
    [
        (f"{BEGINNING}os._exit(3)\n", 60.0, "exit code 3 in loading it"),
        (f"{BEGINNING}time.sleep(100)\n", 0.3, "took longer than 0.3 s, the limit for loading it"),
        (f"{BEGINNING}1 / 0\n", 60.0, "ZeroDivisionError at line 18"),
        (
            f"{BEGINNING}raise ValueError('first\\n\\x1b[2Jsecond' + 'x' * 1_000_000)\n",
            *(60.0, "ValueError at line 18: first ?[2Jsecond"),
        ),
        (
            f"{BEGINNING}implementation('vector_add', 'torch.eager', level='vendor')(added)\n",
            *(60.0, "has a torch.eager already"),
        ),
        (
            BEGINNING.replace('"vector_add"', '"vector_ad"'),
            *(60.0, "triton.right: no op 'vector_ad': did you mean vector_add"),
        ),
        *((f"x = 1{end}" * 20_000, 60.0, "20000 lines, and the most is 10000") for end in ("\n", "\r")),
    ],
    ids=lambda case: case[2],
)
def test_a_file_that_cannot_be_loaded_says_why_in_a_line(
    text: str, timeout_s: float, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(text.encode())
    with pytest.raises(UsageError, match=re.escape(says)) as caught:
        user_files.load([str(file)], timeout_s)
    assert len(str(caught.value)) < 3000
    assert str(caught.value).isprintable()


WITH_MISTAKES = """import torch, triton
import triton.language as tl
from compare.registry import implementation
from cuda_impl.loader import kernel

@triton.jit
def misspelt(x):
    return tl.no_such_function(x)

@triton.jit
def calls(x_ptr, y_ptr, z_ptr, total):
    tl.store(z_ptr, misspelt(tl.load(x_ptr)))

@triton.jit
def changes_type(x_ptr, y_ptr, z_ptr, total):
    for _ in range(1):
        total = total + 0.0
    tl.store(z_ptr, tl.load(x_ptr) + tl.load(y_ptr) + total)

def one(kernel):
    @implementation("vector_add", f"triton.{kernel.fn.__name__}", level="naive")
    def run(x, y):
        z = torch.empty_like(x)
        kernel[(1,)](x, y, z, x.numel() - 1)
        return z

one(calls)
one(changes_type)

@implementation("vector_add", "torch.raises", level="naive")
def raises(x, y):
    return x.no_such_method(y)

@implementation("vector_add", "cupy.misspelt", level="naive")
def in_cuda(x, y):
    kernel('''
__global__ void misspelt(float* z) {
    z[0] = no_such_name;
    z[1] = nor_this;
}
''', "misspelt", x.device)
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("decorated")
def test_mistakes_are_shown_with_the_line_of_the_users_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(WITH_MISTAKES)
    words = ["--only", "triton.*s*", "--only", "torch.raises", "--only", "cupy.misspelt"]
    words += ["--case", "N=1,fp32", "--json", str(tmp_path / "record.json")]
    status = main(["vector_add", "--load", str(file), *words])
    printed = capsys.readouterr()
    assert status == 3, printed.err
    (comparison,) = archive.read(tmp_path / "record.json")
    rows = rows_of(comparison)
    for label, says in {
        "triton.calls": "mine.py:8: AttributeError: module 'triton.language' has no attribute",
        "triton.changes_type": "changes_type: mine.py:16: CompilationError: ",
        "torch.raises": "mine.py:32: AttributeError: 'Tensor' object has no attribute 'no_such_method'",
        "cupy.misspelt": "misspelt: g++ failed: mine.py:38: ",
    }.items():
        assert rows[label].status == "failed"
        assert says in rows[label].reason, rows[label].reason
    assert "; mine.py:39: " in rows["cupy.misspelt"].reason
    assert "mine.py:39" in printed.out


BESIDE = {
    "deep": "x = " + "-" * 2_000_000 + "1\n",
    "long": "x = 1\n" * 300_000,
}


@pytest.mark.parametrize("what", BESIDE)
def test_what_cannot_be_read_within_the_limits_is_refused(what: str, tmp_path: Path) -> None:
    """The judge parses no user's file, nor what stands beside it."""
    (tmp_path / "beside.py").write_text(BESIDE[what])
    read = user_files._hash
    with (
        mock.patch.object(user_files, "_hash", lambda paths, timeout_s: read(paths, 0.5)),
        pytest.raises(UsageError, match=r"^--load \S+: .*Fix the file$") as caught,
    ):
        user_files.load([written(tmp_path / "mine.py", "if False:\n    import beside\n")], 60.0)
    assert "\n" not in str(caught.value)
