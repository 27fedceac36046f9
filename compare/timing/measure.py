"""Time: every implementation of an op on one case, each kind of time named and none mixed.

What is timed:

- *first call*: host time of the first call in the process and the GPU work it starts, compilation included;
- *cold*: GPU time of one call with the L2 flushed, on inputs that rotate through several sets;
- *warm*: GPU time a call, several back to back on the same inputs;
- *graph*: GPU time of one replay of the call captured as a CUDA graph, warm;
- *launch*: host time until the call returns, while the GPU is busy with something else: the median of a
  batch is one sample.

How: in rounds.  Every round takes one sample of each kind from every implementation, in an order drawn
anew, so that a drift of clocks, power or temperature meets all of them alike; a ratio is the median of
ratios within rounds.  Rounds go on until every ratio's 95% interval is tight or the time budget ends.
Every sample is kept.  GPU times are what the two events read: the time of an empty pair is not subtracted,
but said in a note where it is a noticeable part.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from compare.device import l2_bytes
from compare.spec import Case, Implementation, Op
from compare.timing.ceilings import CeilingMeter, measure_ceilings
from compare.timing.rounds import Contest, Plan, Progress, Result, release
from compare.timing.stopwatch import CudaStopwatch, host_ms

__all__ = [
    "CeilingMeter",
    "Interrupted",
    "Plan",
    "first_call_ms",
    "how_many_sets",
    "input_sets",
    "measure",
    "measure_ceilings",
]

ROTATED_L2 = 2
"""The inputs' sets together are at least this many times the L2's size, as far as `MOST_SETS` allow."""
MOST_SETS = 8


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement: ``partial`` holds what whole rounds had been measured by then."""

    def __init__(self, partial: dict[str, Result]) -> None:
        super().__init__()
        self.partial = partial


def first_call_ms(impl: Implementation, inputs: Sequence[Any], device: torch.device) -> float:
    """Host time of a call until its GPU work is done, in ms; to be asked before anything else runs ``impl``.

    The CUDA context must exist already, or the first implementation would be charged for it: making the
    inputs on the device sees to that.
    """
    with torch.cuda.device(device):
        return host_ms(partial(impl.run, *inputs), device)


def measure(
    op: Op,
    impls: Sequence[Implementation],
    case: Case,
    device: torch.device,
    *,
    seed: int,
    budget_s: float,
    progress: Progress | None = None,
    first_calls_ms: Mapping[str, float] | None = None,
    ceilings: CeilingMeter | None = None,
    plan: Plan | None = None,
) -> dict[str, Result]:
    """Time ``impls`` on ``case``.

    Args:
        op: names the baseline and makes the inputs.
        impls: those known to be right; a ratio needs the op's baseline among them.
        case: what to time them on.
        device: a GPU.
        seed: of the inputs and of the order within rounds.
        budget_s: seconds for the rounds; first calls, which may compile, come on top.
        progress: told after every round how far the budget is used.
        first_calls_ms: first calls timed earlier in this process, by label; others are timed here.
        ceilings: sampled once a round, so that shares of it are free of drift as well.
        plan: the rule to stop by.

    Returns:
        By label: its times, or what it raised; one that raises does not keep the others from going on.

    Raises:
        Interrupted: on Ctrl-C, with what there is.
    """
    with torch.cuda.device(device):
        try:
            inputs = input_sets(op, case, device, seed)
            watch = CudaStopwatch(device)
        except RuntimeError as error:  # the inputs are too much for its memory, or the GPU is lost already
            release(error)
            return dict.fromkeys((impl.label for impl in impls), error)
        contest = Contest(
            op.baseline,
            impls,
            inputs,
            watch,
            plan or Plan(),
            seed=seed,
            first_calls_ms=first_calls_ms,
            ceilings=ceilings,
        )
        collecting = gc.isenabled()
        gc.disable()  # a collection in the middle of a launch would make the host late
        try:
            contest.run(budget_s, progress)
        except KeyboardInterrupt:
            raise Interrupted(contest.results()) from None
        finally:
            if collecting:
                gc.enable()
        return contest.results()


def input_sets(op: Op, case: Case, device: torch.device, seed: int) -> list[tuple[torch.Tensor, ...]]:
    """Sets of inputs, fresh random values each, so many that together they do not fit the L2."""
    generator = torch.Generator(device).manual_seed(seed)
    sets = [op.make_inputs(case, generator, device)]
    size = sum(tensor.untyped_storage().nbytes() for tensor in sets[0])
    for _ in range(how_many_sets(size, device) - 1):
        sets.append(op.make_inputs(case, generator, device))
    return sets


def how_many_sets(size: int, device: torch.device) -> int:
    """Of inputs that take ``size`` bytes each."""
    return max(1, min(math.ceil(ROTATED_L2 * l2_bytes(device) / max(size, 1)), MOST_SETS))
