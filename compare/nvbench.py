"""Cold GPU times by NVIDIA's own benchmarking library, in place of ours: ``--timer nvbench``.

nvbench (``cuda-bench`` on PyPI) samples one implementation after the other, on a stream of its own, with the
L2 flushed before each sample, until it is content.  There are no rounds, so a ratio is that of two medians.
It is an optional dependency, and a second opinion: warm times, graphs and the host's are not its business.

Source: the package's own type stubs, version 0.3.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from compare.contest import Result
from compare.diff import between
from compare.spec import Case, Estimate, Implementation, Op, Ratio, Timing, UsageError
from compare.statistics import estimate
from compare.stopwatch import Call

REQUIREMENT = "cuda-bench[cu13]>=0.3"
MIN_SAMPLES = 50
TIMEOUT_S = 5.0

_NOTE = "cold times are nvbench's, one implementation after the other"
_NAME = "compare"


def load() -> Any:
    """The module; a `UsageError` with the command that installs it where it cannot be used."""
    try:
        bench = importlib.import_module("cuda.bench")
        bench.State  # noqa: B018 - it is loaded when it is first asked for
        importlib.import_module("cuda.bench.results")
    except (ImportError, AttributeError) as error:
        pip = f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(REQUIREMENT)}"
        raise UsageError(f"--timer nvbench: it cannot be used here ({error}). To install it: {pip}") from None
    return bench


@dataclass
class _Turn:
    """What the one benchmark runs next: nvbench takes no more of them after its first run."""

    launch: Callable[[Any], None]
    raised: list[BaseException] = field(default_factory=list)


@functools.cache
def _benchmark(bench: Any) -> list[_Turn]:
    """Register it with nvbench, once in a process; it runs the last of the turns returned here."""
    turns: list[_Turn] = []

    def benchmark(state: Any) -> None:
        turn = turns[-1]
        try:
            turn.launch(state)  # what a first call on a stream sets up may not stand behind a waiting kernel
            torch.cuda.synchronize()
            state.exec(turn.launch, batched=False)
        except BaseException as error:  # it would come out of C++ as something else
            turn.raised.append(error)
            state.skip(type(error).__name__)

    made = bench.register(benchmark)
    made.set_name(_NAME)
    made.set_min_samples(MIN_SAMPLES)
    made.set_timeout(TIMEOUT_S)
    return turns


def cold_us(calls: Sequence[Call], device: torch.device) -> Estimate:
    """Cold GPU time of a call by nvbench.

    Args:
        calls: the same call on several sets of inputs, which rotate.
        device: the GPU.

    Raises:
        RuntimeError: nvbench skipped it or kept no samples.
        Exception: what a call raised.
    """
    bench = load()
    rotating = itertools.cycle(calls)

    def launch(launched: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(launched.get_stream().addressof(), device)):
            next(rotating)()

    turn = _Turn(launch)
    turns = _benchmark(bench)
    turns[:] = [turn]
    index = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.device(device), tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "nvbench.json"
        options = ["--quiet", "--devices", str(index), "--jsonbin", str(out), "--benchmark", _NAME]
        bench.run_all_benchmarks([os.fspath(sys.executable), *options])
        turns.clear()  # it would keep the inputs alive
        if turn.raised:
            raise turn.raised[0]
        results = importlib.import_module("cuda.bench.results")
        (state,) = results.BenchmarkResult.from_json(out)[_NAME]
        samples = [] if state.samples is None else [round(1e6 * sample, 3) for sample in state.samples]
    if not samples:
        raise RuntimeError(f"nvbench has no time for it: {state.skip_reason or 'no samples'}")
    return estimate(samples)


def retimed(
    op: Op,
    impls: Sequence[Implementation],
    case: Case,
    device: torch.device,
    timings: Mapping[str, Result],
    seed: int,
) -> dict[str, Result]:
    """``timings`` with nvbench's cold times for ours, and the ratios that follow from them."""
    from compare.measure import input_sets

    found = dict(timings)
    with torch.cuda.device(device):
        inputs = input_sets(op, case, device, seed)
        for impl in impls:
            before = timings.get(impl.label)
            if not isinstance(before, Timing) or before.cold_us is None:
                continue
            try:
                cold = cold_us([partial(impl.run, *tensors) for tensors in inputs], device)
            except Exception as error:
                found[impl.label] = error
                continue
            found[impl.label] = replace(before, cold_us=cold, rounds=len(cold.samples))
    return {label: _with_ratios(label, found) for label in found}


def _with_ratios(label: str, found: Mapping[str, Result]) -> Result:
    """The ratios that rounds gave, from medians instead."""
    timing = found[label]
    if not isinstance(timing, Timing) or timing.cold_us is None:
        return timing
    others = [(ratio.against, found.get(ratio.against)) for ratio in timing.ratios]
    ratios = tuple(
        Ratio(other, between(theirs.cold_us, timing.cold_us))
        for other, theirs in others
        if isinstance(theirs, Timing) and theirs.cold_us is not None
    )
    return replace(timing, ratios=ratios, notes=(*timing.notes, _NOTE))
