"""Runs one implementation of one checkout through the check: in a process of its own, whatever becomes of it.

Imports nothing of the project by itself: which checkout is meant is only said when it is called.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import case_sets


@dataclass(frozen=True)
class Job:
    root: str
    """The checkout, a mutated copy or the real one."""
    op: str
    label: str
    device: str
    cases: str
    """One of `case_sets`' functions by its name, or a case by its own."""
    first: str = ""
    """A case to begin with, because it showed something the last time."""
    runtime: str = ""
    """The built scheduler of host builds, which no mutation touches: saves building it for every copy."""
    header: str = ""
    """Likewise the compiled header that they begin with."""


@dataclass(frozen=True)
class Seen:
    """What came of it; without a `case`, nothing was wrong in any of ``ran`` cases."""

    ran: int
    case: str = ""
    findings: tuple[str, ...] = ()
    """Names of what the check found wrong."""
    text: str = ""


def examine(job: Job, tell: Callable[[str], None]) -> Seen:
    """The first case that the check finds anything wrong with; ``tell`` hears of each before it is run."""
    sys.path.insert(0, job.root)
    import torch

    torch.set_num_threads(1)
    from compare import registry

    assert Path(job.root).resolve() == registry.ROOT, f"{registry.ROOT} was imported, not {job.root}"
    from compare.checking.check import check

    if job.runtime:
        from cuda_impl import build

        build.host_runtime = lambda: Path(job.runtime)
        build.host_header = lambda watched=False: Path(job.header)
    device = torch.device(job.device)
    op = registry.get_op(job.op)
    (impl,) = registry.implementations(job.op, (job.label,))
    ran = 0
    for case in _cases(op, job):
        tell(str(case))
        try:
            agreement = check(op, impl, case, device, seeds=(0,))
        except NotImplementedError:
            continue
        except Exception as error:
            return Seen(ran + 1, str(case), ("an error",), f"{type(error).__name__}: {error}")
        ran += 1
        if not agreement.passed:
            failed = tuple(finding.name for finding in agreement.findings if not finding.passed)
            return Seen(ran, str(case), failed, agreement.reason)
    return Seen(ran)


def _cases(op, job: Job) -> list:
    from compare.model.op import Case

    if "=" in job.cases:
        return [Case.parse(job.cases, op)]
    chosen = getattr(case_sets, job.cases)(op)
    return sorted(chosen, key=lambda case: str(case) != job.first)


def answer(job: Job, environment: dict[str, str], pipe: Connection) -> None:
    """What a forked process does: examine, and send the name of each case and then what was seen."""
    os.environ.update(environment)
    pipe.send(examine(job, pipe.send))
    pipe.close()


if __name__ == "__main__":  # under a sanitizer, which has to be there from a process's beginning
    os.environ.pop("LD_PRELOAD", None)  # and slows down the compiler, which it need not
    seen = examine(Job(**json.loads(sys.argv[1])), lambda case: print(f"case {case}", flush=True))
    print("\n" + json.dumps(vars(seen)))
    sys.exit(1 if seen.case else 0)
