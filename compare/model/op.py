"""What authors write: ops, their cases, and implementations.

Nothing here computes, prints or imports a GPU library.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.model.limits import Count

if TYPE_CHECKING:
    import torch

WAYS = ("torch", "triton", "cuda")
ROUTES = ("cupy", "pybind")
LIBRARY = "library"
"""The route of a library baseline: its kernels, called from C++.  It is not one of `WAYS`: those are
written here."""
LEVELS = ("naive", "tiled", "tensor_core", "hopper", "vendor")
DTYPES = ("fp32", "fp16", "bf16")
FP8 = "fp8"
"""e4m3: 4 bits of exponent, 3 of mantissa, NaN but no infinity, at most 448."""
INTEGER_DTYPES = ("uint8", "int8", "int64")
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

MAX_CASE_BYTES = 2**60
"""No size of a case is as large, nor are its inputs and outputs together in bytes: 64 bits count eight times
as many, and so much may these take in fp64 or in a layout with gaps."""


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
        kinds = {"dtype": (*DTYPES, FP8, *INTEGER_DTYPES), "layout": op.layouts, "fill": FILLS}
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
                if len(digits) > len(str(MAX_CASE_BYTES)) or int(digits) >= MAX_CASE_BYTES:
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
        if nbytes >= MAX_CASE_BYTES:
            raise wrong(f"its inputs and outputs take {nbytes:.1e} bytes, and that has to be less than 2^60")
        return found


def case(dtype: str = "fp32", layout: str = "contiguous", fill: str = "normal", **dims: int) -> Case:
    """Write a case in code: ``case("fp16", M=4096, N=781)``."""
    return Case(tuple(dims.items()), dtype, layout, fill)


@dataclass(frozen=True)
class Cost:
    """What a case must do at least: each input read once, each output written once."""

    flops: Count
    read_bytes: Count
    written_bytes: Count

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def compute_bound(self) -> bool:
        """Whether it is about arithmetic: no GPU served here is kept from its memory by fewer operations."""
        return self.flops > COMPUTE_BOUND_FLOPS_PER_BYTE * self.bytes


CPU_CHECK_BYTES, CPU_CHECK_FLOPS = 32 << 20, 1 << 28
"""The most memory traffic and operations of a case that a CPU checks."""
COMPUTE_BOUND_FLOPS_PER_BYTE = 8.0


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
class SensitiveInputs:
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
    shapes: tuple[Case, ...] = ()
    """Sizes of use, round and odd: timed by ``--sweep shapes``, one line each, and recorded."""


def fully_specified(inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    """`Op.mask_unspecified` of an op that says of every element of its output what it is."""


@dataclass(frozen=True)
class Output:
    """An output behind the first: what `Op` says of its first, for this one."""

    oracle: Callable[..., torch.Tensor]
    tolerance: Callable[[Case], Tolerance]
    magnitude: Callable[..., torch.Tensor] | None = None
    dtype: str | None = None
    """One of `DTYPES` or `INTEGER_DTYPES`, or `FP8`.  None: the case's."""
    mask_unspecified: Callable[[tuple[torch.Tensor, ...], torch.Tensor], None] = fully_specified


def no_options(case: Case) -> dict[str, Any]:
    """`Op.options` of an op that takes tensors only."""
    return {}


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
    sensitive_inputs: SensitiveInputs | None = None
    extreme_inputs: Callable[[tuple[torch.Tensor, ...]], None] | None = None
    """Turns inputs of any case, in place, into some that a usual shortcut fails on and no `FILLS` has.  Its
    name says what they are, in messages too."""
    mask_unspecified: Callable[[tuple[torch.Tensor, ...], torch.Tensor], None] = fully_specified
    """``mask_unspecified(inputs, output)`` writes the oracle's values where the op does not say what the
    output holds: behind the end of a compaction.  Outputs are masked before they are compared."""
    output_dtype: str | None = None
    """The output's dtype, one of `DTYPES` or `INTEGER_DTYPES`, or `FP8`.  None: the case's."""
    options: Callable[[Case], Mapping[str, Any]] = no_options
    """What a case passes beside the tensors, as keywords that JSON can hold: ``{"causal": True}``.  Oracles,
    magnitudes and implementations take them."""
    oracle_options: Callable[[Case], Mapping[str, Any]] = no_options
    """Further keywords, for oracles and magnitudes alone: the dtype that an intermediate result is rounded
    to, which inputs in fp64 do not tell."""
    further: tuple[Output, ...] = ()
    """The outputs behind the first.  An implementation then returns a tuple of tensors."""
    independent: str | None = None
    """A dimension whose slices have nothing to do with each other, as softmax's rows: the checker works
    through a big case piece by piece along it.  None: the whole case at once."""

    of_rank: Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]] | None = None
    """Of an op of several GPUs: from all inputs, on ``meta``, the tensors that an implementation gets on one
    of them, beside the keyword ``rank``.  None: it is an op of one GPU."""

    special: str = ""
    """What every fill but the usual adds beside its values: ``targets of -100, which are ignored``."""
    weights: tuple[str, ...] = ()
    """Inputs that stay the same from call to call, which `Implementation.prepare` may rearrange offline."""

    def interpretable(self, case: Case) -> bool:
        """Whether a CPU checks a case in some ten seconds an implementation."""
        cost = self.cost(case)
        return cost.bytes <= CPU_CHECK_BYTES and cost.flops <= CPU_CHECK_FLOPS

    def is_empty(self, case: Case) -> bool:
        """Whether a size of a tensor is 0; an option such as ``causal`` is none."""
        sizes = set(re.findall(r"[A-Za-z_]\w*", " ".join(re.findall(r"\[[^]]*\]", self.signature))))
        sizes -= self.options(case).keys()
        return any(size == 0 and name in sizes for name, size in case.dims)

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
    def is_copy_only(self) -> bool:
        """Whether it computes nothing, so that to copy is to do its work."""
        return self.cost(self.cases.default).flops == 0


@functools.lru_cache
def by_output(op: Op, case: Case) -> tuple[Op, ...]:
    """``op`` as ops of one output each, whose oracles have their options of the case."""
    options = {**op.options(case), **op.oracle_options(case)}

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
            mask_unspecified=other.mask_unspecified,
            invariants=(),
        )
        for shape, other in zip(shapes[1:], op.further, strict=True)
    )
    return (first, *others)


def way_of(label: str) -> str:
    """The way of the implementation with that label, one of `WAYS`; of a library baseline ``library``."""
    route = label.partition(".")[0]
    return "cuda" if route in ROUTES else route


def is_library(label: str) -> bool:
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
    triton: str = ""
    """The least Triton that compiles it, as ``3.8``; empty: any that the project serves."""
    accumulator: str = "fp32"
    """In what precision it computes, one of `ROUNDOFF`: ratios are printed only between equals, and errors
    are counted in roundings of it."""
    origin: str = ""
    """The file it was loaded from."""
    user_file: Path | None = None
    """The user's file that it is in, if only workers load that: then ``run`` cannot be called here, and only
    says where its function is written."""
    hidden: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Folders that its worker cannot read, each with the paths in it that it can: of a lab's hand-in those of
    the project's kernels and of other hand-ins."""
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
        """One of `WAYS`, or ``library``."""
        return way_of(self.label)

    @property
    def has_own_kernels(self) -> bool:
        """Whether its kernels are written here: they are neither PyTorch's nor a library's."""
        return self.way != "torch" and not is_library(self.label)

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
