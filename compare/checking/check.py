"""Agreement: does an implementation compute what the op says, and nothing else?

The reference is the op's oracle in fp64 on the very inputs the implementation got.  What counts as an
error, and how much of it is too much, is said by `compare.spec.Tolerance`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from compare import registry
from compare.checking.guarded_memory import GuardedMemory, is_copy, poisoned, untouched
from compare.checking.mismatch import Located
from compare.inputs import TORCH_DTYPES
from compare.spec import (
    ROUNDOFF,
    Agreement,
    Case,
    Finding,
    Implementation,
    Mismatch,
    Op,
    Tolerance,
    UsageError,
)

_PIECE = 1 << 24
"""Elements compared at a time: in fp64 with all that is derived from them about 1 GB."""

_QUANTILE_ELEMENTS = 1 << 18
"""Elements that the quantiles rest on; maxima rest on all."""

_KEPT_ELEMENTS = 1 << 25
"""Inputs up to so many are kept with their reference, which takes as much again in fp64."""

_EFFORTLESS_ELEMENTS = {"cpu": 1 << 16, "cuda": 1 << 26}
"""Inputs and output that a device computes with in milliseconds, in fp64 as well."""

_ONE_THREAD_BYTES = 1 << 22
"""Memory traffic up to which a CPU is quicker alone than by sharing the work among threads."""

_COMPARING = threading.Lock()
"""Comparing takes a gigabyte: one check at a time, while others wait for their implementations."""


@dataclass(frozen=True)
class Called:
    """What was seen of one call where it was made."""

    output: torch.Tensor | None
    """None where what came back cannot be compared; ``problem`` says why."""
    problem: str | None = None
    violations: tuple[str, ...] = ()
    """Writes into the guard zones."""
    guarded: bool = False
    """Whether there are guard zones around the output."""
    shared: str | None = None
    """Whose memory the output lies in, if it is not its own."""
    borrowed: tuple[str, ...] = ()
    """PyTorch's operators that computed or copied something."""


