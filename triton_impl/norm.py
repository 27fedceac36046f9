"""What layer_norm and rms_norm share, in Triton: 16-bit elements by twos, and the launches of their kernels.

The kernels are in ``layer_norm.py`` and ``rms_norm.py``.  softmax's ``packed`` uses the tiles of words.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from compare.arguments import check_norm
from triton_impl import shared_rows
from triton_impl.counts import cdiv, check_counts, grid_1d, next_power_of_2
from triton_impl.parts import as_output, columns_of_body, contiguous_rows, vec, vec_of_narrow
from triton_impl.shared_rows import (
    COOPERATIVE,
    aligned,
    columns_of_a_chunk,
    in_vectors,
    resident_programs,
    share_rows,
)
from triton_impl.staged_rows import staged_rows

INTERPRETED = tl.constexpr(shared_rows.INTERPRETED)
KEPT = tl.constexpr(8)
"""Tiles of 16 bytes per thread that 64 registers hold, 128 KB of a row; the others are loaded again."""


@triton.jit
def of_columns(ptr, n, N):
    """Weight or bias of these columns; evict_last, because every row needs them."""
    return tl.load(ptr + n, mask=n < N, other=0.0, eviction_policy="evict_last")


@triton.jit
def of_body(ptr, n, head, N, VEC: tl.constexpr):
    """Weight or bias of these columns of a row's body, behind ``head`` columns."""
    inside = n < columns_of_body(N, VEC)
    if VEC > 1:
        n += head
    return tl.load(ptr + n, mask=inside, other=0.0, eviction_policy="evict_last")


@triton.jit
def halves(words, DTYPE: tl.constexpr):
    """Both 16-bit elements of each word, as fp32."""
    low = (words & 0xFFFF).to(tl.int16).to(DTYPE, bitcast=True)
    high = (words >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def stay_packed(words):
    """The same words, opaque to the compiler.

    Otherwise it would keep the elements that an earlier pass unpacked, in twice as many registers.
    """
    if not INTERPRETED:
        words = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [words], dtype=tl.int32, is_pure=False, pack=1
        )
    return words


@triton.jit
def in_order(words, DTYPE: tl.constexpr):
    """The fp32 elements of words that hold one fp32 or two 16-bit elements each."""
    if DTYPE.primitive_bitwidth == 32:
        elements = words.to(tl.float32, bitcast=True)
    else:
        low, high = halves(words, DTYPE)
        elements = tl.interleave(low, high)
    return elements


@triton.jit
def widen(words, DTYPE: tl.constexpr):
    """The fp32 elements of words that hold one or two each: ``[BLOCK_N]`` or ``[BLOCK_N, 2]``.

    In Triton every loop-carried element takes a register, of any width; two in a word take one.
    """
    if DTYPE.primitive_bitwidth == 32:
        elements = words.to(tl.float32, bitcast=True)
    else:
        low, high = halves(words, DTYPE)
        elements = tl.join(low, high)
    return elements


@triton.jit
def narrow(elements, DTYPE: tl.constexpr):
    """The words that hold these elements, each rounded once."""
    if DTYPE.primitive_bitwidth == 32:
        words = elements.to(tl.int32, bitcast=True)
    else:
        low, high = tl.split(elements.to(DTYPE).to(tl.int16, bitcast=True))
        words = (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)
    return words


