"""Lines, tokens and concepts by role, against code whose size is known."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from compare import registry
from compare.code_size.concepts import CONCEPTS
from compare.code_size.count import code_size, kept_code_size
from compare.code_size.hashes import source_hash
from compare.code_size.pieces import Piece, size
from compare.spec import WAYS, CodeSize, Implementation, RoleSize
from rows import op_by_op

IMPORT = "from compare.registry import implementation\n\n"


def loaded(file: Path, text: str = "") -> Implementation:
    """The ``torch.mine`` that a file registers, with this text after its import."""
    if text:
        file.write_text(IMPORT + text)
    registry._implementations["vector_add"].pop("torch.mine", None)
    registry.load(str(file))
    return registry._implementations["vector_add"]["torch.mine"]


@op_by_op
def test_every_implementation_has_the_roles_of_its_way(impl: Implementation) -> None:
    found = code_size(impl)
    assert found.launch.tokens > found.launch.lines > 1
    assert found.own == found.kernel + found.launch
    assert (found.lines, found.tokens) == (
        found.own.lines + found.helpers.lines,
        found.own.tokens + found.helpers.tokens,
    )
    assert (found.kernel.tokens > 0) == (impl.way in WAYS[1:])
    assert (found.binding.tokens > 0) == (found.module.tokens > 0) == (impl.route in ("pybind", "library"))
    assert set(found.concepts) <= CONCEPTS.keys()
    if impl.way in WAYS[1:]:
        assert {"pointer arithmetic", "launch configuration"} <= set(found.concepts)


def test_one_statement_has_the_tokens_a_reader_sees() -> None:
    python = Piece('x += f\'{y:>3} {z}\' ** 2  # why\n\nz = """a\n\nb"""\n', "python")
    assert size([python]) == RoleSize(lines=3, tokens=9 + 3)
    cuda = Piece('p->x <<= 2; /* why\n*/ ns::f<1>("a\\n" "b");\n#pragma unroll\n', "cuda")
    assert size([cuda]) == RoleSize(lines=3, tokens=6 + 11 + 3)
    assert size([python, python]) == size([python]), "each piece is charged once"
    assert size([]) == RoleSize(0, 0)


def test_a_users_triton_kernel(mine: dict[str, Implementation]) -> None:
    found = code_size(mine["triton.mine"])
    assert found.kernel.lines == 4, "its decorator, its head and two lines"
    assert found.launch.lines == 3, "without its registration"
    assert found.helpers.lines == 3 + 1 + 2, "double, WIDTH, and blocks of the file beside it"
    assert found.shared == found.binding == found.module == RoleSize(0, 0)
    assert "masks" in found.concepts
    assert "shared memory" not in found.concepts


def test_a_users_cuda_text_is_counted_as_cuda(mine: dict[str, Implementation]) -> None:
    found = code_size(mine["cupy.mine"])
    assert (found.kernel.lines, found.helpers.lines) == (5, 1), "my_kernel and twice, not thrice"
    assert found.launch.lines == 3, "the string that holds the kernel is no launch code"
    assert {"threads and blocks", "compile-time parameters", "64-bit offsets"} <= set(found.concepts)
    assert "masks" not in found.concepts


REGISTERED = '@implementation("vector_add", "torch.mine", level="naive")'
FUNCTION = f"{REGISTERED}\ndef mine(x, y):\n    return x + y\n"
INSIDE = textwrap.indent(FUNCTION, "    ")
ELSEWHERE = {
    "an if": f"if True:\n{INSIDE}else:\n    mine = 1\n",
    "a try": f"try:\n    pass\nfinally:\n{INSIDE}",
    "a for": f"for _ in range(1):\n{INSIDE}",
    "a name given anew": f"{FUNCTION}\ndef mine(x):\n    return x\n",
}


@pytest.mark.parametrize("text", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_a_function_is_found_where_it_stands(
    text: str, mine: dict[str, Implementation], tmp_path: Path
) -> None:
    assert code_size(loaded(tmp_path / "other.py", text)).launch == RoleSize(2, 12)


def test_a_lambda_is_its_statement(mine: dict[str, Implementation], tmp_path: Path) -> None:
    found = code_size(loaded(tmp_path / "other.py", f"{REGISTERED[1:]}(lambda x, y: x + y)\n"))
    assert found.launch.lines == 1


def test_what_exec_makes_has_a_hash_and_no_size(mine: dict[str, Implementation], tmp_path: Path) -> None:
    text = f"exec({REGISTERED + '{}def mine(x, y): return x'!r}.format(chr(10)))\n"
    impl = loaded(tmp_path / "other.py", text)
    assert source_hash(impl)
    with pytest.raises(OSError, match=r"^its function is not found in <string>: exec made it"):
        code_size(impl)


def test_a_kernel_that_calls_a_name_as_its_launch_is_called_does_not_hold_the_launch(
    mine: dict[str, Implementation], tmp_path: Path
) -> None:
    text = f"import triton\n\n@triton.jit\ndef kernel(mine):\n    mine + 1\n\n{REGISTERED}\n"
    found = code_size(loaded(tmp_path / "other.py", text + "def mine(x):\n    kernel[1](x)\n    return x\n"))
    assert (found.kernel.lines, found.launch.lines) == (3, 3)


@pytest.mark.parametrize(
    ("parameter", "body", "lines"),
    [
        ("", "helper(x)", 4),
        (", helper=abs", "helper(x)", 2),
        ("", "[helper for helper in (x, y)][0]", 2),
        ("", "(lambda helper: helper)(x)", 2),
        ("", "(lambda x: helper(x))(x)", 4),
    ],
)
def test_a_name_of_a_function_s_own_is_not_one_of_the_module_s(
    parameter: str, body: str, lines: int, mine: dict[str, Implementation], tmp_path: Path
) -> None:
    text = f"def helper(x):\n    return x\n\n{REGISTERED}\ndef mine(x, y{parameter}):\n    return {body}\n"
    assert code_size(loaded(tmp_path / "other.py", text)).lines == lines


@pytest.mark.parametrize("broken", [b"def f(:\n", b"# \xff\n", b"x = '\x00'\n"])
def test_a_file_beside_it_that_is_no_python_is_hashed_all_the_same(
    broken: bytes, mine: dict[str, Implementation], tmp_path: Path
) -> None:
    """Importing it fails, which a user's file may be ready for."""
    beside = tmp_path / "broken.py"
    beside.write_bytes(broken)
    text = f"try:\n    import broken\nexcept (SyntaxError, ValueError):\n    pass\n{FUNCTION}"
    impl = loaded(tmp_path / "other.py", text)
    before = source_hash(impl)
    assert code_size(impl).launch == RoleSize(2, 12)
    beside.write_bytes(broken + b"1\n")
    os.utime(beside, ns=(1, 1))
    assert source_hash(impl) != before


