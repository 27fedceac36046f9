"""Resources without a GPU: what an implementation would launch is captured, compiled and read.

All of one call's requests are compiled by one other process, because Triton must be imported there
without its interpreter and because importing it takes seconds.  Its results are kept on disk by content: of
the sources, the case, the architecture and the compilers; so asking again takes milliseconds.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection as connections
from pathlib import Path
from typing import Any

from compare import registry
from compare.code_size.hashes import rests_on
from compare.device import lacks
from compare.model.op import Case, Implementation, Op
from compare.model.result import KernelResources, Options
from compare.records import result_cache
from compare.records.encoding import decode
from compare.resources.occupancy import limits
from compare.sandbox import isolation
from compare.sandbox.environment import kept
from compare.sandbox.launch import IsolatedProcess
from compare.sandbox.words import how_it_ended, printable, read_json

_CODE = (
    *("compare/resources/*.py", "compare/resources/sass/*.py", "compare/capture.py", "compare/device.py"),
    "cuda_impl/build.py",
)
"""What asks the compilers and reads their answers."""

_COMPILERS = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc")

_PROCESS = "compare.resources.compiler_process"

_EXITING_S = 1.0
_LONGEST_LINE = 4 << 20
_QUOTED = 500
"""Bytes of its output that are quoted."""
_STARTING_S = 120.0
"""What importing the compilers may take at least, before anything is done for a request."""

Resources = tuple[KernelResources, ...] | Exception


class CompileError(RuntimeError):
    """A kernel could not be captured or compiled; the text is the compiler's."""


class Refused(CompileError):
    """A compiler does not take the kernel, so nothing could run it on that architecture."""


@dataclass(frozen=True)
class Request:
    """Resources of one implementation on one case, as compiled for one architecture."""

    op: Op
    impl: Implementation
    case: Case
    arch: str
    """``sm_90``"""


def from_cubins(
    requests: Sequence[Request],
    progress: Callable[[int, int], None] = lambda done, total: None,
    timeout_s: float = Options.timeout_s,
) -> list[Resources]:
    """What each kernel of each request takes, in launch order, or why that is not known.

    Empty for PyTorch's own kernels, which are compiled already; a GPU's profiler reads those.
    An exception is `NotImplementedError` of what does not take the case or the architecture, `Refused` by a
    compiler, or `CompileError` for another reason.

    Args:
        requests: compiled together, which saves seconds for each.
        progress: called with how many of those that had to be compiled are done, and how many there are.
        timeout_s: as of `Compiling`.

    Raises:
        UsageError: an architecture that is not known.
    """
    compiling = Compiling(requests, timeout_s=timeout_s)
    try:
        return compiling.results(progress)
    finally:
        compiling.stop()


class Compiling:
    """Pending requests: results that are not cached are compiled by other processes, which start at once.

    To be stopped by whoever started it.
    """

    def __init__(
        self, requests: Sequence[Request], nice: int = 0, timeout_s: float = Options.timeout_s
    ) -> None:
        """Begin.

        Args:
            requests: compiled together, which saves seconds for each.
            nice: how much less urgent that is than what this process does in the meantime.
            timeout_s: the limit of one step of a request, such as compiling it; a request that takes longer
                is given up, and the others go on.

        Raises:
            UsageError: an architecture that is not known.
        """
        for arch in {request.arch for request in requests}:
            limits(arch)
        self._keys = _keys(requests)
        self._results: dict[str, Resources] = {}
        missing: dict[str, dict[str, Request]] = {}
        for key, request in zip(self._keys, requests, strict=True):
            needs = request.impl.requires
            if request.impl.route == "torch":
                self._results[key] = ()
            elif needs is not None and (refusal := lacks(needs, request.arch)) is not None:
                self._results[key] = NotImplementedError(refusal)
            elif (known := _kept(key)) is not None:
                self._results[key] = known
            else:
                # Of a user's file each in a process of its own: what it does there is its own affair.
                group = str(request.impl.user_file or "")
                missing.setdefault(group, {})[key] = request
        self._compilers = [_CompilerProcess(group, nice, timeout_s) for group in missing.values()]

    def results(self, progress: Callable[[int, int], None] = lambda done, total: None) -> list[Resources]:
        """Of every request, waited for; ``progress`` as for `from_cubins`."""
        total = sum(compiler.total for compiler in self._compilers)
        done = 0
        for compiler in self._compilers:
            self._results |= compiler.results(lambda more, done=done: progress(done + more, total))  # type: ignore[misc]
            done += compiler.total
        return [self._results[key] for key in self._keys]

    def stop(self) -> None:
        """End what is still at work; what it has finished is kept for the next time."""
        for compiler in self._compilers:
            compiler.stop()


