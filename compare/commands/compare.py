"""``python -m compare OP`` or ``all``, with ``--crossover`` or not: arguments in, exit code out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from compare import registry
from compare.command_line import comparison, options, outputs
from compare.report.steps import steps
from compare.spec import UsageError
from compare.tuning import sweep
from compare.worker.start import prepare


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Raises:
        UsageError: the command asks for what does not exist, or cannot be done here.
    """
    arguments = comparison.parser().parse_args(argv)
    _check(arguments)
    ops = registry.op_names() if arguments.what == "all" else [arguments.what]
    with steps(arguments.verbose) as told:
        if told:
            told("importing PyTorch")
        device = prepare(arguments.device, ops)
        # Start-up: --help and mistakes in the command need no PyTorch.
        from compare.commands.running import compare, crossover

        run = crossover.run if arguments.crossover else compare.run
        return run(arguments, device, told)


def _check(arguments: argparse.Namespace) -> None:
    """A `UsageError` for mistakes that can be found without PyTorch."""
    if arguments.calibrate:
        raise UsageError(comparison.CALIBRATE)
    if arguments.files:
        raise UsageError(
            f"{arguments.files[0]}: only 'diff' takes files. Name one op, or 'all'. A file of your own: "
            "--load FILE"
        )
    if arguments.crossover:
        _check_crossover(arguments)
    # A file of the user's may define the op; then it is looked for when that is loaded.
    if arguments.what != "all" and not arguments.load and arguments.what not in registry.op_names():
        known = [*registry.op_names(), "all", *comparison.COMMANDS]
        raise UsageError(registry.unknown("op", arguments.what, known))
    if arguments.what == "all" and arguments.case:
        raise UsageError("--case belongs to one op; name it instead of 'all'")
    _check_tune(arguments)
    outputs.check_tables(arguments)
    options.archs(arguments.arch)
    if arguments.budget is not None and not 0 < arguments.budget < float("inf"):
        raise UsageError(f"--budget {arguments.budget}: give a number of seconds above 0")
    if not -(1 << 63) <= arguments.seed < 1 << 63:
        raise UsageError(f"--seed {arguments.seed}: give a number of at most 63 bits")
    options.check_timeout(arguments.timeout)


def _check_crossover(arguments: argparse.Namespace) -> None:
    for given, option in (
        (arguments.what == "all", "all"),
        (arguments.sweep, "--sweep"),
        (arguments.record, "--record"),
        (len(arguments.case) > 1, "a second --case"),
        (arguments.tune, "--tune"),
        (arguments.matched, "--matched"),
    ):
        if given:
            raise UsageError(f"--crossover goes with one op and one case; leave out {option}")


def _check_tune(arguments: argparse.Namespace) -> None:
    sweep.parse(arguments.tune)
    if arguments.tune and arguments.what == "all":
        raise UsageError("--tune goes with one op, as parameters differ by op; name it instead of 'all'")
    if arguments.tune and arguments.matched:
        raise UsageError("--tune and --matched both say what rows are run with; give one of them")
