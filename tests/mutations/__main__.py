"""``make mutations``: runs every mutation that this machine can show, and records what caught it.

Writes ``results/mutations.json`` and prints how many of each op were caught.  What another kind of machine
has recorded of the same mutation stays.

With names of ops, only theirs; ``--missing``: only those of which this kind of machine has no record, or one
of a case that is no longer run; ``--list``: runs none, and prints every bug with what caught it.  Ctrl-C ends
it, and what has been caught by then is recorded.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from compare import registry
from compare.records.encoding import write_whole
from compare.report import terminal
from compare.worker.start import prepare
from mutations import Mutation, every_mutation, record, report
from mutations.instruments import MACHINE, MutationResult, outcome, still_run

HUGE_JOBS = 1
"""At a time; the huge cases of one take more than half of an 80 GB GPU's memory."""
JOBS = max(2, len(os.sched_getaffinity(0)) - 2)
"""At a time, of the others."""


def said(caught: MutationResult) -> str:
    if caught.problem or not caught.record:
        return caught.problem or "not here"
    case = f" on {caught.record['case']}" if caught.record["case"] else ""
    return f"{caught.record['by']}: {caught.record['found']}{case}"


def wanted(mutations: Iterable[Mutation], ops: Sequence[str], missing: bool) -> list[Mutation]:
    """Those of these ops, or of all where none is named; `missing`: without those that are on record."""
    recorded = record.read()
    return [
        mutation
        for mutation in mutations
        if (not ops or mutation.op in ops)
        and not (
            missing
            and MACHINE in record.caught_of(mutation, recorded)
            and still_run(mutation, recorded, MACHINE)
        )
    ]


def keep(outcomes: Mapping[Mutation, MutationResult]) -> None:
    """Write the record with what has been found."""
    fresh = {m: found.record for m, found in outcomes.items() if found.record or found.problem}
    write_whole(record.FILE, record.dumps(every_mutation(), fresh, record.read(), MACHINE))


def run(mutations: Sequence[Mutation], jobs: int, outcomes: dict[Mutation, MutationResult]) -> None:
    """Adds what came of each to ``outcomes``, which are recorded however it ends."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        try:
            for mutation, caught in zip(mutations, pool.map(outcome, mutations), strict=True):
                outcomes[mutation] = caught
                print(f"{mutation.name}: {said(caught)}", flush=True)
        finally:  # at once, and only then to wait for those that are under way
            keep(outcomes)


def main() -> int:
    """1 if a mutation was not caught, which is then on record no more; 3 if it was interrupted."""
    parser = argparse.ArgumentParser("make mutations")
    parser.add_argument("ops", nargs="*", metavar="op", help="only mutations of these ops")
    parser.add_argument("--missing", action="store_true", help="only those not on record here as they stand")
    parser.add_argument("--list", action="store_true", help="run none: print what caught each")
    args = parser.parse_args()
    if strangers := set(args.ops) - set(registry.op_names()):
        parser.error(f"no op {', '.join(sorted(strangers))}; there are {', '.join(registry.op_names())}")
    if args.list:
        entries = [entry for entry in record.read() if not args.ops or entry["op"] in args.ops]
        terminal.put(lambda width: terminal.laid_out(report.by_bug(entries), width))
        return 0
    prepare()  # before any kernel is imported
    mutations = wanted(every_mutation(), args.ops, args.missing)
    huge = [mutation for mutation in mutations if mutation.instrument(MACHINE) == "huge"]
    outcomes: dict[Mutation, MutationResult] = {}
    try:
        run([mutation for mutation in mutations if mutation not in huge], JOBS, outcomes)
        run(huge, HUGE_JOBS, outcomes)
    except KeyboardInterrupt:
        print(f"\ninterrupted: {len(mutations) - len(outcomes)} of {len(mutations)} have not been run")
    terminal.put(lambda width: "\n" + terminal.laid_out(report.by_op(record.read()), width))
    print(f"\nwrote {record.FILE}; make mutations ARGS=--list prints what caught each")
    missed = [caught for caught in outcomes.values() if caught.problem]
    if missed:
        print(f"\n{len(missed)} of {len(mutations)} were not caught as they should be")
        return 1
    return 3 if len(outcomes) < len(mutations) else 0


if __name__ == "__main__":
    sys.exit(main())
