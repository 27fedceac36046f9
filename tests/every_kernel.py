"""Runs every Triton and CUDA implementation of every op on small inputs, for tools that watch a process.

``compute-sanitizer --tool racecheck python tests/every_kernel.py``; prints what it ran.  With arguments,
``softmax cupy.online``, only that one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from compare import registry
from compare.device import pick, supports

MOST_ELEMENTS = 1 << 17
"""A watched kernel is up to a thousand times slower."""


def main(names: Sequence[str], labels: Sequence[str]) -> None:
    device = pick("cuda")
    for name in names or registry.op_names():
        op = registry.get_op(name)
        cases = [case for case in (*op.cases.smoke, *op.cases.edge) if op.cost(case).bytes <= MOST_ELEMENTS]
        for impl in registry.implementations(name, labels):
            if impl.way == "torch" or supports(impl, device) is not None:
                continue
            ran = 0
            for case in cases:
                inputs = op.make_inputs(case, torch.Generator().manual_seed(0), device)
                try:
                    impl.run(*inputs)
                except NotImplementedError:
                    continue
                ran += 1
            torch.cuda.synchronize(device)
            print(f"{name} {impl.label}: {ran} cases", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:2], sys.argv[2:])
