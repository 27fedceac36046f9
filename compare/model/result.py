"""What a run is asked for, and what it yields: rows, their parts, and the machine they were measured on.

Units stand in the field names: ``median_us``, ``shared_bytes``, ``read_gbs``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from compare.model.limits import Meta, Positive, Share
from compare.model.op import LEVELS, Case, Cost

Status = Literal["ok", "ordinary", "disagrees", "impossible", "failed", "unavailable"]
"""``ordinary``: correct on the inputs that were asked for, and wrong on others of the op's."""

WRONG: tuple[Status, ...] = ("disagrees", "impossible", "ordinary")
"""What is wrong with an implementation itself: it disagrees, or its time is below what its work takes."""

UNREAD = "resources unread"
"""How the reason of a row begins whose kernels could not be compiled for an architecture."""

DOES_NOT_COMPILE = "does not compile for"
"""In the reason of a row with a kernel that a compiler refuses."""


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
OTHER_SIZES = "other sizes"
HARD_INPUTS = "hard inputs"
REPEATABLE = "repeatable"
THREAD_ORDERS = "thread orders"
MEMORY = "memory"
HELPERS = "helpers"
SANITIZER = "sanitizer"
NOT_SANITIZED = "compute-sanitizer does not start here"
"""How the reason of a row begins that it could not watch, whatever the row."""
CONDUCT = (
    *("inputs unchanged", "guard zones", OWN_WORK, "output is fresh", OTHER_SIZES, HARD_INPUTS),
    *(THREAD_ORDERS, MEMORY, SANITIZER),
)
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
    notes: tuple[str, ...] = ()
    """What a reader should know of a correct row."""

    @property
    def status(self) -> Status:
        """That of its row."""
        failed = {finding.name for finding in self.findings if not finding.passed}
        return "ok" if self.passed else "ordinary" if failed <= {OTHER_SIZES, HARD_INPUTS} else "disagrees"

    @property
    def reason(self) -> str:
        """Why it failed, empty if it did not."""
        return "; ".join(f"{f.name}: {f.detail}" for f in self.findings if not f.passed)


@dataclass(frozen=True)
class Estimate:
    """A median with its 95% confidence interval and every sample it rests on."""

    median: Positive
    low: Positive
    high: Positive
    samples: tuple[Positive, ...] = ()


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
    hot_launch_us: Estimate | None = None
    """Launch overhead: host time of one of many calls back to back, until it returns.  It holds the argument
    checks and the allocation of the output.  Records from before 2026-11-27 have another figure, by the name
    ``launch_us``: not read."""
    back_to_back_us: Estimate | None = None
    """Time of a call in the same blocks, by the GPU's clock: nothing hides the launch, so it is the larger of
    launch overhead and GPU time."""
    after_idle_us: Estimate | None = None
    """Host time of the first call after the process and the GPU were idle."""
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
    detectable: Share | None = None
    """The largest difference, as a share, that equals show in two processes at such times. None: unknown."""
    sm_mhz: float | None = None
    """The card's clock right after its cold samples, median, where the driver was asked."""
    burst_us: Estimate | None = None
    """GPU time of the first calls after a pause, back to back: before power or heat hold the clock down."""
    sustained_us: Estimate | None = None
    """GPU time of calls back to back once their time has settled."""


@dataclass(frozen=True)
class KernelCounters:
    """What Nsight Compute counted in one kernel; a part is None or empty where it did not."""

    kernel: str
    stalls: dict[str, float] = field(default_factory=dict)
    """Of the time of resident warps the share in which they wait, 0 to 1, by reason in ncu's words."""
    l2_hit_rate: float | None = None
    """0 to 1."""
    bank_conflicts: float | None = None
    """The share of shared memory's wavefronts that bank conflicts add, 0 to 1."""


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

    @property
    def level(self) -> str:
        """The least optimisation level with its ``instruction``: ``hopper`` from wgmma on, ``tensor_core`` or
        ``naive``; empty where that was not read."""
        name = self.instruction.partition(".")[0]
        if re.search("GMMA|^UTC", name):
            return "hopper"
        return "tensor_core" if name.endswith("MMA") else name and "naive"


@dataclass(frozen=True)
class RoleSize:
    lines: int
    tokens: int

    def __add__(self, other: RoleSize) -> RoleSize:
        return RoleSize(self.lines + other.lines, self.tokens + other.tokens)


@dataclass(frozen=True)
class CodeSize:
    """The project's code of an implementation, without comments and blank lines: all that a call of it needs.

    Counted is what a call on the op's default case reaches, or on the first case that it takes.
    """

    kernel: RoleSize
    """The kernels that the call launches,"""
    launch: RoleSize
    """and the function that launches them."""
    helpers: RoleSize
    """What else the call reaches in the op's files,"""
    shared: RoleSize
    """and in files that any op uses.  Triton's (``tl.sum``) is its compiler's and never counted."""
    binding: RoleSize = RoleSize(0, 0)
    """Its own statement in the op's C++ module,"""
    module: RoleSize = RoleSize(0, 0)
    """and the module without such statements."""
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
    def host(self) -> RoleSize:
        """Its own host code."""
        return self.launch + self.binding + self.module

    @property
    def whole(self) -> RoleSize:
        """All code that a reader of it must read, wherever it stands: the headline."""
        return self.kernel + self.host + self.helpers + self.shared

    @property
    def lines(self) -> int:
        return self.whole.lines

    @property
    def tokens(self) -> int:
        return self.whole.tokens


