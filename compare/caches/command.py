"""``python -m compare cache``: arguments in, exit code out."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compare import registry
from compare.spec import UsageError

if TYPE_CHECKING:
    from compare.caches.records import Cleared, Found

_EPILOG = """\
examples:
  python -m compare cache
  python -m compare cache vector_add --arch sm_90
  python -m compare cache softmax --only triton.online --json cache.json
  python -m compare cache --clear

exit status:
  0  shown, or removed
  2  a mistake in the command, or something is in use or not ours; nothing was removed
"""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m compare cache",
        description="What compilers keep on disk: where, how much, and of an op's kernels each entry with "
        "its files, its key and what the key is made of.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("op", nargs="?", default="", metavar="OP", help="what is kept of this op")
    add("--only", action="append", default=[], metavar="GLOB", help="only these implementations; repeatable")
    add(
        "--arch",
        action="append",
        default=[],
        metavar="SM",
        help="keys for these, e.g. sm_75,sm_90 (default: this GPU; without one sm_75,sm_80,sm_90a)",
    )
    add("--clear", action="store_true", help="remove what this project built, of OP or all, and nothing else")
    add("--json", type=Path, metavar="FILE", help="everything that was found")
    return found


def main(argv: Sequence[str], archs_of: Callable[[Sequence[str]], tuple[str, ...]]) -> int:
    """Run the command.

    Args:
        argv: what follows ``cache``.
        archs_of: reads what was given to ``--arch``.

    Raises:
        UsageError: the command asks for what does not exist, or for clearing what must stay.
    """
    arguments = parser().parse_args(argv)
    if arguments.op and arguments.op not in registry.op_names():
        raise UsageError(registry.unknown("op", arguments.op, registry.op_names()))
    if not arguments.op and (arguments.only or arguments.arch):
        raise UsageError("--only and --arch belong to an op; name it: python -m compare cache OP")
    if arguments.clear and (arguments.only or arguments.arch):
        raise UsageError("--clear removes all of an op's builds; leave out --only and --arch")
    archs = archs_of(arguments.arch)
    if arguments.json and (arguments.json.is_dir() or not arguments.json.parent.is_dir()):
        raise UsageError(f"{arguments.json} cannot be written; name a file in a folder that exists")
    os.environ.pop("TRITON_INTERPRET", None)  # keys are those of compiled kernels

    from compare.caches import looking, ours
    from compare.caches.records import Found
    from compare.report import caches as report
    from compare.report import terminal

    if arguments.clear:
        kernels = frozenset(looking.cuda_kernels(arguments.op)) if arguments.op else frozenset()
        cleared = ours.clear(arguments.op, kernels)
        _write(arguments.json, cleared)
        terminal.put(lambda width: report.cleared(cleared, looking.caches(), width))
        return 0
    if arguments.op:
        from compare.occupancy import limits

        for arch in archs:
            limits(arch)
        found = looking.of_op(arguments.op, arguments.only, archs or _archs_here())
    else:
        found = Found("", looking.caches())
    _write(arguments.json, found)
    terminal.put(lambda width: report.render(found, width))
    return 0


def _archs_here() -> tuple[str, ...]:
    import torch

    from compare.device import arch
    from compare.run import STATIC_ARCHS

    here = arch(torch.device("cuda", torch.cuda.current_device())) if torch.cuda.is_available() else None
    return (here,) if here else STATIC_ARCHS


def _write(file: Path | None, what: Found | Cleared) -> None:
    if file is None:
        return
    from compare import records
    from compare.caches.records import as_data

    try:
        records.write_whole(file, json.dumps(as_data(what), indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"{file} could not be written: {error}") from None
