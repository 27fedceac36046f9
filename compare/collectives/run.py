"""One op of several GPUs compared: starts a rank for each, and collects what they tell."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any

from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from compare import registry
from compare.code_size.count import kept_code_size
from compare.collectives.ranks import RankOrder
from compare.collectives.results import RankedCase, RankedComparison, RankedRow
from compare.collectives.working import work
from compare.inputs import ITEM_BYTES
from compare.model.op import Case
from compare.model.result import CodeSize, Environment, KernelResources
from compare.records import gpu_lock
from compare.resources.static import Request
from compare.run.compiling import from_cubins

_FROM_A_TERMINAL = (signal.SIGINT, signal.SIGHUP)
_POLL_S = 0.2
_START_S = 120.0
"""The least time in which ranks import PyTorch and meet."""
_NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""For the ranks.  No implementation uses NVLink's multicast, and a fault in a program that does can stop all
GPUs of a host."""


class RanksFailed(Exception):
    """The ranks ended before their work did: why, in a sentence."""


def compare(
    order: RankOrder,
    ranks: int,
    uuids: Sequence[str],
    arch: str,
    timeout_s: float,
    say: Callable[[str], None],
) -> tuple[RankedComparison, str]:
    """The comparison, and why it is not whole; empty: it is.

    Args:
        order: its cases are of as many ranks.
        ranks: how many.
        uuids: of the ranks' GPUs, which are held meanwhile; none: ranks have a CPU.
        arch: that kernels are inspected for, ``sm_90``.
        timeout_s: of one step: a check, or the timing of a case.
        say: is told each case.

    Raises:
        RanksFailed: the ranks ended before they began.
        KeyboardInterrupt: likewise.
    """
    report = _RanksReport()
    why = ""
    with ExitStack() as locks:
        for uuid in sorted(uuids):
            locks.enter_context(gpu_lock.held(uuid, say))
        try:
            _work(order, ranks, timeout_s, report, say)
        except RanksFailed as error:
            why = str(error)
        except KeyboardInterrupt:
            if report.environment is None:
                raise
            why = "interrupted"
    if report.environment is None:
        raise RanksFailed(why or "the ranks told nothing")
    resources, sizes = inspected(order, arch)
    op = registry.get_op(order.op)
    cases = []
    for text, rows in report.rows.items():
        case = Case.parse(text, op)
        x_bytes = case["N"] * ITEM_BYTES[case.dtype]
        cases.append(RankedCase(text, x_bytes, op.cost(case).read_bytes, tuple(rows.values())))
    comparison = RankedComparison(
        op=order.op,
        gpus=ranks,
        environment=report.environment,
        peer_copy_gbs=report.peer_copy_gbs,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        cases=tuple(cases),
        resources=resources,
        code_sizes=sizes,
        interrupted=bool(why),
    )
    return comparison, why


class _RanksReport:
    """What the first rank has told so far."""

    def __init__(self) -> None:
        self.environment: Environment | None = None
        self.peer_copy_gbs = 0.0
        self.rows: dict[str, dict[str, RankedRow]] = {}
        self.step = "starting"

    def take(self, kind: str, *values: Any) -> None:
        if kind == "machine":
            self.environment, self.peer_copy_gbs = values
        elif kind == "step":
            (self.step,) = values
        else:
            case, row = values
            self.rows.setdefault(case, {})[row.label] = row


def _work(
    order: RankOrder, ranks: int, timeout_s: float, report: _RanksReport, say: Callable[[str], None]
) -> None:
    """Run the ranks to their end.

    Raises:
        RanksFailed: one ended early, or told nothing for too long; none is left.
    """
    # A terminal sends them to all processes; ranks and the queue's process inherit the mask.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FROM_A_TERMINAL)
    answers = get_context("spawn").Queue()
    signal.pthread_sigmask(signal.SIG_BLOCK, _FROM_A_TERMINAL)  # Python let SIGINT through again
    with tempfile.TemporaryDirectory() as folder:
        args = ranks, str(Path(folder, "store")), order, answers.put
        os.environ |= _NO_MULTICAST
        logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # `RanksFailed` says it
        processes = start_processes(work, args, ranks, join=False)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _listen(answers, processes, order.op, timeout_s, report, say)
        except (ProcessRaisedException, ProcessExitedException) as error:
            last = str(error).strip().splitlines()[-1]
            raise RanksFailed(f"{report.step}: rank {error.error_index} ended: {last}") from None
        finally:
            for process in processes.processes:
                process.kill()
                process.join()


def _listen(
    answers: Queue[Any],
    processes: Any,
    op: str,
    timeout_s: float,
    report: _RanksReport,
    say: Callable[[str], None],
) -> None:
    """Take all answers until the processes have ended, and raise as one of them does."""
    last_s, ended = time.monotonic(), False
    while not ended or not answers.empty():
        limit_s = timeout_s if report.environment else max(timeout_s, _START_S)
        if time.monotonic() - last_s > limit_s:
            raise RanksFailed(f"{report.step}: not finished after {limit_s:.0f} s (--timeout)")
        try:
            kind, *values = answers.get(timeout=_POLL_S)
        except Empty:
            ended = processes.join(timeout=_POLL_S)
            continue
        last_s = time.monotonic()
        if kind == "case":
            say(f"{op} on {values[0]}")
        else:
            report.take(kind, *values)


def inspected(
    order: RankOrder, arch: str
) -> tuple[dict[str, tuple[KernelResources, ...]], dict[str, CodeSize]]:
    """Registers and shared memory of each implementation's kernels, and its code size, by label."""
    op = registry.get_op(order.op)
    arch = {"sm_90": "sm_90a"}.get(arch, arch)
    impls = registry.implementations(order.op, order.only)
    own = [impl for impl in impls if impl.has_own_kernels]
    compiled = from_cubins([Request(op, impl, op.cases.default, arch) for impl in own])
    resources = {
        impl.label: kernels
        for impl, kernels in zip(own, compiled, strict=True)
        if not isinstance(kernels, BaseException)
    }
    return resources, {impl.label: kept_code_size(impl) for impl in impls}
