"""Kernels compiled without a GPU, in the background: each implementation by a worker of its own.

So one that takes too long or ends its process costs the others nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

import torch

from compare import registry
from compare.code_size.count import Launched
from compare.device import lacks
from compare.model.architecture import limits
from compare.model.op import Implementation, UsageError
from compare.model.result import Options
from compare.resources.static import CompileError, Refused, Request, Resources, keep, kept, key_of
from compare.run.context import Context
from compare.sandbox import scratch
from compare.worker import server
from compare.worker.messages import FindLaunched, ReadFigures, ReadResources, ReadSources, Setup
from compare.worker.parallel import cores
from compare.worker.pool import load
from compare.worker.process import Raised, Worker
from compare.worker.server import modules_of
from compare.worker.user_files import launches_by_loader, to_load

_LESS_URGENT = 10
"""Added to the nice value of what compiles while first calls are timed."""


class Compilation:
    """Pending requests: results that are not cached are compiled by workers, which start at once.

    To be stopped by whoever started it; what it has finished is kept for the next time.

    Args:
        requests: of one or more ops.
        nice: how much less urgent that is than what this process does in the meantime.
        timeout_s: the limit of each request; an implementation that takes longer is given up.

    Raises:
        UsageError: an architecture that is not known.
    """

    def __init__(
        self, requests: Sequence[Request], nice: int = 0, timeout_s: float = Options.timeout_s
    ) -> None:
        for arch in {request.arch for request in requests}:
            limits(arch)
        self.requests = tuple(requests)
        self._nice, self._timeout_s = nice, timeout_s
        self._keys = [key_of(request) for request in requests]
        self._results: dict[str, Resources] = {}
        missing: dict[tuple[str, str], dict[str, Request]] = {}
        for key, request in zip(self._keys, requests, strict=True):
            if (result := _without_compiler(request, key)) is not None:
                self._results[key] = result
            else:
                missing.setdefault((request.op.name, request.impl.label), {})[key] = request
        self._workers: list[Worker] = []
        self._stopped = False
        self._starting = threading.Lock()
        if missing:
            ops = {request.op.name for request in requests}
            strangers = any(impl.hidden for op in ops for impl in registry.implementations(op))
            server.start([] if strangers else sorted(ops), interpreted=False)
        self._threads = ThreadPoolExecutor(cores())
        self._jobs = [self._threads.submit(self._compile, group) for group in missing.values()]

    @classmethod
    def begin(cls, context: Context) -> Compilation:
        """Start compiling all kernels whose resources are read, except users' files: those have to be
        correct first."""
        requests = [
            Request(context.op, impl, step.case, arch)
            for step in context.steps
            if step.inspect
            for impl in context.impls
            if not impl.user_file and not impl.stand_in
            for arch in context.archs_of(impl)
        ]
        return cls(requests, _LESS_URGENT if context.on_gpu else 0, context.options.timeout_s)

    def wait(self, context: Context) -> None:
        """Wait until all is compiled, as that would disturb the timing."""
        context.meter.say(f"compiling for {', '.join(context.archs)}")
        self.results()

    def results(self, progress: Callable[[float], None] = lambda share: None) -> list[Resources]:
        """Of every request, waited for; ``progress`` is told the share of implementations that are done."""
        for count, job in enumerate(as_completed(self._jobs), 1):
            job.result()
            progress(count / len(self._jobs))
        return [self._results[key] for key in self._keys]

    def stop(self) -> None:
        """End what is still at work."""
        with self._starting:
            self._stopped = True
        for worker in self._workers:
            worker.abandon()
        self._threads.shutdown(cancel_futures=True)

    def _compile(self, requests: Mapping[str, Request]) -> None:
        """All of one implementation's requests."""
        try:
            with self._worker(next(iter(requests.values()))) as worker:
                for key, request in requests.items():
                    self._results[key] = result = self._answer(worker, request)
                    keep(key, result)
        except Exception as error:  # the worker has ended, or could not load its file
            for key in requests:
                self._results.setdefault(key, CompileError(str(error)))

    def _answer(self, worker: Worker, request: Request) -> Resources:
        impl, case, arch = request.impl, str(request.case), request.arch
        step = f"compiling for {arch}"
        try:
            if not impl.hidden:
                return worker.ask(ReadResources(case, arch, disassemble=bool(to_load(impl))), step)
            kernels = worker.ask(ReadSources(case, arch), step)
            multiplies = request.op.cost(request.case).compute_bound
            with self._worker(request, loaded=False) as other:
                return other.ask(ReadFigures(kernels, arch, multiplies), step)
        except NotImplementedError as error:
            return error
        except Raised as error:
            if error.name == Refused.__name__:
                return Refused(str(error))
            return CompileError(f"{error.name}: {error}")
        except (MemoryError, UsageError) as error:
            return CompileError(f"{type(error).__name__}: {error}")

    @contextmanager
    def _worker(self, request: Request, *, loaded: bool = True) -> Iterator[Worker]:
        """A worker that compiles; of a user's file, it has loaded that or not."""
        impl = request.impl
        files = to_load(impl)
        with self._starting:
            if self._stopped:
                raise CompileError("stopped")
            cpu = torch.device("cpu")
            worker = Worker(
                impl.label, cpu, self._timeout_s, isolated=bool(files), interpreted=False, hidden=impl.hidden
            )
            self._workers.append(worker)
        with _begun(worker, impl, self._nice):
            if loaded:
                load(worker, request.op, impl)
            yield worker


