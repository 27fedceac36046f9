"""``--timer nvbench``: cold GPU times by NVIDIA's benchmarking library in place of ours.

nvbench (``cuda-bench`` on PyPI) samples one implementation after another, on its own stream, with the L2
flushed before each sample, until its stopping criterion holds.  There are no rounds: a ratio is that of two
medians.  It is an optional dependency, and a second opinion on cold times only.

Source: the package's type stubs, version 0.3.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from compare import registry
from compare.device import pick
from compare.spec import Case, Estimate, Implementation, Op, Ratio, Timing, UsageError
from compare.timing.rounds import Result
from compare.timing.statistics import between, estimate
from compare.timing.stopwatch import Call, how_many_sets

REQUIREMENT = "cuda-bench[cu13]>=0.3"
MIN_SAMPLES = 50
TIMEOUT_S = 1.0
"""Limit of a measurement: at 1 us the clock's resolution keeps nvbench's criterion from being met."""

_NOTE = "cold times are nvbench's, one implementation after the other"


def load() -> Any:
    """The module ``cuda.bench``.

    Raises:
        UsageError: it cannot be imported; with the command that installs it.
    """
    try:
        bench = importlib.import_module("cuda.bench")
        bench.State  # noqa: B018 - loads the extension
        importlib.import_module("cuda.bench.results")
    except (ImportError, AttributeError) as error:
        pip = f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(REQUIREMENT)}"
        raise UsageError(f"--timer nvbench: cannot import cuda.bench ({error}). Install it: {pip}") from None
    return bench


def cold_us(calls: Mapping[str, Sequence[Call]], device: torch.device) -> dict[str, Estimate | Exception]:
    """Cold GPU times of calls by nvbench, which runs only once in a process.

    Args:
        calls: by name, the same call on several sets of inputs, which rotate.
        device: the GPU.

    Returns:
        By name: the time, the exception of a call, or a `RuntimeError` where nvbench kept no samples.

    Raises:
        RuntimeError: nvbench has run in this process before.
    """
    bench = load()
    raised: dict[str, BaseException] = {}
    for name, each in calls.items():
        made = bench.register(_benchmark(name, each, device, raised))
        made.set_name(name)
        made.set_min_samples(MIN_SAMPLES)
        made.set_timeout(TIMEOUT_S)
    index = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.device(device), tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "nvbench.json"
        options = ["--quiet", "--devices", str(index), "--jsonbin", str(out)]
        bench.run_all_benchmarks([os.fspath(sys.executable), *options])
        results = importlib.import_module("cuda.bench.results").BenchmarkResult.from_json(out)
        found: dict[str, Estimate | Exception] = {}
        for name in calls:
            (state,) = results[name]
            error = raised.get(name)
            if error is not None and not isinstance(error, Exception):
                raise error
            if error is not None:
                found[name] = error
            elif state.samples:
                found[name] = estimate([round(1e6 * sample, 3) for sample in state.samples])
            else:
                why = state.skip_reason or "no samples"
                found[name] = RuntimeError(f"nvbench has no time for it: {why}")
    return found


def _benchmark(
    name: str, calls: Sequence[Call], device: torch.device, raised: dict[str, BaseException]
) -> Callable[[Any], None]:
    rotating = itertools.cycle(calls)

    def launch(launched: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(launched.get_stream().addressof(), device)):
            next(rotating)()

    def benchmark(state: Any) -> None:
        try:
            launch(state)  # a stream's first call sets things up: not behind nvbench's blocking kernel
            torch.cuda.synchronize()
            state.exec(launch, batched=False)
        except BaseException as error:  # C++ would turn it into another exception
            raised[name] = error
            state.skip(type(error).__name__)

    return benchmark


def retimed(
    op: Op,
    impls: Sequence[Implementation],
    case: Case,
    device: torch.device,
    timings: Mapping[str, Result],
    seed: int,
) -> dict[str, Result]:
    """``timings`` with nvbench's cold times for ours, and the ratios of their medians."""
    found = dict(timings)
    timed = {label: timing for label, timing in timings.items() if isinstance(timing, Timing)}
    labels = [impl.label for impl in impls if impl.label in timed and timed[impl.label].cold_us is not None]
    try:
        samples = _in_another_process(op.name, labels, str(case), str(device), seed)
    except BrokenProcessPool:
        samples = dict.fromkeys(labels, "nvbench's process crashed. Leave out --timer nvbench")
    for label, told in samples.items():
        if isinstance(told, str):
            found[label] = RuntimeError(told)
        else:
            cold = estimate(told)
            found[label] = replace(timed[label], cold_us=cold, rounds=len(cold.samples))
    return {label: _with_ratios(label, found) for label in found}


def _in_another_process(*order: Any) -> dict[str, list[float] | str]:
    """`_samples` in a new process, because nvbench runs only once in each."""
    no_traceback = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)  # this process handles Ctrl-C
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), no_traceback) as pool:
        return pool.submit(_samples, *order).result()


def _samples(
    op_name: str, labels: Sequence[str], case_text: str, device_text: str, seed: int
) -> dict[str, list[float] | str]:
    """By label: cold samples in microseconds, or an error's text."""
    device = pick(device_text)
    op = registry.get_op(op_name)
    case = Case.parse(case_text, op)
    with torch.cuda.device(device):
        inputs = input_sets(op, case, device, seed)
        calls = {
            impl.label: [impl.given(op.options(case)).ready(op, tensors) for tensors in inputs]
            for impl in registry.implementations(op_name)
            if impl.label in labels
        }
        return {
            label: f"{type(told).__name__}: {told}" if isinstance(told, Exception) else list(told.samples)
            for label, told in cold_us(calls, device).items()
        }


def input_sets(op: Op, case: Case, device: torch.device, seed: int) -> list[tuple[torch.Tensor, ...]]:
    """Sets of inputs with new random values each, together larger than the L2."""
    generator = torch.Generator(device).manual_seed(seed)
    first = op.make_inputs(case, generator, device)
    size = sum(tensor.untyped_storage().nbytes() for tensor in first)
    more = range(how_many_sets(size, device) - 1)
    return [first, *(op.make_inputs(case, generator, device) for _ in more)]


def _with_ratios(label: str, found: Mapping[str, Result]) -> Result:
    """A result with its ratios taken from medians instead of rounds."""
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
