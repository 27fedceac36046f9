"""CUDA text as a student writes it: on the CPU as on a GPU, and compilers' errors by its own lines."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from compare import registry
from cuda_impl import build, source
from cuda_impl.loader import kernel
from cuda_impl.source import advice, errors_in, for_host, parameters_of, with_names
from loops import for_each

REVERSES = """
__global__ void reverse(float* y) {
    %s
    buffer[threadIdx.x] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = buffer[31 - threadIdx.x];
}
"""

DECLARED = {
    "plain": "extern __shared__ float buffer[];",
    "double": "extern __shared__ double buffer[];",
    "bytes": "extern __shared__ unsigned char buffer[];",
    "align": "extern __shared__ __align__(16) float buffer[];",
    "alignas": "alignas(16) extern __shared__ float buffer[];",
    "attribute": "extern __shared__ float __attribute__((aligned(16))) buffer[];",
    "volatile": "volatile extern __shared__ float buffer[];",
    "turned": "__shared__ extern float buffer[];",
    "in pieces": "extern __shared__ /* of the\n launch; */ float\n buffer[ ]; // extern __shared__ int x[];",
    "two": "extern __shared__ float buffer[], same[]; same[threadIdx.x] = 0;",
    "rows": "extern __shared__ float rows[][16]; float* buffer = &rows[0][0];",
    "as floats": "extern __shared__ __align__(8) unsigned char raw[]; auto* buffer = (float*)raw;",
    "static": "__shared__ float buffer[32];",
    "static alignas": "__shared__ alignas(16) float buffer[32];",
    "static static": "static __shared__ float buffer[32];",
    "a string": 'extern __shared__ float buffer[]; if (y == nullptr) printf("extern __shared__ int x[]; {");',
}

WHOLE = {
    "template": "template <typename T> __global__ void reverse(T* y) {\nextern __shared__ T buffer[];",
    "two of one name": """
