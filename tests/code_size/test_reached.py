"""What counts is what the launched template instance reaches: six implementations, counted by hand."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

import case_sets
from compare import registry
from compare.code_size.count import code_size, launched
from compare.records.encoding import decode, encode
from compare.spec import CodeSize, Implementation

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
    template <typename T>
    __global__ void my_kernel(T* x, T* y) {
        x[0] = twice(y[0]);
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
COUNTED = {
    # kernel, launch, helpers, shared: lines
    "overloads": (OVERLOADS, (4, 3, 1, 0)),
    # Helpers: Pack 4, Pack<T, 1> 4, from_float 2, its specialisation 2, store 4.
    "templates": (TEMPLATES, (4, 3, 16, 0)),
    # Helpers: LOAD 2, WIDTH, half_of, load.
    "macros": (MACROS, (6, 3, 5, 0)),
    # Helpers: third 3, second, first; shared: WARP.
    "nested helpers": (NESTED, (8, 3, 5, 1)),
    "fallbacks": (FALLBACKS, (1, 3, 0, 0)),
    # Helpers: twice 3, one 2.
    "triton": (TRITON, (3, 6, 5, 0)),
}


@pytest.fixture
def load(tmp_path: Path, own_registry: None) -> object:
    def loaded(text: str) -> Implementation:
        file = tmp_path / "users.py"
        file.write_text(text)
        registry.load(str(file))
        (impl,) = (impl for impl in registry.implementations("vector_add") if impl.variant == "mine")
        return impl

    return loaded


@pytest.mark.parametrize(("text", "lines"), COUNTED.values(), ids=COUNTED.keys())
def test_six_implementations_have_the_lines_counted_by_hand(
    text: str, lines: tuple[int, ...], load: object
) -> None:
    found = code_size(load(text))  # type: ignore[operator]
    parts = (found.kernel, found.launch, found.helpers, found.shared)
    assert tuple(part.lines for part in parts) == lines
    assert found.lines == sum(lines[:3]), "shared code stands beside the headline"


@pytest.mark.parametrize(("text", "name"), [(FALLBACKS, "any_size"), (TRITON, "small_kernel")])
def test_a_kernel_of_other_cases_is_named_and_not_counted(text: str, name: str, load: object) -> None:
    assert code_size(load(text)).fallbacks == (name,)  # type: ignore[operator]


def test_what_a_worker_reports_gives_the_same_size(load: object) -> None:
    impl = load(TEMPLATES)  # type: ignore[operator]
    kernels = launched(impl)
    assert decode(type(kernels), encode(kernels)) == kernels
    assert code_size(impl, kernels) == code_size(impl)


def of(op: str, label: str) -> CodeSize:
    return code_size(next(impl for impl in registry.implementations(op) if impl.label == label))


def test_helpers_of_an_op_are_told_from_shared_code() -> None:
    """vector_add's kernels use the op's own file and common.cuh alone."""
    found = of("vector_add", "pybind.vectorized")
    assert min(found.helpers.lines, found.shared.lines) > 0
    assert (found.binding.lines, found.module.lines) == (1, 2)
    assert of("vector_add", "triton.blocked").shared.lines == 0


def test_the_same_algorithm_takes_the_same_declaration_and_the_same_steps(load: object) -> None:
    declared = TEMPLATES.replace('level="tiled"', 'level="tiled", algorithm="stores one"')
    size = code_size(load(declared))  # type: ignore[operator]
    assert (size.algorithm, size.steps) == ("stores one", ("write",))
    assert size.has_algorithm_of(size)
    assert not size.has_algorithm_of(replace(size, steps=("read", "write")))
    assert not size.has_algorithm_of(replace(size, algorithm="stores two"))
    nothing = replace(size, algorithm="")
    assert not nothing.has_algorithm_of(nothing)


@pytest.mark.parametrize("op", case_sets.one_op())
def test_implementations_that_declare_the_same_algorithm_have_the_same_steps(op: str) -> None:
    steps: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for impl in registry.implementations(op):
        if impl.algorithm:
            steps.setdefault(impl.algorithm, {}).setdefault(code_size(impl).steps, []).append(impl.label)
    assert all(len(found) == 1 for found in steps.values()), steps
