"""What looks for a mistake: the project's own check and the sanitizers, each as a user runs it.

An instrument takes a checkout and says what it saw in one of its implementations.  The same instrument
must see nothing in the checkout that has no mistake in it.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch

import case_sets
import sanitizers
from compare import registry
from compare.device import environment, pick, supports
from compare.registry import ROOT
from cuda_impl import build
from mutations import Mutation, record, worker
from mutations.worker import Job, Seen

COPIED = (
    "compare",
    "ops",
    "torch_impl",
    "triton_impl",
    "cuda_impl",
    "tests/support/every_kernel.py",
    "tests/support/case_sets.py",
)
MACHINE = "cuda" if torch.cuda.is_available() else "cpu"

LIMIT_S = 120
"""For one implementation on all its cases.  What takes longer hangs."""

_PRELOADED = ["numpy", "pybind11", "torch", "triton", "triton.language", "cuda.pathfinder"]


# --------------------------------------------------------------------------- a copy with a mistake in it


def mutated(text: str, mutation: Mutation) -> str:
    """``text`` with the mistake in it.

    Raises:
        ValueError: `Mutation.right` does not stand in it exactly once.
    """
    count = text.count(mutation.right)
    if count != 1:
        raise ValueError(
            f"{mutation.name}: no longer applies. {mutation.file} has {count} times, and should have once:\n"
            f"{mutation.right}\nFix its '-' and '+' lines in tests/mutations/{mutation.op}.diff"
        )
    return text.replace(mutation.right, mutation.wrong)


@contextmanager
def copy_with(mutation: Mutation) -> Iterator[Path]:
    """A checkout with that mistake, for as long as the context lasts; its caches are its own."""
    with TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        for name in COPIED:
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
            else:
                shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so"))
        file = tree / mutation.file
        file.write_text(mutated(file.read_text(), mutation))
        yield tree


def _caches(root: Path) -> dict[str, str]:
    """Caches of its own, because a mutated kernel's binaries must not be reused."""
    if root == ROOT:
        return {}
    names = ("COMPARE_CACHE_DIR", "CUPY_CACHE_DIR", "TRITON_CACHE_DIR")
    return {name: str(root / ".cache" / name.lower()) for name in names}


# --------------------------------------------------------------------------- instruments


