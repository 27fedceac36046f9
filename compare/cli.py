"""The command line: which command is meant, its parser, and the exit status of its errors."""

from __future__ import annotations

import argparse
import errno
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TextIO

from compare import registry
from compare.command_line import options
from compare.command_line.status import INCONCLUSIVE, USAGE
from compare.model.op import UsageError
from compare.sandbox.words import printable

NO_COMMAND = ""
"""The name of what ``python -m compare OP`` does."""
MAX_ARGUMENT = 4096
"""Characters of an argument: as many as a path may have."""

_CALIBRATE = "--calibrate belongs to 'python -m compare doctor'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status (see ``--help``)."""
    words = sys.argv[1:] if argv is None else list(argv)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by whoever started this
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as this runs
    if folder := os.environ.get("COMPARE_CACHE_DIR"):  # other processes have another current folder
        os.environ["COMPARE_CACHE_DIR"] = str(Path(folder).absolute())
    return _guarded(lambda: _command(words))


def module_of(command: str) -> ModuleType:
    """The module of a command: of all commands, only this one's is imported."""
    return importlib.import_module(f"compare.commands.{command.replace('-', '_') or 'compare'}")


def _command(words: list[str]) -> int:
    _check(words)
    command = words[0] if words else NO_COMMAND
    if command.startswith("-"):  # options may come before the command
        command = parser_of().parse_known_args(words)[0].what
    if command in options.COMMANDS:
        words.remove(command)
    else:
        command = NO_COMMAND
    if "--calibrate" in words and command != "doctor":
        raise UsageError(_CALIBRATE)
    if command == NO_COMMAND:
        return int(module_of(command).run(parser_of().parse_args(words)))
    arguments, rest = parser_of(command).parse_known_args(words)
    if rest:
        raise UsageError(_misplaced(command, rest))
    return int(module_of(command).run(arguments))


def _check(words: Sequence[str]) -> None:
    for i, word in enumerate(words, 1):
        if not word or (word.startswith("--") and word.endswith("=")):
            raise UsageError(f"argument {i} is empty: give {word or 'it'} a value, or leave it out")
        if len(word) > MAX_ARGUMENT:
            raise UsageError(f"argument {i} has {len(word)} characters; the most is {MAX_ARGUMENT}")
        if not word.isprintable():
            raise UsageError(f"argument {i}, {word!a}, has characters that cannot be printed")


@functools.cache
def parser_of(command: str = NO_COMMAND) -> argparse.ArgumentParser:
    """The parser of what follows ``python -m compare COMMAND``."""
    parser = argparse.ArgumentParser(
        prog=f"python -m compare {command}".rstrip(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module_of(command).add_arguments(parser)
    return parser


def _misplaced(command: str, rest: Sequence[str]) -> str:
    """What is wrong with arguments that a command does not take."""
    of_comparison = {
        name: action.option_strings[-1] for action in parser_of()._actions for name in action.option_strings
    }
    for word in rest:
        if option := of_comparison.get(word.partition("=")[0]):
            return f"{option} goes with an op; leave it out of '{command}'"
    return f"{rest[0]}: '{command}' takes no such argument; python -m compare {command} --help shows its own"


def _guarded(command: Callable[[], int]) -> int:
    """Run a command; an error becomes one sentence and an exit status."""
    try:
        return command()
    except UsageError as error:
        return _complain(str(error), USAGE)
    except KeyboardInterrupt:
        return _complain("interrupted before anything was finished", INCONCLUSIVE)
    except BrokenPipeError:
        _print_no_more(sys.stdout)  # the reader has closed the pipe
        return INCONCLUSIVE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO):
            _print_no_more(sys.stdout)
            return _complain(f"the output could not be printed: {error.strerror}", USAGE)
        if os.environ.get("COMPARE_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return _complain(f"{error.filename}: {error.strerror}. Give another name", USAGE)
        return _complain(_explained(error), USAGE)


def _explained(error: Exception) -> str:
    """Where the error was raised, and what to do next."""
    lacking = error.name if isinstance(error, ModuleNotFoundError) else None
    if lacking and not (registry.ROOT / lacking.partition(".")[0]).exists():  # not one of our own
        return (
            f"this Python, {sys.executable}, has no module {lacking!r}: run 'make install' in "
            f"{registry.ROOT}, then 'source .venv/bin/activate'; 'python -m compare doctor' lists all "
            "that is missing"
        )
    for file in registry.op_files():
        line = registry.line_in(error, Path(file))
        if line is not None:
            return (
                f"--load {file}: {type(error).__name__} at line {line}: {error}. Fix the op "
                "(COMPARE_TRACEBACK=1 shows how it was called)"
            )
    for path in _files_of_ops(error):
        line = registry.line_in(error, path)
        if line is not None:
            where = f"{path.relative_to(registry.ROOT)}:{line}"
            return f"{where}: {type(error).__name__}: {error}. Fix the file (COMPARE_TRACEBACK=1 shows how)"
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType) and error.name == "OP":
        return f"{error.obj.__file__} has no OP: name the op's description so, OP = Op(...)"
    return (
        f"an error of the tool itself, {type(error).__name__}: {error}. "
        "COMPARE_TRACEBACK=1 shows where; please report it"
    )


def _files_of_ops(error: Exception) -> list[Path]:
    """The files of ops and implementations that raised it or, with a mistake in their syntax, are it."""
    frames = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    files = [Path(file) for file in (*frames, getattr(error, "filename", None) or "")]
    folders = ("ops", *(package.replace(".", "/") for package in registry.IMPLEMENTATION_PACKAGES))
    return [file for file in reversed(files) if file.parent in {registry.ROOT / each for each in folders}]


def _complain(message: str, status: int) -> int:
    try:
        print(f"python -m compare: {printable(message)}", file=sys.stderr)
    except OSError:  # stderr is closed; the exit status remains
        _print_no_more(sys.stderr)
    return status


def _print_no_more(stream: TextIO) -> None:
    """Keep Python from reporting the same error again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