@dataclass(frozen=True)
class Ceilings:
    """What this device reached in this run, cold, median."""

    copy_gbs: Positive
    read_gbs: Positive
    matmul_tflops: Positive | None = None
    """The best the library's product of two fp16 matrices reached; None where a case's operations are too
    few to matter."""
    product_tflops: Positive | None = None
    """What the library's product of two matrices of the case's own dtype reached, warm, median."""
    best_gbs: Positive | None = None
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

    below_us: Annotated[float, Meta(gt=0)]
    share: Share
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

    classes: Annotated[tuple[SizeClass, ...], Meta(min_length=1)]
    """By growing size; the last is without end."""
    tick_us: Positive
    """The step in which its event clock counts; in the built-in one, what equals differ by at most."""
    created: str = ""
    """ISO 8601, UTC; empty where it is the built-in one."""
    launch_floors_us: dict[str, Positive] = field(default_factory=dict)
    """By route, the launch overhead of an empty kernel and its output; empty where it was not measured."""


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
class Configuration:
    """The configuration that a row was run with, where there is a choice."""

    text: str = ""
    """``128x256x64, 8 warps, 3 stages``: another row's, or that of ``--tune``; empty: the default."""
    unmatched: str = ""
    """What of another row's configuration it cannot take, in a sentence; empty where it takes all of it."""
    default: str = ""
    """Label of the row that is the same with the default configuration."""
    model: str = ""
    """Label of the row whose configuration it has: of a row that ``--matched`` added."""
    parameters: tuple[tuple[str, int], ...] = ()
    """The parameters that ``--tune`` was given for, with this row's values."""
    tunings: tuple[Tuning, ...] = ()
    """Its searches, where it tunes itself and was watched."""


@dataclass(frozen=True)
class Provenance:
    """The run that a recorded row is from.  Only rows of one run have pairs of samples."""

    device: str
    created: str
    """`Comparison.created` of that run."""
    source_changed: bool = False
    """The row's source has changed since."""
    ceilings: Ceilings | None = None
    """What was reached in that run, which need not be the one of the case's other rows."""
    versions: dict[str, str] = field(default_factory=dict)
    """`Environment.versions` of that run, and its driver's."""

    @property
    def device_and_date(self) -> str:
        return f"{self.device}, {self.created[:10]}"

    def __str__(self) -> str:
        return self.device_and_date + ", its source changed since" * self.source_changed


@dataclass(frozen=True)
class Row:
    """Everything known of one implementation on one case.  Each part is None or empty until it is known."""

    label: str
    level: str
    """As declared."""
    status: Status
    reason: str = ""
    """Why it is not ok: one sentence with the next step."""
    accumulator: str = "fp32"
    source_hash: str = ""
    """Of everything this row's figures rest on: its sources and the op's description."""
    agreement: Agreement | None = None
    timing: Timing | None = None
    resources: tuple[KernelResources, ...] = ()
    counters: tuple[KernelCounters, ...] = ()
    """With ``--ncu``, of each kernel of a call."""
    configuration: Configuration = Configuration()
    recorded: Provenance | None = None
    """Where its timing is from; None where it was measured now."""
    by_judge: bool = False
    """Whether an error of the judge's own made it fail."""

    @property
    def shown_level(self) -> str:
        """Its level as the machine code of this case shows it, where that was read.

        Without an instruction for tensor cores it is at most ``tiled``, with one at least ``tensor_core``.
        Of several architectures the one that ran counts, else the newest.
        """

        def place(kernel: KernelResources) -> tuple[bool, int, str]:
            arch = kernel.arch.rstrip("af")
            return kernel.reader == "profiler", len(arch), arch

        archs = [place(kernel)[2] for kernel in sorted(self.resources, key=place)]
        read = [k.level for k in self.resources if k.level and place(k)[2] == archs[-1]]
        if not read:
            return self.level
        most = max(map(LEVELS.index, read))
        tiled, tensor_core = map(LEVELS.index, ("tiled", "tensor_core"))
        least, most = (tensor_core, most) if most >= tensor_core else (0, tiled)
        return LEVELS[min(max(LEVELS.index(self.level), least), most)]

    @property
    def run(self) -> str:
        """When its timing was recorded; empty where it was measured now."""
        return self.recorded.created if self.recorded else ""

    @property
    def ceilings(self) -> Ceilings | None:
        """The ceilings of the run that its timing is from, where that is a recorded one."""
        return self.recorded.ceilings if self.recorded else None


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
    hard_inputs: bool = True
    """Check users' implementations on the op's own hard inputs too."""
    sanitize: bool = False
    """Run users' implementations, and those named, under compute-sanitizer too: on a GPU."""
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
    shorten: bool = False
    """Without a GPU, check a case that would take minutes on fewer rows."""