@pytest.mark.parametrize(
    ("before", "encoding"), [("", "utf-8-sig"), ("# -*- coding: latin-1 -*-\n", "latin-1")]
)
def test_a_file_is_read_in_the_encoding_that_python_reads_it_in(
    before: str, encoding: str, mine: dict[str, Implementation], tmp_path: Path
) -> None:
    def written(text: str) -> Implementation:
        (tmp_path / "other.py").write_bytes(f"{before}{text}\n{IMPORT}{FUNCTION}".encode(encoding))
        return loaded(tmp_path / "other.py")

    impl = written("# gr\xfc\xdfe\x85")
    assert code_size(impl).launch == RoleSize(2, 12)
    found = source_hash(impl)
    assert source_hash(written("# hello")) == found
    assert source_hash(written("WORD = 'gr\xfc\xdfe'")) != found


@pytest.mark.usefixtures("cache")
def test_sizes_are_kept_until_a_source_changes(
    mine: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counted = []

    def counting(impl: Implementation) -> CodeSize:
        counted.append(impl.label)
        return code_size(impl)

    monkeypatch.setattr("compare.code_size.count.code_size", counting)
    for impl in mine.values():
        assert kept_code_size(impl) == code_size(impl) == kept_code_size(impl)
    assert sorted(counted) == sorted(mine)
    with (tmp_path / "helpers.py").open("a") as file:
        file.write("MORE = 1\n")
    kept_code_size(mine["triton.mine"])
    assert counted.count("triton.mine") == 2
