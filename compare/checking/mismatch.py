"""Where an output is wrong: its first wrong element, and a guess from the pattern of all of them."""

from __future__ import annotations

import itertools
import math

import torch

from compare.model.result import Mismatch

_TILE = 16
"""A boundary at a multiple of this is taken for a tile boundary."""
_FEW = 4
"""Up to so many wrong rows or columns are named, whatever is between them."""
_SAME = 0.01
"""Factors or differences closer than this, relative to their median, count as one constant."""


def mismatch(
    output: torch.Tensor,
    expected: torch.Tensor,
    wrong: torch.Tensor,
    *,
    plain: bool = False,
    formula: str = "",
    moves: bool = False,
    unwritten: torch.Tensor | None = None,
) -> Mismatch | None:
    """The first wrong element in row-major order and the pattern of all wrong ones; None where none is wrong.

    Args:
        output: what an implementation returned.
        expected: the reference, fp64, of the same shape.
        wrong: bool, of the same shape: the elements beyond the tolerance.
        plain: the inputs are ordinary and contiguous, so that they have no NaN, nor any between them.
        formula: what the op computes, as ``c = a @ b``: only hints that fit it are given.
        moves: values are moved, not computed: no sum can overflow.
        unwritten: bool, of the same shape: the elements that no kernel wrote.
    """
    count = int(wrong.sum())
    if count == 0:
        return None
    at = int(wrong.flatten().int().argmax())
    index = tuple(int(place) for place in torch.unravel_index(torch.tensor(at), wrong.shape))
    where = _places(wrong)
    left = torch.zeros_like(wrong) if unwritten is None else unwritten
    what = _left_out(output, wrong, left) or _values(output, expected, wrong, plain, formula, moves)
    what = what or _offset(wrong)
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
        return f"only {many} {', '.join(map(str, indices))}" if len(indices) <= _FEW else ""
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


def _values(
    output: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, plain: bool, formula: str, moves: bool
) -> str:
    """The pattern of the wrong values; empty where none is seen."""
    got, want = output.double()[wrong], expected[wrong]
    everything = "all" if len(got) == wrong.numel() else "there"
    for name, holds in (("NaN", got.isnan()), ("infinity", got.isinf()), ("zero", got == 0)):
        if holds.all() and not (name == "zero" and (want == 0).any()):
            unwritten = name == "NaN" and plain and bool(expected.isfinite().all())
            return f"{everything} {name}" + (_UNWRITTEN if unwritten else "")
    if moved := _moved(output.double(), expected, wrong, output.dtype):
        return moved
    if not (got.isfinite().all() and want.isfinite().all()):
        overflow = "some NaN or infinite" + _UNWRITTEN if moves else _OVERFLOW
        return overflow if plain and expected.isfinite().all() else ""
    eps = "eps" in formula and not bool(wrong.all())  # another eps shows in small rows only
    if len(got) > 1:
        if (want != 0).all() and (factor := _constant(got / want)) is not None and abs(factor - 1) > _SAME:
            return f"off by a constant factor {factor:.3g}" + (": another eps?" if eps else "")
        if (offset := _constant(got - want)) is not None:
            return f"off by a constant {offset:.3g}"
    if not output.is_floating_point():
        return _counts(got - want)
    return _row_factors(output.double(), expected, wrong, eps) or _small(output, got, want, formula)


def _left_out(output: torch.Tensor, wrong: torch.Tensor, unwritten: torch.Tensor) -> str:
    """That elements were not written, where this explains all that are NaN or infinite; else empty."""
    left = unwritten[wrong]
    if not left.any() or not (left | output[wrong].double().isfinite()).all():
        return ""
    which = "some" if not left.all() else "all" if len(left) == wrong.numel() else "these"
    return f"{which} not written: is the grid too small, a mask too narrow, or a stride wrong?"


def _offset(wrong: torch.Tensor) -> str:
    """That the first row alone is right; empty where it is not."""
    if wrong.dim() != 2 or len(wrong) < 3:
        return ""
    rows = wrong.any(1)
    return "is the offset or the stride of a row wrong?" if rows[1:].all() and not rows[0] else ""


_UNWRITTEN = ": is memory read that nothing has written, as shared memory or a sum that is not zeroed?"
_OVERFLOW = (
    "some NaN or infinite: does a sum overflow, as in fp16, or is memory read that nothing has written?"
)
_MOST_MOVED = 1 << 20
"""Elements of a larger output are not looked for elsewhere."""


