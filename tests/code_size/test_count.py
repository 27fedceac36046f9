"""Lines, tokens and concepts by role, against code whose size is known."""

from __future__ import annotations

import functools
import os
import secrets
import textwrap
from pathlib import Path
from typing import Literal
from unittest import mock

import pytest

from compare import registry
from compare.code_size import cpp
from compare.code_size.concepts import CONCEPTS, concepts_of
from compare.code_size.count import code_size, kept_code_size, launched
from compare.code_size.hashes import source_hash
from compare.code_size.pieces import CodePiece, size
from compare.code_size.sources import cpp_file
from compare.history.recorded import recorded
from compare.model.op import WAYS, Implementation
from compare.model.result import CodeSize, Comparison, RoleSize
from compare.records.archive import changed_since
from compare.records.encoding import decode, encode
from compare.run.sources import Counting
from loops import for_each
from rows import op_by_op

IMPORT = "from compare.registry import implementation\n\n"
REGISTERED = '@implementation("vector_add", "torch.mine", level="naive")'


def loaded(file: Path, text: str = "") -> Implementation:
    """The only implementation of a variant ``mine`` that a file registers, with this text if given."""
    if text:
        file = file.with_name(f"{secrets.token_hex(4)}_{file.name}")  # a file is parsed once
        file.write_text(text)
    mine = registry._implementations["vector_add"]
    for label in [label for label in mine if label.endswith(".mine")]:
        del mine[label]
    registry.load(str(file))
    (impl,) = (impl for label, impl in mine.items() if label.endswith(".mine"))
    return impl


@op_by_op
def test_every_implementation_has_the_roles_of_its_way(impl: Implementation) -> None:
    found = code_size(impl)
    assert found.launch.tokens > found.launch.lines > 1
    host = (found.launch, found.binding, found.module)
    assert found.lines == sum(part.lines for part in (found.kernel, *host, found.helpers, found.shared))
    assert found.tokens == found.whole.tokens > found.lines
    assert (found.kernel.tokens > 0) == (impl.way in WAYS[1:])
    assert (found.binding.tokens > 0) == (found.module.tokens > 0) == (cpp_file(impl) is not None)
    assert set(found.concepts) <= CONCEPTS.keys()
    if impl.way in WAYS[1:]:
        assert {"pointer arithmetic", "launch configuration"} <= set(found.concepts)
    if impl.route == "pybind":
        (cupy,) = registry.implementations(impl.op, [f"cupy.{impl.variant}"])
        assert found.kernel == code_size(cupy).kernel, "the same kernels"


@op_by_op
def test_a_record_of_today_s_source_holds_today_s_code_size(impl: Implementation) -> None:
    """So what reads records shows what is counted now."""
    run = on_record(impl.op)
    kept = {row.label for case in run.cases for row in case.rows if not changed_since(row)} if run else set()
    routes = {impl.label, f"cupy.{impl.variant}"} if impl.route == "pybind" else {impl.label}
    if run and routes <= kept:
        assert run.code_sizes[impl.label] == code_size(impl)


@functools.cache
def on_record(op: str) -> Comparison | None:
    return recorded(registry.get_op(op))


def test_one_statement_has_the_tokens_a_reader_sees() -> None:
    python = CodePiece('x += f\'{y:>3} {z}\' ** 2  # why\n\nz = """a\n\nb"""\n', "python")
    assert size([python]) == RoleSize(lines=3, tokens=9 + 3)
    cuda = CodePiece('p->x <<= 2; /* why\n*/ ns::f<1>("a\\n" "b");\n#pragma unroll\n', "cuda")
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


HEAD = """
import triton
import triton.language as tl

from compare.registry import implementation
from cuda_impl.loader import kernel

"""


def cuda(text: str, name: str = "my_kernel<float>") -> str:
    """A user's file with one implementation, which launches ``name``."""
    return f'''{HEAD}
SOURCE = r"""{textwrap.dedent(text)}"""


@implementation("vector_add", "cupy.mine", level="tiled")
def mine(x, y):
    kernel(SOURCE, "{name}", x.device)((1,), (64,), (x.data_ptr(), y.data_ptr()))
    return x
'''


