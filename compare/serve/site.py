"""A server's parts put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from compare import registry
from compare.command_line.installed import gpu_name
from compare.device import pick
from compare.serve import access, performing, starters
from compare.serve.access import User
from compare.serve.orders import RunOrder
from compare.serve.runs import FairQueue, PageRun, Perform
from compare.serve.web import Site


@dataclass(frozen=True)
class RunPlaces:
    """Where runs are performed."""

    slots: Sequence[str]
    """Each takes one run at a time."""
    perform: Perform
    gpu: str
    """Its name; empty: on a CPU."""


def made(everyone: Sequence[User], places: RunPlaces, runs_an_hour: int) -> Site:
    """What the server needs, with the run of the example under way; on the event loop."""
    queue = FairQueue([*places.slots], places.perform)
    op, way, label = first()
    beside = next(each.label for each in starters.starters(op)[way] if each.label != starters.EXAMPLE)
    example = PageRun(User("example", ""), RunOrder(op, starters.text(op, way, label), beside=beside))
    queue.put(example)
    facts = {"gpu": places.gpu, "first": {"op": op, "way": way, "label": label}}
    return Site(access.users(everyone, runs_an_hour), frozenset(), queue, facts, example)


def here(device: str) -> RunPlaces:
    """This machine: each GPU, or the CPU."""
    if pick(device).type != "cuda":
        return RunPlaces(["cpu"], performing.perform, "")
    every = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return RunPlaces(every if device in ("auto", "cuda") else [device], performing.perform, gpu_name() or "")


def first() -> tuple[str, str, str]:
    """Op, way and label of the first starting point: an example if there is one."""
    examples = [
        op for op in registry.op_names() if starters.starters(op)["triton"][0].label == starters.EXAMPLE
    ]
    op = [*examples, *registry.op_names()][0]
    return op, "triton", starters.starters(op)["triton"][0].label


def hosts(address: str, port: int, names: Sequence[str]) -> frozenset[str]:
    """What the header Host may say."""
    own = {address, "127.0.0.1", "localhost", "::1"}
    with_port = {f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in own}
    return frozenset({*with_port, *(name.lower() for name in names)})