@contextmanager
def _begun(worker: Worker, impl: Implementation, nice: int = 0) -> Iterator[None]:
    """Begin a worker that sees no GPU, and end it."""
    triton_cache = scratch.private_folder()
    try:
        # A launch that is not captured fails: with meta tensors' addresses it would end the GPU's context.
        variables = worker.environment | {"CUDA_VISIBLE_DEVICES": "-1"}
        variables |= {"TRITON_DUMP_PTXAS_LOG": "1", "TRITON_INTERPRET": "0"}
        if not to_load(impl):
            # What is compiled here must not shorten the first call that is timed elsewhere.
            variables["TRITON_CACHE_DIR"] = str(triton_cache)
        worker.pid  # noqa: B018 - the time that the server takes to import is not limited
        worker.ask(Setup("cpu", variables, tuple(modules_of(impl.op, impl)), nice), "starting")
        yield
    finally:
        worker.close()
        scratch.remove(triton_cache)


def launched_by(impl: Implementation, timeout_s: float) -> Launched:
    """The kernels that a user's file launches, as a worker reports them that sees no GPU."""
    cpu = torch.device("cpu")
    worker = Worker(impl.label, cpu, timeout_s, isolated=True, interpreted=False, hidden=impl.hidden)
    with _begun(worker, impl):
        load(worker, registry.get_op(impl.op), impl)
        return worker.ask(FindLaunched(), "finding out what it launches")


def from_cubins(
    requests: Sequence[Request],
    progress: Callable[[float], None] = lambda share: None,
    timeout_s: float = Options.timeout_s,
) -> list[Resources]:
    """What each kernel of each request takes, in launch order, or why that is not known; as `Compilation`."""
    compilation = Compilation(requests, timeout_s=timeout_s)
    try:
        return compilation.results(progress)
    finally:
        compilation.stop()


def _without_compiler(request: Request, key: str) -> Resources | None:
    """The result of a request that needs no compiler, or that an earlier run has left; else None."""
    needs = request.impl.requires
    if request.impl.route == "torch":
        return ()
    if needs is not None and (refusal := lacks(needs, request.arch)) is not None:
        return NotImplementedError(refusal)
    if request.impl.route == "cupy" and not launches_by_loader(request.impl):
        return NotImplementedError("its own code compiles its kernels")
    return kept(key)
