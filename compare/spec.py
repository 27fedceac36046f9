"""The vocabulary of the project as frozen data: cases, ops, implementations and results.

Nothing here computes, prints or imports a GPU library.  Every stage of a run takes these values and
returns one of them; units stand in the field names (``median_us``, ``shared_bytes``, ``read_gbs``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

WAYS = ("torch", "triton", "cuda")
ROUTES = ("cupy", "pybind")
LIBRARY = "library"
"""The route of a yardstick: a library's kernels, called from C++.  It is none of `WAYS`: they are not
written here."""
LEVELS = ("naive", "tiled", "tensor_core", "hopper", "vendor")
DTYPES = ("fp32", "fp16", "bf16")
FP8 = "fp8"
"""e4m3: 4 bits of exponent, 3 of mantissa, NaN but no infinity, at most 448."""
WHOLE = ("uint8", "int8", "int64")
"""Dtypes of whole numbers: right to the last digit, or wrong.  They have no `FILLS` but the usual one."""
QUANTIZED = ("int8", FP8)
"""What 8-bit tensor cores multiply, twice as fast as fp16."""
LAYOUTS = ("contiguous", "padded", "transposed", "sliced", "misaligned", "expanded")
FILLS = ("normal", "huge", "neg_inf", "nan", "zero")
NO_INFINITY = tuple(fill for fill in FILLS if fill != "neg_inf")
"""The fills of `FP8`."""

ROUNDOFF = {
    "fp32": 2.0**-24,
    "int32": 2.0**-24,
    "fp22": 2.0**-14,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}
"""What one rounding may lose, relative to the value.  ``tf32``: fp32 inputs whose products tensor cores make
from their leading 10 bits, with sums in fp32.  ``int32``: exact sums of whole numbers, converted to fp32 at
the end.  ``fp22``: sums with 13 bits behind the leading one, as Hopper's tensor cores add products of fp8;
PyTorch calls it fast accumulation."""

ARCHITECTURE = re.compile(r"sm_(\d{2,3})(?:(?<!sm_[78]\d)[af])?", re.ASCII)
"""``sm_90``, or with what only that one has ``sm_90a``: 90 is its compute capability."""

TOO_MUCH = 2**60
"""No size of a case is as large, nor are its inputs and outputs together in bytes: 64 bits count eight times
as many, and so much may these take in fp64 or in a layout with gaps."""

Status = Literal["ok", "disagrees", "impossible", "failed", "unavailable"]

WRONG: tuple[Status, ...] = ("disagrees", "impossible")
"""What is wrong with an implementation itself: it disagrees, or its time is below what its work takes."""

UNREAD = "resources unread"
"""How the reason of a row begins whose kernels could not be compiled for an architecture."""


class UsageError(ValueError):
    """A mistake in what the user asked for.  Its text says what, where and what to do next."""


@dataclass(frozen=True)
class Case:
    """Named dimensions, a dtype, and optionally how the inputs lie in memory and what they hold.

    Printed and parsed as ``M=4096,N=781,fp16``; a layout or fill other than the usual one is a further
    word: ``M=4,N=129,fp32,transposed,neg_inf``.
    """

    dims: tuple[tuple[str, int], ...]
    dtype: str
    layout: str = "contiguous"
    fill: str = "normal"

    def __getitem__(self, name: str) -> int:
        for dim, size in self.dims:
            if dim == name:
                return size
        raise KeyError(name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes in the op's order."""
        return tuple(size for _, size in self.dims)

    def __str__(self) -> str:
        words = [f"{name}={size}" for name, size in self.dims] + [self.dtype]
        words += [word for word in (self.layout, self.fill) if word not in ("contiguous", "normal")]
        return ",".join(words)

    @classmethod
    def parse(cls, text: str, op: Op) -> Case:
        """Read ``M=4096,N=781,fp16`` as a case of ``op``; a `UsageError` says what is wrong."""
        example = str(op.cases.default)

        def wrong(why: str) -> UsageError:
            return UsageError(f"case {text!r} of {op.name}: {why}. A case reads like {example}")

        sizes: dict[str, int] = {}
        choices: dict[str, str] = {}
        kinds = {"dtype": (*DTYPES, FP8, *WHOLE), "layout": op.layouts, "fill": FILLS}
        for word in (part.strip() for part in text.split(",")):
            name, equals, value = word.partition("=")
            if equals:
                if name not in op.dims:
                    raise wrong(f"{name!r} is no dimension; there are {', '.join(op.dims)}")
                if name in sizes:
                    raise wrong(f"{name} is given twice")
                if not (value.isascii() and value.isdigit()):
                    raise wrong(f"{name}={value!r} is not a whole number of 0 or more")
                digits = value.lstrip("0") or "0"
                # Counted first: Python reads no number of thousands of digits.
                if len(digits) > len(str(TOO_MUCH)) or int(digits) >= TOO_MUCH:
                    raise wrong(f"{name} is 2^60 or more, and a size has to be less")
                sizes[name] = int(digits)
                continue
            kind = next((kind for kind, words in kinds.items() if word in words), None)
            if kind is None:
                known = ", ".join((*op.dtypes, *op.layouts, *FILLS))
                raise wrong(f"{word!r} is neither NAME=SIZE nor one of {known}")
            if kind in choices:
                raise wrong(f"two words for the {kind}: {choices[kind]} and {word}")
            choices[kind] = word
        missing = [name for name in op.dims if name not in sizes]
        if missing:
            raise wrong(f"{', '.join(missing)} is missing")
        if choices.setdefault("dtype", op.dtypes[0]) not in op.dtypes:
            raise wrong(f"{op.name} takes {', '.join(op.dtypes)}, not {choices['dtype']}")
        if choices["dtype"] == FP8 and choices.get("fill") not in (None, *NO_INFINITY):
            raise wrong(f"fp8 (e4m3) has no infinity; its fills are {', '.join(NO_INFINITY)}")
        found = cls(tuple((name, sizes[name]) for name in op.dims), **choices)
        # Sizes count in what is empty or expanded as well: strides are made of them.
        dims = tuple((name, max(size, 1)) for name, size in found.dims)
        nbytes = op.cost(replace(found, dims=dims, layout="contiguous")).bytes
        if nbytes >= TOO_MUCH:
            raise wrong(f"its inputs and outputs take {nbytes:.1e} bytes, and that has to be less than 2^60")
        return found