class Stage(Protocol):
    """Where an implementation is called: in this process, or in one of its own."""

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The inputs where the implementation will find them, lying in memory as they do."""

    def call(self, expected: torch.Tensor) -> Called:
        """Call it on the inputs placed last.  What it raises is passed on.

        Args:
            expected: a meta tensor of the shape and dtype that the output must have.
        """


def check(
    op: Op,
    impl: Implementation,
    case: Case,
    device: torch.device,
    seeds: Sequence[int] = (0, 1, 2),
    *,
    nudge: bool = False,
    own_work: bool = False,
    stage: Stage | None = None,
    probes: Probes | None = None,
) -> Agreement:
    """Run an implementation on fresh inputs, one set a seed, and hold its outputs against the oracle.

    A wrong implementation gives an `Agreement` that says so.  What ``impl.run`` raises is passed on.

    Args:
        op: makes the inputs, and holds the oracle.
        impl: what is checked.
        case: on what.
        device: where.
        seeds: of the inputs; the same addresses hold other values each time.
        nudge: once more with a single element changed, which few tell who remember by content.
        own_work: an implementation that is not PyTorch's may have it copy, unless that is the op's work, and
            compute nothing.
        stage: where to call it; in this process, if not given.
        probes: inputs of this case by their seed, and what follows from them; shared between checks.
    """
    nbytes = op.cost(case).bytes
    with torch.cuda.device(device) if device.type == "cuda" else threads_for(nbytes):
        expected = expected_output(op, case, device)
        stage = stage or Here(impl, device)
        probes = probes or Probes(op, case, device, Yardstick.here(op, device), seeds)
        trials = []
        for seed in seeds:
            probe = probes.of(seed)
            trials.append(_try(op, impl, case, stage, probe, expected, own_work))
        if nudge:
            nudged = _nudged(op, probe)
            if nudged is not None:
                trials.append(_try(op, impl, case, stage, nudged, expected, own_work))
    return _summary(trials, len(seeds))


@contextlib.contextmanager
def threads_for(nbytes: int) -> Iterator[None]:
    """On a CPU, one thread where there is little memory traffic.

    Threads wait for each other after every function, and where other programs run, for their turn as well.
    """
    _settle_vector_math()
    threads = torch.get_num_threads()
    if nbytes <= _ONE_THREAD_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def limit_of(tolerance: Tolerance, accumulator: str, allowed: float) -> float:
    """What may be lost, in roundings of what an implementation computes in; ``allowed`` is for fp32."""
    if accumulator != "fp32" and tolerance.least_rounded is not None:
        return tolerance.least_rounded
    return allowed


_MKL_FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "exp", "expm1"),
    *("log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),
)


@functools.cache
def _settle_vector_math() -> None:
    """Let MKL choose the kernels behind PyTorch's functions while a single thread asks.

    It chooses at a function's first call.  Where several threads make that call together, one of them may
    run a kernel good to 11 bits, this once, and what is right would be found wrong (PyTorch issue 188792).
    """
    for dtype in (torch.float32, torch.float64):
        for name in _MKL_FUNCTIONS:
            getattr(torch, name)(torch.ones(1, dtype=dtype))


@dataclass
class _Errors:
    """The errors of one output, gathered piece by piece."""

    score: float = 0.0
    """Largest error in the tolerance's unit."""
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    compared: int = 0
    within: int = 0
    ulps: list[torch.Tensor] = field(default_factory=list)
    """Of some elements; NaN where there is none to measure."""
    wrong: int = 0
    """Elements beyond the limit."""
    misplaced: int = 0
    """NaN or infinity where none belongs, or none or another where one does."""
    invariants: list[str] = field(default_factory=list)
    located: Located | None = None
    """Where the wrong elements are, if that is asked for."""

    @property
    def measured(self) -> bool:
        """Whether there is an error to speak of: not of what has the wrong shape, or is all NaN."""
        return self.compared == 0 or self.within + self.wrong > 0

    def enlarge(self, score: float, max_abs: float, max_rel: float, max_ulp: float) -> None:
        """Each becomes the larger of what it is and of another piece's; NaN is never the larger."""
        self.score = max(self.score, score)
        self.max_abs = max(self.max_abs, max_abs)
        self.max_rel = max(self.max_rel, max_rel)
        self.max_ulp = max(self.max_ulp, max_ulp)


@dataclass(frozen=True)
class _Trial:
    errors: _Errors
    limit: float
    findings: tuple[Finding, ...]
    mismatch: Mismatch | None = None


def _try(
    op: Op,
    impl: Implementation,
    case: Case,
    stage: Stage,
    probe: Probe,
    expected: torch.Tensor,
    own_work: bool,
) -> _Trial:
    """One set of inputs: run, then look at everything the run left behind."""
    limit = limit_of(op.tolerance(case), impl.accumulator, probe.limit)
    made = probe.inputs
    inputs = stage.place(made)
    memory = [memory_of(x) for x in inputs]
    # Where they were placed elsewhere, what was made is itself the copy.
    copies = [
        x.clone() if placed is x_made else memory_of(x_made)
        for x, placed, x_made in zip(memory, inputs, made, strict=True)
    ]
    called = stage.call(expected)

    findings: list[Finding] = []

    def found(what: str, problem: str | None, otherwise: str = "") -> None:
        findings.append(Finding(what, problem is None, f"{probe.name}: {problem}" if problem else otherwise))

    found("output", called.problem)
    changed = unlike(memory, copies)
    found("inputs unchanged", f"argument {changed[0]} was written to" if changed else None)
    for i in changed:
        memory[i].copy_(copies[i])
    del copies
    where = "around the output" if called.guarded else "none around the output"
    found("guard zones", "; ".join(called.violations) or None, where)
    if own_work:
        found("own work", _borrowing(op, called.borrowed))
    output = called.output
    if output is None:
        return _Trial(_Errors(score=math.inf, compared=1), 0.0, tuple(findings))
    found("output is fresh", called.shared)
    with _COMPARING:
        op.settle(made, output)
        unwritten = int(untouched(output).sum())
        found("all written", f"{unwritten} of {output.numel()} elements were not" if unwritten else None)
        errors = errors_of(op, case, probe.reference, output, limit, impl.accumulator)
        wrong = (
            f"{errors.wrong} of {errors.compared} elements are off, by up to {errors.score:.3g} "
            f"{impl.accumulator} roundings where {limit:.3g} are allowed"
        )
        found("values", wrong if errors.wrong else None)
        misplaced = f"{errors.misplaced} elements are not where the reference has them"
        found("NaN and infinity", misplaced if errors.misplaced else None)
        for invariant in op.invariants:
            found(invariant.name, invariant.check(made, output))
        mismatch = None
        if (errors.wrong or errors.misplaced) and (located := Located.of(output)):
            errors_of(op, case, probe.reference, output, limit, impl.accumulator, 0, located)
            mismatch = located.found()
    return _Trial(errors, limit, tuple(findings), mismatch)


