"""Which of an op's cases a test takes, of all in smoke and edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the process that runs a mutated copy imports that copy's
    from compare.spec import Case, Op

SMALL = 1 << 20
"""Elements that the CPU can be asked for."""
TINY = 1 << 10
"""Elements that it can be asked for again and again."""


def elements(op: Op, case: Case) -> int:
    """Of a case's largest input, or of its output where that is larger."""
    import torch

    from compare.inputs import ITEM_BYTES

    inputs = op.make_inputs(case, torch.Generator(), torch.device("meta"))
    output = op.cost(case).written_bytes // ITEM_BYTES[case.dtype]
    return max(output, *(x.numel() for x in inputs))


def small(op: Op) -> list[Case]:
    return [case for case in (*op.cases.smoke, *op.cases.edge) if elements(op, case) <= SMALL]


def huge(op: Op) -> list[Case]:
    return [case for case in (*op.cases.smoke, *op.cases.edge) if elements(op, case) > SMALL]


def tiny(op: Op) -> list[Case]:
    """What a host build is run on in every order of threads."""
    return [*op.cases.smoke, *(case for case in op.cases.edge if elements(op, case) <= TINY)]


def sanitized(op: Op) -> list[Case]:
    """What a host build is run on under the sanitizers, which take seconds to compile a kernel."""
    layouts = ("misaligned", "padded")
    return [*op.cases.smoke, *(case for case in op.cases.edge if case.layout in layouts)]