def case(dtype: str = "fp32", layout: str = "contiguous", fill: str = "normal", **dims: int) -> Case:
    """Write a case in code: ``case("fp16", M=4096, N=781)``."""
    return Case(tuple(dims.items()), dtype, layout, fill)


@dataclass(frozen=True)
class Cost:
    """What a case must do at least: each input read once, each output written once."""

    flops: int
    read_bytes: int
    written_bytes: int

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def busy(self) -> bool:
        """Whether it is about arithmetic: no GPU served here is kept from its memory by fewer operations."""
        return self.flops > BUSY * self.bytes


BUSY = 8.0
"""Operations a byte."""


@dataclass(frozen=True)
class Tolerance:
    """How far an output may lie from the fp64 oracle.

    The last step of every implementation rounds an fp32 value to the output's dtype, which moves it by
    half a unit in its last place at most.  The error of an element is what is left of ``|out - ref|``
    after that, counted in roundings of fp32: ``max(0, |out - ref| - half_ulp(ref)) / (2^-24 * (|ref| +
    floor * scale))``, where ``scale`` is the op's ``magnitude`` if it has one, else the largest ``|ref|``
    along ``reduced_dim``, 0 where that is None.  So fp16 and bf16 outputs are held to what fp32 arithmetic
    can do, and anything computed in a lower precision scores hundreds.

    Where the op has ``intermediate``, half a unit in the last place of that is left out as well.

    The limit is ``least``, or twice what PyTorch's own implementation scores on the same inputs, where that
    is more.
    """

    least: float
    """How many roundings of fp32 an implementation may lose: twice what the best on a GPU lose."""
    least_rounded: float | None = None
    """The same for one that computes in less than fp32 and says so: how many roundings of what it computes
    in.  None: as many."""
    from_baseline: bool = True
    """Whether twice the error of PyTorch's own implementation is allowed as well.  Not where the baseline
    sums in less than fp32: then its error says nothing of the others."""
    reduced_dim: int | None = None
    floor: float = 1.0
    """How far below ``scale`` elements may lie and still have to be right to their own last digits."""
    exact: bool = False
    """Whether the oracle returns values of the output's dtype, of which each has to be met: of a quantizer,
    rounding is the work.  Without it an output may round to either neighbour of a tie."""


