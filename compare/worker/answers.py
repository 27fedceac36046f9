"""What a worker may answer: its form, size and depth.  Anything else fails its row."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from multiprocessing import connection as connections
from typing import Any

from compare.code_size.count import Launched
from compare.records.encoding import decode
from compare.replay.nodes import Recording
from compare.sandbox.words import read_json
from compare.spec import CodeSize, KernelResources, Tuning
from compare.timing.stopwatch import Reading

MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class _Registered:
    op: str
    label: str
    level: str
    requires: str | None
    accumulator: str
    without_gpu: bool
    algorithm: str
    tunable: dict[str, tuple[int, ...]]
    defaults: dict[str, int]
    line: int


@dataclass(frozen=True)
class _Load:
    ops: tuple[str, ...]
    implementations: tuple[_Registered, ...]


@dataclass(frozen=True)
class _Hashes:
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class _Rest:
    held_bytes: int
    kept_bytes: int


@dataclass(frozen=True)
class _First:
    ms: float
    tunings: tuple[Tuning, ...]


@dataclass(frozen=True)
class _Call:
    problem: str | None
    violations: tuple[str, ...]
    guarded: bool
    shared: str | None
    borrowed: tuple[str, ...]
    launched: bool


@dataclass(frozen=True)
class _Profile:
    kernels: tuple[KernelResources, ...]
    own: tuple[str, ...]


@dataclass(frozen=True)
class _Seconds:
    value: float


@dataclass(frozen=True)
class _Text:
    value: str | None


@dataclass(frozen=True)
class _Nothing:
    value: None


@dataclass(frozen=True)
class _Images:
    value: tuple[bytes, ...]


_FORMS: dict[str, Any] = {
    "connect": _Seconds,
    "prepare": _Seconds,
    "load": _Load,
    "hashes": _Hashes,
    "size": CodeSize,
    "rest": _Rest,
    "first": _First,
    "call": _Call,
    "profile": _Profile,
    "launched": Launched,
    "first_again": _Text,
    "compile": _Images,
    "record": Recording,
    "cold": Reading,
    "warm": Reading,
}
"""By request; others are answered with nothing."""


@dataclass(frozen=True)
class Error:
    """What a request raised."""

    kind: str
    name: str
    text: str
    where: str
    trace: str


@dataclass(frozen=True)
class Answer:
    """An answer that has the form of its request's."""

    number: str
    forked: bool = False
    raised: Error | None = None
    lost: str | None = None
    answer: Any = None


@dataclass(frozen=True)
class _Envelope:
    number: str
    forked: bool
    raised: Error | None = None
    lost: str | None = None


def read(message: bytes, what: str) -> Answer:
    """The answer to a request.

    Args:
        message: JSON.
        what: the request.

    Raises:
        ValueError, TypeError: the message is no answer to it.
    """
    told = read_json(message)
    if not isinstance(told, dict):
        raise TypeError("an answer is an object")
    value = told.pop("answer", None)
    envelope = decode(_Envelope, told, "answer")
    if envelope.raised is None:
        form = _FORMS.get(what, _Nothing)
        decode(form, {"value": value} if form in (_Seconds, _Text, _Images, _Nothing) else value, what)
    return Answer(**vars(envelope), answer=value)


class Inbox:
    """Messages as `multiprocessing.connection.Connection.send_bytes` sends them, read without blocking."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._got = bytearray()

    @property
    def empty(self) -> bool:
        """Whether nothing has come that was not returned yet."""
        return not self._got and not connections.wait([self._descriptor], 0)

    def message(self, seconds: float) -> bytes | None:
        """The next message; None if it does not come in time.

        Raises:
            EOFError: the other end was closed.
            ValueError: it is longer than `MOST_BYTES`.
        """
        until = time.monotonic() + seconds
        while True:
            if len(self._got) >= 4:
                (size,) = struct.unpack("!i", self._got[:4])
                if not 0 <= size <= MOST_BYTES:
                    raise ValueError(f"a message of {size} bytes")
                if len(self._got) >= 4 + size:
                    found = bytes(self._got[4 : 4 + size])
                    del self._got[: 4 + size]
                    return found
            if not connections.wait([self._descriptor], max(0.0, until - time.monotonic())):
                return None
            more = os.read(self._descriptor, 1 << 16)
            if not more:
                raise EOFError
            self._got += more
