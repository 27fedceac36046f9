"""The cluster that ``--cluster`` names: this machine's GPUs, a Dask scheduler, or Slurm's jobs.

All of it is Dask's work.  A worker has one thread, and so one task at a time.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import dask
from distributed import Client, Nanny, Scheduler, Security, SpecCluster
from distributed.comm.core import connect

from compare.cluster.workers import RESOURCE
from compare.command_line import installed
from compare.model.op import UsageError
from compare.records.reading import read_text

_interrupt = signal.getsignal(signal.SIGINT)
from dask_jobqueue.core import Job, JobQueueCluster  # noqa: E402 - it replaces the handler, and so
from dask_jobqueue.slurm import SLURMCluster, SLURMJob  # noqa: E402 - Ctrl-C would end with status 0

signal.signal(signal.SIGINT, _interrupt)

SETTINGS = {"distributed.scheduler.allowed-failures": 0, "distributed.comm.timeouts.connect": "10s"}
"""Of Dask: what a worker had that died is reported at once, and sent elsewhere by `Sweep`."""
_FIXED = {
    "cores": 1,
    "processes": 1,
    "security": True,
    "asynchronous": False,
    "worker_extra_args": ["--resources", "GPU=1"],
}
"""Of Slurm's jobs: one worker with one thread and one GPU, and encrypted connections."""
_KINDS: dict[str, type] = {
    "job_cpu": int,
    "death_timeout": int,
    "nanny": bool,
    "scheduler_options": dict,
    "job_extra_directives": list,
    "job_script_prologue": list,
    "job_directives_skip": list,
}
"""Of the arguments of ``SLURMCluster`` that are no text."""
_IN_WORDS = {
    str: "text in quotation marks",
    int: "a whole number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}
_ANSWER_S = 15.0
_DAY_S = 86400.0
_QUIET_END = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.unraisablehook = lambda _: None
"""
"""Of a local worker.  A terminal sends SIGINT to all processes, and this one ends the workers.  A Dask client
in one that ends within a run is deleted after its event loop, and would print a traceback."""


@contextmanager
def connected(where: str) -> Iterator[tuple[Client, float]]:
    """The cluster of ``--cluster``, and how long it may have no worker; what was started ends with the block.

    Args:
        where: ``local``, a scheduler's address such as ``tcp://host:8786``, or a ``.toml`` file for Slurm.

    Raises:
        UsageError: it cannot be reached or started.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is said in `Sweep.say`
    with dask.config.set(SETTINGS):
        if "://" in where:
            with _client(where) as client:
                _check_scheduler(client, where)
                yield client, 600.0
            return
        if where == "local":
            cluster, patience_s = local([gpu.uuid for gpu in installed.gpus()]), 60.0
        elif where.endswith(".toml"):
            cluster, patience_s = slurm(Path(where)), _DAY_S
        else:
            raise UsageError(
                f"--cluster {where}: write local, a scheduler's address as tcp://HOST:PORT, or a slurm.toml"
            )
        with cluster, Client(cluster) as client:
            yield client, patience_s


def _client(where: str) -> Client:
    try:
        asyncio.run(_call_at(where))
        return Client(where)
    except Exception as error:  # by scheme of the address, each of its own kind
        silent = isinstance(error, asyncio.TimeoutError) and not str(error)
        why = "what listens is silent, as the port of a dashboard is" if silent else error
        raise UsageError(
            f"--cluster {where}: no scheduler answers there: {why}. A scheduler prints its address when it "
            "starts; docs/many-gpus.md shows how to start one"
        ) from None


async def _call_at(where: str) -> None:
    """Connect, and no more: `Client` waits without end for the first word of another server."""
    arguments = Security().get_connection_args("client")
    await (await asyncio.wait_for(connect(where, **arguments), _ANSWER_S)).close()


def _check_scheduler(client: Client, where: str) -> None:
    """A `UsageError` if a scheduler repeats on its own what a dead worker had."""
    allowed = client.run_on_scheduler(lambda dask_scheduler: int(dask_scheduler.allowed_failures))
    if allowed:
        raise UsageError(
            f"--cluster {where}: this scheduler starts the task of a dead worker {allowed} more times on its "
            "own, so no limit of retries holds. Start it with DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=0"
        )


def local(gpus: Sequence[str]) -> SpecCluster:
    """A scheduler in this process, and a worker process for each GPU by UUID; without a GPU, one worker."""
    security = Security.temporary()
    workers = {
        number: {"cls": Nanny, "options": _worker(security, gpu)} for number, gpu in enumerate(gpus or [""])
    }
    scheduler = {"cls": Scheduler, "options": _alone(security)}
    return SpecCluster(workers, scheduler, security=security, silence_logs=logging.CRITICAL)


def _alone(security: Security) -> dict[str, Any]:
    """How it is reached: from this machine only, by processes that have the key."""
    return {
        "host": "127.0.0.1",
        "protocol": "tls://",
        "security": security,
        "dashboard_address": "127.0.0.1:0",
    }


def _worker(security: Security, gpu: str) -> dict[str, Any]:
    return {
        **_alone(security),
        "nthreads": 1,
        "resources": RESOURCE,
        "memory_limit": 0,
        "silence_logs": logging.CRITICAL,
        "env": {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {},
        "preload": [_QUIET_END],
    }


# --------------------------------------------------------------------------- Slurm


def slurm(file: Path) -> Any:
    """`dask_jobqueue.SLURMCluster`, each job a worker with one GPU, as a TOML file has it.

    ``jobs`` is how many; the table ``[slurm]`` holds the arguments of ``SLURMCluster``.

    Raises:
        UsageError: the file is wrong, or this machine cannot submit jobs; that shows what would be submitted.
    """
    try:
        content = tomllib.loads(read_text(file))
        jobs, table = content.pop("jobs"), content.pop("slurm")
        options = {"shared_temp_directory": ".", **table, **_FIXED}
        if content or type(jobs) is not int or jobs < 1:
            raise ValueError("it holds jobs = NUMBER and the table [slurm], and nothing else")
        if changed := table.keys() & _FIXED:
            raise ValueError(f"leave out {', '.join(sorted(changed))}: each job is one worker with one GPU")
        if unknown := table.keys() - _known():
            raise ValueError(f"SLURMCluster has no argument {', '.join(sorted(unknown))}")
        for name, value in table.items():
            kind = _KINDS.get(name, str)
            if type(value) is not kind:
                shown = f'"{value}"' if type(value) is str else value
                raise ValueError(f"{name} is {shown}, and should be {_IN_WORDS[kind]}")
        directives = table.get("job_extra_directives", ())
        if not (table["memory"] and any("gpu" in str(directive) for directive in directives)):
            raise ValueError('no GPU is asked for: add job_extra_directives = ["--gres=gpu:1"]')
        cluster = SLURMCluster(**options)
    except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UsageError(f"--cluster {file}: {why}. docs/many-gpus.md has a file to start from") from None
    if shutil.which("sbatch") is None:
        script = cluster.job_script()
        cluster.close()
        raise UsageError(
            f"--cluster {file}: there is no sbatch here. On a node that has it, it gets:\n{script}"
        )
    for _ in range(jobs):
        cluster.worker_spec.update(cluster.new_worker_spec())
    try:
        cluster.sync(_submitted, cluster)  # `scale` leaves a failed submission to a log
    except (RuntimeError, ValueError, OSError) as error:
        with suppress(AssertionError):  # Dask's, of a job that never began; the others are cancelled
            cluster.close()
        why = str(error).strip().splitlines()[-1]
        raise UsageError(
            f"--cluster {file}: sbatch did not take {jobs} jobs: {why}. Correct [slurm], or lower jobs"
        ) from None
    return cluster


async def _submitted(cluster: Any) -> None:
    await cluster


def _known() -> set[str]:
    """The arguments of ``SLURMCluster``, which passes most on."""
    return {name for each in (SLURMJob, Job, JobQueueCluster) for name in signature(each).parameters}
