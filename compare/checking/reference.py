"""The reference: the op's oracle in fp64, on the inputs that the implementation got.

Large outputs are computed in pieces along the op's independent dimension, which bounds the memory.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from compare.inputs import TORCH_DTYPES
from compare.model.op import Case, Op, UsageError, by_output

Outputs = dict[str, torch.Tensor]
"""A call's outputs, by their names in the op's signature."""

_PIECE_ELEMENTS = 1 << 24
"""Elements of a piece: about 1 GB with all intermediate results in fp64."""

_EFFORTLESS_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Elements of inputs and output up to which the oracle takes milliseconds on the device."""


@dataclass(frozen=True)
class Piece:
    """A piece of the reference, in fp64."""

    values: torch.Tensor
    sizes: torch.Tensor | None
    """Of the op's ``magnitude``,"""
    intermediate: torch.Tensor | None
    """and of its ``intermediate``."""


class Reference:
    """The oracle's output for one set of inputs.

    Args:
        op: of one output, as by `compare.model.op.by_output`.
        inputs: those of the implementation.
        keep: store the pieces, for the next output that is compared with them.
        by_row: errors are relative to the largest element of a row, not to the element itself, where the op
            has no magnitude.
        limit: the largest allowed error for an fp32 accumulator, in the tolerance's unit.
    """

    def __init__(
        self,
        op: Op,
        inputs: tuple[torch.Tensor, ...],
        keep: bool = False,
        by_row: bool = False,
        limit: float = 0.0,
    ) -> None:
        self.by_row, self.limit = by_row, limit
        self.hint = ""
        """What is likely wrong in the op's description, as PyTorch's own implementation is wrong too."""
        self.inputs = inputs
        self.device = inputs[0].device
        self.op = op
        self._pieces: list[Piece] | None = [] if keep else None

    def pieces(self, output: torch.Tensor) -> Iterator[tuple[Piece, torch.Tensor]]:
        """Pieces of the reference, and the same parts of ``output``."""
        for i, (parts, out) in enumerate(_pieces(self.op, self.inputs, output)):
            if self._pieces is not None and i < len(self._pieces):
                piece = self._pieces[i]
            else:
                wide = [part.double() for part in parts]
                op = self.op
                piece = Piece(
                    op.oracle(*wide),
                    None if op.magnitude is None else op.magnitude(*wide),
                    None if op.intermediate is None else op.intermediate(*wide),
                )
                del wide
                if self._pieces is not None:
                    self._pieces.append(piece)
            yield replace(piece, sizes=largest(piece.values, -1)) if self.by_row else piece, out

    def largest(self, output: torch.Tensor) -> float:
        """The largest finite magnitude; ``output`` has its shape."""
        each = (float(largest(piece.values.flatten(), 0)) for piece, _ in self.pieces(output))
        return max(each, default=0.0)


def largest(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The largest finite magnitude along a dimension, which stays with size 1."""
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().amax(dim, keepdim=True)


def expected_outputs(op: Op, case: Case, device: torch.device) -> Outputs:
    """Meta tensors of the shapes and dtypes that the outputs must have."""
    return {part.output: _expected(part, case, device) for part in by_output(op, case)}


@functools.lru_cache
def _expected(op: Op, case: Case, device: torch.device) -> torch.Tensor:
    inputs = op.make_inputs(case, torch.Generator(), torch.device("meta"))
    sizes = dict(case.dims)
    of_output = math.prod(sizes.get(dim, 1) for dim in _shapes_of(op.signature)[-1])
    # Small cases are computed: PyTorch's functions on meta tensors first import sympy, which takes a second.
    effortless = sum(x.numel() for x in inputs) + of_output < _EFFORTLESS_ELEMENTS[device.type]
    where = device if effortless else torch.device("meta")
    output = op.oracle(*(torch.ones(x.shape, dtype=torch.float64, device=where) for x in inputs))
    if not isinstance(output, torch.Tensor):
        raise UsageError(f"{op.name}: its oracle returned {output!r}, not a tensor")
    return output.to("meta", TORCH_DTYPES[op.output_dtype or case.dtype])


def piece_length(size: int, elements: int) -> int:
    """How many indices of a dimension of this size fit into one piece, in a tensor of ``elements``."""
    return max(1, _PIECE_ELEMENTS * size // elements)


def _pieces(
    op: Op, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
) -> Iterator[tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    """Inputs and output, narrowed to each piece of the op's independent dimension."""
    if output.numel() == 0:
        return
    axes = [
        shape.index(op.independent) if op.independent in shape else None for shape in _shapes_of(op.signature)
    ]
    if axes[-1] is None:
        yield inputs, output
        return
    size = output.shape[axes[-1]]
    step = piece_length(size, max(tensor.numel() for tensor in (*inputs, output)))
    for begin in range(0, size, step):
        length = min(step, size - begin)
        *parts, out = (
            tensor if axis is None else tensor.narrow(axis, begin, length)
            for tensor, axis in zip((*inputs, output), axes, strict=True)
        )
        yield tuple(parts), out


def _shapes_of(signature: str) -> list[list[str]]:
    """The dimensions of each tensor in ``x[M,N], y[N] -> z[M,N]``, inputs first."""
    return [re.split(r"\s*,\s*", sizes) for sizes in re.findall(r"\w+\[([^\]]*)\]", signature)]
