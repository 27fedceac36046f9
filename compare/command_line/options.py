"""Arguments that several commands take, and how they are parsed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compare import registry
from compare.model.architecture import limits
from compare.model.op import ARCHITECTURE, UsageError
from compare.model.result import Options

COMMANDS = (
    *("list", "doctor", "diff", "pipeline", "aot"),
    *("map", "show", "new-op", "lab", "predict", "grade"),
)
"""Words that name no op; `compare.cli` has their modules."""


def add_repeatable(add: Callable[..., Any], name: str, metavar: str, what: str) -> None:
    """An option that may be given more than once."""
    add(name, action="append", default=[], metavar=metavar, help=f"{what}; repeatable")


def add_only(add: Callable[..., Any], more: str = "") -> None:
    add_repeatable(add, "--only", "GLOB", f"only these implementations{more}")


def add_load(add: Callable[..., Any]) -> None:
    add_repeatable(add, "--load", "FILE", "a Python file with implementations or an op of your own")


def add_device(add: Callable[..., Any]) -> None:
    add("--device", default="auto", help="auto, cpu, cuda or cuda:NUMBER (default: a GPU if there is one)")


def add_timeout(add: Callable[..., Any]) -> None:
    add(
        "--timeout",
        type=float,
        default=Options.timeout_s,
        metavar="SECONDS",
        help="time limit of one step of an implementation: build and first call, a check, a round of "
        f"timing, compiling for one architecture (default: {Options.timeout_s:.0f})",
    )


def add_verbose(add: Callable[..., Any]) -> None:
    add("-v", "--verbose", action="store_true", help="print each step and its seconds to stderr")


def add_tables(add: Callable[..., Any], everything: str, line: str) -> None:
    """``--json``, ``--csv`` with a line for each ``line``, ``--markdown``; for `outputs.writes`."""
    add("--json", type=Path, metavar="FILE", help=everything)
    add("--csv", type=Path, metavar="FILE", help=f"one line for each {line}")
    add("--markdown", type=Path, metavar="FILE", help="the tables")


def add_records(add: Callable[..., Any]) -> None:
    """``--records``, for `history.map.reading.files_of`."""
    add(
        "--records",
        nargs="+",
        action="extend",
        type=Path,
        default=[],
        metavar="DIR|FILE",
        help="records of one device, from --record or --json (default: results/ of this GPU, or of the "
        "device with the most ops there)",
    )


def add_arch(add: Callable[..., Any], doing: str) -> None:
    """``--arch``, to be parsed by `archs`; ``doing`` is its verb, as ``compile``."""
    add(
        "--arch",
        action="append",
        default=[],
        metavar="SM",
        help=f"{doing} for these, e.g. sm_75,sm_90 (default: this GPU; without one sm_75,sm_80,sm_90a)",
    )


def check_op(name: str) -> None:
    """A `UsageError`, with the nearest names, if there is no such op."""
    if name not in registry.op_names():
        raise UsageError(registry.unknown("op", name, registry.op_names()))


_DAY_S = 86400.0


def check_timeout(seconds: float) -> None:
    """A `UsageError` unless 0 < ``seconds`` <= a day."""
    if not 0 < seconds <= _DAY_S:
        raise UsageError(
            f"--timeout {seconds:g}: give a number of seconds above 0, and a day, {_DAY_S:.0f}, at most"
        )


def archs(texts: Sequence[str]) -> tuple[str, ...]:
    """The architectures of ``--arch``, each once; a `UsageError` if one is not known."""
    found = [arch.strip() for text in texts for arch in text.split(",")]
    for arch in found:
        if not ARCHITECTURE.fullmatch(arch):
            raise UsageError(f"--arch {arch}: an architecture reads like sm_90, several like sm_75,sm_90")
        limits(arch)
    return tuple(dict.fromkeys(found))