OVERLOADS = cuda(
    """
    __device__ __forceinline__ float twice(float x) { return 2 * x; }
    __device__ __forceinline__ int twice(int x) { return 2 * x; }
    __device__ float twice(float x, float y) {
        return 2 * x + 2 * y;
    }
    __device__ float total(float x, float y) { return x + y; }
    __device__ float total(float (&both)[2]) {
        return total(both[0],
                     both[1]);
    }
    __device__ float total(float x) {
        float both[2] = {x, x};
        return total(both);
    }
    template <typename T>
    __global__ void my_kernel(T* x, T* y) {
        x[0] = twice(y[0]) + total(y[0]);
    }
    """
)
TEMPLATES = cuda(
    """
    #include <cuda_fp16.h>
    template <typename T, int N>
    struct Pack {
        T value[N];
    };
    template <typename T>
    struct Pack<T, 1> {
        T value;
    };
    template <>
    struct Pack<__half, 8> { unsigned word[4]; };

    template <typename T>
    __device__ T from_float(float x);
    template <>
    __device__ __forceinline__ float from_float<float>(float x) { return x; }
    template <>
    __device__ __forceinline__ __half from_float<__half>(float x) { return __float2half_rn(x); }

    template <typename T>
    __device__ __forceinline__ void store(Pack<T, 1>* to, T x) {
        to->value = x;
    }
    template <typename T, int N>
    __device__ __forceinline__ void store(Pack<T, N>* to, T x) {
        for (int i = 0; i < N; ++i) to->value[i] = x;
    }

    template <typename T, int N>
    __global__ void my_kernel(T* x, T* y) {
        store(reinterpret_cast<Pack<T, N>*>(x), from_float<T>(1.0f));
    }
    """,
    "my_kernel<float, 1>",
)
MACROS = cuda(
    """
    #define UNUSED(p) other(p)
    #define LOAD(p) \\
        load(p)
    constexpr int OFFSET = 4;
    constexpr int WIDTH = 8;
    constexpr int half_of(int n) { return n / 2; }
    __device__ float load(const float* p) { return *p; }
    __device__ float other(const float* p) { return *p; }
    template <typename T>
    __global__ void my_kernel(T* x, T* y) {
        __shared__ float tile[half_of(WIDTH)];
        tile[0] = LOAD(y);
        x[0] = tile[0];
    }
    """
)
NESTED = cuda(
    """
    #include "common.cuh"
    namespace inner {
    __device__ float third(float x) {
        return x + WARP;
    }
    __device__ float second(float x) { return third(x); }
    }  // namespace inner
    __device__ float first(float x) { return inner::second(x); }
    __device__ float for_ints(float x) { return x; }
    __global__ void another(float* x) { x[0] = for_ints(x[0]); }
    template <typename T>
    __global__ void my_kernel(T* x, T* y) {
        if constexpr (sizeof(T) == 1) {
            x[0] = for_ints(y[0]);
        } else {
            x[0] = first(y[0]);
        }
    }
    """
)
FALLBACKS = cuda(
    """
    __device__ float slow(float x) { return x; }
    __global__ void any_size(float* x, float* y) { x[0] = slow(y[0]); }
    __global__ void large(float* x, float* y) { x[0] = y[0]; }
    """,
    "{'large' if x.numel() > 4096 else 'any_size'}",
).replace(', "{', ', f"{')
IN_SCOPES = cuda(
    """
    constexpr int N = 1;
    struct Shape { static constexpr int N = 4; };
    enum class First { A };
    enum class Second {
        A, B
    };
    namespace one {
    __device__ float f(float x) { return x; }
    }
    namespace two {
    __device__ float g(float x) {
        return x;
    }
    __device__ float f(float x) { return g(x + x); }
    }
    __device__ float g(float x) { return x; }
    #if 0
    __device__ float old(float x) { return x; }
    __device__ float now(float x) { return x; }
    #else
    __device__ float now(float x) { return x + x; }
    #endif
    template <typename T>
    __global__ void my_kernel(T* x, T* y) {
    #if 0
        x[1] = old(x[1]);
    #endif
        if (y[0] == int(Second::A)) x[Shape::N] = one::f(x[0]) + two::f(now(cg::g(x[1])));
    }
    """
)
BY_MACRO = cuda(
    """
    __device__ float twice(float x) { return x + x; }
    #define TWICE(name, T) __global__ void name(T* x, T* y) { \\
        x[0] = twice(y[0]); }
    TWICE(my_kernel, float)
    """,
    "my_kernel",
)
IN_NAMESPACE = cuda(
    """
    namespace other {
    __global__ void my_kernel(float* x, float* y) {}
    }
    namespace inner {
    __global__ void my_kernel(float* x, float* y) {
        x[0] = y[0];
    }
    }
    """,
    "inner::my_kernel",
)
MEMBERS = cuda(
    """
    struct Pair {
        float a;
        __device__ Pair(float x);
        __device__ float sum();
    };
    __device__ Pair::Pair(float x) : a(x) {}
    __device__ float Pair::sum() { return a; }
    __device__ float sum(float x) { return x; }
    struct Other { float a; };
    __device__ Pair operator+(Pair a, Pair b) { return a; }
    __device__ Pair operator -(Pair a, Pair b) { return a; }
    __device__ Other operator+(Other a, Other b) { return a; }
    __device__ float2 operator+(float2 a, float2 b) { return a; }
    template <typename T>
    __global__ void my_kernel(T* x, T* y) {
        x[0] = (Pair(y[0]) + Pair(y[1])).sum();
    }
    """
)


