"""The workers of a run: one for each implementation, started when first needed."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import torch

from compare.model.op import Implementation, Op, UsageError
from compare.worker import messages
from compare.worker.process import Ended, NotLoaded, Worker
from compare.worker.server import modules_of
from compare.worker.user_files import to_load
from cuda_impl import build
from cuda_impl.ahead import Building
from cuda_impl.pybind import building, module_of, target_of

_COMPILERS = {"torch.compile": ("torch._inductor.compile_fx",)}
"""Modules that take seconds to import and that one implementation needs: not imported by the server."""

CONTEXTS_AT_ONCE = 3
"""CUDA contexts created at once.  The driver interleaves them: of 36 at once none is ready before 6 s.
Created in turn, the first workers are checked while others wait for their context."""

MOST_CRASHES = 2
"""After this many crashes an implementation is not tried on later cases."""


@dataclass
class _Started:
    """A worker, and what came of starting it."""

    worker: Worker
    parameters: tuple[tuple[str, int], ...]
    """What it has compiled for."""
    ready: bool = False
    error: Exception | None = None
    """Why it lives on but could not start: answers are out of step now."""


class WorkerPool:
    """Workers by implementation.  Use it as a context manager: it ends all of them."""

    def __init__(self, op: Op, device: torch.device, timeout_s: float) -> None:
        self._op, self._device, self.timeout_s = op, device, timeout_s
        self._started: dict[str, _Started] = {}
        """By label."""
        self._crashes: dict[str, list[Ended]] = {}
        self._retried: set[str] = set()
        self.contexts_s: dict[str, float] = {}
        """Seconds that each worker took to create its device's context."""
        self._building: dict[tuple[str, str | None], Building] = {}
        self._connecting = threading.BoundedSemaphore(CONTEXTS_AT_ONCE)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers in parallel, and the builds for them."""
        for one in self._building.values():
            one.stop()
        for started in self._started.values():
            started.worker.abandon()
        for started in self._started.values():
            started.worker.close()

    def build(self, impls: Iterable[Implementation], dtypes: Iterable[str]) -> None:
        """Start building the modules that ``impls`` load for ``dtypes``, where they are not built yet.

        Build what all kernels share on a CPU, as the isolated worker of a user's file keeps nothing.
        """
        impls = list(impls)
        self._building = building(impls, self._device, dtypes)
        if self._device.type == "cpu" and any(impl.route == "cupy" and to_load(impl) for impl in impls):
            with suppress(build.BuildError):  # the worker meets it too, and reports it
                build.shared_host_builds()

    def built_s(self, impl: Implementation, dtype: str) -> float:
        """Wait for the build of what ``impl`` loads for ``dtype``; returns its seconds, 0 where nothing was
        built.

        Raises:
            Exception: what the build raised.
        """
        one = self._building.get((module_of(impl, self._device), target_of(self._device, dtype)))
        return one.wait() if one is not None else 0.0

    def start(self, impls: Iterable[Implementation]) -> None:
        """Start workers without waiting, so that they start in parallel."""
        for impl in impls:
            started = self._started.get(impl.label)
            if started is not None:
                usable = started.worker.alive or self._given_up(impl.label)
                if usable and started.parameters == impl.parameters:
                    continue
                started.worker.close()
            self._started[impl.label] = _Started(self._begin(impl), impl.parameters)

    def of(self, impl: Implementation) -> Worker:
        """The worker of an implementation, ready for requests.

        Raises:
            Ended: it was ended for good, or could not start.
            Exception: what the implementation's file raised.
        """
        self.start([impl])
        started = self._started[impl.label]
        worker = started.worker
        if started.error is not None:
            raise started.error
        if worker.alive and not started.ready:
            try:
                worker.receive("starting")
                with self._connecting:
                    self.contexts_s[impl.label] = worker.ask(messages.Connect(), "starting")
                load(worker, self._op, impl)
            except Ended:
                raise
            except Exception as error:
                started.error = error
                raise
            started.ready = True
        return worker

    def dismiss(self, impl: Implementation) -> None:
        """End its worker without waiting: freeing its GPU memory takes long."""
        if impl.label in self._started:
            self._started[impl.label].worker.abandon()

    def retries(self, label: str, error: Exception | None) -> bool:
        """Whether another worker is to be tried: once for each implementation, as it may end itself."""
        return isinstance(error, Ended) and error.retry and label not in self._retried

    def retry(self, label: str) -> None:
        """Record that it is."""
        self._retried.add(label)

    def note(self, impl: Implementation, ended: Ended) -> None:
        """Record how its worker ended."""
        self._crashes.setdefault(impl.label, []).append(ended)

    def _given_up(self, label: str) -> bool:
        crashes = self._crashes.get(label, [])
        return len(crashes) >= MOST_CRASHES or any(ended.final for ended in crashes)

    def _begin(self, impl: Implementation) -> Worker:
        isolated, hidden = bool(to_load(impl)), impl.hidden
        worker = Worker(impl.label, self._device, self.timeout_s, isolated=isolated, hidden=hidden)
        modules = *modules_of(self._op.name, impl), *_COMPILERS.get(impl.label, ())
        worker.send(messages.Setup(str(self._device), worker.environment, modules))
        return worker


def load(worker: Worker, op: Op, impl: Implementation) -> None:
    """Have a worker load an implementation's files, and take it for all later requests.

    Raises:
        NotLoaded: its file raised, or does not register it.
    """
    try:
        request = messages.Load(tuple(to_load(impl)), op.name, bool(impl.hidden))
        worker.ask(request, "loading its file")
        choice = messages.Choose(op.name, impl.base or impl.label, dict(impl.parameters))
        worker.ask(choice, "finding it")
    except UsageError as error:
        raise NotLoaded(str(error)) from None
