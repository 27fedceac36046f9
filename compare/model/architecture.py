"""The GPU architectures: names, and what a multiprocessor of each holds.

Source: NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities".
"""

from __future__ import annotations

from dataclasses import dataclass

from compare.model.op import ARCHITECTURE, UsageError

_KB = 1024


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor of one architecture holds."""

    threads: int
    blocks: int
    shared_bytes: int
    """Shared memory for all resident blocks."""
    reserved_bytes: int
    """What CUDA takes of it for itself, for every block."""
    shared_unit: int
    """Shared memory is given to a block in units of this many bytes."""
    multiprocessors: int = 100
    """Of a usual card, for launches captured without one: only persistent kernels' grids depend on it."""

    @property
    def block_shared_bytes(self) -> int:
        """The most static and dynamic shared memory that a block may ask for."""
        return self.shared_bytes - self.reserved_bytes


LIMITS = {
    75: Limits(1024, 16, 64 * _KB, 0, 256, 40),  # T4
    80: Limits(2048, 32, 164 * _KB, _KB, 128, 108),  # A100
    86: Limits(1536, 16, 100 * _KB, _KB, 128, 84),  # A40
    87: Limits(1536, 16, 164 * _KB, _KB, 128),
    89: Limits(1536, 24, 100 * _KB, _KB, 128, 58),  # L4
    90: Limits(2048, 32, 228 * _KB, _KB, 128, 132),  # H100
    100: Limits(2048, 32, 228 * _KB, _KB, 128, 148),  # B200
    103: Limits(2048, 32, 228 * _KB, _KB, 128),
    120: Limits(1536, 24, 100 * _KB, _KB, 128),
    121: Limits(1536, 24, 100 * _KB, _KB, 128),
}


def limits(arch: str) -> Limits:
    """What a multiprocessor of ``arch`` (``sm_90``, ``sm_90a``) holds.

    Raises:
        UsageError: an architecture whose limits are not known here.
    """
    match = ARCHITECTURE.fullmatch(arch)
    if match is None or int(match[1]) not in LIMITS:
        known = ", ".join(f"sm_{number}" for number in LIMITS)
        raise UsageError(f"architecture {arch!r} is not known; there are {known}")
    return LIMITS[int(match[1])]