def with_text(before: str, launch: str) -> str:
    """A user's file with a CUDA text that is no constant: KERNEL of two lines, HELPER of one."""
    kernel = "__global__ void my_kernel(float* x, float* y) {\n    x[0] = twice(y[0]); }"
    helper = "__device__ float twice(float x) { return 2 * x; }\n"
    text = f"""{HEAD}
{before}
@implementation("vector_add", "cupy.mine", level="tiled")
def mine(x, y):
    {launch}((1,), (64,), (x.data_ptr(), y.data_ptr()))
    return x
"""
    return text.replace("KERNEL", f'r"""{kernel}"""').replace("HELPER", f'r"""{helper}"""')


PASSED = f"""{HEAD}
@triton.jit
def twice(x):
    return x + x


@triton.jit
def apply_kernel(x_ptr, FUNCTION: tl.constexpr):
    tl.store(x_ptr, FUNCTION(tl.load(x_ptr)))


@implementation("vector_add", "triton.mine", level="tiled")
def mine(x, y):
    apply_kernel[(1,)](x, twice)
    return x
"""
ADDED_TO = f"""{IMPORT}
def helper(x):
    return None


def helper(x): "Text."; return x


TABLE = [1, 2]
TABLE[0] = 3
try:
    FIRST = TABLE[0]
except IndexError:
    FIRST = None
FIRST += 1


{REGISTERED}
def mine(x, y):
    return helper(x) * FIRST
"""
TRITON = f'''{HEAD}
@triton.jit
def twice(x):
    """Twice."""
    return x + x


@triton.jit
def large_kernel(x_ptr):
    tl.store(x_ptr, twice(tl.load(x_ptr)))


@triton.jit
def thrice(x):
    return x + x + x


@triton.jit
def small_kernel(x_ptr):
    tl.store(x_ptr, thrice(tl.load(x_ptr)))


def one(x):
    return (1,)


@implementation("vector_add", "triton.mine", level="tiled")
def mine(x, y):
    if x.numel() > 4096:
        large_kernel[one(x)](x)
    else:
        small_kernel[one(x)](x)
    return x
'''
NAMED_AS_ITS_LAUNCH = (
    f"{IMPORT}import triton\n\n@triton.jit\ndef kernel(mine):\n    mine + 1\n\n"
    f"{REGISTERED}\ndef mine(x, y):\n    kernel[1](x)\n    return x\n"
)


def with_helper(parameter: str, body: str) -> str:
    """A function beside one that is named ``helper``."""
    helper = "def helper(x):\n    return x\n"
    return f"{IMPORT}{helper}\n{REGISTERED}\ndef mine(x, y{parameter}):\n    return {body}\n"


