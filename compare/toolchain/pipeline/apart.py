"""Users' files (``--load``) opened up in an isolated process, which hands over what it found as data.

Such a file may end its process, never return, or print whatever it likes: this process shows only what has
the form of `Found`.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection as connections

from compare.records.encoding import decode, encode
from compare.sandbox.isolation import protect_judge
from compare.sandbox.launch import Launched
from compare.sandbox.words import how_it_ended, printable, read_json
from compare.spec import UsageError
from compare.toolchain.pipeline.records import Found, Opened, Stage, Wanted

_MOST_BYTES = 256 << 20
_COMPILERS_SHARE = 10
"""Time limit of a step in which several compilers run, as a multiple of ``--timeout``, and of all steps."""
_STARTING_S = 120.0
_MOST_STEPS = 10_000


class Apart:
    """The process, which starts at once.  Use it as a context manager.

    Args:
        wanted: what to open up.
        timeout_s: the limit of a step that runs the user's code.
    """

    def __init__(self, wanted: Wanted, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        protect_judge()
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        self._launched = Launched(
            "compare.toolchain.pipeline.opener", [json.dumps(encode(wanted))], {}, self._noise
        )

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._launched.close()
        self._noise.close()

    def found(self) -> Found:
        """What it found, waited for.

        Raises:
            UsageError: it did not finish, the text names the step and the reason; or what it raised.
        """
        step = "starting"
        self._limit_s = max(_STARTING_S, self._timeout_s)
        try:
            for count, line in enumerate(self._lines()):
                told = read_json(line, values=1 << 22, text=_MOST_BYTES)
                if not isinstance(told, dict) or count > _MOST_STEPS:
                    break
                if "refused" in told:
                    raise UsageError(" ".join(str(told["refused"]).split())[:2000])
                if "found" in told:
                    return _shown(decode(Found, told["found"]))
                step = str(told["step"])[:300]
                self._limit_s = self._timeout_s * (1 if told["limited"] else _COMPILERS_SHARE)
            how = self._how_it_ended()
        except UsageError:
            raise
        except TimeoutError as error:
            how = f"{error}, the limit (--timeout)"
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            how = f"it wrote into the pipe to this process ({str(error)[:300]})"
        raise UsageError(f"{step}: {how}. Fix the file given with --load")

    def _lines(self) -> Iterator[bytes]:
        """Its lines; a `TimeoutError` where the next does not come within the limit."""
        stream = self._launched.process.stdout
        assert stream is not None
        rest, until = bytearray(), time.monotonic() + self._limit_s
        total_until = until + 2 * _COMPILERS_SHARE * self._timeout_s
        while connections.wait([stream.fileno()], max(0.0, min(until, total_until) - time.monotonic())):
            more = os.read(stream.fileno(), 1 << 20)
            if not more:
                return
            rest += more
            if len(rest) > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_BYTES >> 20} MB")
            *lines, last = rest.split(b"\n") if b"\n" in more else [rest]
            for line in lines:
                yield bytes(line)
                until = time.monotonic() + self._limit_s
            rest = bytearray(last)
        if time.monotonic() < until:
            raise TimeoutError("all steps together took too long")
        raise TimeoutError(f"it took longer than {self._limit_s:g} s")

    def _how_it_ended(self) -> str:
        with suppress(Exception):
            self._launched.process.wait(2.0)
        code = self._launched.process.returncode
        return "it closed the pipe to this process" if code is None else how_it_ended(code)

    def _end(self) -> None:
        process = self._launched.process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _shown(found: Found) -> Found:
    """Without control characters in its texts."""

    def stage(one: Stage) -> Stage:
        return one if one.binary else replace(one, content=printable(one.text).encode())

    def opened(one: Opened) -> Opened:
        return replace(one, stages=tuple(map(stage, one.stages)))

    return replace(found, opened=tuple(map(opened, found.opened)))
