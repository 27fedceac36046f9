"""How many blocks fit on a multiprocessor together: CUDA's occupancy rules.

Source: NVIDIA, the CUDA toolkit's ``cuda_occupancy.h``.
"""

from __future__ import annotations

from dataclasses import dataclass

from compare.model.architecture import limits

WARP = 32
_REGISTERS = 64 * 1024  # 32-bit, of a multiprocessor and the most of a block, on every architecture here
_REGISTER_UNIT = 256  # registers are given to a warp in units of this many
_SUB_PARTITIONS = 4  # each with a quarter of the registers; a warp lives in one


@dataclass(frozen=True)
class Occupancy:
    """Theoretical occupancy of one kernel."""

    blocks: int
    """Resident on a multiprocessor together; 0: a block asks for more than there is."""
    share: float
    """Resident warps over the most a multiprocessor holds, 0 to 1."""
    limiter: str
    """What keeps it there: ``registers``, ``shared memory``, ``threads``, ``blocks``, or several, tied."""


def occupancy(arch: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Resident blocks, and what limits them.

    Args:
        arch: ``sm_90``.
        threads: of a block.
        registers: of a thread.
        shared_bytes: of a block, static and dynamic, without what CUDA reserves.
    """
    has = limits(arch)
    warps = -(-threads // WARP)
    most_warps = has.threads // WARP
    warp_registers = max(1, _round_up(registers * WARP, _REGISTER_UNIT))
    block_shared = _round_up(shared_bytes + has.reserved_bytes, has.shared_unit)

    by_registers = _REGISTERS // _SUB_PARTITIONS // warp_registers * _SUB_PARTITIONS // warps
    # A block without shared memory is not limited by it: no more blocks than threads ever fit.
    by_shared = has.shared_bytes // block_shared if block_shared else has.threads
    fits = {
        "threads": most_warps // warps if threads <= 1024 else 0,
        "registers": by_registers,
        "shared memory": by_shared if shared_bytes <= has.block_shared_bytes else 0,
        "blocks": has.blocks,
    }
    blocks = min(fits.values())
    share = blocks * warps / most_warps
    tied = [what for what, count in fits.items() if count == blocks]
    # A full multiprocessor is full of threads, whatever else happens to run out with them.
    return Occupancy(blocks, share, "threads" if share == 1 else " and ".join(tied))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
