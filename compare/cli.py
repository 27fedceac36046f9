"""The command line: which command is meant, its parser, and the exit status of its errors."""

from __future__ import annotations

import argparse
import errno
import functools
import importlib
import io
import os
import platform
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TextIO

from compare import places, registry
from compare.command_line import options, outputs
from compare.command_line.status import CLOSED_PIPE, INCONCLUSIVE, SUCCESS, USAGE
from compare.model.op import UsageError
from compare.report.substitutes import SUBSTITUTES
from compare.sandbox.words import printable

VERSION = "0.1.0"
MAX_ARGUMENT = 4096
"""Characters of an argument: as many as a path may have."""
_HELP_WIDTH = 80
_UNWRITTEN = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)
_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_COLLECTIVE = "collective"
"""What compares an op of several GPUs; not a word of the command line."""
_START = """The same GPU operation in PyTorch, Triton and CUDA C++.
  python -m compare softmax            one of {ops} ops (list)
  python -m compare lab start 01 DIR   a course's first lab
  python -m compare --help             everything else"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status (see ``--help``); an error is one sentence on stderr."""
    for stream in ("stdout", "stderr"):
        writer = getattr(sys, stream)
        if writer is None:  # closed by whoever started this
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as this runs
        elif isinstance(writer, io.TextIOWrapper):
            writer.reconfigure(errors=SUBSTITUTES)
    if folder := os.environ.get("COMPARE_CACHE_DIR"):  # other processes have another current folder
        os.environ["COMPARE_CACHE_DIR"] = str(Path(folder).absolute())
    try:
        try:
            return _run(sys.argv[1:] if argv is None else list(argv))
        finally:
            for printed in (sys.stdout, sys.stderr):
                printed.flush()  # a closed pipe is answered here, and not by Python at exit
    except (KeyboardInterrupt, Exception) as error:
        return _status_of(error)


def _status_of(error: BaseException) -> int:
    """The exit status of what ended a command, after its sentence."""
    if _by_interrupt(error):
        return _complain("interrupted before anything was finished", INCONCLUSIVE)
    if isinstance(error, UsageError):
        return _complain(str(error))
    if isinstance(error, BrokenPipeError):
        _print_no_more(sys.stdout)  # the reader has closed the pipe, of both after 2>&1
        _print_no_more(sys.stderr)
        return CLOSED_PIPE
    code = error.errno if isinstance(error, OSError) else None
    if code in _UNWRITTEN:
        _print_no_more(sys.stdout)
        return _complain(
            f"the output could not be printed, or a temporary file not written: {os.strerror(code)}"
        )
    if os.environ.get("COMPARE_TRACEBACK"):
        raise error
    return _complain(_explained(error))


