"""Opens up an op's kernels: in this process, or as the isolated one that runs users' files (``--load``)."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from compare import registry
from compare.device import default_archs, pick
from compare.records.encoding import decode, encode
from compare.spec import Case, UsageError
from compare.toolchain.pipeline.opening import Begin, open_up, unwatched
from compare.toolchain.pipeline.records import Found, Wanted


def found(wanted: Wanted, begin: Begin = unwatched) -> Found:
    """Compile stage by stage.  ``begin`` is called before each step."""
    if wanted.load and wanted.op in registry.op_names():
        registry.implementations(wanted.op)  # the project's own come first
    for path in wanted.load:
        begin(f"loading {path}")
        registry.load(path).check_has(wanted.op, path)
    begin(f"opening up {wanted.op}", limited=False)
    op = registry.get_op(wanted.op)
    impls = registry.implementations(op.name, wanted.only)
    case = Case.parse(wanted.case, op) if wanted.case else op.cases.default
    if wanted.triton_only:
        impls = [impl for impl in impls if impl.way == "triton"]
        if not impls:
            raise UsageError("--passes and --pass are for Triton kernels, and --only leaves no Triton kernel")
    opened = open_up(op, impls, case, wanted.archs or default_archs(pick()), wanted.dump, begin)
    return Found(op.signature, tuple(opened))


def main(order: str) -> None:
    """Write each step and the result to stdout, a line of JSON each; what a file prints goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)

    def tell(line: dict[str, Any]) -> None:
        rest = memoryview(json.dumps(line).encode() + b"\n")
        while rest:
            rest = rest[os.write(answers, rest) :]

    def begin(step: str, limited: bool = True) -> None:
        tell({"step": step, "limited": limited})

    try:
        result = found(decode(Wanted, json.loads(order)), begin)
    except UsageError as error:
        tell({"refused": str(error)})
    else:
        tell({"found": encode(result)})


if __name__ == "__main__":
    main(*sys.argv[1:])
