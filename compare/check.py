"""Agreement: does an implementation compute what the op says, and nothing else?

The reference is the op's oracle in fp64 on the very inputs the implementation got.  What counts as an
error, and how much of it is too much, is said by `compare.spec.Tolerance`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from compare import registry
from compare.guard import GuardedMemory, poisoned, untouched
from compare.inputs import TORCH_DTYPES
from compare.spec import Agreement, Case, Finding, Implementation, Op, Tolerance

FP32_ROUNDOFF = 2.0**-24

_PIECE = 1 << 24
"""Elements compared at a time: in fp64 with all that is derived from them about 1 GB."""

_QUANTILE_ELEMENTS = 1 << 18
"""Elements that the quantiles rest on; maxima rest on all."""


class Yardsticks:
    """The error of PyTorch's own implementation of ``op``, taken once for all who get the same inputs."""

    def __init__(self, op: Op) -> None:
        self._op = op
        self._scores: dict[tuple[Case, torch.device, int], float] = {}

    def score(self, case: Case, device: torch.device, seed: int) -> float:
        """Its largest error in the tolerance's unit; 0 where the op has no such implementation."""
        key = case, device, seed
        if key not in self._scores:
            self._scores[key] = self._taken(*key)
        return self._scores[key]

    def _taken(self, case: Case, device: torch.device, seed: int) -> float:
        baseline = _baseline(self._op)
        errors = _Errors()
        if baseline is not None:
            inputs = self._op.make_inputs(case, torch.Generator(device).manual_seed(seed), device)
            for ref, out in _pieces(self._op, inputs, baseline.run(*inputs)):
                _compare(ref, out, self._op.tolerance(case), math.inf, errors, step=0)
        return errors.score


def check(
    op: Op,
    impl: Implementation,
    case: Case,
    device: torch.device,
    seeds: Sequence[int] = (0, 1, 2),
    yardsticks: Yardsticks | None = None,
) -> Agreement:
    """Run an implementation on fresh inputs, one set a seed, and hold its outputs against the oracle.

    A wrong implementation gives an `Agreement` that says so.  What ``impl.run`` raises is passed on.

    Args:
        op: has the oracle and the tolerance.
        impl: what is checked.
        case: what to check it on.
        device: where.
        seeds: of the inputs.
        yardsticks: of the same op, kept from one implementation to the next.
    """
    yardsticks = yardsticks or Yardsticks(op)
    if device.type == "cpu":
        _settle_vector_math()
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        expected = _expected(op, case)
        trials = []
        previous: torch.Tensor | None = None
        for seed in seeds:
            limit = max(2 * yardsticks.score(case, device, seed), op.tolerance(case).least)
            trial, previous = _try(op, impl, case, device, seed, limit, expected, previous)
            trials.append(trial)
    return _summary(trials)


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
    wrong: int = 0
    """Elements beyond the limit."""
    misplaced: int = 0
    """NaN or infinity where none belongs, or none or another where one does."""
    invariants: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Trial:
    errors: _Errors
    limit: float
    findings: tuple[Finding, ...]


