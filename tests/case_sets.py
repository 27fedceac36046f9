"""Which of an op's cases a test takes, of all in smoke and edge."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the process that runs a mutated copy imports that copy's
    from compare.spec import Case, Implementation, Op

SMALL = 1 << 20
"""Elements that the CPU can be asked for."""
TINY = 1 << 10
"""Elements that it can be asked for again and again."""


def elements(op: Op, case: Case) -> int:
    """Of a case's largest input, or of its output where that is larger."""
    import torch

    from compare.inputs import ITEM_BYTES

    inputs = op.make_inputs(case, torch.Generator(), torch.device("meta"))
    output = op.cost(case).written_bytes // ITEM_BYTES[op.output_dtype or case.dtype]
    return max(output, *(x.numel() for x in inputs))


def small(op: Op) -> list[Case]:
    return [case for case in (*op.cases.smoke, *op.cases.edge) if elements(op, case) <= SMALL]


def huge(op: Op) -> list[Case]:
    return [case for case in (*op.cases.smoke, *op.cases.edge) if elements(op, case) > SMALL]


def tiny(op: Op) -> list[Case]:
    """What a host build is run on in every order of threads."""
    return [*op.cases.smoke, *(case for case in op.cases.edge if elements(op, case) <= TINY)]


def sanitized(op: Op) -> list[Case]:
    """What a host build is run on under the sanitizers, which take a second a kernel to compile it.

    Reading past an end depends on sizes and layout; the dtypes take turns.
    """
    laid_out: dict[str, list[Case]] = {}
    for case in op.cases.edge:
        if case.layout.endswith(("misaligned", "padded")):
            laid_out.setdefault(str(replace(case, dtype=op.dtypes[0])), []).append(case)
    return [*op.cases.smoke, *(same[i % len(same)] for i, same in enumerate(laid_out.values()))]


def typical(op: str, way: str) -> list[Implementation]:
    """Of an op's implementations of a way the first for any GPU, and the first for each newer one.

    For what takes seconds for each and is no different for the others.
    """
    from compare import registry

    found: dict[str | None, Implementation] = {}
    for impl in registry.implementations(op):
        if impl.way == way:
            found.setdefault(impl.requires, impl)
    return list(found.values())
