"""Resources without a GPU: what an implementation would launch is captured, compiled and read.

All of one call's requests are compiled by one other process, because Triton must be imported there
without its interpreter and because importing it takes seconds.  Its results are kept on disk by content: of
the sources, the case, the architecture and the compilers; so asking again takes milliseconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compare import kept, registry
from compare.code_size.sources import rests_on
from compare.occupancy import limits
from compare.spec import Case, Implementation, KernelResources, Op

_CODE = (
    *("compare/resources/*.py", "compare/capture.py", "compare/device.py", "compare/occupancy.py"),
    "cuda_impl/build.py",
)
"""What asks the compilers and reads their answers."""

_COMPILERS = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc")

COMPILE_S = 120.0
"""The most that capturing and compiling one request may take."""

Result = tuple[KernelResources, ...] | Exception


class CompileError(RuntimeError):
    """A kernel could not be captured or compiled; the text is the compiler's."""


@dataclass(frozen=True)
class Request:
    """Resources of one implementation on one case, as compiled for one architecture."""

    op: Op
    impl: Implementation
    case: Case
    arch: str
    """``sm_90``"""


def from_cubin(op: Op, impl: Implementation, case: Case, arch: str) -> tuple[KernelResources, ...]:
    """What each kernel that ``impl`` launches on ``case`` takes on ``arch`` (``sm_90``), in launch order.

    Empty for PyTorch's own kernels, which are compiled already; a GPU's profiler reads those.

    Raises:
        NotImplementedError: the implementation does not take the case or the architecture.
        CompileError: it could not be captured or compiled.
        UsageError: an architecture that is not known.
    """
    (result,) = from_cubins([Request(op, impl, case, arch)])
    if isinstance(result, Exception):
        raise result
    return result


def from_cubins(
    requests: Sequence[Request], progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Result]:
    """`from_cubin` for many requests at once: in place of an exception raised, one returned.

    Args:
        requests: compiled together, which saves seconds for each.
        progress: called with how many of those that had to be compiled are done, and how many there are.

    Raises:
        UsageError: an architecture that is not known.
    """
    for arch in {request.arch for request in requests}:
        limits(arch)
    results: dict[str, Result] = {}
    missing: dict[str, Request] = {}
    hashes: dict[tuple[str, str], str] = {}
    keys = []
    for request in requests:
        name = request.impl.op, request.impl.label
        if name not in hashes:
            hashes[name] = rests_on(request.impl)
        keys.append(_key(request, hashes[name]))
    for key, request in zip(keys, requests, strict=True):
        refusal = _refusal(request)
        if request.impl.route == "torch":
            results[key] = ()
        elif refusal is not None:
            results[key] = NotImplementedError(refusal)
        elif (known := _kept(key)) is not None:
            results[key] = known
        else:
            missing[key] = request
    groups: dict[str, dict[str, Request]] = {}
    for key, request in missing.items():
        # Of a user's file each in a process of its own: what it does there is its own affair.
        groups.setdefault(request.impl.origin if request.impl.foreign else "", {})[key] = request
    for group in groups.values():
        done = len(results.keys() & missing.keys())
        results |= _compile(group, lambda more, _, done=done: progress(done + more, len(missing)))  # type: ignore[misc]
    return [results[key] for key in keys]


def _refusal(request: Request) -> str | None:
    """Why the implementation cannot be compiled for the architecture, None if it can."""
    from compare.device import lacks

    needs = request.impl.requires
    return None if needs is None else lacks(needs, request.arch)


def _compile(missing: dict[str, Request], progress: Callable[[int, int], None]) -> dict[str, Result]:
    orders = [
        {"key": key, "op": r.op.name, "label": r.impl.label, "case": str(r.case), "arch": r.arch}
        for key, r in missing.items()
    ]
    environment = {**os.environ, "TRITON_DUMP_PTXAS_LOG": "1"}
    environment.pop("TRITON_INTERPRET", None)
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as scratch, Path(scratch, "noise").open("w+") as noise:
        # A cache of its own: what is compiled here must not shorten the first call that is timed elsewhere.
        environment["TRITON_CACHE_DIR"] = scratch
        worker = subprocess.Popen(
            [sys.executable, "-m", "compare.resources.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
            cwd=registry.ROOT,
            env=environment,
            start_new_session=True,
        )
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            with suppress(BrokenPipeError), worker.stdin as stdin:
                json.dump({"load": _loaded_files(missing.values()), "orders": orders}, stdin)
            late = threading.Timer(COMPILE_S * len(missing), _end, (worker,))
            late.start()
            with suppress(ValueError, KeyError, TypeError):  # not one of our lines: the rest is not read
                for line in worker.stdout:
                    answer = json.loads(line)
                    if answer["key"] in missing:
                        results[answer["key"]] = _understood(answer)
                        if "failed" not in answer:
                            kept.write("resources", answer["key"], answer)
                    progress(len(results), len(missing))
                worker.wait()
            late.cancel()
        finally:
            _end(worker)
            worker.wait()
            worker.stdout.close()  # type: ignore[union-attr]
        noise.seek(0)
        said = noise.read().strip()
    for key in missing.keys() - results.keys():
        results[key] = CompileError(f"compiling it ended with exit code {worker.returncode}: {said[-500:]}")
    return results


def _end(worker: subprocess.Popen[str]) -> None:
    """End it with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)


def _understood(answer: dict[str, Any]) -> Result:
    if "unavailable" in answer:
        return NotImplementedError(answer["unavailable"])
    if "failed" in answer:
        return CompileError(answer["failed"])
    return tuple(
        KernelResources(**{**kernel, "grid": tuple(kernel["grid"]), "block": tuple(kernel["block"])})
        for kernel in answer["kernels"]
    )


def _loaded_files(requests: Collection[Request]) -> list[str]:
    """The files given to ``--load`` that the requests come from, for the other process to load as well."""
    functions = [function for r in requests for function in (r.impl.run, r.op.make_inputs)]
    modules = {function.__module__ for function in functions if function.__module__.startswith("_loaded_")}
    files = sorted(str(Path(file).resolve()) for m in modules if (file := sys.modules[m].__file__))
    return files + sorted({r.impl.origin for r in requests if r.impl.foreign})


# --------------------------------------------------------------------------- what is kept on disk


def _key(request: Request, sources_hash: str) -> str:
    """Names a result by everything it rests on."""
    return kept.key(
        request.op.name,
        request.impl.label,
        sources_hash,
        str(request.case),
        request.arch,
        kept.versions(*_COMPILERS),
        kept.code(*_CODE),
    )


def _kept(key: str) -> Result | None:
    with suppress(KeyError, TypeError):
        return _understood(kept.read("resources", key))
    return None


def as_answer(kernels: Sequence[KernelResources]) -> list[dict[str, Any]]:
    """The worker's half of `_understood`."""
    return [asdict(kernel) for kernel in kernels]