def _borrowing(op: Op, operators: tuple[str, ...]) -> str | None:
    """Copies are no work, but where there is no other."""
    work = [name for name in operators if op.only_moves or not is_copy(name)]
    if not work:
        return None
    why = f", and moving data is all that {op.name} does" if all(map(is_copy, work)) else ""
    return f"it called PyTorch's {', '.join(work)}, where the work is to be its own{why}"


def _nudged(op: Op, probe: Probe) -> Probe | None:
    """The same with one element changed, so far that it shows; None where there is none.

    Whole numbers stay as they are, as which others would do only the op knows; but bytes may be any.
    """
    sizes = [x.numel() if x.is_floating_point() or x.dtype is torch.uint8 else 0 for x in probe.inputs]
    if sum(sizes) == 0:
        return None
    inputs = tuple(_as_it_lies(x) for x in probe.inputs)
    which = secrets.choice([i for i, size in enumerate(sizes) if size > 0])
    x = inputs[which]
    at = tuple(secrets.randbelow(size) for size in x.shape)
    if x.is_floating_point():
        # Like the outliers that every row has; of another sign than before, so it is surely another value.
        value = 4.0 + secrets.randbelow(1 << 10) / 256
        x[at] = -value if float(x[at]) > 0 else value
    else:
        x[at] = (int(x[at]) + 1 + secrets.randbelow(255)) % 256
    return Probe(f"{probe.name}, one element changed", inputs, Reference(op, inputs), probe.limit)


def _as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides in memory of its own."""
    storage = memory_of(tensor).clone().untyped_storage()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


class Yardstick:
    """The error of PyTorch's own implementation, which sets the tolerance."""

    def __init__(self, op: Op, stage: Stage | None) -> None:
        self._op, self._stage = op, stage

    @classmethod
    def here(cls, op: Op, device: torch.device) -> Yardstick:
        """With that implementation in this process."""
        baseline = next((i for i in registry.implementations(op.name) if i.label == op.baseline), None)
        return cls(op, None if baseline is None else Here(baseline, device))

    def limit(self, case: Case, reference: Reference) -> float:
        """What is allowed on these inputs, in the tolerance's unit: twice as much, or the op's own floor.

        A yardstick that lets all zeros pass is wrong itself: it allows nothing, and its own row says so.
        """
        twice, least = 2 * self._score(case, reference), self._op.tolerance(case).least
        if twice <= least or least < self._score_of_zeros(case, reference) <= twice:
            return least
        return twice

    def _score(self, case: Case, reference: Reference) -> float:
        if self._stage is None:
            return 0.0
        expected = expected_output(self._op, case, reference.device)
        try:
            self._stage.place(reference.inputs)
            output = self._stage.call(expected).output
        except Exception:  # it fails in its own row
            return 0.0
        if output is None:
            return 0.0
        self._op.settle(reference.inputs, output)
        return self._score_of(case, reference, output)

    def _score_of_zeros(self, case: Case, reference: Reference) -> float:
        expected = expected_output(self._op, case, reference.device)
        zeros = torch.zeros((), dtype=expected.dtype, device=reference.device).expand(expected.shape)
        return self._score_of(case, reference, zeros)

    def _score_of(self, case: Case, reference: Reference, output: torch.Tensor) -> float:
        return errors_of(self._op, case, reference, output, math.inf, quantile_elements=0).score


