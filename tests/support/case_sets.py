"""Subsets of an op's smoke and edge cases for tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the process that runs a mutated copy imports that copy's
    from compare.model.op import Case, Implementation, Op

SMALL = 1 << 20
"""Most elements of a case on a CPU."""
MANY_ROWS = 256
"""Most long rows on a CPU, which takes one after another."""
TINY = 1 << 10
"""Most elements of a case that runs many times on a CPU."""


def elements(op: Op, case: Case) -> int:
    """Elements of a case's largest input, or of its output if that is larger."""
    from compare.inputs import ITEM_BYTES

    output = op.cost(case).written_bytes // ITEM_BYTES[op.output_dtype or case.dtype]
    return max(output, _of_inputs(op.make_inputs, case))


@functools.cache
def _of_inputs(make_inputs: Callable[..., Any], case: Case) -> int:
    """Cached: every process that collects tests needs it for every implementation of an op."""
    import torch

    return max(x.numel() for x in make_inputs(case, torch.Generator(), torch.device("meta")))


EVERYWHERE = "zero"
"""A fill that is tested for every op, on its smoke cases."""


def edge(op: Op) -> list[Case]:
    """The small edge cases of an op, and its smoke cases with fill `EVERYWHERE`."""
    from compare.model.op import INTEGER_DTYPES

    filled = [replace(case, fill=EVERYWHERE) for case in op.cases.smoke if case.dtype not in INTEGER_DTYPES]
    return [case for case in (*op.cases.edge, *filled) if elements(op, case) <= SMALL]


def small(op: Op) -> list[Case]:
    return [*(case for case in op.cases.smoke if elements(op, case) <= SMALL), *edge(op)]


def brief(op: Op) -> list[Case]:
    """`small` without edge cases that differ from another in their dtype only; the dtypes take turns.

    A CPU builds a kernel for every dtype and runs it slowly; a GPU runs all cases.  Every seeded mutation is
    still caught: `mutations.instruments` runs these cases on a CPU.
    """
    found = edge(op)
    usual = [case for case in found if case.fill == "normal" and not _for_many_blocks(op, case)]
    return [*op.cases.smoke, *(case for case in found if case.fill != "normal"), *_in_turns(op, usual)]


def briefest(op: Op) -> list[Case]:
    """`brief` cases that are new to host code: smoke cases, and one a layout, fill and sizes of 0 and 1.

    Of such alike cases the smallest, because Triton's interpreter takes seconds for the largest.
    """

    def kind(case: Case) -> object:
        return case.layout, case.fill, [(dim, size) for dim, size in case.dims if size <= 1]

    edge = [case for case in brief(op) if case not in op.cases.smoke]
    # Of several with one key a dictionary keeps the last.
    smallest_last = sorted(edge, key=lambda case: elements(op, case), reverse=True)
    kinds = {str(kind(case)): case for case in smallest_last}
    return [*op.cases.smoke, *kinds.values()]


def _for_many_blocks(op: Op, case: Case) -> bool:
    """Whether it has more long rows, each computed by itself, than a GPU's blocks take at a time."""
    rows = case["M"] if op.independent == "M" else 0
    return rows > MANY_ROWS and elements(op, case) > 512 * rows


def _in_turns(op: Op, cases: Iterable[Case]) -> list[Case]:
    """One of all cases that differ in their dtype only; the dtypes take turns."""
    alike: dict[str, list[Case]] = {}
    for case in cases:
        alike.setdefault(str(replace(case, dtype=op.dtypes[0])), []).append(case)
    return [same[i % len(same)] for i, same in enumerate(alike.values())]


def huge(op: Op) -> list[Case]:
    return [case for case in (*op.cases.smoke, *op.cases.edge) if elements(op, case) > SMALL]


def tiny(op: Op) -> list[Case]:
    """Cases of a host build in every order of threads, which does not depend on values."""
    edge = [case for case in brief(op) if case not in op.cases.smoke and case.fill == "normal"]
    return [*op.cases.smoke, *(case for case in edge if elements(op, case) <= TINY)]


def sanitized(op: Op) -> list[Case]:
    """Cases of a host build under the sanitizers, where compiling takes a second a kernel.

    Out-of-bounds reads depend on sizes and layout, so one dtype is enough: the first that a kernel takes, in
    the order of most elements per 16-byte vector.
    """
    laid_out = [case for case in op.cases.edge if case.layout.endswith(("misaligned", "padded"))]
    cases = [*op.cases.smoke, *laid_out]
    return list(dict.fromkeys(replace(c, dtype=dtype) for dtype in reversed(op.dtypes) for c in cases))


WHOLE = "softmax"
"""The op whose every kernel is given to slow tools; of the others, typical ones."""


def typical(op: str, route: str) -> list[Implementation]:
    """An op's first implementation of a route for any GPU, and the first for each newer one.

    For tools that take seconds for each and treat the others alike.
    """
    from compare import registry

    found: dict[str | None, Implementation] = {}
    for impl in registry.implementations(op):
        if impl.route == route:
            found.setdefault(impl.requires, impl)
    return list(found.values())


def watched(op: str, routes: Sequence[str]) -> list[str]:
    """Labels of the implementations given to such tools: all of one op, typical ones of the others."""
    from compare import registry

    impls = registry.implementations(op) if op == WHOLE else [i for r in routes for i in typical(op, r)]
    return [impl.label for impl in impls]


def in_turn(op: str, routes: Sequence[str] = ("triton", "cupy", "pybind")) -> list[str]:
    """One route of Triton and CUDA for each op, in turn."""
    from compare import registry

    return [routes[registry.op_names().index(op) % len(routes)]]


FIRST = "vector_add"
"""The op that `make test` gives to slow tools: it takes them the shortest."""


def every(nth: int) -> list[Any]:
    """Every ``nth`` op; the others are exhaustive, because the tool treats them alike.

    Not the first: attention takes the compilers the longest.
    """
    return _ops(_names()[nth - 1 :: nth])


def one_op() -> list[Any]:
    """Every op; all but one are thorough: what is tested takes seconds an op."""
    return _ops(_names())


def last() -> list[Any]:
    """The last op; the others are exhaustive, as in `every`."""
    return _ops(_names()[-1:])


def _names() -> list[str]:
    from compare import registry

    return registry.op_names()


def _ops(often: Sequence[str]) -> list[Any]:
    """Every op: `FIRST` unmarked, those of ``often`` as thorough, the others as exhaustive."""
    import pytest

    def marks(op: str) -> list[pytest.MarkDecorator]:
        return [] if op == FIRST else [pytest.mark.thorough if op in often else pytest.mark.exhaustive]

    return [pytest.param(op, marks=marks(op)) for op in _names()]
