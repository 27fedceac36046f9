"""What the judge asks of a worker, and what a worker may answer: one typed message each way, as JSON.

A request is a `WorkerRequest` of the answer's type.  The judge decodes the answer as that type, within limits
of size and depth.  Anything else fails the worker's row.
"""

from __future__ import annotations

import functools
import json
import operator
from typing import Any, Generic, Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from compare.checking.guarded_memory import Borrowed
from compare.code_size.count import Launched
from compare.model.result import KernelResources, Tuning
from compare.replay.figures import KernelSource
from compare.replay.nodes import Recording, Source
from compare.sandbox.words import read_json
from compare.timing.stopwatch import HotReading, Kind, Reading
from compare.worker.memory import Placement

AnswerT = TypeVar("AnswerT")


class WorkerRequest(Struct, Generic[AnswerT], frozen=True, tag=True):
    """What a worker can be asked; the type argument is that of the answer."""


# ----------------------------------------------------------------------- answers


class Held(Struct, frozen=True):
    """GPU memory of a worker."""

    held_bytes: int
    """The most that PyTorch has held."""
    kept_bytes: int
    """Held between calls."""


class FirstCall(Struct, frozen=True):
    """A first call."""

    ms: float
    """Host time until its GPU work is done."""
    tunings: tuple[Tuning, ...]
    """Configurations found, or known before."""


class Called(Struct, frozen=True):
    """A checked call; see `compare.checking.stage.CallResult`."""

    problem: str | None
    violations: tuple[str, ...]
    guarded: bool
    shared: str | None
    borrowed: dict[str, Borrowed]
    launched: int | None
    notes: tuple[str, ...]


class TracedAccess(Struct, frozen=True):
    """A load or store of the first program or warp of a call, element by element."""

    where: str
    """``mine.py:14``."""
    kind: Literal["load", "store"]
    tensor: str
    """``x``, or ``shared memory``."""
    shape: tuple[int, ...]
    """Of the elements below: those of a tile, or a warp's lanes."""
    bytes: int
    """Of one element."""
    offsets: tuple[int, ...]
    """Bytes from the tensor's first one, in row-major order."""
    active: tuple[bool, ...]
    """Whether the mask, or the branch, lets it access."""


class Profile(Struct, frozen=True):
    """Kernels of a call."""

    kernels: tuple[KernelResources, ...]
    own: tuple[str, ...]
    """Those that its host code launches."""


# ----------------------------------------------------------------------- requests: once


class Setup(WorkerRequest[None], frozen=True):
    """Import modules; the device's context is created by `Connect`."""

    device: str
    environment: dict[str, str] = {}
    modules: tuple[str, ...] = ()
    nice: int = 0
    """Added to the process's nice value."""


class Connect(WorkerRequest[float], frozen=True):
    """Create the device's context; the answer is the time that it took, in s."""


class Load(WorkerRequest[None], frozen=True):
    """Load users' files."""

    files: tuple[str, ...]
    op: str = ""
    """The one that is compared."""
    own_code: bool = False
    """Whether they may not import the project's kernels."""


class Choose(WorkerRequest[None], frozen=True):
    """Take an implementation for all later requests."""

    op: str
    label: str
    parameters: dict[str, int] = {}


class LimitMemory(WorkerRequest[None], frozen=True):
    """Limit what PyTorch may allocate on the GPU."""

    nbytes: int


class Rest(WorkerRequest[Held], frozen=True):
    """Free what is not in use."""


class Share(WorkerRequest[None], frozen=True):
    """Take a case's shared memory in place of the last one's; on a CPU its descriptor comes along."""

    size: int
    handle: bytes
    """Of CUDA IPC."""
    outputs: dict[str, Placement]
    options: dict[str, Any]
    """The case's: of all later calls."""


class LayOut(WorkerRequest[None], frozen=True):
    """Use the shared memory for another case."""

    outputs: dict[str, Placement]
    options: dict[str, Any]


class GiveBack(WorkerRequest[None], frozen=True):
    """Give the shared memory back."""


# ----------------------------------------------------------------------- requests: agreement


class First(WorkerRequest[FirstCall], frozen=True):
    """Make the first call."""

    inputs: tuple[Placement, ...]
    known: tuple[Tuning, ...]
    """Configurations that an earlier run found."""


class CheckCall(WorkerRequest[Called], frozen=True):
    """Make a checked call; its outputs go into the shared memory."""

    inputs: tuple[Placement, ...]
    poison: int
    watched: bool = False
    """On a CPU: check every access to memory of a CUDA kernel."""
    thread_order: str = ""
    """On a CPU: in which order a CUDA kernel's threads run."""


# ----------------------------------------------------------------------- requests: recording, replaying


class Reserve(WorkerRequest[None], frozen=True):
    """Prepare to record, before a user's file is loaded: PyTorch then allocates behind the inputs."""

    library: str
    inputs_bytes: int
    nbytes: int


