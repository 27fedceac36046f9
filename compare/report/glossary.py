"""Words on a lab's screens, each explained in one line where it appears."""

from __future__ import annotations

import re

TERMS = {
    r"roundings\b": "fp32 rounding: what storing a value in fp32 may change, 6e-8 of it; sums lose several",
    r"guard zones?\b|past its \d+ bytes|before its \d+ bytes": "guard zone: memory around each tensor that "
    "no kernel may write to",
    r"not written\b(?! yet)": "not written: the output began as a pattern, which still stands there",
    r"tail mask": "tail mask: the condition that keeps positions behind the last element out, as mask=n < N",
    r"second tile|a later tile": "tile: the block of elements that one program or block has at a time",
    r"\brace\b": "race: threads access the same memory, one of them writes, and nothing orders them",
    r"thread orders": "thread orders: the same threads run one after another, the last first: the result "
    "must not change",
    r"own work": "own work: the result has to come from the kernels of your own file",
    r"deadlock": "deadlock: threads wait at a barrier that others never reach",
    r"misaligned": "misaligned: at an address that is no multiple of the vector's size",
    r"spilled": "spilled: moved from registers to local memory, as a thread has too few registers",
    r"inconclusive|95% interval": "95% interval: where the true ratio lies in 95 of 100 such measurements",
}
"""By a pattern: the term, and what it means."""
_MOST = 3


def lines(text: str) -> list[str]:
    """What the words of a text mean, in their order; a few of them."""
    places = ((match.start(), term) for pattern, term in TERMS.items() if (match := re.search(pattern, text)))
    return [term for _, term in sorted(places)][:_MOST]