@dataclass(frozen=True)
class Probe:
    """One set of inputs that implementations are held against."""

    name: str
    inputs: tuple[torch.Tensor, ...]
    reference: Reference
    limit: float
    """The largest error that is allowed to who computes in fp32, in the tolerance's unit."""


class Probes:
    """The probes of a case by their seed.  Any number of threads may ask.

    Args:
        yardstick: asked when a probe is first made, and only then.
        kept: seeds that several implementations are held against; their inputs and their reference are kept
            if they are not too large.
    """

    def __init__(
        self, op: Op, case: Case, device: torch.device, yardstick: Yardstick, kept: Collection[int]
    ) -> None:
        self._op, self._case, self._device = op, case, device
        self._yardstick, self._kept = yardstick, frozenset(kept)
        self._limits: dict[int, float] = {}
        self._probes: dict[int, Probe] = {}
        self._lock = threading.Lock()

    def of(self, seed: int) -> Probe:
        with self._lock:
            return self._probes[seed] if seed in self._probes else self._make(seed)

    def _make(self, seed: int) -> Probe:
        generator = torch.Generator(self._device).manual_seed(seed)
        inputs = self._op.make_inputs(self._case, generator, self._device)
        keep = seed in self._kept and sum(x.numel() for x in inputs) <= _KEPT_ELEMENTS
        reference = Reference(self._op, inputs, keep)
        if seed not in self._limits:
            self._limits[seed] = self._yardstick.limit(self._case, reference)
        probe = Probe(f"seed {seed}", inputs, reference, self._limits[seed])
        if keep:
            self._probes[seed] = probe
        return probe


class Reference:
    """The oracle's output for one set of inputs, piece by piece along the op's independent dimension.

    Where the op says what its errors are held against, every piece comes with these magnitudes.
    """

    def __init__(self, op: Op, inputs: tuple[torch.Tensor, ...], keep: bool = False) -> None:
        self.inputs = inputs
        self.device = inputs[0].device
        self._op = op
        self._pieces: list[tuple[torch.Tensor, torch.Tensor | None]] | None = [] if keep else None

    def beside(
        self, output: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]]:
        """Pieces of it, each with its magnitudes and with that of an output."""
        for i, (parts, out) in enumerate(_pieces(self._op, self.inputs, output)):
            if self._pieces is not None and i < len(self._pieces):
                yield *self._pieces[i], out
                continue
            wide = [part.double() for part in parts]
            piece = self._op.oracle(*wide)
            sizes = None if self._op.magnitude is None else self._op.magnitude(*wide)
            del wide
            if self._pieces is not None:
                self._pieces.append((piece, sizes))
            yield piece, sizes, out


