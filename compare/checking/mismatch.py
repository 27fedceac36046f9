"""Where an output is wrong: its first wrong element, and a guess from the pattern of all of them."""

from __future__ import annotations

import itertools
import math

import torch

from compare.model.result import Mismatch

_TILE = 16
"""A boundary at a multiple of this is taken for a tile boundary."""
_SAME = 0.01
"""Factors or differences closer than this, relative to their median, count as one constant."""


def mismatch(output: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> Mismatch | None:
    """The first wrong element in row-major order and the pattern of all wrong ones; None where none is wrong.

    Args:
        output: what an implementation returned.
        expected: the reference, fp64, of the same shape.
        wrong: bool, of the same shape: the elements beyond the tolerance.
    """
    count = int(wrong.sum())
    if count == 0:
        return None
    at = int(wrong.flatten().int().argmax())
    index = tuple(int(place) for place in torch.unravel_index(torch.tensor(at), wrong.shape))
    where, what = _places(wrong), _values(output, expected, wrong)
    return Mismatch(
        index=index,
        got=float(output[index]),
        expected=float(expected[index]),
        count=count,
        of=wrong.numel(),
        pattern="; ".join(filter(None, (where, what))),
    )


def _places(wrong: torch.Tensor) -> str:
    """The rows or columns that hold the wrong elements; empty where all do."""
    if wrong.dim() == 0 or wrong.numel() == 1:
        return ""
    if wrong.all():
        return "every element"
    patterns = []
    for dim in reversed(range(wrong.dim())):
        others = [other for other in range(wrong.dim()) if other != dim]
        along = wrong.any(others) if others else wrong
        patterns.append(_along(along.nonzero().flatten().tolist(), along.numel(), _name(dim, wrong.dim())))
    return " and ".join(list(filter(None, patterns))[:2])


def _name(dim: int, dims: int) -> str:
    if dims == 1:
        return "element"
    return {dims - 1: "column", dims - 2: "row"}.get(dim, f"dimension-{dim} index")


def _along(indices: list[int], size: int, name: str) -> str:
    """The pattern of the wrong indices along one dimension; empty where all are wrong or none is seen."""
    many = f"{name.removesuffix('index')}indices" if name.endswith("index") else f"{name}s"
    first, last = indices[0], indices[-1]
    if len(indices) == size:
        return ""
    if len(indices) == 1:
        return f"only {name} {first}" + (": tail mask?" if first == size - 1 else "")
    steps = {after - before for before, after in itertools.pairwise(indices)}
    if len(steps) > 1:
        return ""
    (step,) = steps
    if step > 1:
        regular = len(indices) > 2 and first < step and last + step >= size
        every = f"every other {name}" if step == 2 else f"every {step}th {name}"
        return f"{every}, from {first}" if regular else ""
    if last == size - 1:
        if first % _TILE == 0 and len(indices) >= _TILE:
            guess = "second tile?" if first & (first - 1) == 0 else "a later tile?"
            return f"{many} >= {first}: {guess}"
        return f"only the last {len(indices)} {many}" + (": tail mask?" if len(indices) <= size // 2 else "")
    return f"only the first {len(indices)} {many}" if first == 0 else f"only {many} {first} to {last}"


def _values(output: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    """The pattern of the wrong values; empty where none is seen."""
    got, want = output.double()[wrong], expected[wrong]
    everything = "all" if len(got) == wrong.numel() else "there"
    for name, holds in (("NaN", got.isnan()), ("infinity", got.isinf()), ("zero", got == 0)):
        if holds.all() and not (name == "zero" and (want == 0).any()):
            return f"{everything} {name}"
    if output.dim() == 2 and output.shape[0] == output.shape[1] > 1 and wrong.sum() > 1:
        turned = expected.T
        if torch.allclose(output.double(), turned, rtol=_SAME, atol=0.0) and not turned.equal(expected):
            return "the transposed result"
    if len(got) < 2:
        return ""
    usable = got.isfinite() & want.isfinite() & (want != 0)
    if usable.all():
        factor = _constant(got / want)
        if factor is not None and abs(factor - 1) > _SAME:
            return f"off by a constant factor {factor:.3g}"
        if factor is not None:
            error = float((got / want - 1).abs().median())
            return f"relative error about {error:.0e}: another eps, or a sum of lower precision?"
    if got.isfinite().all() and want.isfinite().all():
        offset = _constant(got - want)
        if offset is not None:
            return f"off by a constant {offset:.3g}"
    return ""


def _constant(values: torch.Tensor) -> float | None:
    """The common value of all, within `_SAME`; None where they differ."""
    middle = float(values.median())
    near = (values - middle).abs() <= _SAME * abs(middle)
    return middle if math.isfinite(middle) and bool(near.all()) else None
