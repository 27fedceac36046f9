"""Times of calls that all ranks make together: of each sample the slowest rank's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from compare.collectives.ranks import COPY_BYTES, Rank
from compare.model.op import Case, Implementation
from compare.model.result import Estimate
from compare.timing.statistics import estimate

_ALIGN_CYCLES = 400_000
"""A delay, about 0.2 ms, in which all of a sample's work is enqueued."""
_GRAPH_S, _MOST_CALLS = 2e-3, 20
"""About how long a graph of calls takes, and how many they are at most."""
_LEAST_ROUNDS, _MOST_ROUNDS = 10, 60
_COPIES = 5

Graphs = tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph, int]
"""Of one call, of several, and how many these are."""


def timed(this: Rank, impls: Sequence[Implementation], case: Case) -> dict[str, tuple[Estimate, Estimate]]:
    """In a graph, and back to back, by label, in µs; rounds are interleaved, each in another order."""
    x, until = this.x_of(case), time.monotonic() + this.order.budget_s
    generator = torch.Generator(this.device).manual_seed(this.rank)
    values = torch.randn(x.shape, device=this.device, generator=generator).to(x.dtype)
    graphs = {impl.label: _graphs(this, this.call_of(impl, case)) for impl in impls}
    replayed: dict[str, list[float]] = {label: [] for label in graphs}
    launched: dict[str, list[float]] = {label: [] for label in graphs}
    order = random.Random(this.order.seed)
    for number in range(_MOST_ROUNDS):
        if not this.agreed(float(number < _LEAST_ROUNDS or time.monotonic() < until)):
            break
        for impl in order.sample(impls, len(impls)):
            x.copy_(values)  # sums in place grow from call to call
            this.together()
            replayed[impl.label].append(_replayed_us(*graphs[impl.label]))
            if number < _LEAST_ROUNDS:
                this.together()
                calls = graphs[impl.label][2]
                launched[impl.label].append(_back_to_back_us(this.call_of(impl, case), calls))
    return {label: (_slowest(this, replayed[label]), _slowest(this, launched[label])) for label in graphs}


def _slowest(this: Rank, samples: Sequence[float]) -> Estimate:
    return estimate([max(each) for each in zip(*this.from_all(samples), strict=True)])


def _graphs(this: Rank, call: Callable[[], torch.Tensor]) -> Graphs:
    for _ in range(3):
        call()
    this.together()
    seconds = this.agreed(_back_to_back_us(call, 1) / 1e6)
    calls = int(max(2, min(_MOST_CALLS, _GRAPH_S / seconds)))
    one, several = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    for graph, count in ((one, 1), (several, calls)):
        this.together()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
    return one, several, calls


def _replayed_us(one: torch.cuda.CUDAGraph, several: torch.cuda.CUDAGraph, calls: int) -> float:
    """GPU time of one of several calls; a call before them aligns the ranks."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(_ALIGN_CYCLES)
    one.replay()
    begin.record()
    several.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / calls


def _back_to_back_us(call: Callable[[], torch.Tensor], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e6 / calls


def copied_gbs(this: Rank) -> float:
    """GB/s into a GPU, the slowest, when all copy from their neighbours at once."""
    theirs = this.memory_of((this.rank + 1) % this.layout.ranks, torch.uint8, COPY_BYTES)
    own = torch.empty_like(theirs)
    us = []
    for _ in range(3):
        this.together()
        us.append(_back_to_back_us(partial(own.copy_, theirs), _COPIES))
    slowest: float = min(this.from_all(COPY_BYTES / min(us) / 1e3))
    return slowest
