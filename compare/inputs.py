"""Input tensors: what they hold and how they lie in memory.

What an input holds is drawn so that a wrong result shows: values are random, never equal, and every
row has outliers in its first, its last and one inner element, so that a lost tail or a shuffled row
moves the result far beyond any tolerance.  What a layout leaves between the elements is NaN, so that
reading it shows too.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from compare.model.op import Case, UsageError

TORCH_DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int64": torch.int64,
}

ITEM_BYTES = {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()}

MATRICES_ALONE = ("padded", "transposed")
"""Layouts that need two dimensions."""

_PAD = 5
"""Elements between the rows of a padded tensor: odd, so that its rows are misaligned as well."""


def tensor(
    shape: tuple[int, ...], case: Case, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    """A tensor of ``shape`` with the dtype, the layout and the fill that ``case`` names.

    Args:
        shape: its sizes; at least one dimension.
        case: names the dtype, layout and fill; its dimensions are not looked at.
        generator: draws the values, on its own device; they are moved to ``device`` afterwards.
        device: where the tensor lies.  On ``meta`` nothing is drawn.

    Raises:
        UsageError: the layout needs more dimensions than ``shape`` has.
    """
    if case.layout in MATRICES_ALONE and len(shape) < 2:
        raise UsageError(
            f"case {case}: a {case.layout} tensor needs two dimensions and this one has shape {shape}. "
            "Leave the word out, or say sliced, misaligned or expanded"
        )
    drawn = stored_shape(shape, case.layout)
    dtype = TORCH_DTYPES[case.dtype]
    if device.type == "meta":
        values = torch.empty(drawn, dtype=dtype, device=device)
    else:
        values = _values(drawn, case.fill, dtype, generator).to(device)
    return laid_out(values, shape, case.layout)


def indices(
    shape: tuple[int, ...],
    below: int,
    case: Case,
    generator: torch.Generator,
    device: torch.device,
    *,
    none: int | None = None,
) -> torch.Tensor:
    """Whole numbers from 0 to ``below`` - 1 in int64, with ``case``'s layout if a vector can have it.

    The second of every four is the largest of them and the third is 0, so that a lost first or last element
    shows.

    Args:
        shape: its sizes, one dimension.
        below: how many numbers there are; where it is 0, all are ``none``.
        case: names the layout and fill; its dtype and dimensions are not looked at.
        generator, device: as `tensor` has them.
        none: what stands for no number at all: every fifth is, where the case's fill is not the usual one.
    """
    layout = case.layout if case.layout not in MATRICES_ALONE else "contiguous"
    drawn = stored_shape(shape, layout)
    if device.type == "meta":
        values = torch.empty(drawn, dtype=torch.int64, device=device)
    else:
        values = torch.randint(max(below, 1), drawn, device=generator.device, generator=generator)
        values[1::4], values[2::4] = max(below, 1) - 1, 0
        if none is not None and (case.fill != "normal" or below == 0):
            values[:: 5 if below > 0 else 1] = none
        values = values.to(device)
    return laid_out(values, shape, layout)


def of_input(case: Case, name: str, dims: int = 2) -> Case:
    """The case as the input ``name`` sees it, which has so many dimensions.

    A layout with another input's name before it, ``b_transposed``, is that one's alone; and what only
    matrices can have, no vector has.
    """
    which, _, layout = case.layout.rpartition("_")
    mine = which in ("", name) and (dims > 1 or layout not in MATRICES_ALONE)
    return replace(case, layout=layout if mine else "contiguous")


def stored_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The shape that is allocated: an expanded tensor stores its first row only."""
    return (1, *shape[1:]) if layout == "expanded" else shape


def stored_bytes(shape: tuple[int, ...], case: Case, item_bytes: int | None = None) -> int:
    """Bytes of a tensor's elements, each counted once: what reading it takes at least.

    ``item_bytes`` is an element's, where it is not of the case's dtype.
    """
    return math.prod(stored_shape(shape, case.layout)) * (item_bytes or ITEM_BYTES[case.dtype])


