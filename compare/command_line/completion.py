"""Completion of a command in the shell, by argcomplete: its words, options, ops and implementations.

The shell runs ``python -m compare`` with ``_ARGCOMPLETE`` set; `compare.__main__` calls this then, before
anything else.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Callable, Iterable

from compare import registry
from compare.command_line import inventory, options
from compare.model.op import ROUTES

_OPS = ("op", "ops", "what")
"""How the commands call an argument that names an op."""


def complete(parser_of: Callable[[str], argparse.ArgumentParser]) -> None:
    """Print the completions of what the shell has in ``COMP_LINE`` and end the process.

    Args:
        parser_of: the parser of a command, by its name; empty: of a comparison.
    """
    try:
        argcomplete = importlib.import_module("argcomplete")  # an optional dependency
    except ImportError:
        os._exit(1)
    parser = parser_of(_without_command())
    for action in parser._actions:
        candidates = _candidates(action, comparison=parser is parser_of(""))
        if candidates is not None:
            vars(action)["completer"] = argcomplete.ChoicesCompleter(candidates)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _without_command() -> str:
    """Take the command's name, which its own parser does not know, out of the line; and return it."""
    line, point = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    for match in re.finditer(r"(?<=\s)\S+(?=\s)", line[:point]):
        if match[0] in options.COMMANDS:
            os.environ["COMP_LINE"] = line[: match.start()] + line[match.end() + 1 :]
            os.environ["COMP_POINT"] = str(point - len(match[0]) - 1)
            return match[0]
    return ""


def _candidates(action: argparse.Action, *, comparison: bool) -> Iterable[str] | None:
    """What may be completed to; None: file names, or argparse's own choices."""
    if "--only" in action.option_strings:
        labels = {impl.label for op in inventory.kept() or () for impl in op.implementations}
        return sorted({*(f"{route}.*" for route in ("torch", "triton", *ROUTES)), *labels})
    if "--device" in action.option_strings:
        return ("auto", "cpu", "cuda")
    if not action.option_strings and action.dest in _OPS and not action.choices:
        return [*registry.op_names(), "all", *(options.COMMANDS if comparison else ())]
    return None