class Here:
    """An implementation in this process."""

    def __init__(self, impl: Implementation, device: torch.device) -> None:
        self._impl, self._device = impl, device
        self._inputs: tuple[torch.Tensor, ...] = ()
        self._previous: torch.Tensor | None = None

    def place(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._inputs = inputs
        return inputs

    def call(self, expected: torch.Tensor) -> Called:
        guard = GuardedMemory(self._device)
        nbytes = sum(x.numel() * x.itemsize for x in (*self._inputs, expected))
        with threads_for(nbytes) if self._device.type == "cpu" else contextlib.nullcontext():
            output, delivered = self._run(guard, expected)
        problem = wrong_kind(output, expected, self._device)
        violations, borrowed = tuple(guard.violations()), tuple(guard.borrowed)
        if problem is not None:
            return Called(None, problem, violations, borrowed=borrowed)
        shared = _shared(output, self._inputs, self._previous)
        self._previous = output
        return Called(delivered, None, violations, guard.owns(output), shared, borrowed)

    def _run(self, guard: GuardedMemory, expected: torch.Tensor) -> tuple[Any, Any]:
        """Run with poison in all memory the output may come from; the output, and what was in it at once."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            # Freed at once: the caching allocator hands it out again to whoever asks for as much.
            poisoned(expected.numel() * expected.itemsize, self._device)
            self._let_inputs_come_late()
        # PyTorch's own ways allocate inside PyTorch, where the mode does not reach, and torch.compile would
        # not compile under it.
        with guard if self._impl.way != "torch" else contextlib.nullcontext():
            output = self._impl.run(*self._inputs)
        # Right behind the call on its own stream, or at once: what another stream or thread still does to the
        # output comes too late.
        delivered = output.clone() if type(output) is torch.Tensor and not output.is_meta else output
        if on_gpu:
            torch.cuda.synchronize(self._device)
        return output, delivered

    def _let_inputs_come_late(self) -> None:
        """Enqueue writing them behind a pause: whoever reads them on another stream reads NaN."""
        memory = [memory_of(x) for x in self._inputs]
        if sum(x.numel() * x.itemsize for x in memory) > _LATE_BYTES:
            return
        values = [x.clone() for x in memory]
        for x in memory:
            x.fill_(-1)  # all bits set: NaN in every floating-point dtype
        torch.cuda.synchronize(self._device)
        torch.cuda._sleep(_LATE_CYCLES)
        for x, value in zip(memory, values, strict=True):
            x.copy_(value)


_LATE_BYTES = 64 << 20
_LATE_CYCLES = 1_000_000  # some half a millisecond


@functools.lru_cache
def expected_output(op: Op, case: Case, device: torch.device) -> torch.Tensor:
    """A meta tensor of the shape and dtype that the output must have."""
    inputs = op.make_inputs(case, torch.Generator(), torch.device("meta"))
    sizes = dict(case.dims)
    of_output = math.prod(sizes.get(dim, 1) for dim in _shapes_of(op.signature)[-1])
    # Computed if that is no effort: PyTorch's functions on meta tensors import sympy first, for a second.
    effortless = sum(x.numel() for x in inputs) + of_output < _EFFORTLESS_ELEMENTS[device.type]
    where = device if effortless else torch.device("meta")
    output = op.oracle(*(torch.ones(x.shape, dtype=torch.float64, device=where) for x in inputs))
    if not isinstance(output, torch.Tensor):
        raise UsageError(f"{op.name}: its oracle gives no tensor, but {output!r}")
    return output.to("meta", TORCH_DTYPES[op.output_dtype or case.dtype])


def errors_of(
    op: Op,
    case: Case,
    reference: Reference,
    output: torch.Tensor,
    limit: float,
    accumulator: str = "fp32",
    quantile_elements: int = _QUANTILE_ELEMENTS,
    located: Located | None = None,
) -> _Errors:
    """The errors of an output against the oracle, in roundings of ``accumulator``."""
    errors = _Errors(located=located)
    step = max(1, output.numel() // quantile_elements) if quantile_elements else 0
    tolerance, unit = op.tolerance(case), ROUNDOFF[accumulator]
    for ref, sizes, out in reference.beside(output):
        _compare(ref, sizes, out, tolerance, unit, limit, errors, step)
    return errors


def unlike(now: Iterable[torch.Tensor], before: Iterable[torch.Tensor]) -> list[int]:
    """The places of what is not as it was, of `memory_of` each; a GPU is waited for once for all of them."""
    differs = _together(*((one != other).any() for one, other in zip(now, before, strict=True)))
    return [i for i, found in enumerate(differs) if found]


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory a tensor lies in, gaps included, as integers and without a copy."""
    storage = tensor.untyped_storage()
    widest = next(
        dtype
        for dtype in (torch.int64, torch.int32, torch.int16, torch.int8)
        if storage.nbytes() % dtype.itemsize == 0
    )
    return torch.empty(0, dtype=widest, device=tensor.device).set_(storage)


def wrong_kind(output: object, expected: torch.Tensor, device: torch.device) -> str | None:
    """What is wrong with the output before any value is looked at."""
    if type(output) is not torch.Tensor:
        return f"a {type(output).__name__} came back instead of a plain torch.Tensor"
    if output.layout is not torch.strided:
        return f"its layout is {output.layout} and not torch.strided"
    if output.dtype is not expected.dtype:
        return f"its dtype is {output.dtype} and should be {expected.dtype}"
    if output.shape != expected.shape:
        return f"its shape is {tuple(output.shape)} and should be {tuple(expected.shape)}"
    if output.device.type != device.type:
        return f"it is on {output.device} and should be on {device}"
    return None


def _shared(
    output: torch.Tensor, inputs: tuple[torch.Tensor, ...], previous: torch.Tensor | None
) -> str | None:
    """Whose memory the output lies in, if it is not its own."""
    if output.numel() == 0:
        return None
    pointer = output.untyped_storage().data_ptr()
    for i, x in enumerate(inputs):
        if x.untyped_storage().data_ptr() == pointer:
            return f"it lies in the memory of argument {i}"
    if previous is not None and previous.untyped_storage().data_ptr() == pointer:
        return "it lies in the memory of the last call's output"
    return None


def _pieces(
    op: Op, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
) -> Iterator[tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    """Inputs and output, piece by piece along the op's independent dimension."""
    if output.numel() == 0:
        return
    axes = [
        shape.index(op.independent) if op.independent in shape else None for shape in _shapes_of(op.signature)
    ]
    if axes[-1] is None:
        yield inputs, output
        return
    size = output.shape[axes[-1]]
    largest = max(tensor.numel() for tensor in (*inputs, output))
    step = max(1, _PIECE * size // largest)
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


def _compare(
    ref: torch.Tensor,
    sizes: torch.Tensor | None,
    out: torch.Tensor,
    tolerance: Tolerance,
    unit: float,
    limit: float,
    errors: _Errors,
    step: int,
) -> None:
    """Add the errors of ``out`` against the fp64 ``ref``; every ``step``-th goes into the quantiles."""
    if ref.dim() == 0:  # a number alone is a row of one
        ref, out, sizes = ref[None], out[None], None if sizes is None else sizes[None]
    scale = None if sizes is None else tolerance.floor * sizes
    if scale is None and tolerance.reduced_dim is not None:
        finite = ref.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        scale = tolerance.floor * finite.abs().amax(tolerance.reduced_dim, keepdim=True)
        del finite
    columns = max(1, _PIECE * ref.shape[-1] // ref.numel())
    for begin in range(0, ref.shape[-1], columns):
        length = min(columns, ref.shape[-1] - begin)
        of_scale = scale.narrow(-1, begin, length) if scale is not None and scale.shape[-1] > 1 else scale
        _compare_block(
            ref.narrow(-1, begin, length),
            out.narrow(-1, begin, length),
            of_scale,
            unit,
            limit,
            errors,
            step,
        )


def _compare_block(
    ref: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor | None,
    unit: float,
    limit: float,
    errors: _Errors,
    step: int,
) -> None:
    """Add one block's errors.  A GPU computes all of them before it is waited for, once."""
    if not out.is_floating_point():
        _compare_whole(ref, out, errors, step)
        return
    # What rounds to infinity in the output's dtype must be infinite there.
    rounded = ref.to(out.dtype)
    both = rounded.isfinite() & out.isfinite()
    same_special = ((rounded.isnan() & out.isnan()) | (rounded == out)) & ~both
    # Where not both are numbers there is no error to measure: it counts as 0, and in no quantile.
    magnitude = torch.where(both, ref.abs(), 0.0)
    difference = torch.where(both, (out.double() - ref).abs(), 0.0)
    half_ulp = _half_ulp(magnitude, out.dtype)
    excess = difference - half_ulp
    allowed = unit * (magnitude if scale is None else magnitude + scale)
    score = torch.where(excess > 0, excess / allowed, 0.0)
    accepted = (score <= limit) & both
    if errors.located is not None:
        errors.located.mark(out, ref, ~(accepted | same_special))
    normal = magnitude >= torch.finfo(out.dtype).smallest_normal
    relative = torch.where(normal, difference / magnitude, 0.0)
    ulp = difference / (2 * half_ulp)

    special, measured, within, *largest = _together(
        *(same_special.sum(), both.sum(), accepted.sum()),
        *(score.max(), difference.max(), relative.max(), ulp.max()),
    )
    errors.compared += ref.numel()
    errors.misplaced += ref.numel() - int(measured) - int(special)
    errors.within += int(within) + int(special)
    errors.wrong += int(measured) - int(within)
    errors.enlarge(*largest)
    if step:
        # There, as a CPU would take long to sort them all.
        errors.ulps.append(torch.where(both.flatten()[::step], ulp.flatten()[::step], math.nan))


def _compare_whole(ref: torch.Tensor, out: torch.Tensor, errors: _Errors, step: int) -> None:
    """Whole numbers are not rounded: one that is off by anything is wrong."""
    difference = (out.double() - ref).abs()
    relative = difference / ref.abs().clamp(min=1.0)
    if errors.located is not None:
        errors.located.mark(out, ref, difference > 0)
    wrong, max_abs, max_rel = _together((difference > 0).sum(), difference.max(), relative.max())
    errors.compared += ref.numel()
    errors.within += ref.numel() - int(wrong)
    errors.wrong += int(wrong)
    errors.enlarge(math.inf if wrong else 0.0, max_abs, max_rel, max_abs)
    if step:
        errors.ulps.append(difference.flatten()[::step].clone())


def _together(*numbers: torch.Tensor) -> list[float]:
    """The values of tensors that are a number each, for which a GPU is waited for once."""
    return torch.stack([number.double() for number in numbers]).tolist()


def _half_ulp(magnitude: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half a unit in the last place that ``dtype`` has at these fp64 values: what its rounding may lose.

    Below its smallest normal number fp32 and bf16 may lose all, as GPUs flush what lies there to zero.
    """
    finfo = torch.finfo(dtype)
    exponent_bits = 0x7FF0000000000000
    binade = (magnitude.view(torch.int64) & exponent_bits).view(torch.float64)
    half = (binade * (finfo.eps / 2)).clamp(min=finfo.smallest_normal * finfo.eps / 2)
    if dtype is torch.float16:
        return half
    return torch.where(magnitude < finfo.smallest_normal, finfo.smallest_normal, half)


def _summary(trials: list[_Trial], seeds: int) -> Agreement:
    """All seeds in one: the worst of each figure, and each finding as it failed first."""
    worst = max(trials, key=lambda trial: trial.errors.score / trial.limit if trial.limit else math.inf)
    findings: dict[str, Finding] = {}
    for finding in (finding for trial in trials for finding in trial.findings):
        if finding.name not in findings or (findings[finding.name].passed and not finding.passed):
            findings[finding.name] = finding
    errors = [trial.errors for trial in trials]
    samples = [ulp for each in errors for ulp in each.ulps]
    ulps = torch.cat(samples) if samples else torch.full((1,), math.nan, dtype=torch.float64)
    measured = [each for each in errors if each.measured]
    without = 0.0 if measured else math.nan
    p50, p99 = ulps.nanquantile(ulps.new_tensor((0.5, 0.99))).nan_to_num(nan=without).tolist()
    compared = sum(each.compared for each in errors)
    return Agreement(
        passed=all(finding.passed for finding in findings.values()),
        max_abs=max((each.max_abs for each in measured), default=math.nan),
        max_rel=max((each.max_rel for each in measured), default=math.nan),
        ulp_p50=p50,
        ulp_p99=p99,
        ulp_max=max((each.max_ulp for each in measured), default=math.nan),
        within=sum(each.within for each in errors) / compared if compared else 1.0,
        error=worst.errors.score,
        limit=worst.limit,
        seeds=seeds,
        findings=tuple(findings.values()),
        mismatch=next((trial.mismatch for trial in trials if trial.mismatch), None),
    )
