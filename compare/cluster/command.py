"""``--cluster`` of a comparison: its words for the workers, and what becomes of their results."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from compare.cluster import engines
from compare.cluster.sweep import ClusterTask, Sweep
from compare.cluster.workers import compare_op, here
from compare.command_line import outputs, status
from compare.model.op import UsageError
from compare.model.result import Comparison
from compare.records import archive, result_cache
from compare.report import terminal
from compare.report.summary import View

_NOT_HERE = ("load", "own_code", "crossover", "trace")
"""Options whose files or whose answer a node does not have."""
_FOR_THIS_PROCESS = (
    *("cluster", "resume", "results", "every", "explain", "details", "verbose"),
    *("json", "csv", "markdown", "html", "junit"),
)
_KIND = "sweep"


def words_of(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    """The options of a command line that the comparison itself needs, without the op.

    Raises:
        UsageError: one cannot go with ``--cluster``.
    """
    words = []
    for action in parser._actions:
        value = getattr(arguments, action.dest, action.default)
        if not action.option_strings or value == action.default or action.dest in _FOR_THIS_PROCESS:
            continue
        name = action.option_strings[-1]
        if action.dest in _NOT_HERE:
            raise UsageError(f"--cluster compares the project's ops on other machines: leave out {name}")
        values = value if isinstance(value, list) else [value]
        words += [name] if action.nargs == 0 else [f"{name}={each}" for each in values]
    return words


class Results:
    """What has come of a sweep: shown, recorded and kept for files, one comparison after another."""

    def __init__(self, arguments: argparse.Namespace, words: Sequence[str]) -> None:
        self._arguments, self._words = arguments, words
        self._root: Path = arguments.results or archive.RESULTS
        self.comparisons: list[Comparison] = []
        self._unrecorded: list[tuple[ClusterTask, Comparison]] = []

    def take(self, task: ClusterTask, text: str) -> None:
        """Show and record one result; one that cannot be recorded now is tried again at the end."""
        (comparison,) = archive.loads(text, f"the answer for {task.name}")
        self.comparisons.append(comparison)
        if len(self.comparisons) > 1:
            print("\n")
        terminal.show(
            comparison, View(self._arguments.every, self._arguments.explain, self._arguments.details)
        )
        sys.stdout.flush()
        if self._arguments.record:
            try:
                self._record(task, comparison)
            except UsageError as error:
                outputs.say(f"{error}; it is tried again at the end")
                self._unrecorded.append((task, comparison))

    def _record(self, task: ClusterTask, comparison: Comparison) -> None:
        path = archive.record(comparison, self._root)
        result_cache.write(_KIND, self._key(task.name, task.device), [str(path), comparison.created])
        outputs.say(f"recorded in {path}")

    def _key(self, op: str, device: str) -> str:
        return result_cache.key(op, device, *self._words, result_cache.of_sources("torch", "triton"))

    def is_recorded(self, op: str, device: str) -> bool:
        """Whether a sweep with these options and sources has recorded this, and the record still holds it."""
        kept = result_cache.read(_KIND, self._key(op, device))
        path = archive.path_of(device, op, self._root)
        if not kept or kept[0] != str(path) or not path.exists():
            return False
        try:
            return any(run.created == kept[1] for run in archive.read(path))
        except UsageError:  # damaged: the next run of it says so, and is not lost
            return False

    def finish(self) -> list[str]:
        """Record what could not be recorded, at last in a temporary folder; the errors."""
        shared = os.environ.get("COMPARE_TMPDIR") or tempfile.gettempdir()
        errors = []
        for task, comparison in self._unrecorded:
            why = outputs.failures([partial(self._record, task, comparison)])
            if why:
                try:
                    where = archive.record(comparison, Path(shared, "compare-unrecorded"))
                    errors.append(f"{why[0]}; meanwhile it is in {where}: move that to {self._root}")
                except UsageError:
                    errors += why
        return errors


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser, ops: Sequence[str]) -> int:
    """Compare ``ops`` on a cluster; the exit status.

    Args:
        arguments: of the command line, checked.
        parser: that has parsed them.
        ops: names.

    Raises:
        UsageError: the cluster cannot be used, or something could not be written.
    """
    words = words_of(arguments, parser)
    renderers = outputs.renderers(arguments)
    results = Results(arguments, words)
    planned: dict[str, int] = {}

    def ops_for(device: str) -> list[str]:
        rest = [op for op in ops if not (arguments.resume and results.is_recorded(op, device))]
        planned[device] = len(rest)
        if len(rest) < len(ops):
            outputs.say(f"{len(ops) - len(rest)} of {len(ops)} ops are recorded on {device} already")
        return rest

    errors: list[str] = []
    interrupted = False
    with engines.connected(arguments.cluster) as (client, patience_s):
        work, sources = partial(partial, compare_op, words), here()["sources"]
        sweep = Sweep(client, ops_for, work, outputs.say, sources, arguments.record, patience_s)
        try:
            for task, text in sweep.results():
                results.take(task, text)
        except KeyboardInterrupt:
            interrupted = True
        except UsageError as error:
            errors.append(f"{error}; --resume goes on from what is recorded")
        errors += results.finish()
    errors += outputs.failures(outputs.writes(arguments, results.comparisons, **renderers))
    for task in sweep.given_up:
        why = "; ".join(task.failures) or "no worker was left for it"
        outputs.say(f"{task.name} on {task.device or 'any device'} was given up: {why}")
    finished = len(results.comparisons)
    if not planned or finished < sum(planned.values()):
        outputs.say(f"{finished} of {sum(planned.values()) or len(ops)} comparisons were finished")
        interrupted = True
    if errors:
        raise UsageError("; ".join(errors))
    end = status.INCONCLUSIVE if interrupted else status.SUCCESS
    return status.worst([end, *map(status.of, results.comparisons)])
