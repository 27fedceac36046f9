"""Overflow check for 32-bit loop counters of Triton kernels."""

from __future__ import annotations

LAST_STEPS = 1 << 16
"""At least the step of every loop here."""


def check_counts(**counts: int) -> None:
    """Refuse a count at which a 32-bit loop counter would overflow and continue from -2^31.

    Triton passes a number below 2^31 in 32 bits, and a loop up to it counts in 32 bits.  Greater numbers are
    passed and counted in 64.

    Raises:
        NotImplementedError: a count is so close to 2^31 that the loop's last step passes it.
    """
    for name, count in counts.items():
        if (1 << 31) - LAST_STEPS <= count < 1 << 31:
            raise NotImplementedError(
                f"{name}={count}: a loop's last step would pass 2^31 - 1, the last number of 32 bits; up to "
                f"{(1 << 31) - LAST_STEPS - 1} and from {1 << 31} on it does not"
            )