__global__ void other(float* y) { extern __shared__ float buffer[]; y[0] = buffer[0]; }
__global__ void reverse(float* y) { extern __shared__ float buffer[];""",
    "of the file": """
extern __shared__ float buffer[];
struct Ends { float first, last; };
__device__ float first_of(const float* buffer) { return buffer[0]; }
namespace { __device__ void fill() { buffer[0] = 0.0f; } }
__global__ void __launch_bounds__(32) reverse(float* y) {
fill(); y[0] = first_of(buffer); __syncthreads();""",
    "of a structure": """
template <typename T> struct Shared {
    __device__ operator T*() const { extern __shared__ int raw[]; return reinterpret_cast<T*>(raw); }
};
__global__ void reverse(float* y) { float* buffer = Shared<float>();""",
}
REST = "buffer[threadIdx.x] = threadIdx.x; __syncthreads(); y[threadIdx.x] = buffer[31 - threadIdx.x]; }"

SOURCES = {
    **{name: REVERSES % declared for name, declared in DECLARED.items()},
    **{name: whole + REST for name, whole in WHOLE.items()},
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_shared_memory_declared_in_any_way_that_a_gpu_takes(source: str) -> None:
    name = "reverse<float>" if "template <typename T> __global__" in source else "reverse"
    build.cubin(source, [name], "sm_90")  # unchanged
    y = torch.empty(32)
    kernel(source, name, torch.device("cpu"))((2,), (32,), (y.data_ptr(),), shared_mem=256)
    assert torch.equal(y, torch.arange(31.0, -1.0, -1.0))
    marked = source.replace("\n", " /* line */\n")
    ends = [
        [line.endswith("/* line */") for line in text.split("\n")[:-1]] for text in (for_host(marked), marked)
    ]
    assert ends[0] == ends[1], "no line moves"


def test_other_text_is_left_as_it_is() -> None:
    for file in (registry.ROOT / "cuda_impl" / "kernels").rglob("*.cuh"):
        text = file.read_text()
        assert for_host(text) == text, file.name


def test_a_loop_that_waits_for_another_block_needs_nothing_of_the_project_s() -> None:
    source = """
    __global__ void chain(volatile int* flags) {
        if (blockIdx.x + 1 < gridDim.x) {
            while (flags[blockIdx.x + 1] == 0) __nanosleep(100);
        }
        flags[blockIdx.x] = 1;
    }
    """
    build.cubin(source, ["chain"], "sm_75")
    flags = torch.zeros(3, dtype=torch.int32)
    kernel(source, "chain", torch.device("cpu"))((3,), (1,), (flags.data_ptr(),))
    assert flags.tolist() == [1, 1, 1]


# --------------------------------------------------------------------------- errors

USERS_FILE = '''"""A user's file."""
SOURCE = r"""
#define THREADS 32
__global__ void wrong(float* y, int N) {
    extern __shared__ float buffer[];
    if (threadIdx.x < M) {  // line 6
        buffer[threadIdx.x] = 1.0f;
        y[0] = bufer[0];  // line 8
    }
    int z = 1  // line 10
}
"""
OTHER = "#define T " + "float\\n" + r"""
__global__ void built(T* y) {
    y[0] = missing;
}
"""
'''


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A file given to --load."""
    file = tmp_path / "mine.py"
    file.write_text(USERS_FILE)
    module = types.ModuleType("_loaded_mine")
    module.__file__ = str(file)
    exec(USERS_FILE, module.__dict__)
    monkeypatch.setitem(sys.modules, "_loaded_mine", module)
    return module


COMPILERS = {
    "g++": build.host_kernel,
    "NVRTC": lambda source, name: build.cubin(source, [name], "sm_90"),
    "nvcc": lambda source, name: build.nvcc_cubin(source, [name], "sm_90"),
}
compilers = pytest.mark.parametrize("compiler", COMPILERS.values(), ids=COMPILERS)
Compile = Callable[[str, str], object]


@compilers
def test_every_error_has_the_line_of_the_users_file(compiler: Compile, users: types.ModuleType) -> None:
    with pytest.raises(build.BuildError) as refused:
        compiler(users.SOURCE, "wrong")
    first, _, log = str(refused.value).partition("\n")
    assert re.search(r"mine\.py:6: [^;]*\bM\b.*mine\.py:8: [^;]*\bbufer\b.*mine\.py:1[01]: ", first)
    assert re.search(r"(?m)^mine\.py:8: error: ", log)


@compilers
def test_of_a_text_that_is_put_together_the_line_is_found(compiler: Compile, users: types.ModuleType) -> None:
    with pytest.raises(build.BuildError, match=r"^built: .* failed: mine\.py:15: "):
        compiler(users.OTHER, "built")


def test_of_a_text_that_no_file_holds_the_line_is_quoted() -> None:
    with pytest.raises(build.BuildError, match=r"line 2 of the CUDA text, 'y\[0\] = missing;': .*missing"):
        build.host_kernel("__global__ void k(float* y) {\n    y[0] = missing;\n}", "k")


def test_a_cuda_file_beside_the_users_has_its_own_lines(users: types.ModuleType) -> None:
    text = "__global__ void k(float* y) {\n    y[0] = 1;\n    y[1] = missing;\n}\n"
    assert users.__file__ is not None
    Path(users.__file__).with_name("kernels_of_mine.cu").write_text(text)
    with pytest.raises(build.BuildError, match=r"^k: g\+\+ failed: kernels_of_mine\.cu:3: "):
        build.host_kernel(text, "k")


def test_a_module_that_the_users_file_imports_has_its_own_lines(
    users: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n__global__ void k(float* y) {\n    y[0] = missing;\n}\n"
    helper = types.ModuleType("helper_of_mine")
    helper.__file__ = str(Path(str(users.__file__)).with_name("helper_of_mine.py"))
    Path(helper.__file__).write_text(f'SOURCE = r"""{text}"""\n')
    monkeypatch.setitem(sys.modules, "helper_of_mine", helper)
    with pytest.raises(build.BuildError, match=r"^k: g\+\+ failed: helper_of_mine\.py:3: "):
        build.host_kernel(text, "k")


def test_of_many_errors_five_are_shown_and_the_rest_counted() -> None:
    log = "".join(f"mine.py:{n}: error: identifier x{n} is undefined\n" for n in range(1, 9))
    shown = errors_in(log + log)
    assert shown.startswith("mine.py:1: identifier x1 is undefined; mine.py:2: ")
    assert shown.endswith("mine.py:5: identifier x5 is undefined; and 3 more")


def test_a_full_disk_is_named_though_the_assembler_says_it_in_its_own_form() -> None:
    log = "/tmp/c.s: Fatal error: can't write 3886 bytes to section .debug_info: 'No space left on device'\n"
    assert errors_in(log).startswith("no space left on device")


def test_a_header_keeps_its_own_lines() -> None:
    with pytest.raises(build.BuildError, match=r"failed: vector_add\.cuh:\d+: "):
        build.host_kernel("vector_add", "vector_add_scalar_kernel<void>")


PASTED = """#include <cfloat>
__global__ void add(const float* a, float* c, int n, float by) { if (n > 0) c[0] = a[0] + by; }

void solve(const float* a, float* c, int n) {
    add<<<(n + 255) / 256, 256>>>(a, c, n, 2.0f);
}
"""
CALL = 'kernel(SOURCE, "add", a.device)(((n + 255) // 256,), (256,), (a.data_ptr(), c.data_ptr(), '


@for_each(
    "text, says",
    [
        (PASTED, ["Take out lines 4-6, and launch from Python", CALL]),
        ("#include <torch/extension.h>\n" + PASTED, ["Take out line 1 and lines 5-7", CALL]),
        ("#include <cub/cub.cuh>\n__global__ void k(float* x) {}", ["Take out line 1", "cub/cub.cuh is not"]),
        ("// compare: add(a) grid 1 block 1\n" + PASTED, ["lines 5-7; the line // compare: ... launches"]),
        (PASTED.partition("void solve")[0], []),
    ],
)
def test_host_code_in_a_text_is_named_with_the_launch_to_write(
    text: str, says: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_users_files", list)  # another test's have the same lines
    words = advice(text)
    assert all(part in words for part in says), words
    assert bool(says) == bool(words), words


def test_the_parameters_of_a_kernel_are_read_from_its_text() -> None:
    assert parameters_of(PASTED, "add") == [
        *(("const float*", "a"), ("float*", "c")),
        *(("int", "n"), ("float", "by")),
    ]
    assert parameters_of(PASTED, "other<float>") == []
    assert with_names("argument 2 is a str", PASTED, "add") == "argument 2 (n) is a str"