@dataclass(frozen=True)
class Invariant:
    """A property every right output has, whatever the reference says."""

    name: str
    check: Callable[[tuple[torch.Tensor, ...], torch.Tensor], str | None]
    """``check(inputs, output)``: None where it holds, else what is wrong."""


@dataclass(frozen=True)
class Revealing:
    """Other inputs for large cases, on which an error shows that is lost among a million terms."""

    change: Callable[[tuple[torch.Tensor, ...]], None]
    """Turns inputs into these, in place."""
    exact: bool = False
    """Whether nothing rounds on them, in any order of operations: any difference is wrong."""


@dataclass(frozen=True)
class Cases:
    default: Case
    smoke: tuple[Case, ...]
    """Small enough for Triton's interpreter and the host build."""
    edge: tuple[Case, ...]
    """0 and 1 rows, odd sizes, strides, misalignment, extreme values, more than 2^31 elements."""
    sweep: tuple[Case, ...]
    """Timed by ``--sweep`` and recorded."""


@dataclass(frozen=True)
class Output:
    """An output behind the first: what `Op` says of its first, for this one."""

    oracle: Callable[..., torch.Tensor]
    tolerance: Callable[[Case], Tolerance]
    magnitude: Callable[..., torch.Tensor] | None = None
    dtype: str | None = None
    """One of `DTYPES` or `WHOLE`, or `FP8`, whatever the case's.  None: the case's."""


def no_options(case: Case) -> dict[str, Any]:
    """`Op.options` of an op that takes tensors only."""
    return {}