def _by_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C led to it: Python 3.11 wraps one that ends a ``__set_name__`` in a RuntimeError."""
    before = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt) or (before is not None and _by_interrupt(before))


def _run(words: list[str]) -> int:
    """Parse, and run the command; options may come before its name."""
    for i, word in enumerate(words, 1):
        if not word or (word.startswith("--") and word.endswith("=")):
            raise UsageError(f"argument {i} is empty: give {word or 'it'} a value, or leave it out")
        if len(word) > MAX_ARGUMENT:
            raise UsageError(f"argument {i} has {len(word)} characters; the most is {MAX_ARGUMENT}")
        if not word.isprintable():
            raise UsageError(f"argument {i}, {word!a}, has characters that cannot be printed")
    if not words:
        print(_START.format(ops=len(registry.op_names())))
        return SUCCESS
    if "--version" in words:
        print(_wrapped(_versions()))
        return SUCCESS
    command = words[0]
    if command.startswith("-"):
        command = parser_of().parse_known_args(_own_values(words))[0].what
    if command in options.COMMANDS:
        words.remove(command)
    else:
        command = _COLLECTIVE if command in registry.collective_names() else ""
        words = words if command else _own_values(words)
    arguments, rest = parser_of(command).parse_known_intermixed_args(words)
    if rest:
        raise UsageError(_misplaced(command, rest))
    outputs.check({f"--{name}": getattr(arguments, name, None) for name in options.FILES})
    return int(_module_of(command).run(arguments))


def _own_values(words: list[str]) -> list[str]:
    """The words, with ``--sweep OP`` so written that the op is no value of ``--sweep``."""
    bare = [word == "--sweep" and after not in ("sweep", "shapes") for word, after in pairwise([*words, ""])]
    return [f"{word}=sweep" if each else word for word, each in zip(words, bare, strict=True)]


def _module_of(command: str) -> ModuleType:
    """Of all commands, only this one's module is imported; without a name, the comparison's."""
    return importlib.import_module(f"compare.commands.{command.replace('-', '_') or 'compare'}")


@functools.cache
def parser_of(command: str = "") -> argparse.ArgumentParser:
    """The parser of what follows ``python -m compare COMMAND``; the module's docstring is its help."""
    module = _module_of(command)
    description, _, epilog = str(module.__doc__).partition("\n\n")
    parser = argparse.ArgumentParser(
        prog=f"python -m compare {command.removeprefix(_COLLECTIVE)}".rstrip(),
        description=_wrapped(description),
        epilog=_wrapped(epilog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if not command:
        parser.add_argument("--version", action="store_true", help="of this project and of what it builds on")
    module.add_arguments(parser)
    return parser


def _wrapped(text: str) -> str:
    """A help text without lines that are too long: prose is filled anew, what is indented hangs."""
    width = min(_HELP_WIDTH, shutil.get_terminal_size().columns)
    blocks = re.findall(r"(?:^\S.*\n?)+|^(?: .*)?\n?", text, re.MULTILINE)
    return "\n".join(_block(block.rstrip("\n"), width) for block in blocks).rstrip()


def _block(block: str, width: int) -> str:
    if not block.startswith(" "):
        return textwrap.fill(block, width)
    hangs = re.match(r"  \d  |  \S.*?\S {3,}| +", block)
    indent = " " * (len(hangs[0]) if hangs and hangs[0].strip() else 6)
    return textwrap.fill(block, width, subsequent_indent=indent, break_on_hyphens=False)


def _versions() -> str:
    """For a report of a fault."""
    packages = "torch", "triton", "cupy-cuda13x"
    known = {name: [*metadata.distributions(name=name)] for name in packages}  # only theirs are read
    named = (f"{name} {of[0].version if of else 'not installed'}" for name, of in known.items())
    return ", ".join((f"gpu-three-ways {VERSION}", *named, f"Python {platform.python_version()}"))


def _misplaced(command: str, rest: Sequence[str]) -> str:
    """What is wrong with arguments that a command does not take."""
    if not command and not rest[0].startswith("-"):
        return f"{rest[0]}: only 'diff' takes files. Name one op, or 'all'. A file of your own: --load FILE"
    of_comparison = {
        name: action.option_strings[-1] for action in parser_of()._actions for name in action.option_strings
    }
    for word in rest:
        if option := of_comparison.get(word.partition("=")[0]):
            if command == _COLLECTIVE:
                return f"{option} goes with an op of one GPU; leave it out"
            return f"{option} goes with an op; leave it out of '{command}'"
    who = {"": "a comparison", _COLLECTIVE: "a comparison of several GPUs"}.get(command, f"'{command}'")
    more = f"{parser_of(command).prog} {'OP ' * (command == _COLLECTIVE)}--help"
    return f"{rest[0]}: {who} takes no such argument; {more} shows its own"


def _explained(error: BaseException) -> str:
    """Where the error was raised, and what to do next."""
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return f"{error.filename}: {error.strerror}. Give another name"
    if isinstance(error, ImportError) and str(error.path).endswith(".so"):
        fix = f"free memory; if that is no help, {_how_to_install()}"
        return f"this Python, {sys.executable}, cannot load a library, {error}: {fix}"
    lacking = error.name if isinstance(error, ModuleNotFoundError) else None
    if lacking and not (registry.ROOT / lacking.partition(".")[0]).exists():  # not one of our own
        return (
            f"this Python, {sys.executable}, has no module {lacking!r}: {_how_to_install()}; "
            "'python -m compare doctor' lists all that is missing"
        )
    kind = type(error).__name__
    for file in _files_of_ops(error):
        line = registry.line_in(error, file)
        if line is not None and str(file) in registry.op_files():
            fix = "Fix the op (COMPARE_TRACEBACK=1 shows how it was called)"
            return f"--load {file}: {kind} at line {line}: {error}. {fix}"
        if line is not None:
            where = f"{file.relative_to(registry.ROOT)}:{line}"
            return f"{where}: {kind}: {error}. Fix the file (COMPARE_TRACEBACK=1 shows how)"
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType) and error.name == "OP":
        return f"{error.obj.__file__} has no OP: name the op's description so, OP = Op(...)"
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return f"{error.strerror}: free space, or set TMPDIR to a folder that can be written to"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _LIMITS):
        what = error.strerror if isinstance(error, OSError) else "out of memory"
        return f"{what}: end other programs, or raise this process's limits ('ulimit -a' shows them)"
    return f"an error of the tool itself, {kind}: {error}. COMPARE_TRACEBACK=1 shows where; please report it"


def _how_to_install() -> str:
    if places.IS_CHECKOUT:
        return f"run 'make install' in {places.ROOT}, then 'source .venv/bin/activate'"
    return places.to_install()


def _files_of_ops(error: BaseException) -> list[Path]:
    """The files of ops and implementations that raised it or, with a mistake in their syntax, are it."""
    frames = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    files = [Path(file) for file in (*frames, getattr(error, "filename", None) or "")]
    packages = ("ops", *registry.IMPLEMENTATION_PACKAGES)
    folders = {registry.ROOT / package.replace(".", "/") for package in packages}
    users = registry.op_files()
    return [file for file in reversed(files) if str(file) in users or file.parent in folders]


def _complain(message: str, status: int = USAGE) -> int:
    try:
        print(f"python -m compare: {printable(message)}", file=sys.stderr)
    except OSError:  # stderr is closed; the exit status remains
        _print_no_more(sys.stderr)
    return status


def _print_no_more(stream: TextIO) -> None:
    """Keep Python from reporting the same error again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
