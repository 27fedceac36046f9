"""Arguments that several commands take, how they are parsed, and the ops and users' files that they name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from compare import registry
from compare.model.architecture import limits
from compare.model.op import ARCHITECTURE, Op, UsageError
from compare.model.result import Options
from compare.sandbox import isolation
from compare.sandbox.words import printable

COMMANDS = (
    *("list", "doctor", "diff", "pipeline", "aot"),
    *("map", "show", "new-op", "lab", "predict", "grade", "serve"),
)
"""Words that name no op; `compare.cli` has their modules."""
FILES = ("plot", "json", "csv", "markdown", "html", "junit", "trace", "gradescope", "canvas", "moodle")
"""Options that name a file to be written: `compare.cli` checks them before the command's work."""

_DAY_S = 86400.0


# --------------------------------------------------------------------------- declared


def add_repeatable(add: Callable[..., Any], name: str, metavar: str, what: str) -> None:
    """An option that may be given more than once."""
    add(name, action="append", default=[], metavar=metavar, help=f"{what}; repeatable")


def add_only(add: Callable[..., Any], more: str = "") -> None:
    add_repeatable(add, "--only", "GLOB", f"only these implementations{more}")


def add_load(add: Callable[..., Any]) -> None:
    add_repeatable(add, "--load", "FILE", "a Python or .cu file with implementations or an op of your own")


def add_device(add: Callable[..., Any]) -> None:
    add("--device", default="auto", help="auto, cpu, cuda or cuda:NUMBER (default: a GPU if there is one)")


def add_cluster(add: Callable[..., Any], what: str) -> None:
    where = "local (this machine's), a Dask scheduler's address, or a slurm.toml"
    add("--cluster", metavar="local|URL|FILE", help=f"{what}: {where}")


def add_timeout(add: Callable[..., Any], default: float | None = Options.timeout_s, more: str = "") -> None:
    add(
        "--timeout",
        type=float,
        default=default,
        metavar="SECONDS",
        help="time limit of one step of an implementation: build and first call, a check, a round of "
        f"timing, compiling for one architecture (default: {Options.timeout_s:.0f}{more})",
    )


def add_verbose(add: Callable[..., Any]) -> None:
    add("-v", "--verbose", action="store_true", help="print each step and its seconds to stderr")


def add_file(add: Callable[..., Any], name: str, what: str) -> None:
    """One of `FILES`, for `outputs.writes`."""
    add(f"--{name}", type=Path, metavar="FILE", help=what)


def add_tables(add: Callable[..., Any], everything: str, line: str) -> None:
    """``--json``, ``--csv`` with a line for each ``line``, ``--markdown``."""
    add_file(add, "json", everything)
    add_file(add, "csv", f"one line for each {line}")
    add_file(add, "markdown", "the tables")


def add_page(add: Callable[..., Any]) -> None:
    """``--html``, for `outputs.html_page`."""
    add_file(add, "html", "one self-contained page with figures and sources")


def add_junit(add: Callable[..., Any]) -> None:
    """``--junit`` of comparisons."""
    add_file(add, "junit", "JUnit XML for continuous integration: a test for each implementation and case")


def add_records(add: Callable[..., Any]) -> None:
    """``--records``, for `history.reading.files_of`."""
    add(
        "--records",
        nargs="+",
        action="extend",
        type=Path,
        default=[],
        metavar="PATH",
        help="records of one device, from --record or --json (default: results/ of this GPU, or of the "
        "device that has these ops and was recorded last)",
    )


def add_arch(add: Callable[..., Any], doing: str) -> None:
    """``--arch``, to be parsed by `archs`; ``doing`` is its verb, as ``compile``."""
    what = f"{doing} for these, e.g. sm_75,sm_90 (default: this GPU; without one sm_75,sm_80,sm_90a)"
    add("--arch", action="append", default=[], metavar="SM", help=what)


# --------------------------------------------------------------------------- parsed


def check_op(name: str) -> None:
    """A `UsageError`, with the nearest names, if there is no such op."""
    if name not in registry.op_names():
        raise UsageError(registry.unknown("op", name, registry.op_names()))


def check_folders(folders: Iterable[Path]) -> None:
    """A `UsageError` unless each can be looked into."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: there is no such folder")


def check_timeout(seconds: float) -> None:
    """A `UsageError` unless 0 < ``seconds`` <= a day."""
    if not 0 < seconds <= _DAY_S:
        raise UsageError(
            f"--timeout {seconds:g}: give a number of seconds above 0, and a day, {_DAY_S:.0f}, at most"
        )


def archs(texts: Sequence[str]) -> tuple[str, ...]:
    """The architectures of ``--arch``, each once; a `UsageError` if one is not known."""
    names = [arch.strip() for text in texts for arch in text.split(",")]
    for arch in names:
        if not ARCHITECTURE.fullmatch(arch):
            raise UsageError(f"--arch {arch}: an architecture reads like sm_90, several like sm_75,sm_90")
        limits(arch)
    return tuple(dict.fromkeys(names))


# --------------------------------------------------------------------------- the ops that are meant


def load(
    files: Sequence[str], op: str | None = None, *, trusted: bool = True, others: Path | None = None
) -> dict[str, str]:
    """Load users' files after the project's own, so that their rows come after them.

    Args:
        files: of ``--load``.
        op: the one that the command names; None: all of them.
        trusted: False: nothing will be compared, so a file that defines an op is not run.
        others: of ``--own-code``; as of `user_files.load`.

    Returns:
        By the name of each of these ops the file that defines it; empty of the project's own.
    """
    for name in registry.op_names():
        if op in (None, name):
            registry.implementations(name)
    defined: dict[str, str] = {}
    if files:
        # Start-up: mistakes in a command need no PyTorch.
        from compare.worker import user_files

        isolation.protect_judge()
        defined = user_files.load(files, op, trusted=trusted, others=others)
    for name in {"all", *COMMANDS}.intersection(defined):
        raise UsageError(f"--load: {name} is a command, so no op can have this name: rename the op")
    for name, file in defined.items() if trusted else ():
        text = f"{file} defines the op {name}, so it says what is right, and runs with all your rights"
        print(f"python -m compare: {printable(text)}", file=sys.stderr)
    return {name: defined.get(name, "") for name in ([op] if op else [*registry.op_names(), *defined])}


def select(names: Iterable[str], only: Sequence[str]) -> list[Op]:
    """The ops that have an implementation of ``--only``, as by `check_only`; a `UsageError` if none has."""
    errors = []
    selected = []
    for op in map(registry.get_op, names):
        try:
            registry.implementations(op.name, only)
            selected.append(op)
        except UsageError as error:
            errors.append(error)
    if not selected:
        raise errors[0]
    check_only(only, [impl.label for op in selected for impl in registry.implementations(op.name)])
    return selected


def check_only(only: Sequence[str], labels: Iterable[str], what: str = "implementation") -> None:
    """Warn on stderr of each pattern of ``--only`` that matches no label; a `UsageError` if none matches."""
    labels = list(dict.fromkeys(labels))
    unmatched = [
        pattern for pattern in only if not any(registry.is_among(label, [pattern]) for label in labels)
    ]
    problems = [registry.unknown(what, pattern, labels) for pattern in unmatched]
    if only and len(unmatched) == len(only):
        raise UsageError(problems[0])
    for problem in problems:
        text = f"--only: {problem}; the other patterns are used"
        print(f"python -m compare: {printable(text)}", file=sys.stderr)
