"""Tasks of a sweep on a cluster's workers: which worker may take them, what is tried again, what is given up.

The engine places and runs tasks; here is only what it cannot know: which workers are alike, and how often a
task may fail.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4

from distributed import Client, Future, KilledWorker

from compare.cluster.workers import NO_GPU, RESOURCE, Facts, WorkFailed, attempt, describe
from compare.model.op import UsageError

RETRIES = 2
"""How often a task that failed is tried again."""
_LOOK_S = 1.0
"""How often new workers are looked for."""
_SAY_S = 10.0
"""Without a worker, before that is said."""
_LAST_S = 60.0
"""The most patience where all jobs have ended, which Dask does not submit again."""
_ALIKE = ("driver", "versions")
"""What workers of one device model must have in common: the records of a device are of one kind."""


@dataclass
class ClusterTask:
    """One op, or one hand-in, on one device model."""

    name: str
    device: str
    failures: list[str] = field(default_factory=list)
    """Why each attempt failed,"""
    failed_on: list[str] = field(default_factory=list)
    """and the worker's address."""
    allowed: list[str] = field(default_factory=list)
    """The workers that may run it now."""


def refusal(facts: Facts, others: Collection[Facts], sources: str, needs_gpu: bool) -> str:
    """Why a worker gets no task; empty: it gets some.

    Args:
        facts: of the worker.
        others: of the workers that get tasks.
        sources: of this process, as in ``facts``.
        needs_gpu: whether only what is measured counts.
    """
    if facts.get("problem"):
        return facts["problem"]
    if facts["sources"] != sources:
        return f"its sources have the hash {facts['sources']}, here it is {sources}: install the same version"
    if needs_gpu and facts["device"] == NO_GPU:
        return "it has no GPU, and only what is measured there counts"
    if facts["gpu"] and any(facts["gpu"] == other["gpu"] for other in others):
        return f"another worker has the same GPU, {facts['gpu']}"
    alike = next((other for other in others if other["device"] == facts["device"]), facts)
    different = [f"{facts[what]} and not {alike[what]}" for what in _ALIKE if facts[what] != alike[what]]
    return f"it has {'; '.join(different)}, as other workers of this sweep" if different else ""