def _try(
    op: Op,
    impl: Implementation,
    case: Case,
    device: torch.device,
    seed: int,
    limit: float,
    expected: torch.Tensor,
    previous: torch.Tensor | None,
) -> tuple[_Trial, torch.Tensor | None]:
    """One set of inputs: run, then look at everything the run left behind."""
    generator = torch.Generator(device).manual_seed(seed)
    inputs = op.make_inputs(case, generator, device)
    memory = [_memory(x) for x in inputs]
    copies = [x.clone() for x in memory]
    guard = GuardedMemory(device)
    output = _run(impl, inputs, guard, expected)

    findings: list[Finding] = []

    def found(name: str, problem: str | None, otherwise: str = "") -> None:
        findings.append(Finding(name, problem is None, f"seed {seed}: {problem}" if problem else otherwise))

    problem = _wrong_kind(output, expected, device)
    found("output", problem)
    changed = [i for i, (now, copy) in enumerate(zip(memory, copies, strict=True)) if not now.equal(copy)]
    found("inputs unchanged", f"argument {changed[0]} was written to" if changed else None)
    for i in changed:
        memory[i].copy_(copies[i])
    del copies
    where = "around the output" if not problem and guard.owns(output) else "none around the output"
    found("guard zones", "; ".join(guard.violations()) or None, where)
    if problem:
        return _Trial(_Errors(score=math.inf, compared=1), 0.0, tuple(findings)), None
    found("output is fresh", _shared(output, inputs, previous))
    unwritten = int(untouched(output).sum())
    found("all written", f"{unwritten} of {output.numel()} elements were not" if unwritten else None)

    errors = _Errors()
    step = max(1, output.numel() // _QUANTILE_ELEMENTS)
    for ref, out in _pieces(op, inputs, output):
        _compare(ref, out, op.tolerance(case), limit, errors, step)
    wrong = (
        f"{errors.wrong} of {errors.compared} elements are off, by up to {errors.score:.3g} fp32 roundings"
    )
    found("values", f"{wrong} where {limit:.3g} are allowed" if errors.wrong else None)
    misplaced = f"{errors.misplaced} elements are not where the reference has them"
    found("NaN and infinity", misplaced if errors.misplaced else None)
    for invariant in op.invariants:
        found(invariant.name, invariant.check(inputs, output))
    return _Trial(errors, limit, tuple(findings)), output


def _run(
    impl: Implementation, inputs: tuple[torch.Tensor, ...], guard: GuardedMemory, expected: torch.Tensor
) -> torch.Tensor:
    """Run with poison in all memory the output may come from."""
    if guard.device.type == "cuda":
        # Freed at once: the caching allocator hands it out again to whoever asks for as much.
        poisoned(expected.numel() * expected.itemsize, guard.device)
    # PyTorch's own ways allocate inside PyTorch, where the mode does not reach, and torch.compile would
    # not compile under it.
    with guard if impl.way != "torch" else contextlib.nullcontext():
        output = impl.run(*inputs)
    if guard.device.type == "cuda":
        torch.cuda.synchronize(guard.device)
    return output


def _expected(op: Op, case: Case) -> torch.Tensor:
    """A meta tensor of the shape and dtype that the output must have."""
    inputs = op.make_inputs(case, torch.Generator(), torch.device("meta"))
    # Small ones on the CPU: PyTorch's functions on meta tensors import sympy first, for a second.
    small = sum(x.numel() for x in inputs) < 1 << 16
    device = "cpu" if small else "meta"
    output = op.oracle(*(torch.ones(x.shape, dtype=torch.float64, device=device) for x in inputs))
    return output.to("meta", TORCH_DTYPES[case.dtype])


def _baseline(op: Op) -> Implementation | None:
    return next((impl for impl in registry.implementations(op.name) if impl.label == op.baseline), None)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory a tensor lies in, gaps included, as integers and without a copy."""
    storage = tensor.untyped_storage()
    widest = next(
        dtype
        for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
        if storage.nbytes() % dtype.itemsize == 0
    )
    return torch.empty(0, dtype=widest, device=tensor.device).set_(storage)


def _wrong_kind(output: object, expected: torch.Tensor, device: torch.device) -> str | None:
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
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Reference and output, piece by piece along the op's independent dimension."""
    if output.numel() == 0:
        return
    axes = _axes_of(op.independent, op.signature)
    if axes[-1] is None:
        yield op.oracle(*(x.double() for x in inputs)), output
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
        yield op.oracle(*(part.double() for part in parts)), out


def _axes_of(dim: str | None, signature: str) -> list[int | None]:
    """Which axis ``dim`` is of each tensor in ``x[M,N], y[N] -> z[M,N]``, inputs first."""
    shapes = [re.split(r"\s*,\s*", sizes) for sizes in re.findall(r"\w+\[([^\]]*)\]", signature)]
    return [shape.index(dim) if dim in shape else None for shape in shapes]


def _compare(
    ref: torch.Tensor, out: torch.Tensor, tolerance: Tolerance, limit: float, errors: _Errors, step: int
) -> None:
    """Add the errors of ``out`` against the fp64 ``ref``; every ``step``-th goes into the quantiles."""
    scale = None
    if tolerance.reduced_dim is not None:
        finite = ref.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        scale = tolerance.floor * finite.abs().amax(tolerance.reduced_dim, keepdim=True)
        del finite
    columns = max(1, _PIECE * ref.shape[-1] // ref.numel()) if ref.dim() else 1
    for begin in range(0, ref.shape[-1], columns):
        length = min(columns, ref.shape[-1] - begin)
        of_scale = scale.narrow(-1, begin, length) if scale is not None and scale.shape[-1] > 1 else scale
        _compare_block(
            ref.narrow(-1, begin, length), out.narrow(-1, begin, length), of_scale, limit, errors, step
        )


def _compare_block(
    ref: torch.Tensor, out: torch.Tensor, scale: torch.Tensor | None, limit: float, errors: _Errors, step: int
) -> None:
    # What rounds to infinity in the output's dtype must be infinite there.
    rounded = ref.to(out.dtype)
    regular = rounded.isfinite()
    same_special = (rounded.isnan() & out.isnan()) | (rounded == out)
    errors.misplaced += int((~same_special & ~(regular & out.isfinite())).sum())

    both = regular & out.isfinite()
    magnitude = ref.abs()[both]
    difference = (out.double() - ref).abs()[both]
    half_ulp = _half_ulp(magnitude, out.dtype)
    excess = difference - half_ulp
    unit = FP32_ROUNDOFF * (magnitude if scale is None else magnitude + scale.expand_as(ref)[both])
    score = torch.where(excess > 0, excess / unit, 0.0)

    errors.compared += ref.numel()
    accepted = score <= limit
    special = int(same_special.sum()) - int((same_special & both).sum())
    errors.within += int(accepted.sum()) + special
    errors.wrong += int((~accepted).sum())
    if len(score) == 0:
        return
    errors.score = max(errors.score, float(score.max()))
    errors.max_abs = max(errors.max_abs, float(difference.max()))
    normal = magnitude >= torch.finfo(out.dtype).smallest_normal
    relative = torch.where(normal, difference / magnitude, 0.0)
    errors.max_rel = max(errors.max_rel, float(relative.max()))
    ulp = difference / (2 * half_ulp)
    errors.max_ulp = max(errors.max_ulp, float(ulp.max()))
    if step:
        errors.ulps.append(ulp[::step].cpu())


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


def _summary(trials: list[_Trial]) -> Agreement:
    """All seeds in one: the worst of each figure, and each finding as it failed first."""
    worst = max(trials, key=lambda trial: trial.errors.score / trial.limit if trial.limit else math.inf)
    findings: dict[str, Finding] = {}
    for finding in (finding for trial in trials for finding in trial.findings):
        if finding.name not in findings or (findings[finding.name].passed and not finding.passed):
            findings[finding.name] = finding
    errors = [trial.errors for trial in trials]
    samples = [ulp for each in errors for ulp in each.ulps]
    ulps = torch.cat(samples) if samples else torch.zeros(1, dtype=torch.float64)
    compared = sum(each.compared for each in errors)
    return Agreement(
        passed=all(finding.passed for finding in findings.values()),
        max_abs=max(each.max_abs for each in errors),
        max_rel=max(each.max_rel for each in errors),
        ulp_p50=float(ulps.quantile(0.5)),
        ulp_p99=float(ulps.quantile(0.99)),
        ulp_max=max(each.max_ulp for each in errors),
        within=sum(each.within for each in errors) / compared if compared else 1.0,
        error=worst.errors.score,
        limit=worst.limit,
        seeds=len(trials),
        findings=tuple(findings.values()),
    )
