"""A server of the page as a user starts it, and a client of its HTTP interface."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from processes import ROOT, descendants

LAST = ("done", "cancelled", "lost")


@dataclass
class PageClient:
    """Requests of one user."""

    port: int
    token: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def ask(
        self, path: str, body: Any = None, method: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and value of a request; a value that is no JSON as text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        content = None if body is None else json.dumps(body)
        given = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(
                method or ("GET" if body is None else "POST"),
                f"/{self.token}/{path}",
                content,
                {**given, **(headers or {})},
            )
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = answer.getheader("Content-Type") == "application/json"
            return answer.status, json.loads(text) if is_json else text
        finally:
            connection.close()

    def start(self, text: str, **order: Any) -> str:
        """The name of a new run."""
        status, answer = self.ask("runs", {"op": "softmax", "text": text, **order})
        assert status == 201, answer
        return str(answer["id"])

    def events(self, run: str) -> Iterator[dict[str, Any]]:
        """A run's events as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
        try:
            connection.request("GET", f"/{self.token}/runs/{run}/events")
            answer = connection.getresponse()
            assert answer.status == 200
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            connection.close()

    def result(self, text: str, **order: Any) -> dict[str, dict[str, Any]]:
        """The last event of each kind of a run, until its end."""
        return {event["kind"]: event for event in self.events(self.start(text, **order))}

    def source(self, way: str, label: str, op: str = "softmax") -> str:
        status, answer = self.ask(f"source?op={op}&way={way}&label={label}")
        assert status == 200, answer
        return str(answer["text"])


@dataclass
class PageServerProcess:
    """The server's process, and one client for each token that it has printed or was given."""

    process: subprocess.Popen[str]
    client: PageClient

    @property
    def descendants(self) -> list[int]:
        """All processes that it has started, directly or not."""
        return descendants(self.process.pid)


@contextmanager
def page_server(*words: str) -> Iterator[PageServerProcess]:
    """``python -m compare serve``; ended at the end."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.Popen(
        [sys.executable, "-m", "compare", "serve", "--port", "0", *words],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        searched = (re.search(r"open http.*:(\d+)/([\w-]+)/", line) for line in process.stderr)
        opened = next(filter(None, searched), None)
        assert opened, f"status {process.wait()}"
        client = PageClient(int(opened[1]), opened[2])
        yield PageServerProcess(process, client)
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()
        process.stderr.close()


def seconds_of(work: Any) -> float:
    begin = time.monotonic()
    work()
    return time.monotonic() - begin