@dataclass
class Sweep:
    """A sweep, whose `results` end when every task is done or given up.

    Args:
        client: of the cluster.
        names_for: of the tasks for a device model, asked for once for each.
        work: what a worker calls for the task of a name.
        say: is told what happens, a line each.
        sources: as of `refusal`.
        needs_gpu: likewise.
        patience_s: how long a device model may have no worker before its tasks are given up.
        describe: gives a worker's `Facts`, in it.
    """

    client: Client
    names_for: Callable[[str], Iterable[str]]
    work: Callable[[str], Callable[[], Any]]
    say: Callable[[str], None]
    sources: str
    needs_gpu: bool = True
    patience_s: float = 60.0
    describe: Callable[..., Facts] = describe

    def __post_init__(self) -> None:
        self._facts: dict[str, Facts] = {}
        """By address, of all workers that ever got tasks;"""
        self._workers: set[str] = set()
        """and those that are there."""
        self._refused: set[str] = set()
        self._waiting: dict[str, deque[ClusterTask]] = {}
        """By device model."""
        self._running: dict[Future[Any], ClusterTask] = {}
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()
        self.given_up: list[ClusterTask] = []
        """Each with its failures."""
        self._seen_s: dict[str, float] = {}
        """By device model, when it last had a worker;"""
        self._lonely: set[str] = set()
        """and those of which it was said that they have none."""

    def results(self) -> Iterator[tuple[ClusterTask, Any]]:
        """Every task that is done, once, with its result.

        Raises:
            UsageError: the scheduler is gone, or does not know this project.
        """
        looked_s = float("-inf")
        try:
            while not self._waiting or self._running or any(self._waiting.values()):
                if time.monotonic() - looked_s >= _LOOK_S:
                    looked_s = time.monotonic()
                    self._look(looked_s)
                self._submit()
                yield from self._collect()
        except (OSError, asyncio.TimeoutError, CancelledError, RuntimeError) as error:
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            raise UsageError(f"the scheduler no longer answers, or cannot run tasks ({why})") from None
        finally:
            for future in self._running:
                future.release()

    def cancel(self) -> None:
        """End `results` soon, from another thread; what a worker has begun goes on there."""
        self._waiting = {device: deque() for device in self._waiting or ("",)}
        for future in list(self._running):
            future.cancel()

    def _look(self, now_s: float) -> None:
        """Give new workers their resource, or refuse them; forget those that are gone."""
        for future, task in list(self._running.items()):
            # Of those that were gone a look ago: what had begun there has been reported since.
            # Lost: its worker ended with the result, before it was here.
            if future.status in ("pending", "lost") and self._workers.isdisjoint(task.allowed):
                del self._running[future]
                self._waiting[task.device].appendleft(task)
        if self.client.status != "running":
            raise ConnectionError("the connection is lost")
        present = self.client.nthreads()
        for address in self._workers - present.keys():
            self._workers.remove(address)
            self.say(f"{self._name(address)} is gone")
        new = [address for address in present if address not in self._workers | self._refused]
        answers = self.client.run(self.describe, workers=new, on_error="return") if new else {}
        for address, answer in answers.items():
            facts: Facts = (
                answer if isinstance(answer, dict) else {"problem": f"it does not answer: {answer}"}
            )
            others = [self._facts[other] for other in self._workers]
            if why := refusal(facts, others, self.sources, self.needs_gpu):
                self._refused.add(address)
                self.say(f"{address} on {facts.get('host', 'some host')} gets no task: {why}")
            else:
                self._admit(address, facts)
        self._give_up_lonely(now_s)

    def _admit(self, address: str, facts: Facts) -> None:
        device = facts["device"]
        self._facts[address] = facts
        self._workers.add(address)
        self.say(f"{self._name(address)} takes tasks: {device} {facts['gpu']}".rstrip())
        if device not in self._waiting:
            self._waiting[device] = deque(ClusterTask(name, device) for name in self.names_for(device))

    def _name(self, address: str) -> str:
        return f"{address} on {self._facts[address]['host']}"

    def _of(self, device: str) -> list[str]:
        return [address for address in self._workers if self._facts[address]["device"] == device]

    def _give_up_lonely(self, now_s: float) -> None:
        """Give up the tasks of a device model that has had no worker for too long."""
        present = {self._facts[address]["device"] for address in self._workers}
        self._seen_s |= dict.fromkeys(present or {""} - self._seen_s.keys(), now_s)
        self._lonely -= present
        jobs = getattr(self.client.cluster, "workers", True)  # of a scheduler elsewhere it is not known
        patience_s = self.patience_s if jobs else min(self.patience_s, _LAST_S)
        for device, seen_s in self._seen_s.items():
            if now_s - seen_s <= patience_s:
                if now_s - seen_s > _SAY_S and device not in self._lonely and self._has_tasks(device):
                    self._lonely.add(device)
                    what = f" ({device})" if device else ""
                    self.say(f"no worker is there{what}: waiting for one; Ctrl-C ends this")
                continue
            self.given_up += self._waiting.get(device, ())
            self._waiting[device] = deque()
            for future in [future for future, task in self._running.items() if task.device == device]:
                self.given_up.append(self._running.pop(future))

    def _has_tasks(self, device: str) -> bool:
        running = (task.device == device for task in self._running.values())
        return not self._waiting or bool(self._waiting.get(device)) or any(running)

    def _submit(self) -> None:
        """As many tasks as workers: one that dies takes no other task with it."""
        for device, tasks in self._waiting.items():
            mine = self._of(device)
            free = len(mine) - sum(task.device == device for task in self._running.values())
            for _ in range(min(free, len(tasks))):
                self._start(tasks.popleft(), mine)

    def _start(self, task: ClusterTask, workers: Sequence[str]) -> None:
        task.allowed = self._elsewhere(task, workers)
        future = self.client.submit(
            attempt,
            self.work(task.name),
            key=f"{task.name}-{uuid4().hex}",
            resources=RESOURCE,
            workers=task.allowed,
        )
        self._running[future] = task
        future.add_done_callback(self._ended.put)

    def _elsewhere(self, task: ClusterTask, workers: Sequence[str]) -> list[str]:
        """Workers of hosts where it has not failed; else of GPUs where it has not; else all."""
        for what in ("host", "gpu"):
            failed = {self._facts[address][what] for address in task.failed_on}
            fresh = [address for address in workers if self._facts[address][what] not in failed]
            if fresh:
                return fresh
        return list(workers)

    def _collect(self) -> Iterator[tuple[ClusterTask, Any]]:
        """The task that ends next, or nothing within a second."""
        try:
            future = self._ended.get(timeout=_LOOK_S)
        except Empty:
            return
        task = self._running.pop(future, None)
        if task is None:
            return
        if future.cancelled():
            raise CancelledError("the tasks are cancelled")
        try:
            result = future.result(timeout=_LOOK_S)
        except (asyncio.TimeoutError, UnboundLocalError):
            # Its worker ended with the result, and the engine runs it again; or it was cancelled just
            # now, and Dask's `sync` has nothing to return.
            self._running[future] = task
            self._ended.put(future)
        except KilledWorker as error:
            self._failed(task, error.last_worker.address, "its worker process ended")
        except WorkFailed as error:
            if error.gpu_lost:
                self.client.retire_workers([error.worker], close_workers=True)
            self._failed(task, error.worker, error.why)
        else:
            yield task, result

    def _failed(self, task: ClusterTask, address: str, why: str) -> None:
        task.failures.append(f"{address}: {why}")
        task.failed_on.append(address)
        again = len(task.failures) <= RETRIES
        self.say(f"{task.name}: {task.failures[-1]}; {'it is tried again' if again else 'given up'}")
        if again:
            self._waiting[task.device].appendleft(task)
        else:
            self.given_up.append(task)
