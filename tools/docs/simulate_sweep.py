"""A sweep at scale, simulated: ``python -m tools.docs.simulate_sweep``.  Tasks sleep; workers are threads.

Scheduler, workers and client share one process and its lock, so a real cluster is faster.  `RESULT` keeps the
figures; docs/many-gpus.md shows them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import dask
from distributed import Client, Scheduler, SpecCluster, Worker

from compare.cluster import engines
from compare.cluster.sweep import Sweep
from compare.cluster.workers import RESOURCE, Facts
from compare.records.encoding import write_whole
from tools.docs.simulation import RESULT, Run

SIZES = (10, 100, 200)
"""Workers of each run,"""
TASKS = 10
"""and the tasks for each of them."""
SETTINGS = {
    **engines.SETTINGS,
    "distributed.comm.timeouts.connect": "300s",
    # On a cluster the nodes have this work.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "1h",
}


def describe(dask_worker: Any) -> Facts:
    worker = str(dask_worker.name)
    return {"host": worker, "gpu": worker, "device": "simulated", "driver": "", "versions": "", "sources": ""}


def sleep(seconds: float, op: str) -> str:
    time.sleep(seconds)
    return op


def simulate(workers: int, seconds: float) -> Run:
    """A sweep of `TASKS` for each worker, each of so many ``seconds``."""
    options = {"nthreads": 1, "resources": RESOURCE, "memory_limit": 0, "protocol": "inproc://"}
    spec = {number: {"cls": Worker, "options": options} for number in range(workers)}
    begin_s = time.perf_counter()
    scheduler = {"cls": Scheduler, "options": {"protocol": "inproc://", "dashboard_address": "127.0.0.1:0"}}
    with dask.config.set(SETTINGS), SpecCluster(spec, scheduler) as cluster, Client(cluster) as client:
        client.wait_for_workers(workers)
        started_s = time.perf_counter()
        ops = [f"op-{number}" for number in range(TASKS * workers)]
        sweep = Sweep(
            *(client, lambda device: ops, partial(partial, sleep, seconds), lambda line: None, ""),
            describe=describe,
        )
        done_s = [time.perf_counter() for _ in sweep.results()]
    if len(done_s) != len(ops):
        raise RuntimeError(f"{len(done_s)} of {len(ops)} tasks were done")
    return Run(workers, len(ops), started_s - begin_s, done_s[0] - started_s, done_s[-1] - done_s[0])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seconds", type=float, default=0.1)
    chosen = parser.parse_args(arguments)
    runs = []
    for workers in chosen.sizes:
        runs.append(simulate(workers, chosen.seconds))
        print(runs[-1], f"{runs[-1].per_second:.0f} tasks/s", flush=True)
    kept = {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0]),
        "seconds": chosen.seconds,
        "runs": [asdict(run) for run in runs],
    }
    write_whole(RESULT, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
