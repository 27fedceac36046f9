"""grouped_matmul in Triton: ``a[M,K], b[G,K,N], offsets[G] -> c[M,N]``, accumulated in fp32.

Variants, slow to fast; ``cuda_impl/kernels/grouped_matmul/`` has the same, under the same names:

* ``tiled``: one program per tile of the largest possible grid; it finds its group by a search in the offsets
* ``persistent``: persistent programs take tiles of all groups round-robin, in grouped order
* ``wgmma``: as persistent, with TMA loads, through descriptors, and wgmma: operands pass no registers

The host does not know how many rows a group has.  Rows of a tile behind the group's last belong to the next
group, and are never stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from compare.arguments import check_grouped_product
from compare.device import multiprocessors
from compare.registry import implementation
from triton_impl.counts import cdiv, check_counts, check_strides, grid_1d, next_power_of_2
from triton_impl.matmul import compute_tile, grouped_tile
from triton_impl.tma import check_coordinates, for_tma


@triton.jit
def group_of_tile(tile, group, begin, end, first, offsets_ptr, G, tiles_n, BLOCK_M: tl.constexpr):
    """Walk from a group, which has rows from begin to end and tiles from ``first`` on, to that of ``tile``.

    Returns the same four of that group; group G, without rows, if all groups have fewer tiles.
    """
    tiles = tl.cdiv(end - begin, BLOCK_M) * tiles_n
    while (group < G) & (tile >= first + tiles):
        first += tiles
        group += 1
        begin = end
        end = tl.load(offsets_ptr + group, mask=group < G, other=begin)
        tiles = tl.cdiv(end - begin, BLOCK_M) * tiles_n
    return group, begin, end, first


@triton.jit
def grouped_matmul_tiled_kernel(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, K, G, stride_am, stride_ak, stride_bg, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Grid: a program per tile of c if every group's last tile had one row; those left over end at once."""
    tile, tiles_n, zero = tl.program_id(0), tl.cdiv(N, BLOCK_N), tl.cast(0, tl.int32)
    group, begin, end, first = group_of_tile(
        tile, zero, zero, tl.load(offsets_ptr), zero, offsets_ptr, G, tiles_n, BLOCK_M
    )
    if group < G:
        a_ptr += begin.to(tl.int64) * stride_am
        b_ptr += group.to(tl.int64) * stride_bg
        c_ptr += begin.to(tl.int64) * N
        tile_m, tile_n = (tile - first) // tiles_n, (tile - first) % tiles_n
        compute_tile(
            a_ptr, b_ptr, c_ptr, end - begin, N, K, stride_am, stride_ak, stride_bk, stride_bn,
            tile_m, tile_n, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip


@triton.jit
def grouped_matmul_persistent_kernel(
    a_ptr, b_ptr, c_ptr, offsets_ptr, N, K, G, stride_am, stride_ak, stride_bg, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Grid: persistent, as many programs as are resident; tiles are assigned round-robin.

    A program's tiles ascend, so its search goes on where the last one ended.
    """
    tile, tiles_n, zero = tl.program_id(0), tl.cdiv(N, BLOCK_N), tl.cast(0, tl.int32)
    group, begin, end, first = group_of_tile(
        tile, zero, zero, tl.load(offsets_ptr), zero, offsets_ptr, G, tiles_n, BLOCK_M
    )
    while group < G:
        rows = end - begin
        tile_m, tile_n = grouped_tile(tile - first, rows, N, BLOCK_M, BLOCK_N, GROUP_M)
        compute_tile(
            a_ptr + begin.to(tl.int64) * stride_am,
            b_ptr + group.to(tl.int64) * stride_bg,
            c_ptr + begin.to(tl.int64) * N,
            rows, N, K, stride_am, stride_ak, stride_bk, stride_bn,
            tile_m, tile_n, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        tile += tl.num_programs(0)
        group, begin, end, first = group_of_tile(
            tile, group, begin, end, first, offsets_ptr, G, tiles_n, BLOCK_M
        )


@triton.jit
def grouped_matmul_wgmma_kernel(
    a_desc, b_desc, c_ptr, offsets_ptr, N, K, G,
    B_BY_ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Grid: persistent, as many programs as are resident; tiles are assigned round-robin.

    b's descriptor has a dimension of groups: behind K there are zeros, not the rows of the next group.  By
    ``flatten`` the loops over tiles and over K are one, and a tile's first loads are issued before the last
    tile's output is written.  For that the number of tiles is counted before the loop.
    """
    g, tiles_n = tl.arange(0, BLOCK_G), tl.cdiv(N, BLOCK_N)
    ends = tl.load(offsets_ptr + g, mask=g < G, other=0)
    begins = tl.load(offsets_ptr + g - 1, mask=(g > 0) & (g < G), other=0)
    tiles = tl.sum(tl.cdiv(ends - begins, BLOCK_M)) * tiles_n
    group, begin, end, first = 0, 0, tl.load(offsets_ptr), 0
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        group, begin, end, first = group_of_tile(
            tile, group, begin, end, first, offsets_ptr, G, tiles_n, BLOCK_M
        )
        rows = end - begin
        tile_m, tile_n = grouped_tile(tile - first, rows, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([begin + m, k])
            if B_BY_ROWS:
                b = b_desc.load([group, k, n]).reshape(BLOCK_K, BLOCK_N)
            else:
                b = b_desc.load([group, n, k]).reshape(BLOCK_N, BLOCK_K).T
            total = tl.dot(a, b, total)
        row, column = m + tl.arange(0, BLOCK_M)[:, None], n + tl.arange(0, BLOCK_N)[None, :]
        c_ptrs = c_ptr + (begin + row).to(tl.int64) * N + column
        tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=(row < rows) & (column < N))


def checked(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor
) -> tuple[int, int, int, int, torch.Tensor]:
    """M, N, K, G and an uninitialised c."""
    check_grouped_product("grouped_matmul", a, b, offsets)
    (M, K), (G, _, N) = a.shape, b.shape
    check_counts(M=M, N=N, K=K, G=G)
    if N >= 1 << 31:
        raise NotImplementedError(f"N={N}: tiles are counted in 32 bits")
    return M, N, K, G, a.new_empty((M, N))


def most_tiles(M: int, N: int, G: int, BLOCK_M: int, BLOCK_N: int) -> int:
    """Tiles of c if every group's last tile had one row: no fewer than there are."""
    return min((M + G * (BLOCK_M - 1)) // BLOCK_M, M) * cdiv(N, BLOCK_N)


def strides_of(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    check_strides(a.shape[1], stride_ak=a.stride(1), stride_bk=b.stride(1))
    return (*a.stride(), *b.stride())


TILE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32}


@implementation("grouped_matmul", "triton.tiled", level="tensor_core", requires="sm_80")
def tiled(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    M, N, K, G, c = checked(a, b, offsets)
    if c.numel() == 0:
        return c
    grid = grid_1d(most_tiles(M, N, G, TILE["BLOCK_M"], TILE["BLOCK_N"]))
    grouped_matmul_tiled_kernel[grid](
        a, b, c, offsets.contiguous(), N, K, G, *strides_of(a, b), **TILE, num_warps=4, num_stages=4
    )
    return c


@implementation(
    "grouped_matmul",
    "triton.persistent",
    level="tensor_core",
    algorithm="tiles of all groups by persistent blocks",
    requires="sm_80",
)
def persistent(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    M, N, K, G, c = checked(a, b, offsets)
    if c.numel() == 0:
        return c
    (tiles,) = grid_1d(most_tiles(M, N, G, TILE["BLOCK_M"], TILE["BLOCK_N"]))
    programs = min(2 * multiprocessors(a.device), tiles)
    grouped_matmul_persistent_kernel[(programs,)](
        a, b, c, offsets.contiguous(), N, K, G, *strides_of(a, b), **TILE, GROUP_M=8,
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return c


def matrices_for_tma(b: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """``b[G,K,N]`` as stored, or a copy: aligned rows along N if it is row-major, else along K."""
    by_rows = b.stride(2) == 1 or b.stride(1) != 1
    return for_tma(b if by_rows else b.mT), by_rows


MOST_GROUPS = 1 << 12


@implementation("grouped_matmul", "triton.wgmma", level="hopper", requires="sm_90")
def wgmma(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    M, N, K, G, c = checked(a, b, offsets)
    if c.numel() == 0:
        return c
    if K == 0:
        return c.zero_()  # TMA does not take an empty matrix
    check_coordinates(M=M, N=N, K=K)
    if G > MOST_GROUPS:
        raise NotImplementedError(
            f"G={G}: a program counts the tiles of at most {MOST_GROUPS} groups at once"
        )
    BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
    b, B_BY_ROWS = matrices_for_tma(b)
    a_desc = TensorDescriptor.from_tensor(for_tma(a), [BLOCK_M, BLOCK_K])
    b_block = [1, BLOCK_K, BLOCK_N] if B_BY_ROWS else [1, BLOCK_N, BLOCK_K]
    b_desc = TensorDescriptor.from_tensor(b, b_block)
    (tiles,) = grid_1d(most_tiles(M, N, G, BLOCK_M, BLOCK_N))
    grouped_matmul_wgmma_kernel[(min(multiprocessors(a.device), tiles),)](
        a_desc, b_desc, c, offsets.contiguous(), N, K, G, B_BY_ROWS, BLOCK_M, BLOCK_N, BLOCK_K,
        GROUP_M=8, BLOCK_G=next_power_of_2(G), num_warps=8, num_stages=3,
    )  # fmt: skip
    return c
