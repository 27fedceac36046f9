"""Comparisons in a notebook: ``from compare.notebook import run``, then ``run("softmax")`` in a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from compare import registry
from compare import run as driver
from compare.command_line import options as command_options
from compare.model.op import Case
from compare.model.result import Comparison, Options
from compare.report import terminal
from compare.report.summary import View
from compare.worker.start import prepare

_WIDTH = 88
_SECONDS_A_CASE = 3.0


@dataclass(frozen=True, repr=False)
class NotebookScreen:
    """A comparison that a notebook shows as the command's screen."""

    comparison: Comparison
    yours: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return terminal.render(self.comparison, _WIDTH, View(yours=self.yours))

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.2">{escape(repr(self))}</pre>'


def run(
    op: str, *cases: str, only: Sequence[str] = (), load: Sequence[str] = (), device: str = "auto"
) -> NotebookScreen:
    """Compare the implementations of ``op``, as ``python -m compare OP`` does, with a progress bar.

    Args:
        cases: sizes and dtype, as ``M=4096,N=781,fp16``; none: the op's default case.
        only: labels or patterns; the baseline is always among the rows.
        load: files with implementations of your own.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.

    Raises:
        UsageError: there is no such op, case, implementation or device, or a file cannot be loaded.
    """
    from IPython.display import ProgressBar  # import-linter: only a notebook has it

    prepare(device, [op])
    command_options.load(load, op)
    description = registry.get_op(op)
    parsed = tuple(Case.parse(case, description) for case in cases)
    options = Options(parsed, tuple(only), device=device, budget_s=_SECONDS_A_CASE * max(1, len(parsed)))
    bar: Any = ProgressBar(100)  # type: ignore[no-untyped-call]
    bar.display()

    def progress(what: str, done: float) -> None:
        bar.progress = round(100 * done)

    comparison = driver.run(description, options, progress)
    yours = frozenset(impl.label for impl in registry.implementations(op) if impl.user_file)
    return NotebookScreen(comparison, yours)
