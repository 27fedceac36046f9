"""How far a kernel in Triton can count."""

from __future__ import annotations

LAST_STEPS = 1 << 16
"""More than any loop here counts on by."""


def check_counts(**counts: int) -> None:
    """Refuse what a loop would count past the end of 32 bits for, and go on from -2^31.

    A number below 2^31 is given to a kernel in 32 bits, and a loop up to it counts in as many.  What is
    greater is given in 64, and so counted.

    Raises:
        NotImplementedError: one of these is so close to 2^31 that the loop's last step leads past it.
    """
    for name, count in counts.items():
        if (1 << 31) - LAST_STEPS <= count < 1 << 31:
            raise NotImplementedError(
                f"{name}={count}: a loop's last step would pass 2^31 - 1, the last number of 32 bits; up to "
                f"{(1 << 31) - LAST_STEPS - 1} and from {1 << 31} on it does not"
            )
