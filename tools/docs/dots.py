"""What Triton makes of ``tl.dot`` for several targets, types and tiles, as a table for documents."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from compare import registry
from compare.records import result_cache
from compare.report.tables import NOTHING, Table
from tools.docs.stages import pinned, untitled

Product = tuple[int, str, tuple[int, int, int], int, str]
"""Target, type of the operands, M x N x K of the tile, warps, and the precision of fp32."""

PRODUCTS: tuple[Product, ...] = (
    (75, "fp16", (64, 64, 32), 4, "tf32"),
    (80, "fp16", (64, 64, 32), 4, "tf32"),
    (80, "fp32", (64, 64, 32), 4, "tf32"),
    (80, "fp32", (64, 64, 32), 4, "ieee"),
    (90, "fp16", (64, 64, 32), 4, "tf32"),
    (90, "fp16", (32, 64, 32), 4, "tf32"),
    (90, "fp16", (64, 64, 32), 2, "tf32"),
    (90, "fp8e4nv", (64, 64, 32), 4, "tf32"),
)


@triton.jit  # type: ignore[untyped-decorator]
def dot_kernel(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr
):
    """Grid: one program, c[M, N] = a[M, K] @ b[K, N]."""
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    a = tl.load(a_ptr + m * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n)
    tl.store(c_ptr + m * N + n, tl.dot(a, b, input_precision=PRECISION))


def block(was: str) -> str:
    """A line for each product; ``was`` where another Triton is installed than constraints.txt names."""
    if not pinned("triton"):
        return was
    key = result_cache.key(result_cache.versions("triton"), result_cache.code("tools/docs/dots.py"))
    rows = result_cache.read("dots", key)
    if rows is None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
        words = [sys.executable, "-m", __name__]
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=registry.ROOT, env=environment, check=True
        )
        rows = json.loads(done.stdout)
        result_cache.write("dots", key, rows)
    headers = ("target", "operands", "tile M x N x K", "warps", "#mma in TTGIR", "instruction in PTX")
    return untitled(Table("", headers, tuple(map(tuple, rows)), text_columns=headers))


def described() -> Iterator[Iterable[str]]:
    """Each product compiled: the cells of its line."""
    for capability, kind, tile, warps, precision in PRODUCTS:
        source = ASTSource(
            dot_kernel,
            {"a_ptr": f"*{kind}", "b_ptr": f"*{kind}", "c_ptr": "*fp32"},
            {**dict(zip("MNK", tile, strict=True)), "PRECISION": precision},
            {(i,): [["tt.divisibility", 16]] for i in range(3)},
        )
        made = triton.compile(source, GPUTarget("cuda", capability, 32), {"num_warps": warps}).asm
        mma = re.search(
            r"#mma = #ttg\.nvidia_mma<\{versionMajor = (\d).*?instrShape = \[([\d, ]+)\]", made["ttgir"]
        )
        instruction = re.search(r"(?:wgmma\.mma_async|mma)\.sync\S+|fma\.rn\.f32", made["ptx"])
        yield (
            f"sm_{capability}",
            f"fp32 as {precision.upper()}" if kind == "fp32" else kind,
            " x ".join(map(str, tile)),
            str(warps),
            f"version {mma[1]}, {mma[2].replace(', ', ' x ')}" if mma else NOTHING,
            f"`{instruction[0]}`" if instruction else NOTHING,
        )


if __name__ == "__main__":
    print(json.dumps(list(map(list, described()))))
