"""An op of several GPUs in PyTorch, Triton and CUDA C++: correctness on every GPU, latency, bandwidth,
registers and code size. With fewer GPUs it shows what is on record.

examples:
  python -m compare all_reduce
  python -m compare all_reduce --sweep --record
  python -m compare all_reduce --case D=2,N=1048576,fp32 --only 'triton.*'

exit status:
  0  every implementation that ran is correct; or what is on record was shown
  1  one is wrong, or failed
  2  a mistake in the command, or there are too few GPUs and no record
  3  interrupted, or the GPUs' processes ended early
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from compare import registry
from compare.command_line import installed, options, outputs, status
from compare.model.op import Case, UsageError

MOST_GPUS = 16
"""Of one host."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("op", metavar="OP", help=f"one of {', '.join(registry.collective_names())}")
    options.add_repeatable(add, "--case", "CASE", "GPUs, size and dtype, e.g. D=2,N=4096,bf16")
    add("--sweep", action="store_true", help="every size in the op's list")
    options.add_only(add, ", e.g. 'triton.*'")
    add("--budget", type=float, default=2.0, metavar="SECONDS", help="of the timing of a case (default: 2)")
    add("--seed", type=int, default=0, help="of inputs and of the order of timing (default: 0)")
    options.add_timeout(add)
    add("--all", dest="every", action="store_true", help="every size, not only six")
    add("--record", action="store_true", help="record the results")
    add("--results", type=Path, metavar="DIR", help="where records are (default: results/)")
    options.add_file(add, "json", "all results, raw samples included")


def run(arguments: argparse.Namespace) -> int:
    """Compare the op, or show its record; the exit status."""
    op = registry.get_op(arguments.op)
    options.check_timeout(arguments.timeout)
    if not 0 < arguments.budget < float("inf"):
        raise UsageError(f"--budget {arguments.budget}: give seconds above 0")
    options.check_only(arguments.only, [impl.label for impl in registry.implementations(op.name)])
    cases = [Case.parse(text, op) for text in arguments.case]
    cases += op.cases.sweep if arguments.sweep else () if cases else (op.cases.default,)
    (gpus, *more) = sorted({case["D"] for case in cases})
    if more:
        raise UsageError(f"cases of {gpus} and {more[0]} GPUs: one run takes one number of them, D")
    here = installed.gpus()
    if not 2 <= gpus <= MOST_GPUS:
        raise UsageError(f"D={gpus}: {op.name} takes at least 2, and a host has at most {MOST_GPUS} GPUs")
    has_gpus = len(here) >= gpus
    if not has_gpus:
        lacks = f"{op.name} on D={gpus} takes {gpus} GPUs, and this process sees {len(here)}"
        if arguments.record:
            raise UsageError(f"{lacks}: nothing is timed, so there is nothing to record")
        outputs.say(f"{lacks}: checked is what a CPU runs")
        cases = cases if arguments.case else list(op.cases.smoke)
    texts = [str(case) for case in dict.fromkeys(cases)]
    return _compare(arguments, texts, gpus, here[:gpus] if has_gpus else [])


def _compare(arguments: argparse.Namespace, cases: list[str], count: int, gpus: list[installed.Gpu]) -> int:
    from compare.collectives import ranks, results
    from compare.collectives import run as driver
    from compare.records import archive
    from compare.report import collectives, terminal

    only, root = tuple(arguments.only), arguments.results or archive.RESULTS
    known = [] if gpus else [one for one in results.recorded(arguments.op, root) if one.gpus == count]
    order = ranks.RankOrder(arguments.op, tuple(cases), only, arguments.budget, arguments.seed, bool(gpus))
    try:
        uuids, arch = [gpu.uuid for gpu in gpus], gpus[0].arch if gpus else "sm_90"
        comparison, why = driver.compare(order, count, uuids, arch, arguments.timeout, outputs.say)
    except driver.RanksFailed as error:
        outputs.say(f"not finished: {error}")
        return status.INCONCLUSIVE
    writes: list[Callable[[], object]] = []
    if arguments.json:
        writes.append(partial(outputs.write, arguments.json, outputs.as_json(comparison)))
    if arguments.record:
        writes.append(lambda: results.record(comparison, root))
    shown = partial(collectives.render, comparison, known, every=arguments.every)
    outputs.beside(lambda: terminal.put(shown), writes)
    if why:
        outputs.say(f"not finished: {why}")
        return status.INCONCLUSIVE
    bad = any(row.status in ("wrong", "failed") for case in comparison.cases for row in case.rows)
    return status.FAILURE if bad else status.SUCCESS