COUNTED = {
    # kernel, launch, helpers, shared: lines; and a kernel of other cases, which is named and not counted
    # Helpers: twice 1, the shorter total of one argument 4, which means the other by its call 4, and total 1.
    "overloads": (OVERLOADS, (4, 3, 10, 0), ()),
    # Helpers: Pack 4, from_float 2, the shorter specialisation 2, the shorter store 4.
    "templates": (TEMPLATES, (4, 3, 12, 0), ()),
    # Helpers: LOAD 2, WIDTH, half_of, load.
    "macros": (MACROS, (6, 3, 5, 0), ()),
    # Helpers: third 3, second, first, for_ints behind the condition; shared: WARP.
    "nested helpers": (NESTED, (8, 3, 6, 1), ()),
    # Helpers: Shape, Second 3, one::f, two::f, two::g 3, now.
    "names in scopes": (IN_SCOPES, (6, 3, 10, 0), ()),
    "a kernel by a macro": (BY_MACRO, (2, 3, 1, 0), ()),
    "a kernel in a namespace": (IN_NAMESPACE, (3, 3, 0, 0), ()),
    # Helpers: Pair 5, its two members, and its operator+.
    "members and operators": (MEMBERS, (4, 3, 8, 0), ()),
    "a text of two constants": (
        with_text("A = HELPER\nB = KERNEL\n", 'kernel(A + B, "my_kernel", x.device)'),
        (2, 3, 1, 0),
        (),
    ),
    "a text in a call": (with_text("", 'kernel(HELPER + KERNEL, "my_kernel", x.device)'), (2, 3, 1, 0), ()),
    # Helpers: twice, and the function.
    "a text in a function": (
        with_text("def text():\n    return HELPER + KERNEL\n", 'kernel(text(), "my_kernel", x.device)'),
        (2, 3, 3, 0),
        (),
    ),
    "a text for cupy": (
        with_text("import cupy\nTEXT = KERNEL\n", 'cupy.RawKernel(TEXT, "my_kernel")'),
        (2, 3, 0, 0),
        (),
    ),
    "a function that a kernel gets": (PASSED, (3, 3, 3, 0), ()),
    # Helpers: the second helper, two statements of TABLE, three of FIRST.
    "names that are added to": (ADDED_TO, (0, 2, 6, 0), ()),
    "fallbacks": (FALLBACKS, (1, 3, 0, 0), ("any_size",)),
    # Helpers: twice 3, one 2.
    "triton": (TRITON, (3, 6, 5, 0), ("small_kernel",)),
    "an argument of a kernel": (NAMED_AS_ITS_LAUNCH, (3, 3, 0, 0), ()),
    "a helper": (with_helper("", "helper(x)"), (0, 2, 2, 0), ()),
    "a helper in a lambda": (with_helper("", "(lambda x: helper(x))(x)"), (0, 2, 2, 0), ()),
    # A name of the function's own is not one of the module's.
    "a parameter": (with_helper(", helper=abs", "helper(x)"), (0, 2, 0, 0), ()),
    "a comprehension": (with_helper("", "[helper for helper in (x, y)][0]"), (0, 2, 0, 0), ()),
    "an argument of a lambda": (with_helper("", "(lambda helper: helper)(x)"), (0, 2, 0, 0), ()),
}


@for_each("text, lines, fallbacks", COUNTED.values(), ids=lambda case: case[0])
def test_implementations_have_the_lines_counted_by_hand(
    text: str, lines: tuple[int, ...], fallbacks: tuple[str, ...], tmp_path: Path, own_registry: None
) -> None:
    impl = loaded(tmp_path / "users.py", text)
    found = code_size(impl)
    parts = (found.kernel, found.launch, found.helpers, found.shared)
    assert tuple(part.lines for part in parts) == lines
    assert found.lines == sum(lines), "the headline is all of it"
    assert found.fallbacks == fallbacks
    kernels = launched(impl)
    assert decode(type(kernels), encode(kernels)) == kernels
    assert code_size(impl, kernels) == found, "by what a worker reports"


