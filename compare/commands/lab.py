"""``python -m compare lab``: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import comparison, options
from compare.spec import UsageError

_TAKES: dict[str, tuple[str, ...]] = {
    "list": (),
    "start": ("LAB", "DIR"),
    "check": ("DIR",),
    "hint": ("LAB", "NUMBER"),
    "report": ("DIR",),
}
"""By what it does: the words that follow."""

_EPILOG = """\
examples:
  python -m compare lab list
  python -m compare lab start 04 my_lab/        write the hand-out, the starters and answers.toml
  python -m compare lab check my_lab/           run the tests; shows no speed
  python -m compare lab hint 04 2               the second hint
  python -m compare lab report my_lab/          predictions beside measurements, your rows among ours

exit status:
  0  done; of check: every case is correct
  1  check: something is wrong or missing
  2  a mistake in the command or its files
  4  check: your code raised an error, or does not compile
  5  check: your code took too long
  6  check: a fault of the machine: the reference failed too
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "lab", "Labs of a course: start one, check it, ask for a hint, write its report.", _EPILOG
    )
    found.add_argument("what", nargs="?", default="list", choices=tuple(_TAKES), metavar="|".join(_TAKES))
    found.add_argument("words", nargs="*", metavar="LAB|DIR", help="a lab's number or name; your folder")
    options.add_device(found.add_argument)
    options.add_timeout(found.add_argument)
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``lab``.

    Raises:
        UsageError: there is no such lab or folder, or one cannot be written.
    """
    arguments = comparison.without("lab", parser(), argv)
    options.check_timeout(arguments.timeout)
    words = arguments.words
    if len(words) != len(_TAKES[arguments.what]):
        form = " ".join(("lab", arguments.what, *_TAKES[arguments.what]))
        raise UsageError(f"lab {arguments.what}: got {len(words)} words behind it; write {form}")
    # Start-up: --help and mistakes in the command need no PyTorch.
    from compare.commands.running import lab

    if arguments.what == "start":
        return lab.start(words[0], Path(words[1]))
    if arguments.what == "hint":
        return lab.hint(*words)
    if arguments.what == "list":
        return lab.listed()
    act = lab.check if arguments.what == "check" else lab.report
    return act(Path(words[0]), arguments.device, arguments.timeout)
