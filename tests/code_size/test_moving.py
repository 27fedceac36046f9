"""The headline is the same wherever a function stands: a made-up op in a tree of its own."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from compare import registry
from compare.code_size import count as count_module
from compare.code_size import cpp, sources
from compare.code_size.count import CountedKernel, Launched, code_size
from compare.model.op import Implementation
from compare.model.result import CodeSize
from loops import for_each

TRITON = "triton_impl/sums.py"
CUPY = "cuda_impl/launches/sums.py"
KERNELS = "cuda_impl/kernels/sums.cuh"
PYBIND = "cuda_impl/pybind/sums.cu"

FILES = {
    TRITON: {
        "head": "import triton\nimport triton.language as tl\n",
        "WIDTH": "WIDTH = tl.constexpr(64)\n",
        "twice": "@triton.jit\ndef twice(x):\n    return x + x\n",
        "sums_kernel": (
            "@triton.jit\ndef sums_kernel(x_ptr):\n    tl.store(x_ptr, twice(tl.load(x_ptr + WIDTH)))\n"
        ),
        "grid": "def grid(x):\n    return (x.numel(),)\n",
        "mine": "def mine(x):\n    sums_kernel[grid(x)](x)\n    return x\n",
    },
    CUPY: {
        "head": "from cuda_impl.loader import kernel\n",
        "grid": "def grid(x):\n    return (x.numel(),)\n",
        "mine": 'def mine(x):\n    kernel("sums", "sums_kernel", 0)(grid(x), (64,), x)\n    return x\n',
    },
    KERNELS: {
        "head": "#pragma once\n",
        "WIDTH": "constexpr int WIDTH = 64;\n",
        "twice": "__device__ float twice(float x) {\n    return x + x;\n}\n",
        "sums_kernel": "__global__ void sums_kernel(float* x) {\n    x[0] = twice(x[WIDTH]);\n}\n",
        "slow_kernel": "__global__ void slow_kernel(float* x) {\n    x[0] = 2 * x[WIDTH];\n}\n",
    },
    PYBIND: {
        "head": '#include "sums.cuh"\n',
        "grid": "inline int grid(int n) {\n    return n / WIDTH;\n}\n",
        "mine": (
            "void mine(float* x, int n) {\n    auto run = n > 9 ? sums_kernel : slow_kernel;\n"
            "    run<<<grid(n), 64>>>(x);\n}\n"
        ),
        "module": 'PYBIND11_MODULE(sums, m) {\n    m.def("mine", &mine);\n}\n',
    },
}
LINES = {"triton.mine": 1 + 3 + 3 + 2 + 3, "cupy.mine": (1 + 3 + 3) + (2 + 3), "pybind.mine": 7 + 3 + 4 + 3}
"""Counted by hand: constant, ``twice`` and kernel; ``grid`` and ``mine``; pybind's module."""

Count = Callable[..., CodeSize]


@pytest.fixture
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Count:
    """Writes the tree, with one piece of a file in another, and counts an implementation."""
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "PYBIND", (tmp_path / PYBIND).parent)
    for module in (sources, cpp, count_module):
        monkeypatch.setattr(module, "KERNELS", (tmp_path / KERNELS).parent)

    def count(label: str, file: str = "", piece: str = "", into: str = "", op: str = "sums") -> CodeSize:
        for name, pieces in FILES.items():
            here = dict(pieces)
            if name == file:
                here["head"] += moved(tmp_path / into, piece, here.pop(piece))
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n\n".join(here.values()))
        return counted(tmp_path, label, op)

    return count


def moved(to: Path, name: str, text: str) -> str:
    """Write a piece to a file of its own; the line that another file gets it with."""
    to.parent.mkdir(parents=True, exist_ok=True)
    is_python = to.suffix == ".py"
    to.write_text(f"{FILES[TRITON]['head'] * is_python}\n{text}")
    if is_python:
        return f"from {to.stem} import {name}\n"
    return f'#include "{to.relative_to(to.parents[1]) if to.parent.name == "sums" else to.name}"\n'


def counted(root: Path, label: str, op: str = "sums") -> CodeSize:
    route = label.partition(".")[0]
    file = root / (TRITON if route == "triton" else CUPY)
    impl = Implementation(op, label, "tiled", function(file, "mine"))
    kernel = CountedKernel("sums_kernel", "" if route == "triton" else op)
    return code_size(impl, Launched((kernel,)))


def function(file: Path, name: str) -> Callable[..., None]:
    """A function as if its file had been imported; nothing of the file runs."""
    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", "") == name]
    names: dict[str, Callable[..., None]] = {}
    exec(compile(tree, str(file), "exec"), names)
    return names[name]


@for_each(
    "label, file, piece, into",
    [
        ("triton.mine", TRITON, "WIDTH", "triton_impl/elsewhere.py"),
        ("triton.mine", TRITON, "twice", "triton_impl/elsewhere.py"),
        ("triton.mine", TRITON, "grid", "triton_impl/elsewhere.py"),
        ("cupy.mine", CUPY, "grid", "cuda_impl/launches/elsewhere.py"),
        ("cupy.mine", KERNELS, "WIDTH", "cuda_impl/kernels/elsewhere.cuh"),
        ("cupy.mine", KERNELS, "twice", "cuda_impl/kernels/sums/elsewhere.cuh"),
        ("cupy.mine", KERNELS, "sums_kernel", "cuda_impl/kernels/elsewhere.cuh"),
        ("pybind.mine", KERNELS, "twice", "cuda_impl/kernels/elsewhere.cuh"),
        ("pybind.mine", PYBIND, "grid", "cuda_impl/pybind/elsewhere.h"),
        ("pybind.mine", PYBIND, "grid", "cuda_impl/kernels/elsewhere.cuh"),
    ],
    ids=str,
)
def test_a_function_counts_wherever_it_stands(
    label: str, file: str, piece: str, into: str, count: Count
) -> None:
    before = count(label)
    assert before.lines == LINES[label]
    assert count(label, file, piece, into).whole == before.whole


def test_a_header_of_two_ops_belongs_to_both(count: Count, tmp_path: Path) -> None:
    shared = "cuda_impl/kernels/common.cuh"
    first = count("cupy.mine", KERNELS, "twice", shared)
    other = (tmp_path / KERNELS).with_name("products.cuh")
    other.write_text((tmp_path / KERNELS).read_text())
    second = counted(tmp_path, "cupy.mine", op="products")
    assert first.shared.lines == second.shared.lines == 3, "twice"
    assert first.lines == second.lines == LINES["cupy.mine"]
