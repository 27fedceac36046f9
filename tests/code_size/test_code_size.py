"""Lines, tokens and concepts by role, against code whose size is known."""

from __future__ import annotations

import copy
import os
import re
import shutil
import textwrap
from pathlib import Path

import pytest

from compare import registry
from compare.code_size import cpp
from compare.code_size import sources as sources_module
from compare.code_size.concepts import CONCEPTS, concepts_of
from compare.code_size.count import code_size, kept_code_size
from compare.code_size.pieces import Piece, size
from compare.code_size.sources import KERNELS, source_hash, sources
from compare.spec import WAYS, CodeSize, Implementation, RoleSize

ROWS = [
    pytest.param(impl, id=f"{op}-{impl.label}")
    for op in registry.op_names()
    for impl in registry.implementations(op)
]

USERS_FILE = '''
import torch
import triton
import triton.language as tl

from compare.registry import implementation
from cuda_impl.loader import kernel
from helpers import blocks

WIDTH = tl.constexpr(64)


@triton.jit
def double(x):
    """Twice."""
    return x + x


@triton.jit
def unused(x):
    return x


@triton.jit
def my_kernel(x_ptr, N):
    # a comment

    n = tl.arange(0, WIDTH)
    tl.store(x_ptr + n, double(tl.load(x_ptr + n, mask=n < N)), mask=n < N)


@implementation("vector_add", "triton.mine", rung="tiled")
def in_triton(x, y):
    """Text."""
    my_kernel[blocks(x)](x, x.numel(), num_warps=4)
    return x


SOURCE = r"""
// Twice.
__device__ float twice(float x) { return 2 * x; }
__device__ float thrice(float x) { return 3 * x; }

template <typename T>
__global__ void my_kernel(T* x, long long N) {
    int n = threadIdx.x;  // of one block
    if (n < N) x[n] = twice(x[n]);
}
"""


@implementation("vector_add", "cupy.mine", rung="tiled")
def in_cuda(x, y):
    kernel(SOURCE, "my_" + "kernel<float>", x.device)((1,), (64,), (x.data_ptr(), x.numel()))
    return x
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Implementation]:
    """A user's file, loaded into a registry of this test's own."""
    known = copy.deepcopy({op: dict(impls) for op, impls in registry._implementations.items()})
    monkeypatch.setattr(registry, "_implementations", known)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "helpers.py").write_text("def blocks(x):\n    return (1,)\n")
    file = tmp_path / "mine.py"
    file.write_text(USERS_FILE)
    registry.load(str(file))
    found = registry.implementations("vector_add")
    return {impl.label: impl for impl in found if impl.variant == "mine"}


IMPORT = "from compare.registry import implementation\n\n"


def loaded(file: Path, text: str = "") -> Implementation:
    """What a file registers as ``torch.mine``, with this text behind its import."""
    if text:
        file.write_text(IMPORT + text)
    registry._implementations["vector_add"].pop("torch.mine", None)
    registry.load(str(file))
    return registry._implementations["vector_add"]["torch.mine"]


@pytest.mark.parametrize("impl", ROWS)
def test_every_implementation_has_the_roles_of_its_way(impl: Implementation) -> None:
    found = code_size(impl)
    assert found.launch.lines > 1
    assert found.launch.tokens > found.launch.lines
    assert (found.kernel.tokens > 0) == (impl.way in WAYS[1:])
    assert (found.binding.tokens > 0) == (impl.route in ("pybind", "library"))
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
    # my_kernel has its decorator, its head and two lines; double three lines; WIDTH one.
    assert found.kernel.lines == 4 + 3 + 1
    # in_triton has three lines without its registration; blocks, of the file beside it, two.
    assert found.launch.lines == 3 + 2
    assert found.binding == RoleSize(0, 0)
    assert "masks" in found.concepts
    assert "shared memory" not in found.concepts


def test_a_users_cuda_text_is_counted_as_cuda(mine: dict[str, Implementation]) -> None:
    found = code_size(mine["cupy.mine"])
    assert found.kernel.lines == 1 + 5, "twice and my_kernel, not thrice"
    assert found.launch.lines == 3, "the string that holds the kernel is no launch code"
    assert {"threads and blocks", "compile-time parameters", "64-bit offsets"} <= set(found.concepts)
    assert "masks" not in found.concepts


REGISTERED = '@implementation("vector_add", "torch.mine", rung="naive")'
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
    assert code_size(loaded(tmp_path / "other.py", text)).launch.lines == lines


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


def test_declarations_are_told_apart() -> None:
    unit = cpp.text_unit(
        textwrap.dedent("""\
        #pragma once
        #include "other.cuh"
        #ifndef A
        #define LONG(type) \\
            extern type x; \\
            f()
        #endif  // A
        using index_t = long long;  // offsets
        namespace inner {
        constexpr int WARP = 32, TWO[2] = {1, 2};
        struct alignas(sizeof(int) * 2) Pair { int a; int sum() { return a; } };
        template <typename T>
        __device__ T load(const T* p);
        template <>
        __device__ float load<float>(const float* p) { return *p; }
        __device__ void array(int (&seen)[2], int (*f)(int)) { seen[0] = f(1); }
        }  // namespace inner
        template <int N = 4>
        __global__ __launch_bounds__(N * (1 + 1)) SOME_MACRO(N) void work(int x = 3) {
            if (x) { LONG(int); }
        }
        auto twice = [](int x) { return 2 * x; };
        """)
    )
    assert {name: len(pieces) for name, pieces in unit.named.items()} == {
        name: 2 if name == "load" else 1
        for name in ("LONG", "index_t", "WARP", "Pair", "load", "array", "work", "twice")
    }
    assert [piece.text[:12] for piece in unit.reached(["work"])] == ["template <in", "#define LONG"]


def test_sizes_are_kept_until_a_source_changes(
    mine: dict[str, Implementation], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path / "cache"))
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


def test_a_binding_has_its_own_variants_line_only(tmp_path: Path) -> None:
    file = tmp_path / "op.cu"
    file.write_text(
        "static int shared() { return 1; }\n"
        "static int one(int x) { return shared(); }\n"
        "static int two(int x) { return shared() + 1; }\n"
        'PYBIND11_MODULE(op, m) {\n    m.doc() = "op";\n    m.def("one", &one);\n'
        '    m.def("two", [](int x) { int y = x; return two(y); });\n}\n'
    )
    (binding,), launch = cpp.binding_and_launch(file, "two")
    assert "one" not in binding.text
    assert 'm.doc() = "op";' in binding.text
    assert "return two(y); });" in binding.text
    assert [piece.text.split("(")[0] for piece in launch] == ["static int two", "static int shared"]


def test_concepts_are_not_found_in_comments() -> None:
    assert concepts_of([Piece("int x; // __shared__ and asm\n", "cuda")]) == ()
    assert concepts_of([Piece("__shared__ int x;", "cuda")]) == ("shared memory",)


@pytest.mark.parametrize(
    ("triton", "gluon"),
    [
        ("tl.sum(x)", "gl.sum(x)"),
        ("tl.debug_barrier()", "gl.barrier()"),
        ("tl.atomic_add(x, 1)", "gl.atomic_add(x, 1)"),
        ("tl.arange(0, 8)", "gl.arange(0, 8)"),
    ],
)
def test_what_is_said_in_both_is_the_same_concept(triton: str, gluon: str) -> None:
    found = concepts_of([Piece(triton, "python")])
    assert found
    assert concepts_of([Piece(gluon, "python")]) == found


def test_a_layout_of_registers_is_one_to_know() -> None:
    assert concepts_of([Piece("gl.BlockedLayout([1], [32], [4], [0])", "python")]) == ("register layouts",)
    assert concepts_of([Piece("gl.SwizzledSharedLayout(1, 1, 1, [0])", "python")]) == ()


@pytest.mark.parametrize("impl", ROWS)
def test_the_hash_covers_its_files(impl: Implementation) -> None:
    files = sources(impl)
    assert registry.ROOT / "compare" / "ops" / f"{impl.op}.py" in files
    own = {
        "torch": ["torch_impl"],
        "triton": ["triton_impl"],
        "cupy": ["cuda_impl/rawkernel"],
        "pybind": ["cuda_impl/pybind"],
        "library": ["cuda_impl/pybind/library"],
    }[impl.route]
    folders = {path.parent.relative_to(registry.ROOT).as_posix() for path in files}
    assert folders >= set(own)
    if impl.way == "cuda":
        assert {KERNELS / f"{impl.op}.cuh", KERNELS / "common.cuh"} <= set(files)
        assert registry.ROOT / "cuda_impl" / "flags.py" in files
    assert source_hash(impl) == source_hash(impl)


def test_the_hash_covers_what_an_op_takes_from_another() -> None:
    of_ops = registry.ROOT / "compare" / "ops"
    for op in registry.op_names():
        others = set(re.findall(r"(?m)^from compare\.ops\.(\w+) import", (of_ops / f"{op}.py").read_text()))
        for impl in registry.implementations(op):
            covered = {path.stem for path in sources(impl) if path.parent == of_ops}
            assert covered == {op, *others}, impl.label


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ("{0}# a comment\n", False),
        ("\n\n{0}", False),
        ("'A docstring.'\n{0}", False),
        ('"""A docstring\nof two lines."""\n{0}\n\n"""Of an attribute."""\n', False),
        ("{0}\nWIDTH =    64  # aligned\n", True),
        ('{0}"""One"""; WIDTH = 64\n', True),
        ('{0}TEXT = """\n# none\n"""\n', True),
        ("{0}def more(): ...\n", True),
        ("{0}    # indented\n    return (2,)\n", True),
    ],
)
def test_the_hash_moves_with_python_s_code_alone(
    mine: dict[str, Implementation], tmp_path: Path, change: str, moves: bool
) -> None:
    impl, helpers = mine["triton.mine"], tmp_path / "helpers.py"
    before, text = source_hash(impl), helpers.read_text()
    helpers.write_text(change.format(text))
    assert (source_hash(impl) != before) == moves


def test_the_hash_does_not_move_with_how_code_is_aligned(
    mine: dict[str, Implementation], tmp_path: Path
) -> None:
    impl, helpers = mine["triton.mine"], tmp_path / "helpers.py"
    text = helpers.read_text()

    def hash_with(words: str) -> str:
        helpers.write_text(text + words)
        return source_hash(impl)

    assert hash_with("WIDTH =    64\n") == hash_with("WIDTH = 64   # bytes\n")
    assert hash_with("WIDTH = 64\n") != hash_with("WIDTH = 65\n")
    assert hash_with("    WIDTH = 64\n") != hash_with("WIDTH = 64\n")


@pytest.mark.parametrize(
    ("more", "moves"),
    [("// a comment\n", False), ("/* one\nof two lines */\n", False), ("#define MORE 1  // why\n", True)],
)
def test_the_hash_moves_with_kernels_code_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, moves: bool
) -> None:
    cupy = next(i for i in registry.implementations("vector_add") if i.route == "cupy")
    monkeypatch.setattr(sources_module, "_with_imports", lambda path: {path})
    elsewhere = tmp_path / "kernels"
    shutil.copytree(KERNELS, elsewhere)
    monkeypatch.setattr(sources_module, "KERNELS", elsewhere)
    before = source_hash(cupy)
    with (elsewhere / "common.cuh").open("a") as file:
        file.write(more)
    assert (source_hash(cupy) != before) == moves
