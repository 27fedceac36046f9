"""A user's file is read by the judge and runs in workers only; one that cannot be read or run says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from compare import registry
from compare.cli import main
from compare.code_size.count import Launched, code_size
from compare.model.op import UsageError
from compare.records import archive
from compare.worker import user_files
from compare.worker.messages import Rest
from compare.worker.pool import load
from compare.worker.process import Ended, Worker
from loaded_files import BEGINNING, CPU, compared, decorator, implemented, rows_of, written
from loops import for_each

pytestmark = pytest.mark.usefixtures("own_registry")


def test_a_file_is_not_run_by_the_judge(tmp_path: Path) -> None:
    rows = rows_of(compared(tmp_path / "nosy.py", "torch.was_here = True\n", "triton.right"))
    assert rows["triton.right"].status == "ok"
    assert not hasattr(torch, "was_here")


def test_one_whose_code_cannot_be_counted_is_checked_and_says_so(tmp_path: Path) -> None:
    deep = f"z = {'-' * 800}1"  # to write it as text again takes more than Python's stack
    text = implemented("deep", deep)
    row = rows_of(compared(tmp_path / "deep.py", text, "triton.deep"))["triton.deep"]
    assert row.status == "ok", row.reason
    assert row.reason.startswith("code size unread: ")
    assert row.source_hash


@for_each(
    "text, says",
    [
        ("1 / 0\n", "ZeroDivisionError at line 14: division by zero. Fix the file ("),
        ("raise ValueError('first\\n\\x1b[2Jsecond' + 'x' * 1_000_000)\n", "at line 14: first ?[2Jsecond"),
        ("os._exit(3)\n", "exit code 3 in loading its file"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("raise SystemExit(0)\n", "Take out what ends Python"),
        ("import no_such_module\n", "shows the whole traceback"),
        ("import beside_it\n", "put what it needs of beside_it.py into it"),
        ("import package_beside.part\n", "put what it needs of package_beside into it"),
        (
            f"{decorator('other')}\ndef other(x, y): pass\n"
            "import compare.registry\ndel compare.registry._implementations['vector_add']['triton.right']\n",
            "does not register triton.right",
        ),
        (
            f"for _ in (1, 2):\n    {decorator('twice')}\n    def twice(x, y): pass\n",
            "has a triton.twice already",
        ),
    ],
    ids=lambda case: case[1],
)
def test_what_a_file_raises_is_an_error_of_its_rows(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("")
    (tmp_path / "package_beside").mkdir(exist_ok=True)
    row = rows_of(compared(tmp_path / "mine.py", text, "triton.right", resources=False))["triton.right"]
    assert row.status == "failed"
    assert says in row.reason, row.reason
    assert row.reason.isprintable()


def test_loading_a_file_has_the_time_limit_of_any_step(tmp_path: Path) -> None:
    user_files.load([written(tmp_path / "mine.py", "time.sleep(100)\n")])
    (impl,) = registry.implementations("vector_add", ["triton.right"])
    worker = Worker("test", CPU, 60.0)
    worker.ask(Rest())
    worker.timeout_s = 0.3
    with pytest.raises(Ended, match=r"longer than 0.3 s, the limit for loading its file \(--timeout\)"):
        load(worker, registry.get_op("vector_add"), impl)
    worker.close()


def computed(label: str) -> str:
    return decorator("mine").replace('"triton.mine"', label) + "\ndef mine(x, y): pass\n"


LITERALS = "A file is read to list what it has, and not run: "


@for_each(
    "text, says",
    [
        (computed("f'triton.{1}'"), f"line 14: f'triton.{{1}}' is no literal. {LITERALS}"),
        (computed("*LABELS"), "line 14: *LABELS is no literal"),
        (computed("**ALL"), "line 14: ALL is no literal"),
        (computed('7, 5, "triton.mine"'), "TypeError at line 14: "),
        (computed('"triton.mine", tunable={"B": SIZES}'), "line 14: {'B': SIZES} is no literal"),
        (computed('"triton.mine", tunable=[1]'), "AttributeError at line 14: "),
        (computed("7"), "AttributeError at line 14: "),
        (computed('"triton.mine", algorithm=7'), "line 14: triton.mine: algorithm=7 is no text"),
        ("implementation('vector_add', 'triton.mine', level='tiled')(added)\n", "decorates no def"),
        (computed('"torch.eager"'), "line 14: vector_add has a torch.eager already"),
        (computed('"triton.right"'), "line 14: vector_add has a triton.right already"),
        (decorator("mine").replace("_add", "_ad"), "SyntaxError at line 14: "),
        (
            f"{decorator('mine').replace('_add', '_ad')}\ndef mine(x): pass",
            "no op 'vector_ad': did you mean vector_add",
        ),
        ("x = (\n", "SyntaxError at line 14: '(' was never closed. Fix the file"),
        ("x = '\0'\n", "null bytes"),
        ("# \udce9\n", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9"),
        ("x = " + "-" * 200_000 + "1\n", "too much to parse"),
        ("x = " + "1 + " * 50_000 + "1\n", "recursion"),
        ("x = " + "(" * 300 + "1" + ")" * 300, "too many nested parentheses"),
        *((f"x = 1{end}" * 20_000, "lines, and the most is 10000") for end in ("\n", "\r")),
        ("#" * (1 << 18), "it has more than 262144 bytes"),
        (
            "".join(f"{decorator(f'r{n}')}\ndef r{n}(): pass\n" for n in range(70)),
            "71 implementations, and the most is 64",
        ),
    ],
    ids=lambda case: case[1],
)
def test_a_file_that_cannot_be_read_says_why_in_a_line(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes((BEGINNING + text).encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=re.escape(says)) as caught:
        user_files.load([str(file)])
    assert str(caught.value).startswith(f"--load {file}")
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


def test_a_file_by_any_import_of_the_decorator_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from compare import registry\nfrom compare.registry import implementation as row\n\n"
        f"{decorator('one').replace('implementation', 'registry.implementation')}\ndef one(x, y): pass\n\n"
        f"if True:\n    {decorator('two').replace('implementation', 'row')}\n    def two(x, y): pass\n"
    )
    user_files.load([str(file)])
    impls = registry.implementations("vector_add", ["triton.one", "triton.two"])
    assert [(impl.label, impl.user_file) for impl in impls] == [("triton.one", file), ("triton.two", file)]


def test_a_file_that_is_loaded_again_has_its_new_rows(tmp_path: Path) -> None:
    """As by a notebook, whose process goes on."""

    def lines(name: str, code: str) -> int:
        user_files.load([written(tmp_path / "mine.py", implemented(name, code))])
        (impl,) = registry.implementations("vector_add", [f"triton.{name}"])
        return code_size(impl, Launched()).launch.lines

    assert lines("old", "x = x") + 1 == lines("new", "x = x; y = y\n    z = y")
    labels = {impl.label for impl in registry.implementations("vector_add") if impl.user_file}
    assert labels == {"triton.right", "triton.new"}


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

def launched(kernel, x, y):
    z = torch.empty_like(x)
    kernel[(1,)](x, y, z, x.numel() - 1)
    return z

@implementation("vector_add", "triton.calls", level="naive")
def run_calls(x, y):
    return launched(calls, x, y)

@implementation("vector_add", "triton.changes_type", level="naive")
def run_changes_type(x, y):
    return launched(changes_type, x, y)

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
    assert status == 1, printed.err
    (comparison,) = archive.read(tmp_path / "record.json")
    rows = rows_of(comparison)
    for label, says in {
        "triton.calls": "mine.py:8: AttributeError: module 'triton.language' has no attribute",
        "triton.changes_type": "changes_type: mine.py:16: CompilationError: ",
        "torch.raises": "mine.py:35: AttributeError: 'Tensor' object has no attribute 'no_such_method'",
        "cupy.misspelt": "misspelt: g++ failed: mine.py:41: ",
    }.items():
        assert rows[label].status == "failed"
        assert says in rows[label].reason, rows[label].reason
    assert "; mine.py:42: " in rows["cupy.misspelt"].reason
    assert "mine.py:42" in printed.out


BESIDE = {
    "deep": "x = " + "-" * 200_000 + "1\n",
    "long": "x = 1\n" * 300_000,
}


@pytest.mark.parametrize("what", BESIDE)
def test_what_cannot_be_read_within_the_limits_is_refused(what: str, tmp_path: Path) -> None:
    """The files beside it that it imports are a part of its code."""
    (tmp_path / "beside.py").write_text(BESIDE[what])
    with pytest.raises(UsageError, match=r"^--load \S+: .*(Fix the file|262144 bytes)$") as caught:
        user_files.load([written(tmp_path / "mine.py", "if False:\n    import beside\n")])
    assert "\n" not in str(caught.value)