def _moved(output: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, dtype: torch.dtype) -> str:
    """That the wrong elements are other elements of the reference, in ``dtype``; empty where they are not."""
    if int(wrong.sum()) < 3 or output.numel() > _MOST_MOVED:
        return ""
    if torch.isclose(output[wrong], expected[wrong], rtol=_SAME, atol=0.0).float().mean() > 0.5:
        return ""

    def fits(other: torch.Tensor) -> bool:
        return bool(torch.isclose(output[wrong], other[wrong], rtol=_SAME, atol=0.0).float().mean() > 0.9)

    if output.dim() == 2 and min(output.shape) > 1 and fits(expected.T.reshape(output.shape)):
        return "the transposed result"
    for dim, step in itertools.product(range(output.dim()), (1, -1)):
        if output.shape[dim] > 2 and fits(expected.roll(step, dim)):
            name = _name(dim, output.dim())
            return f"the value of the {'previous' if step > 0 else 'next'} {name}: off by one in an index?"
    values, others = output[wrong].sort().values, expected[wrong].sort().values
    if torch.allclose(values, others, rtol=1e-3, atol=0.0):
        return "the right values in other places: are two indices swapped, or not transposed?"
    every = expected.to(dtype).double()
    if len(every.unique()) > 0.9 * every.numel() and torch.isin(output[wrong], every).float().mean() > 0.9:
        return "values of other elements: is an index or a stride wrong?"
    return ""


def _counts(difference: torch.Tensor) -> str:
    """Of whole numbers that are all too large or all too small."""
    least, most = sorted((abs(int(difference.min())), abs(int(difference.max()))))
    by = f"off by {most}" if least == most else f"off by {least} to {most}"
    if (difference > 0).all():
        return f"too many, {by}: is padding counted, or memory not zeroed?"
    if (difference < 0).all():
        return f"too few, {by}: are elements lost, or added without an atomic?"
    return ""


def _row_factors(output: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, eps: bool) -> str:
    """That each row, along the last dimension, is off by a factor of its own."""
    if output.dim() < 2 or output.shape[-1] < 4:
        return ""
    ratio = torch.where(wrong & (expected != 0), output / expected, math.nan).flatten(0, -2)
    ratio = ratio[(~ratio.isnan()).sum(1) > output.shape[-1] // 2]
    if len(ratio) == 0:
        return ""
    factor = ratio.nanmedian(1, keepdim=True).values
    if (factor - 1).abs().max() < _SMALL:  # a sum of lower precision
        return ""
    near = (ratio - factor).abs() <= 0.05 * (factor - 1).abs()
    if not near[~ratio.isnan()].float().mean() > 0.9:
        return ""
    which = f"each row off by a factor of its own, {float(factor.min()):.6g} to {float(factor.max()):.6g}"
    return (
        f"{which}: does its sum have all of its elements, and no padding{', or another eps' if eps else ''}?"
    )


_SMALL = 2.0**-8
"""Relative error of bf16: a sum of lower precision makes none that is larger."""
_SMALL_SCALE = 0.05


def _small(output: torch.Tensor, got: torch.Tensor, want: torch.Tensor, formula: str) -> str:
    """Of errors that are small beside the values: what makes them, by whether they follow the values."""
    size, error = float(want.abs().median()), got - want
    relative = float(error.abs().median()) / size if size > 0 else math.inf
    follows = len(got) > 2 and abs(float(torch.corrcoef(torch.stack((error, want)))[0, 1])) > 0.4
    if not relative < (_SMALL_SCALE if follows and "eps" in formula else _SMALL):
        return ""
    about = f"relative error about {relative:.0e}"
    eps = torch.finfo(output.dtype).eps
    if output.dtype in _HALVES and relative < 2 * eps and (got.abs() <= want.abs()).all():
        return f"{about}: truncated to {_HALVES[output.dtype]}, not rounded?"
    causes = ["TF32 (input_precision='ieee' in Triton)"] * ("@" in formula)
    if "eps" in formula:
        causes += ["another eps", "N - 1 for N"] if follows else ["terms that cancel"]
    return f"{about}: {', '.join(causes)}{' or ' * bool(causes)}a sum of lower precision, as fp16?"


_HALVES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def _constant(values: torch.Tensor) -> float | None:
    """The common value of all, within `_SAME`; None where they differ."""
    middle = float(values.median())
    near = (values - middle).abs() <= _SAME * abs(middle)
    return middle if math.isfinite(middle) and bool(near.all()) else None
