"""Messages over a Unix socket, each behind its length: read within limits of size and time."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from math import ceil

_LENGTH = struct.Struct("!i")
_MOST_DESCRIPTORS = 4
_ANSWER_BYTES = 4 << 20
"""Largest message that the judge reads."""
_REQUEST_BYTES = (1 << 31) - 1
"""Largest message that a worker reads."""


class Malformed(Exception):
    """What came is no message."""


class Channel:
    """One end of a socket pair.

    Args:
        end: closed with the channel.
        from_judge: the other end is the judge's, which may send longer messages, and descriptors.
    """

    def __init__(self, end: socket.socket, *, from_judge: bool = False) -> None:
        self._end, self._from_judge = end, from_judge
        self._most_bytes = _REQUEST_BYTES if from_judge else _ANSWER_BYTES
        self._buffer = bytearray()
        self.descriptors: list[int] = []
        """Those that came with the messages received so far, and that were not taken out yet."""

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def empty(self) -> bool:
        """Whether nothing has come that was not returned yet; that the other end was closed is nothing."""
        if self._buffer:
            return False
        try:
            return not readable(self._end.fileno(), 0.0) or not self._end.recv(1, socket.MSG_PEEK)
        except ConnectionResetError:
            return True

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message, with copies of file descriptors.

        Raises:
            OSError: the other end is closed, or reads nothing for the socket's time limit.
        """
        framed = _LENGTH.pack(len(message)) + message
        sent = socket.send_fds(self._end, [framed], descriptors) if descriptors else 0
        self._end.sendall(memoryview(framed)[sent:])

    def receive(self, seconds: float | None = None) -> bytes | None:
        """The next message; None if it does not come in time.

        Args:
            seconds: None: wait without a limit.

        Raises:
            EOFError, ConnectionResetError: the other end was closed.
            Malformed: it is longer than allowed.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            message = self._whole()
            if message is not None:
                return message
            left_s = None if until is None else max(0.0, until - time.monotonic())
            if not readable(self._end.fileno(), left_s):
                return None
            more = self._read()
            if not more:
                raise EOFError
            self._buffer += more

    def _whole(self) -> bytes | None:
        """Take the first message out of the buffer; None: it is not complete."""
        begin = _LENGTH.size
        if len(self._buffer) < begin:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer)
        if not 0 <= size <= self._most_bytes:
            raise Malformed(f"a message of {size} bytes")
        if len(self._buffer) < begin + size:
            return None
        message = bytes(self._buffer[begin : begin + size])
        del self._buffer[: begin + size]
        return message

    def _read(self) -> bytes:
        if not self._from_judge:  # descriptors that are not received are closed by the kernel
            return self._end.recv(1 << 16)
        more, descriptors, _, _ = socket.recv_fds(self._end, 1 << 16, _MOST_DESCRIPTORS)
        self.descriptors += descriptors
        return more

    def close(self) -> None:
        self._end.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


def readable(descriptor: int, seconds: float | None) -> bool:
    """Whether a descriptor can be read, or its other end was closed, within ``seconds`` (None: no limit)."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0, ceil(seconds * 1000))))