def _checked(job: Job, **environment: str) -> Seen:
    """Run in a process forked from one that has imported what takes long, and nothing of the project."""
    context = multiprocessing.get_context("forkserver")
    server = forkserver._forkserver
    if server._preload_modules != _PRELOADED:
        server._stop()  # workers of a run have been forked from it: it has imported the project
    context.set_forkserver_preload(_PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    if job.device == "cpu":
        job = replace(job, runtime=str(build.host_runtime()), header=str(build.host_header()))
    arguments = (job, {**_caches(Path(job.root)), **environment}, sender)
    process = context.Process(target=worker.answer, args=arguments, daemon=True)
    process.start()
    sender.close()
    told: Seen | str = ""
    end = time.monotonic() + LIMIT_S
    try:
        while isinstance(told, str):
            if not receiver.poll(max(0.0, end - time.monotonic())):
                return Seen(0, told, ("time limit",), f"not finished after {LIMIT_S} s")
            told = receiver.recv()
        return told
    except EOFError:
        process.join()
        code = process.exitcode or 0
        if code >= 0 or not told:
            raise RuntimeError(f"{job}: could not be run; its error stands above") from None
        return Seen(0, str(told), ("a crash",), f"killed by {signal.Signals(-code).name}")
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        receiver.close()


def _host_sanitized(job: Job) -> Seen:
    """AddressSanitizer and UBSan."""
    environment = {**os.environ, **sanitizers.host_environment(), **_caches(Path(job.root))}
    environment["PYTHONPATH"] = f"{Path(__file__).parent.parent}{os.pathsep}{Path(case_sets.__file__).parent}"
    with mock.patch.dict(os.environ, HOST_SANITIZE="1"):
        job = replace(job, runtime=str(build.host_runtime()), header=str(build.host_header()))
    done = subprocess.run(
        [sys.executable, worker.__file__, json.dumps(asdict(job))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    report = re.search(r"ERROR: AddressSanitizer: [\w-]+|runtime error: .*", done.stderr)
    if report:
        case = re.findall(r"(?m)^case (.*)$", done.stdout)[-1]
        return Seen(0, case, (report[0].partition(": ")[2],), done.stderr)
    try:
        last = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise RuntimeError(f"{job}: could not be run\n{done.stderr}") from None
    return Seen(**{**last, "findings": tuple(last["findings"])})


def _gpu_sanitized(tool: str, job: Job) -> Seen:
    """One of compute-sanitizer's tools."""
    script = str(Path(job.root) / "tests" / "support" / "every_kernel.py")
    done = sanitizers.watched(
        tool, script, job.op, job.label, cwd=Path(job.root), environment=_caches(Path(job.root))
    )
    ran = re.search(rf"^{job.op} {re.escape(job.label)}: (\d+) cases", done.stdout, re.MULTILINE)
    if done.returncode == 0 and ran:
        return Seen(int(ran[1]))
    report = re.search(r"========= ((?:Error|Warning|Invalid|Uninitialized|Barrier|Race).*)", done.stdout)
    if report is None:
        raise RuntimeError(f"{job}: could not be run\n{done.stdout}\n{done.stderr}")
    return Seen(0, "?", (report[1].strip(),), done.stdout)


@dataclass(frozen=True)
class Instrument:
    run: Callable[[Job], Seen]
    cases: str = ""
    """Which of an op's, by `worker.Job`; a GPU's sanitizers have their own."""
    shown: str = ""
    """What the table calls it; empty: by way."""


INSTRUMENTS: dict[str, dict[str, Instrument]] = {
    "cpu": {
        "check": Instrument(_checked, "brief"),
        **{
            order: Instrument(
                functools.partial(_checked, HOST_THREAD_ORDER=order), "tiny", f"host build, threads {order}"
            )
            for order in ("reverse", "apart", "reverse-apart")
        },
        "sanitizers": Instrument(_host_sanitized, "sanitized", "sanitized host build"),
    },
    "cuda": {
        "check": Instrument(_checked, "small", "check"),
        "huge": Instrument(_checked, "huge", "check, huge cases"),
        **{
            tool: Instrument(functools.partial(_gpu_sanitized, tool), shown=tool)
            for tool in ("memcheck", "racecheck", "initcheck", "synccheck")
        },
    },
}


def shown(mutation: Mutation) -> str:
    """What the table calls the instrument that finds a mutation on this machine."""
    instrument = INSTRUMENTS[MACHINE][mutation.instrument(MACHINE)]
    return instrument.shown or ("interpreter" if mutation.label.startswith("triton") else "host build")


# --------------------------------------------------------------------------- running a mutation


def seen_in(mutation: Mutation, first: str) -> Seen:
    """What the mutation's instrument sees in a copy with the mistake."""
    instrument = INSTRUMENTS[MACHINE][mutation.instrument(MACHINE)]
    with copy_with(mutation) as tree:
        cases = mutation.case or instrument.cases
        job = Job(str(tree), mutation.op, mutation.label, MACHINE, cases, first)
        return instrument.run(job)


def still_run(mutation: Mutation, recorded: list[record.Entry], machine: str) -> bool:
    """Whether the case that it was caught on is one of those that its instrument is given."""
    instrument = INSTRUMENTS[machine][mutation.instrument(machine)]
    case = record.caught_of(mutation, recorded).get(machine, {}).get("case", "")
    if not instrument.cases or not case:
        return True
    return case in ([mutation.case] if mutation.case else _given(instrument.cases, mutation.op))


@functools.cache
def _given(cases: str, op: str) -> frozenset[str]:
    return frozenset(map(str, getattr(case_sets, cases)(registry.get_op(op))))


_OF_VALUES = "values, NaN and infinity, all written, guard zones, a crash"
_OUT_OF_BOUNDS = "outside of the arguments"
"""What Triton's interpreter says of an address before any of these can be seen."""


@functools.cache
def seen_without(op: str, label: str, name: str, case: str) -> Seen:
    """What the same instrument sees in the checkout as it is: on one case, or on all if that is empty."""
    instrument = INSTRUMENTS[MACHINE][name]
    return instrument.run(Job(str(ROOT), op, label, MACHINE, case or instrument.cases))


def found(mutation: Mutation, seen: Seen) -> str:
    """The words by which an instrument named the mistake; empty where it did not."""
    signs = mutation.expected(MACHINE)
    if re.search(signs, _OF_VALUES):
        signs = f"{signs}|{_OUT_OF_BOUNDS}"
    match = re.search(signs, "\n".join((*seen.findings, seen.text)))
    return match[0] if match else ""


def verdict(mutation: Mutation, seen: Seen) -> str:
    """Why a mutation does not count as caught; empty if it does."""
    where = f"{mutation.name} ({mutation.file}), by {shown(mutation)}"
    if not seen.case:
        return f"{where}: not caught in {seen.ran} cases"
    if not found(mutation, seen):
        expected = mutation.expected(MACHINE)
        return f"{where}: caught on {seen.case}, but nothing says {expected!r}: {seen.text[:1000]}"
    return ""


@dataclass(frozen=True)
class MutationResult:
    """What came of a mutation; both are empty if this machine cannot show it."""

    problem: str = ""
    """Why it was not caught as it should be."""
    record: dict[str, str] = field(default_factory=dict)
    """What caught it: by which instrument it was found, what that said, on which case and GPU."""


def outcome(mutation: Mutation) -> MutationResult:
    """Run a mutation, and where it is caught the source without it."""
    device = pick(MACHINE)
    (impl,) = registry.implementations(mutation.op, (mutation.label,))
    name = mutation.instrument(MACHINE)
    if not name or supports(impl, device) is not None:
        return MutationResult()
    seen = seen_in(mutation, record.case_of(mutation, record.read()))
    problem = verdict(mutation, seen)
    if problem:
        return MutationResult(problem)
    said, case = found(mutation, seen), seen.case.strip("?")
    without = seen_without(mutation.op, mutation.label, name, case)
    if without.case:
        return MutationResult(f"so is the source without it, on {without.case}: {without.text}")
    caught = {"by": shown(mutation), "found": said, "case": case}
    return MutationResult("", caught | ({"on": environment(device).device} if MACHINE == "cuda" else {}))