@triton.jit
def windows_kernel(weight_ptr, bias_ptr, windows_ptr, body, BLOCK_N: tl.constexpr):
    """windows[P, VEC, body]: ``body`` columns from column 0, 1, 2 ... on, of weight and bias or weight alone.

    A row that does not start on 16 bytes has its body at one of the columns 0 to VEC - 1, and finds a window
    that is aligned to it.  Grid: one program per BLOCK_N columns of a window.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    first, parameter = tl.program_id(1), tl.program_id(2)
    if parameter == 0:
        values = tl.load(weight_ptr + first + n, mask=n < body)
    else:
        values = tl.load(bias_ptr + first + n, mask=n < body)
    window = (parameter * tl.num_programs(1) + first).to(tl.int64)
    tl.store(windows_ptr + window * body + n, values, mask=n < body)


def windows(parameters: tuple[torch.Tensor, ...], VEC: int, body: int) -> tuple[torch.Tensor, ...]:
    """For each parameter[N] its ``windows[VEC, body]``; the parameter itself if VEC is 1."""
    if VEC == 1:
        return parameters
    out = parameters[0].new_empty((len(parameters), VEC, body))
    windows_kernel[(cdiv(body, 1024), VEC, len(parameters))](
        parameters[0], parameters[-1], out, body, BLOCK_N=1024
    )
    return out.unbind()


@triton.jit
def as_words(ptr):
    """A pointer to the same memory as 32-bit words."""
    return ptr.to(tl.pointer_type(tl.int32), bitcast=True)


@triton.jit
def load_tile(words_ptr, t, count, other, BLOCK_N: tl.constexpr, TILES: tl.constexpr):
    """Tile t of the ``count`` words of a row's body; ``other`` behind them."""
    n = t * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (n < count) | (t + 1 < TILES)  # only the last tile is partial
    return tl.load(words_ptr + n, mask=inside, other=other)


@triton.jit
def tile_of(tiles, t: tl.constexpr, words_ptr, count, other, BLOCK_N: tl.constexpr, TILES: tl.constexpr):
    """Tile t, from registers or, if it is not among those that are kept, from the L2."""
    return stay_packed(tiles[t]) if t < KEPT else load_tile(words_ptr, t, count, other, BLOCK_N, TILES)


class Rows(NamedTuple):
    """The kernels' tensor arguments, and an output."""

    x: torch.Tensor
    parameters: tuple[torch.Tensor, ...]
    """Weight, and bias if the op has one."""
    y: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.x, *self.parameters, self.y)


