"""The arguments of a comparison, ``python -m compare OP``; their help is that of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import options
from compare.spec import UsageError

COMMANDS = (
    *("list", "doctor", "diff", "pipeline", "aot"),
    *("map", "show", "new-op", "lab", "predict", "grade"),
)
"""Words that name no op; `compare.cli` has their modules."""

CALIBRATE = "--calibrate belongs to 'python -m compare doctor'"

BUDGET_S = 3.0
SWEEP_BUDGET_S = 2.0
TRIAL_S = 0.3
"""Added for each row of ``--tune``."""

_EPILOG = """\
examples:
  python -m compare softmax
  python -m compare softmax --case M=4096,N=781,fp16 --only 'triton.*'
  python -m compare softmax --load examples/my_softmax.py
  python -m compare all --sweep --record
  python -m compare softmax --crossover N
  python -m compare matmul --matched
  python -m compare vector_add --tune BLOCK_SIZE
  python -m compare diff old.json new.json
  python -m compare pipeline vector_add --arch sm_90
  python -m compare aot vector_add --arch sm_90 --out programs/
  python -m compare map
  python -m compare show softmax
  python -m compare new-op squared
  python -m compare predict softmax
  python -m compare lab start 01 my_lab/
  python -m compare grade my_lab/

exit status of a comparison (of a command: COMMAND --help):
  0  every implementation that this machine can run is correct: it matches fp64 within tolerance
  1  at least one is wrong, or faster than the lower bound on its time
  2  a mistake in the command, its files or the machine's setup, or a file could not be written
  3  inconclusive: interrupted, an implementation raised an error or does not compile, none could be run,
     or one of a --load file was not run

COMPARE_TRACEBACK=1 shows where an error was raised.
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "",
        "The same GPU operation in PyTorch, Triton and CUDA C++: correctness, speed, registers and shared "
        "memory, and code size of each.",
        _EPILOG,
    )
    found.add_argument(
        "what",
        metavar="|".join(("OP", "all", *COMMANDS)),
        help="the op to compare, or all of them; or a command: all ops (list), what this machine can run "
        "(doctor), what changed between two files (diff), an op through its compilers stage by stage "
        "(pipeline), its kernels as programs without Python (aot), the "
        "fastest way over all records (map), all that is on record of an op (show), the files of a new op "
        "(new-op), predictions before measurements (predict), or labs of a course (lab) and their marks "
        "(grade). COMMAND --help shows its options",
    )
    # Hidden: given by mistake, they are refused in a sentence.
    found.add_argument("files", nargs="*", help=argparse.SUPPRESS)
    found.add_argument("--calibrate", action="store_true", help=argparse.SUPPRESS)
    add = found.add_argument_group("cases and implementations").add_argument
    options.add_repeatable(add, "--case", "CASE", "sizes and dtype, e.g. M=4096,N=781,fp16")
    add("--sweep", action="store_true", help="every size in the op's list (without a GPU: as recorded)")
    add("--crossover", metavar="DIM", help="find the size of DIM at which the fastest way changes")
    options.add_only(add, ", e.g. 'triton.*', and the baseline")
    options.add_load(add)
    add = found.add_argument_group("how").add_argument
    options.add_device(add)
    options.add_arch(add, "compile")
    add(
        "--seed",
        type=int,
        default=0,
        help="seed of the random inputs and of the order of timing (default: 0)",
    )
    add(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="time limit of the timing, for all cases of an op together "
        f"(default: {BUDGET_S:.0f} a case, in a sweep {SWEEP_BUDGET_S:.0f})",
    )
    add(
        "--matched",
        action="store_true",
        help="also run CUDA with the tile, warps and stages that Triton chose: separates the compiler's "
        "share of a speedup from the tuning's",
    )
    add(
        "--tune",
        action="append",
        default=[],
        metavar="NAME[=VALUES]",
        help="also run implementations with other values of their parameter NAME, e.g. BLOCK_SIZE or "
        "BLOCK_SIZE=64,128,256; repeatable: every combination",
    )
    add("--retune", action="store_true", help="autotune again, not with configurations of earlier runs")
    add("--sustained", action="store_true", help="also time bursts and sustained load (longer)")
    options.add_timeout(add)
    add = found.add_argument_group("screen").add_argument
    add("--all", action="store_true", dest="every", help="every row and case, not only the best of each way")
    add("--explain", action="store_true", help="each column's meaning and how it was measured")
    add("--details", action="store_true", help="further tables: errors, times, resources, code size")
    add = found.add_argument_group("files").add_argument
    options.add_tables(add, "all results, raw samples included", "implementation and case")
    add("--html", type=Path, metavar="FILE", help="one self-contained page with figures and sources")
    add("--record", action="store_true", help="add the run to results/ (needs a GPU)")
    options.add_verbose(add)
    return found


def without(command: str, own: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a ``command`` other than a comparison.

    Raises:
        UsageError: the command has no such argument.
    """
    arguments, rest = own.parse_known_args(argv)
    if "--calibrate" in rest:
        raise UsageError(CALIBRATE)
    names = {
        name: action.option_strings[-1] for action in parser()._actions for name in action.option_strings
    }
    for word in rest:
        if option := names.get(word.partition("=")[0]):
            raise UsageError(f"{option} goes with an op; leave it out of '{command}'")
    if rest:
        shown = f"python -m compare {command} --help shows its own"
        raise UsageError(f"{rest[0]}: '{command}' takes no such argument; {shown}")
    return arguments
