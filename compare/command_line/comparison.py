"""The arguments of a comparison, ``python -m compare OP``; their help is that of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import options
from compare.spec import Options, UsageError

COMMANDS = ("list", "doctor", "diff", "pipeline", "aot", "cache", "map", "new-op")
"""What is no op; `compare.cli` knows their modules."""

CALIBRATE = "--calibrate belongs to 'python -m compare doctor'"

BUDGET_S = 5.0
SWEEP_BUDGET_S = 4.0
TRIAL_S = 0.3
"""More for each row that ``--tune`` adds."""

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
  python -m compare cache vector_add
  python -m compare map
  python -m compare new-op squared

exit status of a comparison (of a command: COMMAND --help):
  0  every implementation that this machine can run is correct: its output is the fp64 result within tolerance
  1  at least one is wrong, or was faster than its work can be done
  2  a mistake in the command, its files or the machine's setup: nothing was compared, or a file not written
  3  inconclusive: interrupted, an implementation raised an error or does not compile, or none could be run

COMPARE_TRACEBACK=1 shows where an error was raised.
"""


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "",
        "The same GPU operation in PyTorch, Triton and CUDA C++: whether each is correct, how fast it is, "
        "what it takes of the GPU and how much code it is.",
        _EPILOG,
    )
    found.add_argument(
        "what",
        metavar="|".join(("OP", "all", *COMMANDS)),
        help="the op to compare, or all of them; or a command: what there is (list), what this machine can "
        "run (doctor), what has changed between two files (diff), what the compilers make of an op "
        "(pipeline), its kernels as programs without Python (aot), what the compilers keep on disk (cache), "
        "which way is fastest over all that is recorded (map), or the files of a new op (new-op). "
        "COMMAND --help shows its options",
    )
    # Hidden: given to an op by mistake they are refused in a sentence.
    found.add_argument("files", nargs="*", help=argparse.SUPPRESS)
    found.add_argument("--calibrate", action="store_true", help=argparse.SUPPRESS)
    add = found.add_argument_group("what is compared").add_argument
    options.add_repeatable(add, "--case", "CASE", "sizes and dtype, e.g. M=4096,N=781,fp16")
    add("--sweep", action="store_true", help="every size in the op's list")
    add("--crossover", metavar="DIM", help="find the size of DIM at which the fastest way changes")
    options.add_only(add, ", e.g. 'triton.*', and the baseline")
    options.add_load(add)
    add = found.add_argument_group("how").add_argument
    options.add_device(add)
    options.add_arch(add, "compile")
    add("--seed", type=int, default=0, help="of the random inputs and the order of timing (default: 0)")
    add(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="most time to spend on timing, for all cases of an op together "
        f"(default: {BUDGET_S:.0f} a case, in a sweep {SWEEP_BUDGET_S:.0f})",
    )
    add(
        "--matched",
        action="store_true",
        help="run CUDA with the tile, warps and stages that Triton chose as well, so that compiler and "
        "tuning can be told apart",
    )
    add(
        "--tune",
        action="append",
        default=[],
        metavar="NAME[=VALUES]",
        help="run what has the parameter NAME with other values as well, e.g. BLOCK_SIZE or "
        "BLOCK_SIZE=64,128,256; repeatable, for every choice of several",
    )
    add("--retune", action="store_true", help="search for configurations again that earlier runs have found")
    add("--sustained", action="store_true", help="time bursts and sustained load as well (longer)")
    add(
        "--timer",
        choices=("events", "nvbench"),
        default="events",
        help="whose cold GPU times: ours, by CUDA events, or nvbench's (default: events)",
    )
    add(
        "--timeout",
        type=float,
        default=Options.timeout_s,
        metavar="SECONDS",
        help="most time for one step of an implementation: its first call with what it builds, a check, "
        f"a turn of timing, compiling it for an architecture (default: {Options.timeout_s:.0f})",
    )
    add = found.add_argument_group("what is on the screen").add_argument
    add("--all", action="store_true", dest="every", help="every row in the table, not the best of each way")
    add("--explain", action="store_true", help="what each column is, and how it was taken")
    add("--details", action="store_true", help="all further tables: errors, times, resources, code size")
    add = found.add_argument_group("what is written, beside the screen").add_argument
    options.add_tables(add, "everything, raw samples included", "implementation and case")
    add("--html", type=Path, metavar="FILE", help="one page with figures and sources, which needs no network")
    add("--record", action="store_true", help="add the run to results/ (needs a GPU)")
    options.add_verbose(add)
    return found


def without(command: str, own: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a ``command`` that compares nothing.

    Raises:
        UsageError: one of them is none of this command's.
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