def _values(
    shape: tuple[int, ...], fill: str, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    """Contiguous values on the generator's device, filled row by row (a row: along the last dimension)."""
    device = generator.device
    if not dtype.is_floating_point:
        return _whole_values(shape, dtype, generator)
    # e4m3 has few operators: its values are drawn in fp32 and rounded.
    drawn_in = torch.float32 if dtype is torch.float8_e4m3fn else dtype
    values = torch.randn(shape, dtype=drawn_in, device=device, generator=generator)
    if values.numel() == 0:
        return values.to(dtype)
    rows = values.view(-1, shape[-1])
    row = torch.arange(rows.shape[0], device=device)
    inner = (row * 7919 + 13) % rows.shape[1]
    if fill == "huge":
        largest = torch.finfo(dtype).max
        levels = torch.tensor([1.0, 0.5, -0.5, -1.0], dtype=torch.float64, device=device) * largest
        choice = torch.randint(len(levels), rows.shape, device=device, generator=generator)
        # Every third row has nothing above 0: a maximum that starts there shows.
        choice[2::3] = 2 + choice[2::3] % 2
        rows.copy_(levels[choice])
        return values.to(dtype)
    rows[:, 0] = -5.0
    rows[:, -1] = 6.0
    rows[row, inner] = (8.0 + (row % 8) / 4).to(drawn_in)  # exact in every dtype but e4m3
    if fill == "neg_inf":
        # Every third row nothing but -inf; every third -inf in its first half and in half of the rest.
        rows[0::3] = -math.inf
        rows[1::3, : rows.shape[1] // 2] = -math.inf
        rows[1::3, ::2] = -math.inf
    elif fill == "nan":
        rows[row[0::3], inner[0::3]] = math.nan
        rows[row[1::3], inner[1::3]] = math.nan if dtype is torch.float8_e4m3fn else math.inf
    elif fill == "zero":
        # As where a batch is padded: every third row nothing but 0, every third 0 in its first half.
        rows[0::3] = 0.0
        rows[1::3, : rows.shape[1] // 2] = 0.0
    return values.to(dtype)


def _whole_values(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Bytes, each value as likely as another; a row's first and last are the least and the largest."""
    least, largest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    device = generator.device
    values = torch.randint(least, largest + 1, shape, dtype=dtype, device=device, generator=generator)
    if values.numel() > 0:
        values[..., 0], values[..., -1] = least, largest
    return values


def spared(x: torch.Tensor, period: int) -> torch.Tensor:
    """Indices along the last dimension: every ``period``-th pair of neighbours, another one in each row.

    With as many rows as ``period``, each pair is in some row's.
    """
    period = max(1, min(period, x.shape[-1] // 2))
    pairs = x.shape[-1] // 2 // period
    row = torch.arange(math.prod(x.shape[:-1]), device=x.device)[:, None] % period
    first = 2 * (row + period * torch.arange(pairs, device=x.device))
    return torch.stack((first, first + 1), -1).view(*x.shape[:-1], 2 * pairs)


def keep_few(x: torch.Tensor, period: int) -> None:
    """Set all to 0 but those `spared`: a sum of few terms loses a few roundings, and no term unseen."""
    bits = x.view(torch.uint8) if x.itemsize == 1 else x  # fp8 has few operators
    index = spared(x, period)
    kept = bits.gather(-1, index)
    bits.zero_().scatter_(-1, index, kept)


_SMALL = 2.0**-6


def keep_one_of_each(x: torch.Tensor) -> None:
    """Make an element of each vector of x[..., head, element] 1 or -1, the others small: a lost one shows.

    A head's vectors take turns: so an element is a sum of few.  Small and not 0: where fp16 rounds the weight
    of a vector to 0, that is no error of a sum of all.
    """
    *outer, heads, size = x.shape
    vector = torch.arange(math.prod(outer), device=x.device).view(*outer, 1, 1)
    index = (vector % max(1, size)).expand(*outer, heads, 1)
    kept = x.gather(-1, index).sign()
    x.mul_(_SMALL).scatter_(-1, index, kept)


ROWS_OF_FEW = 64
"""Rows after which it is the turn of the same elements again, where rows are long and there are as many."""

_FAR_BELOW = 16.0


def keep_few_exponentials(x: torch.Tensor) -> None:
    """In each row, lower all but some that are `spared`, so that no others count in a sum of exponentials."""
    index = spared(x, min(ROWS_OF_FEW, x.shape[0]))
    kept = x.gather(-1, index).abs()
    x.sub_(_FAR_BELOW).scatter_(-1, index, kept)


def laid_out(values: torch.Tensor, shape: tuple[int, ...], layout: str) -> torch.Tensor:
    """The same values as a tensor of ``shape``, lying in memory as ``layout`` says."""
    if layout == "contiguous":
        return values
    if layout == "expanded":
        return values.expand(shape)
    *outer, last = values.shape
    gap = math.nan if values.is_floating_point() else torch.iinfo(values.dtype).min

    def memory(*sizes: int) -> torch.Tensor:
        return torch.full(sizes, gap, dtype=values.dtype, device=values.device)

    if layout == "padded":
        view = memory(*outer, last + _PAD)[..., :last]
    elif layout == "transposed":
        view = memory(*outer[:-1], last, outer[-1]).mT
    elif layout == "sliced":
        view = memory(*outer, 2 * last)[..., ::2]
    elif layout == "misaligned":
        view = memory(values.numel() + 1)[1:].view(values.shape)
    else:
        raise ValueError(f"no layout {layout!r}")
    return view.copy_(values)