class _CompilerProcess:
    """A process that compiles, and a thread that keeps its answers as they come.

    One that ends early, or is ended as a step of it takes too long, has another take its place for all but
    the implementation that it was busy with.
    """

    def __init__(self, missing: Mapping[str, Request], nice: int, timeout_s: float) -> None:
        self._missing = dict(missing)
        self._nice, self._timeout_s = nice, timeout_s
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._results: dict[str, Resources] = {}
        self._scratch = isolation.private_folder()
        self._noise = self._scratch / "noise"
        self._stopping = threading.Lock()
        self._stopped = False
        self._launched: list[IsolatedProcess] = []
        self._process = self._started(missing)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def total(self) -> int:
        """How many requests it was given."""
        return len(self._missing)

    def results(self, progress: Callable[[int], None]) -> dict[str, Resources]:
        """By key, waited for; ``progress`` is told how many are done."""
        while (answer := self._answers.get()) is not None:
            self._results[answer["key"]] = _understood(answer)
            progress(len(self._results))
        self._answers.put(None)  # a later call finds the end as well
        return self._results

    def stop(self) -> None:
        with self._stopping:
            self._stopped = True
            self._end()
        self._reader.join()
        self._process.wait()
        for launched in self._launched:
            launched.close()
        isolation.remove(self._scratch)

    def _started(self, missing: Mapping[str, Request]) -> subprocess.Popen[bytes]:
        """The process, with its orders."""
        # A cache of its own: what is compiled here must not shorten the first call that is timed elsewhere.
        variables = {"TRITON_DUMP_PTXAS_LOG": "1", "TRITON_CACHE_DIR": str(self._scratch)}
        variables["TRITON_INTERPRET"] = "0"
        files = _loaded_files(missing.values())
        with self._noise.open("wb") as noise:
            if files:
                self._launched.append(IsolatedProcess(_PROCESS, [], variables, noise))
                process = self._launched[-1].process
            else:
                process = subprocess.Popen(
                    [sys.executable, "-m", _PROCESS],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=noise,
                    cwd=registry.ROOT,
                    env={name: value for name, value in os.environ.items() if kept(name)} | variables,
                    start_new_session=True,
                )
        orders = [
            {
                "key": key,
                "op": r.op.name,
                "label": r.impl.base or r.impl.label,
                "parameters": dict(r.impl.parameters),
                "case": str(r.case),
                "arch": r.arch,
            }
            for key, r in missing.items()
        ]
        message = {"nice": self._nice, "load": files, "orders": orders}
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()  # and left open: it ends where this process does
        return process

    def _read(self) -> None:
        left = dict(self._missing)
        try:
            while left:
                key, why = self._answered(left)
                blamed = [k for k, r in left.items() if key is None or r.impl is left[key].impl]
                for each in blamed:
                    del left[each]
                    self._answers.put({"key": each, "failed": why})
                with self._stopping:
                    if self._stopped:
                        break
                    if left:
                        self._process = self._started(left)
        finally:
            self._answers.put(None)  # whatever happens here, somebody waits for it

    def _answered(self, left: dict[str, Request]) -> tuple[str | None, str]:
        """Take answers, and what they answer out of ``left``, until the process is no more.

        Returns:
            The key of what it was busy with at last, None where that is no one's in particular; and why it
            did not come to an end with that.
        """
        busy: str | None = None
        most = len(_loaded_files(left.values())) + 3 * len(left)  # of a request two steps, and its answer
        step, why = "importing the compilers", ""
        self._limit_s = max(_STARTING_S, self._timeout_s)
        try:
            for count, line in enumerate(self._lines()):
                told = read_json(line)
                if count >= most:
                    raise ValueError("more lines than an honest process writes")
                if "step" in told:
                    busy = told["of"] if told["of"] in left else None
                    step, self._limit_s = str(told["step"])[:_QUOTED], self._timeout_s
                elif told["key"] in left:
                    _understood(told)
                    if "failed" not in told and "refused" not in told:
                        result_cache.write("resources", told["key"], told)
                    del left[told["key"]]
                    self._answers.put(told)
                    if not left:
                        break
            else:  # it closed the pipe, and may be about to exit
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_EXITING_S)
        except TimeoutError:
            why = f" took longer than {self._limit_s:g} s, the limit (--timeout)"
        except (ValueError, KeyError, TypeError, OverflowError):  # the rest is not read
            why = ": it wrote into the pipe between its process and the judge's"
        self._end()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # of one that has not read its orders
            self._process.stdin.close()
        key = busy if busy in left else None
        arch = f" for {left[key].arch}" if key else ""
        how = f": {how_it_ended(self._process.returncode)}; the last it printed: {self._last_words()}"
        return key, f"{step}{arch}{why or how}"

    def _last_words(self) -> str:
        with self._noise.open("rb") as file:
            file.seek(max(0, self._noise.stat().st_size - _QUOTED))
            return " ".join(printable(file.read(_QUOTED).decode(errors="replace")).split())

    def _lines(self) -> Iterator[bytes]:
        """What the process prints; a `TimeoutError` where the next line does not come within the limit."""
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            rest, since = b"", time.monotonic()
            while connections.wait([stream.fileno()], max(0.0, since + self._limit_s - time.monotonic())):
                more = os.read(stream.fileno(), 1 << 16)
                if not more:
                    return
                *lines, rest = (rest + more).split(b"\n")
                if len(rest) > _LONGEST_LINE:
                    raise ValueError(f"more than {_LONGEST_LINE >> 20} MB")
                yield from lines
                since = time.monotonic() if lines else since
            raise TimeoutError

    def _end(self) -> None:
        """With all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _understood(answer: dict[str, Any]) -> Resources:
    if "unavailable" in answer:
        return NotImplementedError(answer["unavailable"])
    if "refused" in answer:
        return Refused(answer["refused"])
    if "failed" in answer:
        return CompileError(answer["failed"])
    return tuple(decode(KernelResources, kernel) for kernel in answer["kernels"])


def _loaded_files(requests: Collection[Request]) -> list[str]:
    """The files given to ``--load`` that the requests come from, for the other process to load as well."""
    functions = [function for r in requests for function in (r.impl.run, r.op.make_inputs)]
    modules = {function.__module__ for function in functions if function.__module__.startswith("_loaded_")}
    files = sorted(str(Path(file).resolve()) for m in modules if (file := sys.modules[m].__file__))
    return files + sorted({str(r.impl.user_file) for r in requests if r.impl.user_file})


# --------------------------------------------------------------------------- what is kept on disk


def key_of(request: Request) -> str:
    """A name for results of a request: a hash of everything that they depend on."""
    return _key(request, rests_on(request.impl))


def _keys(requests: Iterable[Request]) -> list[str]:
    hashes: dict[tuple[str, str], str] = {}
    found = []
    for request in requests:
        name = request.impl.op, request.impl.label
        if name not in hashes:
            hashes[name] = rests_on(request.impl)
        found.append(_key(request, hashes[name]))
    return found


def _key(request: Request, sources_hash: str) -> str:
    """Names a result by everything it rests on."""
    return result_cache.key(
        request.op.name,
        request.impl.label,
        str(request.impl.parameters),
        sources_hash,
        str(request.case),
        request.arch,
        result_cache.versions(*_COMPILERS),
        result_cache.code(*_CODE),
        *_settings(),
    )


def _settings() -> list[str]:
    """What the environment tells Triton's compiler, such as which ptxas to use."""
    # Where kernels are kept, and the interpreter, are other matters for the process that compiles.
    others = ("TRITON_CACHE_DIR", "TRITON_INTERPRET")
    return sorted(f"{n}={v}" for n, v in os.environ.items() if n.startswith("TRITON_") and n not in others)


def _kept(key: str) -> Resources | None:
    with suppress(KeyError, TypeError, ValueError, OverflowError):  # damaged, or of another version
        return _understood(result_cache.read("resources", key))
    return None
