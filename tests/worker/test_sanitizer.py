"""``--sanitize``: the command line, the cases, the process that is watched, and each tool on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
import torch

from compare import registry, run
from compare.model.op import UsageError
from compare.model.result import NOT_SANITIZED, Options, Row
from compare.worker import sanitized, sanitizer, user_files
from compare.worker.sanitized import SanitizedCalls
from compare.worker.sanitizer import NotSanitized, cases_of, check_installed, command, sanitize
from loops import for_each

CPU = torch.device("cpu")
RIGHT = "z[i] = x[i] + y[i];"
FILE = '''
import torch
from compare.registry import implementation
from cuda_impl.loader import kernel

SOURCE = r"""
extern "C" __global__ void add(const float* x, const float* y, float* z, const float* unwritten, int n) {
    __shared__ float s[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) {
        %s
    }
}
"""

@implementation("vector_add", "cupy.mine", level="naive")
def mine(x, y):
    if x.dtype != torch.float32:
        raise NotImplementedError("fp32 only")
    x, y, z = x.contiguous(), y.contiguous(), torch.empty(x.shape, device=x.device)
    unwritten, n = torch.empty(x.shape, device=x.device), x.numel()
    pointers = (x.data_ptr(), y.data_ptr(), z.data_ptr(), unwritten.data_ptr())
    kernel(SOURCE, "add", x.device)((-(-n // 64),), (64,), (*pointers, n))
    return z
'''
LINE = FILE.split("\n").index("        %s") + 1


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of compute-sanitizer."""
    program = tmp_path / "compute-sanitizer"
    monkeypatch.setattr(sanitizer, "compute_sanitizer", lambda: str(program))
    return program


def write(program: Path, steps: str = '{}\n{"ran":"N=5,fp32"}', racecheck: str = "", code: str = "") -> None:
    """Have it write these steps of the watched process, and print a report as ``racecheck``."""
    lines = [
        f"#!{sys.executable}",
        "import sys, time",
        f"print({steps!r}, file=sys.stderr, flush=True)",
        f"if 'racecheck' in sys.argv: print({racecheck!r})",
        code,
        "print('========= ERROR SUMMARY: 0 errors')",
    ]
    program.write_text("\n".join(lines))
    program.chmod(0o755)


def result(timeout_s: float = 60.0) -> str:
    """What the tools find of a row of the project's."""
    op = registry.get_op("vector_add")
    (impl,) = registry.implementations(op.name, ("cupy.scalar",))
    try:
        finding = sanitize(op, impl, CPU, timeout_s)
    except NotSanitized as error:
        return str(error)
    return f"{finding.passed}: {finding.detail}"


RACE = """========= Error: Race reported between Write access at k(float *)+0x2a0 in mine.py:14
=========     and Read access at k(float *)+0x3b0 in mine.py:20 [28 hazards]"""


def test_each_tool_watches_a_process_of_its_own(tool: Path) -> None:
    write(tool)
    assert result() == "True: memcheck, racecheck, synccheck, initcheck: clean on N=5,fp32"
    write(tool, racecheck=RACE)
    said = "mine.py:20 reads shared memory that mine.py:14 of another thread writes, no barrier between"
    assert result() == f"False: racecheck: {said}"


@pytest.mark.parametrize(
    ("steps", "code", "says"),
    [
        (
            "ImportError: libcuda.so.1",
            "",
            f"{NOT_SANITIZED}: ImportError: libcuda.so.1. Leave out --sanitize",
        ),
        (
            "",
            "print('========= Error: No attachable process found.')",
            f"{NOT_SANITIZED}: No attachable process",
        ),
        ("{}", "time.sleep(99)", "compute-sanitizer's memcheck came to no result: it took longer than 2 s"),
        (
            '{}\n{"raised":"mine.py:3: E: no"}',
            "",
            "compute-sanitizer's memcheck came to no result: mine.py:3: E: no",
        ),
        (
            '{}\n{"refused":"fp32 only"}',
            "",
            "compute-sanitizer's memcheck came to no result: no small case: fp32 only",
        ),
        (
            '{}\n{"ran":"N=5"}',
            "sys.exit(9)",
            "compute-sanitizer's memcheck came to no result: its process exited",
        ),
    ],
)
def test_a_tool_without_a_result_says_why(tool: Path, steps: str, code: str, says: str) -> None:
    write(tool, steps, code=code)
    assert result(2.0 if "sleep" in code else 60.0).startswith(says)


def test_the_command_line() -> None:
    order = SanitizedCalls("softmax", "cupy.mine", {}, ("mine.py",), "cuda", [["M=1,N=1,fp32"]], seccomp=True)
    for tool in sanitizer.TOOLS:
        words = command(tool, order)
        assert words[1:3] == ["--tool", tool]
        python = words.index(sys.executable)
        assert words[python + 1 : -1] == ["-m", "compare.worker.sanitized"]
        assert msgspec.json.decode(words[-1], type=SanitizedCalls) == order


