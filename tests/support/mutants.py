"""Mutants: an op's baseline with one thing made wrong, checked as an implementation of that op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from compare import registry
from compare.checking.check import CheckOptions, check
from compare.checking.probes import Probes
from compare.checking.stage import LocalStage
from compare.checking.tolerance import ToleranceFromBaseline
from compare.inputs import TORCH_DTYPES
from compare.model.op import (
    INTEGER_DTYPES,
    Case,
    Implementation,
    Op,
    by_output,
    case,
    fully_specified,
    no_options,
)
from compare.model.result import Agreement
from loops import for_each, for_each_of_group

Run = Callable[..., torch.Tensor]

LONG = {"softmax": tuple(case(dtype, M=2, N=2**17) for dtype in ("fp32", "fp16", "bf16"))}
"""Cases whose elements are so small that a sloppy tolerance would accept anything."""


_of_parts: dict[Op, Run] = {}


def of_one_output(op: Op, c: Case) -> list[tuple[str, Op]]:
    """``op`` by the name of each output, as an op of that output with the case's options."""
    options, label = op.options(c), op.baseline
    if not (options or op.further):
        return [(op.name, op)]
    (impl,) = registry.implementations(op.name, (label,))
    found = []
    for i, part in enumerate(by_output(op, c)):
        part = replace(part, options=no_options)

        def run(*inputs: torch.Tensor, i: int = i) -> torch.Tensor:
            outputs = impl.run(*inputs, **options)
            return outputs[i] if op.further else outputs

        _of_parts[part] = run
        found.append((f"{op.name}.{part.output}", part))
    return found


OPS = [registry.get_op(name) for name in registry.op_names()]
every_op = for_each(
    "op",
    [part for op in OPS for _, part in of_one_output(op, op.cases.smoke[0])],
    ids=lambda part: f"{part.name} {part.output}",
)
"""For what does not depend on values."""
TYPICAL = ("attention", "compact", "histogram", "matmul", "quantize_fp8", "softmax")
"""Ops of two outputs, an open end, integers, products, 8-bit outputs and rows."""
CASES = {op.name: (op, op.cases.smoke) for op in OPS}
CASES |= {f"{name}-long": (registry.get_op(name), cases) for name, cases in LONG.items()}
every_op_and_case = for_each_of_group(
    "op, c",
    {
        name: [(part, c) for c in cases for _, part in of_one_output(op, c)]
        for name, (op, cases) in CASES.items()
    },
    ids=lambda found: f"{found[0].output} {found[1]}",
    thorough=lambda name: name not in TYPICAL,
)
"""On each of the op's smoke cases, which have all its dtypes, and `LONG`."""


def baseline(op: Op) -> Run:
    """What computes it in PyTorch; of `of_one_output`, that output.  In fp64 and rounded, where PyTorch does
    not take the case on this device."""
    if op in _of_parts:
        return _of_parts[op]
    (impl,) = registry.implementations(op.name, (op.baseline,))

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        try:
            return impl.run(*inputs)
        except NotImplementedError:
            return rounded_oracle(op, *inputs)

    return run


def rounded_oracle(op: Op, *inputs: torch.Tensor) -> torch.Tensor:
    """The exact output, rounded once."""
    dtype = TORCH_DTYPES[op.output_dtype] if op.output_dtype else inputs[0].dtype
    return op.oracle(*(x.double() for x in inputs)).to(dtype)


def checked(op: Op, c: Case, device: torch.device, run: Run, seeds: tuple[int, ...] = (0,)) -> Agreement:
    mutant = Implementation(op.name, "triton.mutant", "tiled", run)
    yardstick = LocalStage(Implementation(op.name, op.baseline, "vendor", baseline(op)), device)
    probes = Probes(op, c, device, ToleranceFromBaseline(op, yardstick), ())
    return check(op, mutant, c, device, seeds, CheckOptions(probes=probes))


def agreement_of_outputs(op: Op, c: Case, device: torch.device, probes: Probes, wrong: Run) -> Agreement:
    """The agreement of outputs that are computed in fp64 and rounded.

    Args:
        wrong: makes each output from the op of that output and the inputs in fp64.
    """

    def run(*inputs: torch.Tensor, **options: object) -> torch.Tensor | tuple[torch.Tensor, ...]:
        wide = [x.double() for x in inputs]
        parts = by_output(op, c)
        outputs = [wrong(part, *wide).to(TORCH_DTYPES[part.output_dtype or c.dtype]) for part in parts]
        return tuple(outputs) if op.further else outputs[0]

    impl = Implementation(op.name, "torch.wrong", "vendor", run)  # type: ignore[arg-type]
    return check(op, impl, c, device, (0,), CheckOptions(probes=probes))


def spoiled(op: Op, c: Case, spoil: Callable[[torch.Tensor], object]) -> Agreement:
    """The agreement of the baseline on a CPU with its output changed in place."""

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        output = baseline(op)(*inputs)
        spoil(output)
        return output

    return checked(op, c, torch.device("cpu"), run)


def failed(agreement: Agreement) -> set[str]:
    assert agreement.passed is not bool(agreement.reason)
    return {finding.name for finding in agreement.findings if not finding.passed}


def skip_where_the_end_is_open(op: Op) -> None:
    if op.mask_unspecified is not fully_specified:
        pytest.skip("the op leaves its last element open; its own tests have cases where it is not")


def skip_whole_numbers(op: Op) -> None:
    if op.output_dtype in INTEGER_DTYPES:
        pytest.skip("its output is integers, which are never NaN and not rounded")
