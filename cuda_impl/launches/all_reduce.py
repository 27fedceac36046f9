"""all_reduce in CUDA: the sum of all ranks' x on each, with the kernels of ``kernels/all_reduce.cuh``."""

from __future__ import annotations

from compare.arguments import MESSAGES, RANK_BLOCKS, check_ranks
from cuda_impl.buffers import Tensor, empty_like
from cuda_impl.launch import Kernel, Launch, Offset, Plan, ceil_div, int32, int64, variant

RANKS = (2, 4, 8)
THREADS = 512
SIZES = {"BLOCKS": (16, 32, 64, RANK_BLOCKS)}


def kernel(name: str, *constants: int) -> Kernel:
    more = "".join(f", {constant}" for constant in (THREADS, *constants))
    return Kernel(f"all_reduce_{name}_kernel<{{T}}, {{RANKS}}{more}>", RANKS=lambda T: RANKS)


def row_of(peers: Tensor, row: int) -> Offset:
    """The addresses of all ranks' x (0), receive buffers (1) or flags (2)."""
    return Offset(peers, row * peers.shape[1] * 8)


def blocks_of(x: Tensor, per_block: int, most: int) -> int:
    """A block for so many bytes of x, and at least one: ranks wait for each other even for nothing."""
    return max(1, min(ceil_div(x.numel() * x.element_size(), per_block), most))


ONE_SHOT, TWO_SHOT = kernel("one_shot"), kernel("two_shot")
LOW_LATENCY = kernel("low_latency", MESSAGES)


@variant("all_reduce", "one_shot", kernels=[ONE_SHOT], level="naive", tunable=SIZES)
def one_shot(x: Tensor, peers: Tensor, epochs: Tensor, *, rank: int, BLOCKS: int = RANK_BLOCKS) -> Plan:
    """Every rank reads all ranks' x; 16 bytes per thread, more where x has more than the grid's threads."""
    check_ranks("all_reduce", x, peers, epochs, RANKS)
    y = empty_like(x)
    args = (row_of(peers, 0), y, row_of(peers, 2), epochs, *int32(rank), *int64(x.numel()))
    run = ONE_SHOT(x.dtype, RANKS=peers.shape[1])
    return Plan(y, Launch(run, blocks_of(x, 16 * THREADS, BLOCKS), THREADS, args, cooperative=True))


@variant("all_reduce", "two_shot", kernels=[TWO_SHOT], level="tiled", tunable=SIZES)
def two_shot(x: Tensor, peers: Tensor, epochs: Tensor, *, rank: int, BLOCKS: int = RANK_BLOCKS) -> Plan:
    """A rank adds up its part and writes it to all: in place, x is returned."""
    check_ranks("all_reduce", x, peers, epochs, RANKS)
    ranks = peers.shape[1]
    args = (row_of(peers, 0), row_of(peers, 2), epochs, *int32(rank), *int64(x.numel()))
    run = TWO_SHOT(x.dtype, RANKS=ranks)
    return Plan(x, Launch(run, blocks_of(x, 16 * THREADS * ranks, BLOCKS), THREADS, args, cooperative=True))


@variant("all_reduce", "low_latency", kernels=[LOW_LATENCY], level="tiled", tunable=SIZES)
def low_latency(x: Tensor, peers: Tensor, epochs: Tensor, *, rank: int, BLOCKS: int = RANK_BLOCKS) -> Plan:
    """Each word travels with its flag: one way through the link."""
    check_ranks("all_reduce", x, peers, epochs, RANKS)
    y = empty_like(x)
    message_epochs = Offset(epochs, RANK_BLOCKS * 4)
    args = (x, y, row_of(peers, 1), message_epochs, *int32(rank), *int64(x.numel()))
    run = LOW_LATENCY(x.dtype, RANKS=peers.shape[1])
    return Plan(y, Launch(run, blocks_of(x, 4 * MESSAGES, BLOCKS), THREADS, args, cooperative=True))