@for_each("name", registry.op_names())
def test_small_cases_of_two_layouts_are_run(name: str) -> None:
    op = registry.get_op(name)
    contiguous, largest, *others = cases_of(op)
    assert largest == contiguous[::-1]
    assert not any(op.is_empty(case) for cases in (contiguous, *others) for case in cases)
    assert {case.dtype for case in contiguous} == set(op.dtypes)


def test_what_is_missing_is_said_before_anything_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs a GPU"):
        run.run(registry.get_op("vector_add"), Options(cases=(), device="cpu", sanitize=True))
    monkeypatch.setattr(sanitizer, "compute_sanitizer", lambda: None)
    with pytest.raises(UsageError, match="pip install nvidia-cuda-sanitizer-api"):
        check_installed(torch.device("cuda"))


@pytest.mark.usefixtures("own_registry")
def test_a_case_of_each_list_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE % RIGHT)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    registry.load(str(file))
    cases = [["N=5,fp16", "N=5,fp32", "N=6,fp32"], ["N=5,fp32"]]
    order = SanitizedCalls("vector_add", "cupy.mine", {}, (str(file),), "cpu", cases, seccomp=False)
    refused, text, ran, *others = [*sanitized._called(order, CPU)]
    assert (refused.refused, ran.ran, others) == ("fp32 only", "N=5,fp32", [])
    assert text.places[text.text.split("\n").index(f"        {RIGHT}")] == f"mine.py:{LINE}"


# --------------------------------------------------------------------------- on a GPU

needs_tool = pytest.mark.skipif(
    sanitizer.compute_sanitizer() is None, reason="compute-sanitizer is not installed"
)

TRITON = """
import torch, triton
import triton.language as tl
from compare.registry import implementation

@triton.jit
def add(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i%s)
    tl.store(z_ptr + i, x + tl.load(y_ptr + i, mask=i < n), mask=i < n)

@implementation("vector_add", "triton.mine", level="naive")
def mine(x, y):
    x, y = x.contiguous(), y.contiguous()
    z = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 1024),)](x, y, z, x.numel(), BLOCK=1024)
    return z
"""
LOAD = TRITON.split("\n").index("    x = tl.load(x_ptr + i%s)") + 1
RACY = "s[threadIdx.x] = x[i]; z[i] = s[threadIdx.x ^ 32] * 0 + s[threadIdx.x] + y[i];"


@pytest.mark.gpu
@needs_tool
@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (FILE % RIGHT, LINE, ""),
        (
            FILE % "z[i] = x[i] + y[i] + (x[i + n] == 12345.0f);",
            LINE,
            "memcheck: @ reads 4 bytes out of bounds",
        ),
        (FILE % f"{RACY}", LINE, "racecheck: @ reads shared memory that @ of another thread writes"),
        (FILE % f"if (i % 2) __syncthreads(); {RIGHT}", LINE, "synccheck: @: not all threads of the"),
        (
            FILE % f"{RIGHT} if (unwritten[i] == 12345.0f) z[i] = 0;",
            LINE,
            "initcheck: @ reads 4 bytes of global",
        ),
        (TRITON % ", mask=i < n", LOAD, ""),
        (TRITON % "", LOAD, "memcheck: @ reads "),
    ],
    ids=["cuda_right", "outside", "race", "barrier", "unwritten", "triton_right", "triton_outside"],
)
@pytest.mark.usefixtures("own_registry")
def test_each_tool_finds_its_mistake(text: str, line: int, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    user_files.load([str(file)], "vector_add")
    op = registry.get_op("vector_add")
    (impl,) = [impl for impl in registry.implementations(op.name) if impl.user_file]
    finding = sanitize(op, impl, torch.device("cuda"), 120.0)
    assert finding.passed == (not says), finding.detail
    assert says.replace("@", f"mine.py:{line}") in finding.detail, finding.detail


@pytest.mark.gpu
@needs_tool
@pytest.mark.parametrize("label", ["cupy.online", "triton.online"])
def test_a_row_of_the_project_is_clean(label: str) -> None:
    op = registry.get_op("softmax")
    asked = Options(cases=(op.cases.smoke[0],), only=(label,), budget_s=0.2, sanitize=True)
    rows: dict[str, Row] = {row.label: row for row in run.run(op, asked).cases[0].rows}
    agreement = rows[label].agreement
    (finding,) = [each for each in agreement.findings if each.name == "sanitizer"]
    assert finding.passed, finding.detail
    assert "clean" in finding.detail
