"""Runs of all users: one at a time on each device, in a fair order, each told to whoever watches it."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from compare.labs.running import Stop
from compare.model.op import UsageError
from compare.serve.access import User
from compare.serve.orders import Event, LabOrder, RunOrder

MOST_WAITING = 5
"""Runs of one user that may wait."""
_KEPT = 20
"""Runs of one user that can still be watched."""
_MOST_EVENTS = 2000
ENDED = ("done", "cancelled", "lost")
"""Kinds of the last event."""


@dataclass(eq=False)
class PageRun:
    """One press of Run."""

    user: User
    order: RunOrder | LabOrder
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    events: list[Event] = field(default_factory=list)
    stages: str = ""
    """The page of its stages."""
    stop: Stop = field(default_factory=Stop)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1]["kind"] in ENDED

    def add(self, event: Event) -> None:
        """Tell all that watch it; on the event loop."""
        if self.ended or (len(self.events) >= _MOST_EVENTS and event["kind"] not in ENDED):
            return
        self.events.append(event)
        self.changed.set()
        self.changed = asyncio.Event()


Perform = Callable[[PageRun, str, Callable[[Event], None]], None]
"""Does a run on a device, and tells its events; the last is of `ENDED`."""


class FairQueue:
    """Waiting runs: the next is of the user that was served the longest ago.

    Args:
        devices: each takes one run at a time, in a thread of its own.
        perform: does a run.
    """

    def __init__(self, devices: list[str], perform: Perform) -> None:
        self._perform = perform
        self._waiting: list[PageRun] = []
        self._running: list[PageRun] = []
        self._served: dict[str, int] = {}
        """By user, the number of the last run of theirs that began."""
        self._count = 0
        self._closed = False
        self._lock = threading.Condition()
        self.by_id: dict[str, PageRun] = {}
        self._loop = asyncio.get_running_loop()
        self._threads = [threading.Thread(target=self._work, args=[device]) for device in devices]
        for thread in self._threads:
            thread.start()

    def put(self, run: PageRun) -> None:
        """Let a run wait for its device.

        Raises:
            UsageError: too many runs of its user wait.
        """
        own = [each for each in self._waiting if each.user == run.user]
        if len(own) >= MOST_WAITING:
            raise UsageError(f"{len(own)} of your runs wait: cancel one, or wait until one has begun")
        ended = [each for each in self.by_id.values() if each.user == run.user and each.ended]
        for old in ended[: max(0, len(ended) - _KEPT)]:
            del self.by_id[old.id]
        self.by_id[run.id] = run
        with self._lock:
            self._waiting.append(run)
            self._lock.notify()
        self._tell_places()

    def cancel(self, run: PageRun) -> None:
        """End a run, or take it from the queue."""
        run.stop.is_set = True
        with self._lock:
            waits = run in self._waiting
            if waits:
                self._waiting.remove(run)
        if waits:
            run.add({"kind": "cancelled"})
            self._tell_places()

    def close(self) -> None:
        """End all runs and threads, and wait for them."""
        with self._lock:
            self._closed = True
            for run in (*self._waiting, *self._running):
                run.stop.is_set = True
            self._lock.notify_all()
        for thread in self._threads:
            thread.join()

    def in_order(self) -> Iterator[PageRun]:
        """The waiting runs, the next first."""
        served, left = dict(self._served), list(self._waiting)
        count = self._count
        while left:
            run = min(left, key=lambda each: served.get(each.user.name, 0))  # of equals the first
            left.remove(run)
            served[run.user.name] = count = count + 1
            yield run

    def _tell_places(self) -> None:
        running = len(self._running)
        for place, run in enumerate(list(self.in_order())):
            event = {"kind": "queue", "before": place + running}
            if not run.events or run.events[-1] != event:
                run.add(event)

    def _take(self) -> PageRun | None:
        with self._lock:
            while not self._waiting and not self._closed:
                self._lock.wait()
            if self._closed:
                return None
            run = next(self.in_order())
            self._waiting.remove(run)
            self._running.append(run)
            self._count += 1
            self._served[run.user.name] = self._count
            return run

    def _work(self, device: str) -> None:
        while run := self._take():

            def tell(event: Event, run: PageRun = run) -> None:
                self._loop.call_soon_threadsafe(run.add, event)

            self._loop.call_soon_threadsafe(self._tell_places)
            tell({"kind": "began", "device": device})
            try:
                self._perform(run, device, tell)
            except Exception as error:  # of the server's own: the next run is done all the same
                tell({"kind": "lost", "text": f"the server failed: {type(error).__name__}: {error}"})
            with self._lock:
                self._running.remove(run)