def test_helpers_of_an_op_are_told_from_shared_code() -> None:
    """vector_add's kernels use the op's own file and common.cuh alone."""
    (impl,) = registry.implementations("vector_add", ["pybind.vectorized"])
    found = code_size(impl)
    assert min(found.helpers.lines, found.shared.lines) > 0
    assert (found.binding.lines, found.module.lines) == (1, 2)


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
        __device__ Pair operator+(Pair a, Pair b) {
            return a;
        }
        """)
    )
    assert {name: len(pieces) for name, pieces in unit.named.items()} == {
        name: 2 if name == "load" else 1
        for name in ("LONG", "index_t", "WARP", "TWO", "Pair", "load", "array", "work", "twice", "operator+")
    }
    assert [piece.text[:12] for piece in unit.reached([cpp.Use("work")])] == ["template <in", "#define LONG"]


def test_a_binding_has_its_own_variants_line_only(tmp_path: Path) -> None:
    file = tmp_path / "op.cu"
    file.write_text(
        "static int shared() { return 1; }\n"
        "static int one(int x) { return shared(); }\n"
        "static int two(int x) { return shared() + 1; }\n"
        'PYBIND11_MODULE(op, m) {\n    m.doc() = "op";\n    m.def("one", &one);\n'
        '    m.def("two", [](int x) { int y = x; return two(y); });\n}\n'
    )
    found = cpp.host_code(file, "two")
    assert found.binding.text == 'm.def("two", [](int x) { int y = x; return two(y); });'
    assert found.module.text.split("\n") == ["PYBIND11_MODULE(op, m) {", 'm.doc() = "op";', "}"]
    assert [piece.text.split("(")[0] for piece in found.launch] == ["static int two"]
    assert [piece.text.split("(")[0] for piece in found.others] == ["static int shared"]


FUNCTION = f"{REGISTERED}\ndef mine(x, y):\n    return x + y\n"
INSIDE = textwrap.indent(FUNCTION, "    ")
ELSEWHERE = {
    "an if": f"if True:\n{INSIDE}else:\n    mine = 1\n",
    "a try": f"try:\n    pass\nfinally:\n{INSIDE}",
    "a for": f"for _ in range(1):\n{INSIDE}",
    "a name given anew": f"{FUNCTION}\ndef mine(x):\n    return x\n",
    "a lambda": f"{REGISTERED[1:]}(lambda x, y: x + y)\n",
}


@for_each("where, text", ELSEWHERE.items(), ids=lambda case: case[0])
def test_a_function_is_found_where_it_stands(
    where: str, text: str, mine: dict[str, Implementation], tmp_path: Path
) -> None:
    launch = code_size(loaded(tmp_path / "other.py", IMPORT + text)).launch
    assert launch.lines == 1 if where == "a lambda" else launch == RoleSize(2, 12)


def test_what_exec_makes_has_a_hash_and_no_size(mine: dict[str, Implementation], tmp_path: Path) -> None:
    text = f"exec({REGISTERED + '{}def mine(x, y): return x'!r}.format(chr(10)))\n"
    impl = loaded(tmp_path / "other.py", IMPORT + text)
    assert source_hash(impl)
    with pytest.raises(OSError, match=r"^its function is not found in <string>: exec made it"):
        code_size(impl)


@for_each("broken", [b"def f(:\n", b"# \xff\n", b"x = '\x00'\n"])
def test_a_file_beside_it_that_is_no_python_is_hashed_all_the_same(
    broken: bytes, mine: dict[str, Implementation], tmp_path: Path
) -> None:
    """Importing it fails, which a user's file may be ready for."""
    beside = tmp_path / "broken.py"
    beside.write_bytes(broken)
    text = f"try:\n    import broken\nexcept (SyntaxError, ValueError):\n    pass\n{FUNCTION}"
    impl = loaded(tmp_path / "other.py", IMPORT + text)
    before = source_hash(impl)
    assert code_size(impl).launch == RoleSize(2, 12)
    beside.write_bytes(broken + b"1\n")
    os.utime(beside, ns=(1, 1))
    assert source_hash(impl) != before


@for_each("before,encoding", [("", "utf-8-sig"), ("# -*- coding: latin-1 -*-\n", "latin-1")])
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


@for_each(
    "text, language, concepts",
    [
        ("int x; // __shared__ and asm\n", "cuda", ()),
        ("__shared__ int x;", "cuda", ("shared memory",)),
        ("gl.BlockedLayout([1], [32], [4], [0])", "python", ("register layouts",)),
        ("gl.SwizzledSharedLayout(1, 1, 1, [0])", "python", ()),
    ],
)
def test_concepts_are_those_of_the_code(
    text: str, language: Literal["python", "cuda"], concepts: tuple[str, ...]
) -> None:
    assert concepts_of([CodePiece(text, language)]) == concepts


@for_each(
    "triton,gluon",
    [
        ("tl.sum(x)", "gl.sum(x)"),
        ("tl.debug_barrier()", "gl.barrier()"),
        ("tl.atomic_add(x, 1)", "gl.atomic_add(x, 1)"),
        ("tl.arange(0, 8)", "gl.arange(0, 8)"),
    ],
)
def test_what_is_said_in_both_is_the_same_concept(triton: str, gluon: str) -> None:
    found = concepts_of([CodePiece(triton, "python")])
    assert found
    assert concepts_of([CodePiece(gluon, "python")]) == found


def test_what_cannot_be_counted_is_said_why(
    mine: dict[str, Implementation], tmp_path: Path, cache: Path
) -> None:
    impls = [*registry.implementations("vector_add", ["torch.*"]), mine["triton.mine"]]
    (tmp_path / "mine.py").unlink()
    counting = Counting(impls, mock.Mock(), on_gpu=False)
    counting.finish()
    assert counting.code_sizes == {impl.label: code_size(impl) for impl in impls[:-1]}
    assert counting.uncounted["triton.mine"].startswith("code size unread: ")
