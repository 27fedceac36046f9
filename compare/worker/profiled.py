"""A process that Nsight Compute watches: ``python -m compare.worker.profiled OP LABEL CASE [FILE ...]``.

It calls one implementation twice and has the second call profiled: the first one compiles, and may search for
a configuration.
"""

from __future__ import annotations

import shlex
import sys

import torch

from compare import registry
from compare.model.op import Case, Implementation, Op, UsageError
from compare.resources.ncu import OPTIONS
from compare.worker.user_files import to_load


def command(op: Op, impl: Implementation, case: Case) -> str:
    """What to type to profile a call of ``impl``: Nsight Compute writes ``LABEL.csv``."""
    program = [sys.executable, "-m", __name__, op.name, impl.label, str(case), *map(str, to_load(impl))]
    return shlex.join(["ncu", *OPTIONS, "--log-file", f"{impl.label}.csv", *program])


def main(op_name: str, label: str, case: str, *files: str) -> None:
    """Make the two calls."""
    for file in files:
        registry.load(file)
    op = registry.get_op(op_name)
    impl = next((each for each in registry.implementations(op_name) if each.label == label), None)
    if impl is None:
        raise UsageError(f"{op_name} has no implementation {label}")
    parsed, device = Case.parse(case, op), torch.device("cuda")
    inputs = op.make_inputs(parsed, torch.Generator(device).manual_seed(0), device)
    call = impl.given(op.options(parsed)).call
    call(*inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call(*inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
