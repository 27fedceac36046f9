"""Sweeps of made-up work over real workers, recorded in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
from distributed import Client

import made_up
from cluster_work import WAIT_S, LoggedWork, describe
from compare.cluster import engines
from compare.cluster.sweep import ClusterTask, Sweep
from compare.records import archive
from processes import until


@dataclass(frozen=True)
class Begun:
    """A line of the log: an attempt that has begun."""

    op: str
    gpu: str
    pid: int


def begun(folder: Path) -> list[Begun]:
    if not (folder / "log").exists():
        return []
    lines = (line.split() for line in (folder / "log").read_text().splitlines())
    return [Begun(op, gpu, int(pid)) for op, gpu, pid in lines]


def first(folder: Path, op: str) -> Begun:
    """The first attempt of an op, once it has begun."""
    assert until(lambda: any(each.op == op for each in begun(folder)), WAIT_S)
    return next(each for each in begun(folder) if each.op == op)


def go(folder: Path, op: str) -> None:
    (folder / f"go-{op}").touch()


@contextmanager
def local(*gpus: str) -> Iterator[Client]:
    """The cluster of ``--cluster local``, of made-up GPUs."""
    with dask.config.set(engines.SETTINGS), engines.local(gpus) as cluster, Client(cluster) as client:
        client.wait_for_workers(len(gpus))
        yield client


class Swept:
    """A sweep with its results recorded in a folder, and what it said."""

    def __init__(self, folder: Path, ops: list[str], **changes: Any) -> None:
        self.folder, self.ops, self.changes = folder, ops, changes
        self.results: list[str] = []
        self.said: list[str] = []
        self.given_up: list[ClusterTask] = []

    def run(self, client: Client) -> None:
        arguments: Mapping[str, Any] = {
            "names_for": lambda device: self.ops,
            "work": partial(partial, LoggedWork(self.folder, archive.dumps([made_up.comparison()]))),
            "say": self.said.append,
            "sources": "of today",
            "patience_s": WAIT_S,
            "describe": describe,
            **self.changes,
        }
        sweep = Sweep(client, **arguments)
        self.given_up = sweep.given_up
        for task, text in sweep.results():
            (comparison,) = archive.loads(text)
            archive.record(comparison, self.folder / "results")
            self.results.append(task.name)

    def recorded(self) -> dict[str, int]:
        """By op, how often each row stands in its record; all of them once."""
        counts = {}
        for file in sorted((self.folder / "results").glob("*/*.json")):
            keys = [
                (case.case, row.label)
                for run in archive.read(file)
                for case in run.cases
                for row in case.rows
            ]
            counts[file.stem] = max(map(keys.count, keys))
        return counts