def nothing_open(inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    """`Op.settle` of an op that says of every element of its output what it is."""


@dataclass(frozen=True)
class Op:
    """What is computed, independent of how."""

    name: str
    summary: str
    """A formula, then what else there is to say: ``y = x: ...``, ``c = a @ b, with ...``."""
    signature: str
    """Shapes in and out: ``x[M,N] -> y[M,N]``; of several outputs ``-> y[M,N], scale[M]``."""
    dims: tuple[str, ...]
    dtypes: tuple[str, ...]
    make_inputs: Callable[[Case, torch.Generator, torch.device], tuple[torch.Tensor, ...]]
    oracle: Callable[..., torch.Tensor]
    """The reference; takes the inputs already upcast to fp64, whole numbers too, and returns fp64."""
    cost: Callable[[Case], Cost]
    tolerance: Callable[[Case], Tolerance]
    cases: Cases
    baseline: str = "torch.eager"
    """Label of PyTorch's own implementation: its error sets the tolerance, its time the ratio."""
    invariants: tuple[Invariant, ...] = ()
    layouts: tuple[str, ...] = LAYOUTS
    """How its inputs may lie in memory.  An op may add words for single inputs, ``b_transposed``, which its
    ``make_inputs`` reads."""
    magnitude: Callable[..., torch.Tensor] | None = None
    """Like ``oracle``, of the terms' magnitudes: an element's error is relative to it as well as to the
    element itself, where the element is a sum whose terms may cancel.  None: what `Tolerance` says."""
    intermediate: Callable[..., torch.Tensor] | None = None
    """Like ``oracle``, of an intermediate result that implementations may round to the output's dtype: its
    size, times the output's derivative by it.  Half a unit in its last place is no error.  None: there is
    no such result."""
    revealing: Revealing | None = None
    settle: Callable[[tuple[torch.Tensor, ...], torch.Tensor], None] = nothing_open
    """``settle(inputs, output)`` puts the oracle's values where the op leaves open what the output holds.
    Outputs are settled before they are compared: behind the end of a compaction anything may stand."""
    output_dtype: str | None = None
    """The output's dtype, one of `DTYPES` or `WHOLE`, or `FP8`, whatever the case's.  None: the case's."""
    options: Callable[[Case], Mapping[str, Any]] = no_options
    """What a case passes beside the tensors, as keywords that JSON can hold: ``{"causal": True}``.  Oracles,
    magnitudes and implementations take them."""
    further: tuple[Output, ...] = ()
    """The outputs behind the first.  An implementation then returns a tuple of tensors."""
    independent: str | None = None
    """A dimension whose slices have nothing to do with each other, as softmax's rows: the checker works
    through a big case piece by piece along it.  None: the whole case at once."""

    weights: tuple[str, ...] = ()
    """Inputs that stay the same from call to call, which `Implementation.prepare` may rearrange offline."""

    def weights_of(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Its ``weights`` among the inputs."""
        names = re.findall(r"(\w+)\[", self.signature.rpartition("->")[0])
        return tuple(x for name, x in zip(names, inputs, strict=True) if name in self.weights)

    @property
    def formula(self) -> str:
        """What is computed: the summary up to what says how, along what or from what."""
        return re.split(r": |,? (?:along|for|with|without|\w+ing)\b", self.summary)[0]

    @property
    def output(self) -> str:
        """The name of the first output in the signature."""
        return self.signature.rpartition("->")[2].strip().partition("[")[0]

    @property
    def only_moves(self) -> bool:
        """Whether it computes nothing, so that to copy is to do its work."""
        return self.cost(self.cases.default).flops == 0


@functools.lru_cache
def by_output(op: Op, case: Case) -> tuple[Op, ...]:
    """``op`` as ops of one output each, whose oracles have the case's options."""
    options = op.options(case)

    def given(oracle: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return functools.partial(oracle, **options) if options else oracle

    inputs, _, outputs = op.signature.rpartition("->")
    shapes = re.findall(r"\w+\[[^\[\]]*\]", outputs)
    first = replace(
        op,
        signature=f"{inputs}-> {shapes[0]}",
        oracle=given(op.oracle),
        magnitude=op.magnitude and given(op.magnitude),
        intermediate=op.intermediate and given(op.intermediate),
        further=(),
    )
    others = (
        replace(
            first,
            signature=f"{inputs}-> {shape}",
            oracle=given(other.oracle),
            tolerance=other.tolerance,
            magnitude=other.magnitude and given(other.magnitude),
            intermediate=None,
            output_dtype=other.dtype,
            settle=nothing_open,
            invariants=(),
        )
        for shape, other in zip(shapes[1:], op.further, strict=True)
    )
    return (first, *others)


def way_of(label: str) -> str:
    """The way of the implementation with that label, one of `WAYS`; of a yardstick ``library``."""
    route = label.partition(".")[0]
    return "cuda" if route in ROUTES else route


def is_yardstick(label: str) -> bool:
    """Whether it is a library's kernel, which the ways are compared with, and no way itself."""
    return way_of(label) not in WAYS


@dataclass(frozen=True)
class Implementation:
    """One op, one way or route, one variant."""

    op: str
    label: str
    """``torch.eager``, ``triton.online``, ``cupy.online``, ``pybind.online``."""
    level: str
    run: Callable[..., torch.Tensor]
    """Torch tensors in, a fresh tensor out, on torch's current stream."""
    requires: str | None = None
    """The least compute capability, as ``sm_90``; None: anything the project serves."""
    accumulator: str = "fp32"
    """In what precision it computes, one of `ROUNDOFF`: ratios are printed only between equals, and errors
    are counted in roundings of it."""
    origin: str = ""
    """The file it was loaded from."""
    foreign: bool = False
    """Of a user's file, which no process but a worker loads: ``run`` only stands for it."""
    source_hash: str = ""
    """Of a user's file, read by another process: `compare.code_size.hashes.source_hash`."""
    tunable: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """What of it can be chosen, as ``BLOCK_M``, each with the values that it takes.  Those that it has a
    keyword-only parameter for are passed to ``run``; one that has a single value is said and never passed."""
    untuned: str = ""
    """Label of the implementation that is the same but for the search: the default configuration."""
    matches: str = ""
    """Label of the implementation whose configuration it is run with by ``--matched``."""
    base: str = ""
    """Label of the implementation that it is with other ``parameters``; empty for what is registered."""
    parameters: tuple[tuple[str, int], ...] = ()
    """What ``run`` is called with in place of its defaults."""
    deterministic: bool = True
    """Whether it gives the same bits for the same inputs, every time and by every route."""
    without_gpu: bool = True
    """Whether a CPU runs it too, as far as ``requires`` allows: Gluon has no interpreter."""
    emulated: bool = False
    """Whether the CPU build of kernels emulates the units of the architecture it requires."""
    algorithm: str = ""
    """What it shares with implementations of other ways that declare the same: ``online: max and sum in one
    read``.  Empty: nothing is said of that."""
    prepare: Callable[..., tuple[torch.Tensor, ...]] | None = None
    """Offline preparation: takes the op's ``weights``, and returns what ``run`` takes as its keyword
    ``prepared``.  It is never part of a timed call; its own time is a note of the row.  Without the keyword
    ``run`` prepares by itself."""
    options: tuple[tuple[str, Any], ...] = ()
    """The case's, by `given`: what `call` adds to the tensors."""

    def given(self, options: Mapping[str, Any]) -> Implementation:
        """The same with a case's options."""
        return replace(self, options=tuple(options.items()))

    @property
    def call(self) -> Callable[..., Any]:
        """``run`` with the options: tensors in, a fresh tensor or a tuple of several out."""
        return functools.partial(self.run, **dict(self.options)) if self.options else self.run

    def ready(self, op: Op, inputs: Sequence[torch.Tensor]) -> Callable[[], Any]:
        """A call on these inputs, with its weights prepared."""
        if self.prepare is None:
            return functools.partial(self.call, *inputs)
        return functools.partial(self.call, *inputs, prepared=self.prepare(*op.weights_of(inputs)))

    @property
    def stand_in(self) -> bool:
        """Whether it is run with what another's search finds, and so not before that."""
        return bool(self.base and self.matches)

    @property
    def route(self) -> str:
        """``torch``, ``triton``, ``cupy``, ``pybind`` or ``library``."""
        return self.label.partition(".")[0]

    @property
    def way(self) -> str:
        """One of `WAYS`, or ``library``, which is none of them."""
        return way_of(self.label)

    @property
    def has_own_kernels(self) -> bool:
        """Whether its kernels are written here: they are neither PyTorch's nor a library's."""
        return self.way != "torch" and not is_yardstick(self.label)

    @property
    def variant(self) -> str:
        return self.label.partition(".")[2]


# --------------------------------------------------------------------------- what a launch is


@dataclass(frozen=True)
class CudaLaunch:
    """One launch of a CUDA kernel, as captured from an implementation's own host code."""

    source: str
    """The op whose ``cuda_impl/kernels/<source>.cuh`` holds or includes it, or the CUDA text itself."""
    kernel: str
    """NVRTC name expression: ``softmax_online_kernel<float, 256>``."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = 0
    arguments: tuple[Any, ...] = field(default=(), compare=False)
    """As they were handed over: an ``int`` is an address, all else a numpy scalar of the parameter's size."""
    cluster: int = 1
    """Blocks in a cluster, where the host code has to say it; 1: by the kernel's own word, or none."""


@dataclass(frozen=True)
class TritonLaunch:
    """One launch of a Triton kernel, as captured from an implementation's own host code."""

    kernel: Any
    """The ``JITFunction``."""
    arguments: dict[str, Any]
    """Every bound argument by name; tensors are meta tensors."""
    grid: tuple[int, int, int]
    options: dict[str, Any] = field(default_factory=dict)
    """``num_warps``, ``num_stages`` ..."""


# --------------------------------------------------------------------------- results


@dataclass(frozen=True)
class Tuning:
    """A search for the fastest configuration: among which, for how long, and what it found."""

    kernel: str
    """What was tuned: a Triton kernel, or an operation in torch.compile."""
    key: str
    """The class of shapes that the search was for, as its tuner has it."""
    found: str
    """``BLOCK_M=128 BLOCK_N=256 num_warps=8``; in torch.compile the name of what won."""
    space: tuple[str, ...]
    """Everything that it may choose from."""
    tried: int
    """How many of these were timed."""
    search_s: float
    """What that took, compiling them included: part of a first call, unless it was `kept`."""
    searched: str = ""
    """When: ISO 8601, UTC."""
    kept: bool = False
    """Found by an earlier run, and taken from the cache."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked, and what came of it."""

    name: str
    passed: bool
    detail: str = ""


OWN_WORK = "own work"
CONDUCT = ("inputs unchanged", "guard zones", OWN_WORK, "output is fresh", "other sizes")
"""Names of findings on how an output came about, or on other cases: its values may still be correct."""


@dataclass(frozen=True)
class Mismatch:
    """The first wrong element of an output, and what all wrong ones have in common."""

    index: tuple[int, ...]
    got: float
    expected: float
    count: int
    """How many elements are wrong, and of how many."""
    of: int
    pattern: str = ""
    """A guess: ``only the last 13 columns: tail mask?``; empty where there is none."""


@dataclass(frozen=True)
class Agreement:
    """An implementation's outputs against the fp64 oracle on one case, over all seeds."""

    passed: bool
    max_abs: float
    """NaN, as all figures of an error but ``error``, where no element could be compared."""
    max_rel: float
    ulp_p50: float
    ulp_p99: float
    ulp_max: float
    """Error in units in the last place of the output's dtype."""
    within: float
    """Share of the elements within tolerance, 0 to 1."""
    error: float
    """Largest error in the tolerance's own unit, and what it may be."""
    limit: float
    seeds: int
    findings: tuple[Finding, ...]
    """Everything checked: values, special values, guard zones, inputs unchanged, invariants ..."""
    mismatch: Mismatch | None = None
    """Of the first output with wrong values; None where none has, or where it was not located."""

    @property
    def reason(self) -> str:
        """Why it failed, empty if it did not."""
        return "; ".join(f"{f.name}: {f.detail}" for f in self.findings if not f.passed)


@dataclass(frozen=True)
class Estimate:
    """A median with its 95% confidence interval and every sample it rests on."""

    median: float
    low: float
    high: float
    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class Ratio:
    """How many times faster than ``against``, from within-round pairs; above 1 is faster."""

    against: str
    value: Estimate


@dataclass(frozen=True)
class Timing:
    """Times of one implementation on one case.  None: not measured, ``notes`` say why."""

    cold_us: Estimate | None = None
    """GPU time with the L2 flushed before every sample."""
    warm_us: Estimate | None = None
    """GPU time back to back on the same inputs."""
    graph_us: Estimate | None = None
    """GPU time of one replay of a captured CUDA graph, warm."""
    launch_us: Estimate | None = None
    """Host time until the call returns."""
    first_call_ms: float | None = None
    """The first call in this process: compile or load, then run; what was built in the background counts."""
    ratios: tuple[Ratio, ...] = ()
    """Of cold GPU time: against the op's baseline, and against the reference of its own level."""
    rounds: int = 0
    converged: bool = False
    """The intervals got tight before the time budget ended."""
    notes: tuple[str, ...] = ()
    unverified: str = ""
    """Why the times of a user's file are its own process's word; empty where they are not."""
    detectable: float | None = None
    """The largest difference, as a share, that equals show in two processes at such times. None: unknown."""
    sm_mhz: float | None = None
    """The card's clock right after its cold samples, median, where the driver was asked."""
    burst_us: Estimate | None = None
    """GPU time of the first calls after a pause, back to back: before power or heat hold the clock down."""
    sustained_us: Estimate | None = None
    """GPU time of calls back to back once their time has settled."""


@dataclass(frozen=True)
class KernelResources:
    """What one kernel takes of the machine."""

    kernel: str
    arch: str
    """``sm_90``"""
    reader: Literal["cubin", "profiler"]
    registers: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    reserved_shared_bytes: int
    """What CUDA itself takes on sm_80 and later; in no other figure here."""
    spilled_bytes: int | None = None
    """Spill stores plus loads, per thread, as ptxas counts them."""
    local_bytes: int | None = None
    """Local memory (stack) a thread."""
    code_bytes: int | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    occupancy: float | None = None
    """Theoretical: resident warps over the most a multiprocessor holds, 0 to 1."""
    limiter: str = ""
    """What keeps the occupancy there: ``registers``, ``shared memory``, ``threads``, ``blocks``."""
    launches: int = 1
    """How often one call of the implementation launches it."""
    instruction: str = ""
    """What its machine code multiplies with: ``FFMA``, ``HMMA.16816``, ``HGMMA.64x256x16``.  Read from the
    cubin where a case is about arithmetic, and empty elsewhere."""
    load_bits: int | None = None
    """The widest load of a thread from global memory.  Read with ``instruction``, and of users' kernels."""


@dataclass(frozen=True)
class RoleSize:
    lines: int
    tokens: int

    def __add__(self, other: RoleSize) -> RoleSize:
        return RoleSize(self.lines + other.lines, self.tokens + other.tokens)


@dataclass(frozen=True)
class CodeSize:
    """The code of an implementation, without comments and blank lines: its own, the op's and shared code.

    Counted is what a call on the op's default case reaches, or on the first case that it takes.
    """

    kernel: RoleSize
    """Its own: the kernels that the call launches,"""
    launch: RoleSize
    """and the function that launches them."""
    helpers: RoleSize
    """What else the call reaches in the op's files."""
    shared: RoleSize
    """What it reaches in files that any op uses.  Of Triton that is the compiler's: ``tl.load``."""
    binding: RoleSize = RoleSize(0, 0)
    """Its own statement in the op's C++ module,"""
    module: RoleSize = RoleSize(0, 0)
    """and the module without such statements, once for the op."""
    concepts: tuple[str, ...] = ()
    """What a reader must know: ``barriers``, ``shared memory``, ``masks``, ``pointer arithmetic`` ..."""
    fallbacks: tuple[str, ...] = ()
    """Kernels that only other cases launch: not counted."""
    algorithm: str = ""
    """As declared."""

    def has_algorithm_of(self, other: CodeSize) -> bool:
        """Whether both declare the same algorithm."""
        return bool(self.algorithm) and self.algorithm == other.algorithm

    @property
    def own(self) -> RoleSize:
        return self.kernel + self.launch

    @property
    def lines(self) -> int:
        """Own code and the op's helpers: the headline."""
        return self.own.lines + self.helpers.lines

    @property
    def tokens(self) -> int:
        return self.own.tokens + self.helpers.tokens


@dataclass(frozen=True)
class Ceilings:
    """What this device reached in this run, cold, median."""

    copy_gbs: float
    read_gbs: float
    matmul_tflops: float | None = None
    """The best the library's product of two fp16 matrices reached; None where a case's operations are too
    few to matter."""
    product_tflops: float | None = None
    """What the library's product of two matrices of the case's own dtype reached, warm, median."""
    best_gbs: float | None = None
    """The fastest sample of copy and read: the limit of the floor.  None: not recorded."""


@dataclass(frozen=True)
class Card:
    """The card while it was timed, as its driver says: an entry for every round in which it was asked."""

    sm_mhz: tuple[float, ...] = ()
    power_w: tuple[float, ...] = ()
    temperature_c: tuple[float, ...] = ()
    throttle: tuple[str, ...] = ()
    """What held the clock down; ``none`` where nothing did."""
    asking_ms: tuple[float, ...] = ()
    """What asking took of each round, between the timed sections."""


@dataclass(frozen=True)
class SizeClass:
    """Times of one order of magnitude, and how much equal code differs there between processes."""

    below_us: float
    share: float
    """The part of every ratio's interval that is between processes."""
    pairs: int = 0
    """How many times an implementation was compared with itself; 0 where that was not done."""
    largest: float = 0.0
    """The largest difference that any of those pairs showed,"""
    apart: int = 0
    """and how many had an interval that excludes 1."""


@dataclass(frozen=True)
class Calibration:
    """The variance between processes on a device: found by comparing implementations with themselves."""

    classes: tuple[SizeClass, ...]
    """By growing size; the last is without end."""
    tick_us: float
    """The step in which its event clock counts; in the built-in one, what equals differ by at most."""
    created: str = ""
    """ISO 8601, UTC; empty where it is the built-in one."""


@dataclass(frozen=True)
class Environment:
    """The machine and the software a comparison ran on."""

    device: str
    """``NVIDIA H100 80GB HBM3``, or the CPU's name."""
    device_type: Literal["cuda", "cpu"]
    arch: str | None
    """``sm_90``; None on a CPU."""
    multiprocessors: int | None
    memory_bytes: int
    l2_bytes: int | None
    driver: str | None
    versions: dict[str, str]
    """python, torch, triton, cupy, cuda, numpy, this project's commit ..."""
    host: str
    """Operating system and CPU."""
    clocks: dict[str, float | str] = field(default_factory=dict)
    """SM and memory clock in MHz, power in W, temperature in C, throttle reasons: before and after."""
    calibration: Calibration | None = None
    """None: of a CPU, or of a record from before there was any."""


@dataclass(frozen=True)
class Row:
    """Everything known of one implementation on one case."""

    label: str
    level: str
    status: Status
    reason: str = ""
    """Why it is not ok: one sentence with the next step."""
    agreement: Agreement | None = None
    timing: Timing | None = None
    resources: tuple[KernelResources, ...] = ()
    source_hash: str = ""
    """Of everything this row's figures rest on: its sources and the op's description."""
    accumulator: str = "fp32"
    tunings: tuple[Tuning, ...] = ()
    """Its searches, where it tunes itself and was watched."""
    default: str = ""
    """Label of the row that is the same with the default configuration, where this one has another."""
    model: str = ""
    """Of a row that ``--matched`` added: the label whose configuration it was run with,"""
    configuration: str = ""
    """that, as far as it takes it: ``128x256x64, 8 warps, 3 stages``,"""
    unmatched: str = ""
    """and what of it it does not take, in a sentence; empty where it takes all of it."""
    parameters: tuple[tuple[str, int], ...] = ()
    """What ``--tune`` was given for, with the values that this row has: of one that it added others than the
    defaults, which the row named by ``default`` has."""
    replayed: str = ""
    """Empty where measured now; else where and when the timing was recorded and whether the source has
    changed since,"""
    ceilings: Ceilings | None = None
    """and what was reached in that run, which need not be the one of its case's other rows;"""
    run: str = ""
    """and when that run was, as `Comparison.created`: only rows of one run have pairs of samples."""


@dataclass(frozen=True)
class CaseComparison:
    case: str
    cost: Cost
    rows: tuple[Row, ...]
    ceilings: Ceilings | None = None
    card: Card | None = None


@dataclass(frozen=True)
class Comparison:
    """One op compared: what the reports print and the records keep."""

    op: str
    signature: str
    environment: Environment
    created: str
    """ISO 8601, UTC."""
    seed: int
    cases: tuple[CaseComparison, ...]
    code_sizes: dict[str, CodeSize] = field(default_factory=dict)
    """By label."""
    interrupted: bool = False
    schema: int = 1


@dataclass(frozen=True)
class Options:
    """What one run was asked for."""

    cases: Sequence[Case]
    only: tuple[str, ...] = ()
    """Glob patterns over labels."""
    archs: tuple[str, ...] = ()
    """Read static resources for these as well, e.g. ``sm_75``."""
    device: str = "auto"
    """``auto``, ``cuda``, ``cuda:1`` or ``cpu``."""
    seed: int = 0
    budget_s: float = 20.0
    """Time to spend on timing, for the whole run."""
    resources: bool = True
    """Read registers, shared memory and the like; a search for a size does without."""
    sustained: bool = False
    """Time bursts and sustained load as well."""
    timeout_s: float = 120.0
    """The most that one step of an implementation may take: its first call with what it builds, a check, a
    turn of timing, compiling it for one architecture."""
    matched: bool = False
    """Run CUDA with Triton's configuration as well, where an implementation says whose."""
    tune: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Run what has these parameters with other values as well; none given: with all that it declares."""
    retune: bool = False
    """Search for configurations again that an earlier run has found."""
    samples: tuple[int, int] = (10, 3)
    """Cold samples of each row, at least: of one that takes at most 10 ms, and of a slower one."""
