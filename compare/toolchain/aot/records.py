"""What `compare.toolchain.aot` found, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from compare.spec import Agreement, Estimate


@dataclass(frozen=True)
class Kernel:
    """A kernel as C that carries its machine code: what a program needs to load and launch it."""

    name: str
    launch: str
    """The C function that launches it: a stream, then all arguments."""
    header: str
    """The file that declares it, and ``load_NAME``, which loads the machine code."""
    arguments: tuple[str, ...]
    """Its arguments in order, by the names of `compare.toolchain.aot.plan.Plan.arguments`."""
    tool: str
    """What made it."""
    code_bytes: int
    """Of the image that it carries: a cubin, or a fat binary."""


@dataclass(frozen=True)
class Program:
    """A program that has been built."""

    label: str
    arch: str
    kernel: Kernel
    folder: Path
    executable: Path
    files: tuple[str, ...]
    """Its arguments: files with the inputs' bytes, and the file that gets the output's."""
    program_bytes: int
    """Of the executable, machine code included."""


@dataclass(frozen=True)
class Started:
    """Time from the start of a process to its first result, and of each further call."""

    cold_ms: Estimate | None = None
    """From the start of the process until the first result is in the host's memory."""
    compiling_ms: Estimate | None = None
    """The same with an empty cache of compiled kernels; None where nothing is compiled."""
    launch_us: Estimate | None = None
    """Host time of one launch, of many in a row."""
    graph_us: Estimate | None = None
    """Host time of launching it as a CUDA graph of one kernel."""


@dataclass(frozen=True)
class Ran:
    """A program's run on a GPU: whether it is correct, and its times."""

    agreement: Agreement
    ahead: Started
    jit: Started
    jit_label: str
    """The implementation that was called from Python for comparison."""


@dataclass(frozen=True)
class Outcome:
    """One implementation for one architecture: built or not, run or not."""

    label: str
    arch: str
    program: Program | None = None
    ran: Ran | None = None
    cannot: str = ""
    """Why there can be no such program."""
    failed: str = ""
    """Why it did not compile or run."""


@dataclass(frozen=True)
class Report:
    """All of one command."""

    op: str
    signature: str
    case: str
    outcomes: tuple[Outcome, ...]
    device: str = ""
    """The GPU that the programs ran on; empty where there is none."""
    why_not_run: str = ""
    versions: dict[str, str] = field(default_factory=dict)
