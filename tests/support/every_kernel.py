"""Runs every Triton and CUDA implementation of an op on small inputs, for tools that watch a process.

``compute-sanitizer --tool racecheck python tests/support/every_kernel.py softmax``; prints what it ran.  With
labels behind the op, ``softmax cupy.online``, only those; without an op, all of every op.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from case_sets import brief
from compare import registry
from compare.device import pick, supports
from compare.model.op import Case, Implementation, Op

MOST_BYTES = 1 << 19
"""Largest case: a watched kernel is up to a thousand times slower."""
MOST_BYTES_FOR_ONE = 1 << 26
"""Largest case for a kernel that takes no smaller one; the smallest that it takes is run."""

ROUTES = ("triton", "cupy")
"""Not pybind: the same kernels with the same launches, as other tests prove.  Not the library's kernels."""


def watched(op: str, labels: Sequence[str] = ()) -> list[Implementation]:
    """The implementations of an op to run: each kernel once, or those with these labels."""
    impls = registry.implementations(op, labels)
    return impls if labels else [impl for impl in impls if impl.route in ROUTES]


def main(names: Sequence[str], labels: Sequence[str]) -> None:
    device = pick("cuda")
    for name in names or registry.op_names():
        op = registry.get_op(name)
        for impl in watched(name, labels):
            if supports(impl, device) is not None:
                continue
            ran = sum(run(op, impl, case, device) for case in small(op))
            if ran == 0:
                ran = int(any(run(op, impl, case, device) for case in larger(op)))
            torch.cuda.synchronize(device)
            print(f"{name} {impl.label}: {ran} cases", flush=True)


def small(op: Op) -> list[Case]:
    return [case for case in brief(op) if op.cost(case).bytes <= MOST_BYTES]


def larger(op: Op) -> Iterator[Case]:
    """Larger cases, in ascending size."""
    cases = (*op.cases.smoke, *op.cases.edge, *op.cases.sweep, op.cases.default)
    for case in sorted(cases, key=lambda case: op.cost(case).bytes):
        if MOST_BYTES < op.cost(case).bytes <= MOST_BYTES_FOR_ONE:
            yield case


def run(op: Op, impl: Implementation, case: Case, device: torch.device) -> bool:
    """Whether it takes the case."""
    inputs = op.make_inputs(case, torch.Generator().manual_seed(0), device)
    try:
        impl.given(op.options(case)).call(*inputs)
    except NotImplementedError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:2], sys.argv[2:])
