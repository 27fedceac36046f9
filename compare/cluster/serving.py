"""``--cluster`` of ``serve``: each run is a task, whose events come while a worker performs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from threading import Event, Thread
from typing import Any

from distributed import Client, get_worker
from distributed import Event as ClusterEvent

from compare import registry
from compare.cluster import workers
from compare.cluster.sweep import Sweep
from compare.cluster.workers import NO_GPU, Facts, WorkFailed
from compare.labs.running import COMMAND_MODULES, Stop
from compare.model.op import UsageError
from compare.sandbox import isolation
from compare.serve import JUDGE, performing
from compare.serve.access import User
from compare.serve.orders import Event as RunEvent
from compare.serve.orders import LabOrder, RunOrder
from compare.serve.performing import Tell
from compare.serve.runs import ENDED, PageRun
from compare.worker.start import prepare

_NAME = "the run"
_LOOK_S = 0.3
_END_S = 10.0
"""A worker has so long to end a cancelled run."""


@dataclass
class ClusterRuns:
    """Runs on a cluster's workers of one device model, each with one run at a time.

    Args:
        client: of the cluster.
        patience_s: how long it may have no worker.
        device: as on the command line.
        say: is told which workers take runs, a line each.

    Raises:
        UsageError: no worker takes runs.
    """

    client: Client
    patience_s: float
    device: str
    say: Callable[[str], None]
    gpu: str = field(init=False)
    """The name of the workers' GPU; empty: they have none."""

    def __post_init__(self) -> None:
        self._sources = workers.here()["sources"]
        models = [task.device for task, _ in self._sweep(str, self.say).results()]
        if not models:
            raise UsageError("no worker of the cluster takes runs")
        self.gpu = models[0] if _on_gpu(self.device, models[0]) else ""

    @property
    def slots(self) -> list[str]:
        """A name for each worker that there is or, of a cluster that is started here, will be."""
        count = len(getattr(self.client.cluster, "worker_spec", None) or self.client.nthreads())
        return [f"worker {number}" for number in range(1, count + 1)]

    def perform(self, run: PageRun, _: str, tell: Tell) -> None:
        """Do a run on a worker, as of `FairQueue`."""

        def relay(logged: tuple[float, RunEvent]) -> None:
            event = {name: value for name, value in logged[1].items() if name != "worker"}  # Dask adds it
            if event["kind"] == "stages":
                run.stages = event.pop("page")
            tell(event)

        def say(text: str) -> None:
            if text.startswith(_NAME):
                tell({"kind": "step", "text": text})

        topic = f"run-{run.id}"
        sweep = self._sweep(partial(run_here, run.order, self.device, topic), say)
        ended, last = Event(), {"kind": "lost", "text": "no worker was left for it"}
        cancelling = Thread(target=_cancel, args=(run.stop, ClusterEvent(topic, self.client), ended, sweep))
        self.client.subscribe_topic(topic, relay)
        cancelling.start()
        try:
            last = next((event for _, event in sweep.results()), last)
        except UsageError as error:
            last = {"kind": "lost", "text": str(error)}
        finally:
            ended.set()
            cancelling.join()
            self.client.unsubscribe_topic(topic)
        if sweep.given_up and sweep.given_up[0].failures:
            last = {"kind": "lost", "text": sweep.given_up[0].failures[-1]}
        tell({"kind": "cancelled"} if run.stop.is_set else last)

    def _sweep(self, work: Callable[[], Any], say: Callable[[str], None]) -> Sweep:
        """Of one task, which the first device model gets."""
        names = [_NAME]

        def names_for(_: str) -> list[str]:
            return [names.pop()] if names else []

        needs_gpu = self.device.startswith("cuda")
        return Sweep(
            self.client, names_for, lambda _: work, say, self._sources, needs_gpu, self.patience_s, facts
        )


def _on_gpu(device: str, model: str) -> bool:
    """Whether a worker with a GPU of this model, or `NO_GPU`, runs on it."""
    return device != "cpu" and model != NO_GPU


def _cancel(stop: Stop, event: ClusterEvent, ended: Event, sweep: Sweep) -> None:
    """Pass a run's cancellation on; a worker that does not hear of it loses the task."""
    while not stop.is_set:
        if ended.wait(_LOOK_S):
            return
    event.set()
    if not ended.wait(_END_S):
        sweep.cancel()
    event.clear()


# --------------------------------------------------------------------------- in a worker


@cache
def facts(dask_worker: Any = None) -> Facts:
    """What `workers.describe` said at first, and whether this machine can isolate what users write."""
    known, machine = workers.describe(dask_worker), isolation.found()
    if machine.holds or known.get("problem"):
        return known
    return {**known, "problem": f"it {machine.lack}"}


class _ClusterStop(Stop):
    """Set by whoever cancels the run, on another machine; asked for a few times a second."""

    def __init__(self, topic: str) -> None:
        self._event, self._asked_s, self._is_set = ClusterEvent(topic), 0.0, False

    @property
    def is_set(self) -> bool:  # type: ignore[override]
        if time.monotonic() - self._asked_s > _LOOK_S:
            self._is_set, self._asked_s = bool(self._event.is_set()), time.monotonic()
        return self._is_set


@cache
def _prepared(device: str) -> str:
    """The device of this worker's runs, with a server from which their processes are forked."""
    used = "cuda:0" if _on_gpu(device, facts()["device"]) else "cpu"
    prepare(used, registry.op_names(), (*COMMAND_MODULES, JUDGE))
    return used


def run_here(order: RunOrder | LabOrder, device: str, topic: str) -> RunEvent:
    """Perform a run in this worker; its last event. The others are logged under a topic.

    Raises:
        WorkFailed: the GPU was lost.
    """
    worker, last = get_worker(), RunEvent()
    run = PageRun(User("", ""), order, stop=_ClusterStop(topic))

    def tell(event: RunEvent) -> None:
        nonlocal last
        last = event
        if event["kind"] not in ENDED:
            worker.log_event(topic, {**event, "page": run.stages} if event["kind"] == "stages" else event)

    performing.perform(run, _prepared(device), tell)
    gpu = facts().get("gpu")
    if last["kind"] == "lost" and gpu and workers.describe().get("gpu") != gpu:
        raise WorkFailed(f"its GPU, {gpu}, no longer answers", worker.address, gpu_lost=True)
    return last
