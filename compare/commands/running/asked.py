"""Ops, users' files and options of a comparison, from its arguments; needs PyTorch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from compare import registry
from compare.capture import meta_inputs
from compare.command_line import comparison
from compare.command_line import options as common
from compare.run import tuned
from compare.sandbox import isolation
from compare.sandbox.words import printable
from compare.spec import Case, Comparison, Op, Options, UsageError
from compare.tuning import sweep
from compare.worker import user_files

RECORDED = (30, 5)
"""Samples of each row of a record, at least: of one that takes at most 10 ms, and of a slower one."""


def load(files: Sequence[str], timeout_s: float, op: str | None = None) -> list[str]:
    """Load users' files after the project's own, so that their rows come after them.

    Args:
        files: of ``--load``.
        timeout_s: the most that loading one may take.
        op: the one that is asked for; None: all of them.

    Returns:
        The ops that are asked for, those of the files included.
    """
    for name in registry.op_names():
        if op in (None, name):
            registry.implementations(name)
    if files:
        isolation.protect_judge()
        for name, file in user_files.load(files, timeout_s, op).items():
            said = f"{file} defines the op {name}, so it says what is right, and runs with all your rights"
            print(f"python -m compare: {printable(said)}", file=sys.stderr)
        check_names(registry.op_names())
    return [op] if op else registry.op_names()


def check_names(ops: Iterable[str]) -> None:
    """A `UsageError` if an op has the name of a command."""
    for name in {"all", *comparison.COMMANDS}.intersection(ops):
        raise UsageError(f"--load: {name} is a command, so no op can have this name: rename the op")


def having(names: Iterable[str], only: Sequence[str]) -> list[Op]:
    """The ops that have what ``--only`` asks for; a `UsageError` if none has."""
    errors = []
    found = []
    for op in map(registry.get_op, names):
        try:
            registry.implementations(op.name, only)
            found.append(op)
        except UsageError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def html(file: Path | None) -> Callable[[Sequence[Comparison]], str] | None:
    """What renders the page of ``--html``; None where it was not given.

    Raises:
        UsageError: the library of its figures is missing.
    """
    if file is None:
        return None
    # Start-up: only --html needs Jinja2 and the library of its figures.
    from compare.report.html import page

    page.check()
    return page.dumps


def options(op: Op, arguments: argparse.Namespace) -> Options:
    """How ``op`` is to be compared.

    Raises:
        UsageError: a case is not of this op, or it has no inputs for one.
    """
    cases = [Case.parse(text, op) for text in arguments.case]
    if arguments.sweep:
        cases = [op.cases.default, *cases, *op.cases.sweep]
    cases = list(dict.fromkeys(cases))
    _check_sizes(op, cases or [op.cases.default])
    budget_s = arguments.budget
    if budget_s is None:
        each_s = comparison.SWEEP_BUDGET_S if arguments.sweep else comparison.BUDGET_S
        budget_s = each_s * max(1, len(cases))
    found = Options(
        cases=tuple(cases),
        only=tuple(arguments.only),
        archs=common.archs(arguments.arch),
        device=arguments.device,
        seed=arguments.seed,
        budget_s=budget_s,
        sustained=arguments.sustained,
        timeout_s=arguments.timeout,
        matched=arguments.matched,
        tune=sweep.parse(arguments.tune),
        retune=arguments.retune,
        samples=RECORDED if arguments.record else Options.samples,
    )
    added = tuned(op, found)
    if added is None or arguments.budget is not None:
        return found
    return replace(found, budget_s=budget_s + comparison.TRIAL_S * added.count * max(1, len(cases)))


def _check_sizes(op: Op, cases: Iterable[Case]) -> None:
    """Have the op refuse sizes that it has no inputs for before any op runs."""
    for case in cases:
        try:
            meta_inputs(op, case)
        except UsageError:
            raise
        except Exception:  # of a user's op: shown where its inputs are made
            return
