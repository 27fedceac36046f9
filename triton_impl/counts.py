"""Counts in host code: of a grid's programs, and those that a kernel's 32-bit loop counters and offsets hold.

``triton.cdiv`` and ``triton.next_power_of_2`` return the same; as kernels call them too, they take ten times
as long.
"""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The least power of 2 that is not below n >= 1."""
    return 1 << (n - 1).bit_length()


MOST_PROGRAMS = (1 << 31) - 1


def grid_1d(programs: int) -> tuple[int]:
    """A launch grid of so many programs.

    Raises:
        NotImplementedError: a grid cannot have as many.
    """
    if programs > MOST_PROGRAMS:
        raise NotImplementedError(f"{programs} programs: a grid has at most {MOST_PROGRAMS}")
    return (programs,)


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


BLOCK_K = 128
"""Maximum along K of the tiles here."""


def check_strides(K: int, most: int = BLOCK_K, **strides: int) -> None:
    """Refuse a stride at which a 32-bit offset along K, within a tile or to the next one, would overflow.

    Triton passes a stride below 2^31 in 32 bits, and multiplies it with an index below ``most`` in 32 bits.

    Raises:
        NotImplementedError: the product of a stride and the length of a tile passes 2^31 - 1.
    """
    for name, stride in strides.items():
        if stride < 1 << 31 <= stride * min(K, most):
            raise NotImplementedError(
                f"{name}={stride}: {min(K, most)} such steps pass 2^31 - 1, the last number of 32 bits; "
                "torch.eager takes any"
            )
