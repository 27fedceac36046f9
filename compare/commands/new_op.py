"""Write the files of a new op: y = x * x, element by element, in PyTorch, Triton and CUDA. It
works as it is; change it into yours.

examples:
  python -m compare new-op squared
  python -m compare new-op squared --into drafts/

exit status:
  0  the files are written
  2  a mistake in the command, or a file of that name exists: nothing was written
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from compare import places, registry
from compare.command_line import options, status
from compare.model.op import UsageError

EXAMPLE = places.DATA / "examples" / "new_op"
"""A tree like the project's; every file is named after the folder, and names the op so."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the op: lower-case letters, digits and _")
    parser.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        help="the folder that gets the files, each in its subfolder (default: this project)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files of the op ``arguments.name`` below ``--into``; the exit status."""
    if arguments.name is None:
        raise UsageError("new-op takes a name: python -m compare new-op NAME")
    if arguments.into is None and not places.IS_CHECKOUT:
        raise UsageError(
            f"new-op {arguments.name}: this copy is installed, and the next version would replace its files: "
            "give --into DIR, or run this in a checkout"
        )
    return write(arguments.name, arguments.into or places.ROOT)


def write(name: str, into: Path) -> int:
    _check(name)
    files = {
        into / path.relative_to(EXAMPLE).with_name(path.name.replace(EXAMPLE.name, name)): path
        for path in sorted(EXAMPLE.rglob(f"{EXAMPLE.name}.*"))
        if path.parent.name != "__pycache__"  # pip compiles what it installs
    }
    for file in files:
        if file.exists():
            raise UsageError(f"new-op {name}: {file} exists, and is not overwritten: give another name")
    try:
        for file, path in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x") as new:
                new.write(re.sub(rf"{EXAMPLE.name}(?=\b|_)", name, path.read_text()))
    except OSError as error:
        raise UsageError(f"new-op {name}: cannot write {error.filename} ({error.strerror})") from error
    print(f"{name}: y = x * x, in PyTorch, Triton and CUDA. Wrote")
    print("\n".join(f"  {file}" for file in files))
    print(_next(name, into))
    return status.SUCCESS


def _check(name: str) -> None:
    """A `UsageError` for a name that an op cannot have."""
    why = None
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        why = "write a name of lower-case letters, digits and _, that is no word of Python's"
    elif name in registry.op_names():
        why = "there is such an op already: give another name"
    elif name in ("all", *options.COMMANDS):
        why = "this is a command: give another name"
    elif name in sys.builtin_module_names or find_spec(name) is not None:
        why = "a Python module has that name, and pybind11's module needs it: give another name"
    if why:
        raise UsageError(f"new-op {name}: {why}")


def _next(name: str, into: Path) -> str:
    if into.resolve() != places.ROOT:
        project = places.ROOT if places.IS_CHECKOUT else "a checkout"
        return f"NEXT  move them into the same folders of {project}\n      python -m compare {name}"
    return (
        f"NEXT  python -m compare {name}   every row is correct\n"
        f"      change ops/{name}.py, then a way at a time: docs/adding-an-op.md"
    )