class Record(WorkerRequest[Recording], frozen=True):
    """Record a call on these inputs, ``shift`` bytes from the arena's beginning."""

    inputs: tuple[Placement, ...]
    shift: int


class Compile(WorkerRequest[tuple[bytes, ...]], frozen=True):
    """Compile a recording's sources to machine code."""

    sources: tuple[Source, ...]
    arch: str


class Replay(WorkerRequest[None], frozen=True):
    """Take a recording's calls as the implementation of all later requests."""

    recording: Recording
    images: tuple[bytes, ...]
    inputs_bytes: int


# ----------------------------------------------------------------------- requests: resources, code


class FindKernels(WorkerRequest[Profile], frozen=True):
    """Find the resources of every kernel of a call."""

    inputs: tuple[Placement, ...]


class Trace(WorkerRequest[tuple[TracedAccess, ...]], frozen=True):
    """On a CPU: the first accesses of a call on inputs of a case."""

    case: str


class FindLaunched(WorkerRequest[Launched], frozen=True):
    """Find the kernels that the implementation launches."""


class ReadResources(WorkerRequest[tuple[KernelResources, ...]], frozen=True):
    """Compile the kernels that the implementation launches; see `compare.resources.compiler`."""

    case: str
    arch: str
    disassemble: bool


class ReadSources(WorkerRequest[tuple[KernelSource, ...]], frozen=True):
    """Find what the kernels are compiled from; see `compare.replay.figures`."""

    case: str
    arch: str


class ReadFigures(WorkerRequest[tuple[KernelResources, ...]], frozen=True):
    """Compile kernels, and read what they take."""

    kernels: tuple[KernelSource, ...]
    arch: str
    multiplies: bool


# ----------------------------------------------------------------------- requests: time


class Enter(WorkerRequest[None], frozen=True):
    """Prepare for timing on these sets of inputs.

    Others prepare at the same time, so the clock's rate is the one that the judge has measured.
    """

    sets: tuple[tuple[Placement, ...], ...]
    coming: tuple[Placement, ...]
    """Of the next values of the inputs."""
    stopwatch: str
    """``module:class``"""
    cycles_per_us: float | None
    tidy: bool
    """Free memory after every sample."""


class Prepare(WorkerRequest[float], frozen=True):
    """Prepare the weights of all sets of inputs; the answer is the time that one takes, in ms."""


class CallAgain(WorkerRequest[str | None], frozen=True):
    """Make a call; the answer is the dtypes of its outputs."""


class Cold(WorkerRequest[Reading], frozen=True):
    """Take a cold sample."""

    which: int
    """Set of inputs."""


class Warm(WorkerRequest[Reading], frozen=True):
    """Take a sample of repeated calls (``warm``, ``burst``, ``sustained``) or replays (``graph``)."""

    which: int
    kind: Kind
    repeats: int


class Hot(WorkerRequest[HotReading], frozen=True):
    """Measure launch overhead by calls back to back on the first set of inputs."""

    limit_s: float


class Capture(WorkerRequest[None], frozen=True):
    """Capture a call as a CUDA graph."""


# ----------------------------------------------------------------------- on the wire

_ANY_REQUEST: Any = functools.reduce(operator.or_, WorkerRequest.__subclasses__())


class NumberedRequest(Struct, frozen=True):
    """A request with the number that its answer repeats."""

    number: str
    request: Any
    """A `WorkerRequest`."""


class Error(Struct, frozen=True):
    """What a request raised."""

    kind: Literal["failed", "unavailable", "memory"]
    name: str
    """Of the exception's type."""
    text: str
    where: str
    """``my_softmax.py:31``; empty if unknown."""
    trace: str


class Answer(Struct, frozen=True):
    """The answer to a request."""

    number: str
    forked: bool = False
    """Whether the worker's process has forked."""
    raised: Error | None = None
    lost: str | None = None
    """Why the worker's GPU context is unusable."""
    value: Any = None
    """Of the type that the request says, unless it raised."""


def encode(message: NumberedRequest | Answer) -> bytes:
    """A message as JSON."""
    return json.dumps(msgspec.to_builtins(message)).encode()


def read_request(message: bytes) -> NumberedRequest:
    """The judge's request."""
    asked = msgspec.convert(json.loads(message), NumberedRequest)
    request = msgspec.convert(asked.request, _ANY_REQUEST)
    return NumberedRequest(asked.number, request)


def read_answer(message: bytes, request: WorkerRequest[Any]) -> Answer:
    """The answer to a request, with printable text only.

    Raises:
        ValueError: it is no JSON, larger or deeper than any honest one, or of another form.
    """
    answer = msgspec.convert(read_json(message), Answer)
    value = None
    if answer.raised is None:
        value = msgspec.convert(answer.value, answer_type(type(request)))
    return msgspec.structs.replace(answer, value=value)


def answer_type(request: type[WorkerRequest[Any]]) -> Any:
    """The type argument of a request's base class."""
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]