def checked(op: str, x: torch.Tensor, **parameters: torch.Tensor) -> Rows:
    """The arguments, copied where rows are not contiguous."""
    check_norm(op, x, **parameters)
    x = contiguous_rows(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return Rows(x, tuple(values.contiguous() for values in parameters.values()), y)


def online(
    kernel: Any, op: str, eps: float, x: torch.Tensor, by_vectors: bool = False, **parameters: torch.Tensor
) -> torch.Tensor:
    """Launch an online kernel; one that works by vectors takes their length as well."""
    rows = checked(op, x, **parameters)
    M, N = x.shape
    if rows.y.numel() == 0:
        return rows.y
    check_counts(N=N)
    tile = {"VEC": vec_of_narrow(rows.x), "BLOCK_N": min(4096, next_power_of_2(N))}
    num_warps = 16 if tile["BLOCK_N"] == 4096 else 4
    if by_vectors:
        tile["GROUP"] = tile["VEC"] if tile["VEC"] > 1 else math.gcd(N, 16 // x.element_size())
    kernel[grid_1d(M)](*rows.tensors, N, rows.x.stride(0), eps, **tile, num_warps=num_warps)
    return rows.y


ONEPASS_COLUMNS = 32768


def onepass(kernel: Any, op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    M, N = x.shape
    if rows.y.numel() == 0:
        return rows.y
    if N > ONEPASS_COLUMNS:
        raise NotImplementedError(f"N={N}: registers hold rows of up to {ONEPASS_COLUMNS} columns")
    BLOCK_N = next_power_of_2(N)
    BLOCK_M = max(1, min(4, 2048 // BLOCK_N))  # several short rows per program
    VEC = vec_of_narrow(rows.x)
    # 64 elements of a long row per thread; 16 where weights take a register each.
    num_warps = min(32, max(4, BLOCK_N // (512 if VEC > 1 else 2048)))
    kernel[grid_1d(cdiv(M, BLOCK_M))](
        *rows.tensors, M, N, rows.x.stride(0), eps, VEC=VEC, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        num_warps=num_warps,
    )  # fmt: skip
    return rows.y


def whole_words(x: torch.Tensor) -> None:
    """
    Raises:
        NotImplementedError: a row is not a whole number of 32-bit words.
    """
    if x.size(1) * x.element_size() % 4 != 0:
        raise NotImplementedError(f"N={x.size(1)}: elements of 16 bits are taken by twos")


def in_words(values: torch.Tensor) -> torch.Tensor:
    """The same memory as 32-bit words; a copy if pairs of elements are not adjacent and aligned."""
    return aligned(values, 4).view(torch.int32)


TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


PACKED_BYTES = 1 << 18
"""Of a row: twice what KEPT tiles hold."""


class PackedRows(NamedTuple):
    """Of a kernel that keeps rows as loaded."""

    x: torch.Tensor
    VEC: int
    body: int
    """Columns."""
    tiles: dict[str, Any]
    """The kernel's further constants and options."""


def rows_as_loaded(x: torch.Tensor) -> PackedRows:
    """Of ``x[M,N]`` with contiguous rows; a copy if 16-bit ones are not in words, nor as an output's.

    Raises:
        NotImplementedError: a row is too long, or short and not in words.
    """
    N, size = x.size(1), x.element_size()
    if N * size > PACKED_BYTES:
        raise NotImplementedError(f"N={N}: rows of up to {PACKED_BYTES // size} columns")
    if size == 2 and N % 2 != 0:
        x = as_output(x)
    VEC = vec(x)
    if VEC == 1:
        whole_words(x)
        x = aligned(x, 4)
    body = N if VEC == 1 else (N // VEC - 1) * VEC
    words = body * size // 4
    num_warps = min(32, max(4, next_power_of_2(words) // 1024))  # 32 words per thread, 16-byte loads
    BLOCK_N = 128 * num_warps
    tiles = {"BLOCK_N": BLOCK_N, "TILES": cdiv(words, BLOCK_N), "num_warps": num_warps, "maxnreg": 64}
    return PackedRows(x, VEC, body, tiles)


def packed(kernel: Any, op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    y, (M, N) = rows.y, x.shape
    if y.numel() == 0:
        return y
    of = rows_as_loaded(rows.x)
    kernel[grid_1d(M)](
        of.x, *rows.parameters, *windows(rows.parameters, of.VEC, of.body), y, N, of.x.stride(0), eps,
        DTYPE=TYPES[x.dtype], VEC=of.VEC, **of.tiles,
    )  # fmt: skip
    return y


def split(kernel: Any, op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
    rows = checked(op, x, **parameters)
    y, DTYPE = rows.y, TYPES[x.dtype]
    if y.numel() == 0:
        return y
    whole_words(x)
    words = [in_words(values) for values in rows.tensors]
    (M, N), stride_xm = words[0].shape, words[0].stride(0)
    check_counts(M=M)
    num_warps = 4
    PROGRAMS = 4 if "bias" in parameters and x.element_size() == 2 else 5  # per multiprocessor
    BLOCK_N = columns_of_a_chunk(N, 2048)
    chunks = cdiv(N, BLOCK_N)
    of_chunk = x.new_zeros(M * chunks, dtype=torch.int64)
    # At least one word per thread: two threads polling one word could see different values.
    BLOCK_C = max(32 * num_warps, next_power_of_2(chunks))
    arguments = (*words, M, N, stride_xm, chunks, of_chunk, eps)
    options = {"DTYPE": DTYPE, "BLOCK_N": BLOCK_N, "BLOCK_C": BLOCK_C}
    launch = {**options, "num_warps": num_warps, "num_stages": 1, **COOPERATIVE}
    programs = resident_programs(kernel, arguments, launch, PROGRAMS, chunks)
    rows_at_a_time = min(programs // chunks, M)
    kernel[(rows_at_a_time * chunks,)](*arguments, **launch)
    return y


def in_gluon(
    kernel: Any, row_kernel: Any, op: str, eps: float, x: torch.Tensor, **parameters: torch.Tensor
) -> torch.Tensor:
    """Launch ``row_kernel`` for unaligned rows of which a program holds one, else ``kernel``."""
    rows = checked(op, x, **parameters)
    y, (M, N) = rows.y, x.shape
    if y.numel() == 0:
        return y
    row = staged_rows(rows.x)
    if row is not None:
        VEC = row.tiles["VEC"] if row.body > 0 else 1
        row_kernel[grid_1d(M)](
            row.x, *rows.parameters, *windows(rows.parameters, VEC, row.body), y, N, row.x.stride(0), eps,
            **row.tiles,
        )  # fmt: skip
        return y
    x = in_vectors(rows.x)
    # Three tiles in the ring and 8 KB each of weight and bias leave room for two programs.
    share_rows(kernel, x, rows._replace(x=x).tensors, (eps,), BLOCK_M=4, PROGRAMS=2)
    return y
