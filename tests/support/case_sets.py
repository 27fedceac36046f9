"""Which of an op's cases a test takes, of all in smoke and edge."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the process that runs a mutated copy imports that copy's
    from compare.spec import Case, Implementation, Op

SMALL = 1 << 20
"""Elements that the CPU can be asked for."""
TINY = 1 << 10
"""Elements that it can be asked for again and again."""


def elements(op: Op, case: Case) -> int:
    """Of a case's largest input, or of its output where that is larger."""
    from compare.inputs import ITEM_BYTES

    output = op.cost(case).written_bytes // ITEM_BYTES[op.output_dtype or case.dtype]
    return max(output, _of_inputs(op.make_inputs, case))


@functools.cache
def _of_inputs(make_inputs: Callable[..., Any], case: Case) -> int:
    """Asked for every implementation of an op, in every process that collects tests."""
    import torch

    return max(x.numel() for x in make_inputs(case, torch.Generator(), torch.device("meta")))


EVERYWHERE = "zero"
"""A fill that no op has to name among its cases: each is given the smoke cases with it as well."""


def edge(op: Op) -> list[Case]:
    """What is small of an op's edge cases, and its smoke cases with a fill that it need not name."""
    from compare.spec import WHOLE

    filled = [replace(case, fill=EVERYWHERE) for case in op.cases.smoke if case.dtype not in WHOLE]
    return [case for case in (*op.cases.edge, *filled) if elements(op, case) <= SMALL]


def small(op: Op) -> list[Case]:
    return [*(case for case in op.cases.smoke if elements(op, case) <= SMALL), *edge(op)]


def brief(op: Op) -> list[Case]:
    """Of `small`, what a CPU is asked for, as it builds a kernel for every dtype and runs it slowly.

    Of edge cases with usual values that differ in their dtype alone there is one, the dtypes in turns.  A GPU
    runs them all.  No seeded mistake gets by what is left: `mutations.instruments` has a CPU run that alone.
    """
    found = edge(op)
    usual = [case for case in found if case.fill == "normal"]
    return [*op.cases.smoke, *(case for case in found if case.fill != "normal"), *_in_turns(op, usual)]


def briefest(op: Op) -> list[Case]:
    """Of `brief`, what is new to host code: smoke cases, one a layout and fill, and sizes of 0 and 1."""
    kinds = {(case.layout, case.fill): case for case in brief(op) if case not in op.cases.smoke}
    least = [case for case in brief(op) if min(case.shape) <= 1]
    return list(dict.fromkeys((*op.cases.smoke, *kinds.values(), *least)))


def _in_turns(op: Op, cases: Iterable[Case]) -> list[Case]:
    """Of those that differ in their dtype alone one each, now of this dtype and now of that."""
    alike: dict[str, list[Case]] = {}
    for case in cases:
        alike.setdefault(str(replace(case, dtype=op.dtypes[0])), []).append(case)
    return [same[i % len(same)] for i, same in enumerate(alike.values())]


def huge(op: Op) -> list[Case]:
    return [case for case in (*op.cases.smoke, *op.cases.edge) if elements(op, case) > SMALL]


def tiny(op: Op) -> list[Case]:
    """What a host build is run on in every order of threads, which is no matter of values."""
    edge = [case for case in brief(op) if case not in op.cases.smoke and case.fill == "normal"]
    return [*op.cases.smoke, *(case for case in edge if elements(op, case) <= TINY)]


def sanitized(op: Op) -> list[Case]:
    """What a host build is run on under the sanitizers, which take a second a kernel to compile it.

    Reading past an end depends on sizes and layout: of the dtypes, which come one after another with the most
    elements a pack first, the first that a kernel takes will do.
    """
    laid_out = [case for case in op.cases.edge if case.layout.endswith(("misaligned", "padded"))]
    cases = [*op.cases.smoke, *laid_out]
    return list(dict.fromkeys(replace(c, dtype=dtype) for dtype in reversed(op.dtypes) for c in cases))


WHOLE = "softmax"
"""The op of which what takes seconds a kernel, and is no kernel of ours, is given everything."""


def typical(op: str, route: str) -> list[Implementation]:
    """Of an op's implementations by a route the first for any GPU, and the first for each newer one.

    For what takes seconds for each and is no different for the others.
    """
    from compare import registry

    found: dict[str | None, Implementation] = {}
    for impl in registry.implementations(op):
        if impl.route == route:
            found.setdefault(impl.requires, impl)
    return list(found.values())


def watched(op: str, routes: Sequence[str]) -> list[str]:
    """Labels of what such tools are given: of one op all, of the others what is typical of some routes."""
    from compare import registry

    impls = registry.implementations(op) if op == WHOLE else [i for r in routes for i in typical(op, r)]
    return [impl.label for impl in impls]


def in_turn(op: str, routes: Sequence[str] = ("triton", "cupy", "pybind")) -> list[str]:
    """One of the routes of Triton and CUDA, which take turns at the ops."""
    from compare import registry

    return [routes[registry.op_names().index(op) % len(routes)]]


def every(nth: int) -> list[Any]:
    """Ops for a test of a tool that is no different for the others: these are left to ``make test-all``."""
    import pytest

    from compare import registry

    return [
        pytest.param(op, marks=[] if place % nth == 0 else [pytest.mark.thorough])
        for place, op in enumerate(registry.op_names())
    ]


def first() -> list[Any]:
    """One op, for what has been tried on others with another version; the others as in `every`."""
    from compare import registry

    return every(len(registry.op_names()))
