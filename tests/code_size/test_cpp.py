"""C++ is cut into declarations, and each has a name."""

from __future__ import annotations

import textwrap
from pathlib import Path

from compare.code_size import cpp


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
        for name in ("LONG", "index_t", "WARP", "Pair", "load", "array", "work", "twice", "operator_")
    }
    starts = {name: pieces[0].lines_of_file for name, pieces in unit.named.items()}
    assert starts["LONG"] == range(4, 7)
    assert (starts["Pair"], starts["load"], starts["work"]) == (range(11, 12), range(12, 14), range(18, 22))
    assert [piece.text[:12] for piece in unit.reached(["work"])] == ["template <in", "#define LONG"]


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
