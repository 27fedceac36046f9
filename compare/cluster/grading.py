"""``--cluster`` of ``grade``: each hand-in is a task, marked by ``grade`` in a worker."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from distributed import get_worker

from compare.cluster import engines
from compare.cluster.sweep import Sweep
from compare.cluster.workers import WorkFailed, answer, here
from compare.labs.hand_ins import HandIn
from compare.labs.marking import Marks, Say
from compare.labs.work import Work
from compare.model.op import UsageError
from compare.records.encoding import decode


def marks(
    arguments: argparse.Namespace, works: Mapping[HandIn, Work], say: Say
) -> Iterator[tuple[HandIn, Marks | str]]:
    """Each hand-in with its marks, or with why it has none; all from GPUs of one model.

    Args:
        arguments: of the command line.
        works: what was handed in, in folders that the workers see as well.
        say: is told what happens, a line each.

    Raises:
        UsageError: the cluster cannot be reached or started.
    """
    if not works:
        return
    waiting = {hand_in.student: hand_in for hand_in in works}
    models: list[str] = []

    def names_for(device: str) -> list[str]:
        models.append(device)
        return [*waiting] if len(models) == 1 else []

    def work(name: str) -> Callable[[], str]:
        mine = works[waiting[name]]
        return partial(_mark, _words(arguments, mine), mine.digest)

    with engines.connected(arguments.cluster) as (client, patience_s):
        needs_gpu = arguments.device.startswith("cuda")
        sweep = Sweep(client, names_for, work, say, here()["sources"], needs_gpu, patience_s)
        lost = "no worker was left for it"
        try:
            for task, text in sweep.results():
                say(f"{task.name}: marked")
                yield waiting.pop(task.name), replace(_decoded(text), student=task.name)
        except UsageError as error:
            lost = str(error)
    why = {task.name: "; ".join(task.failures) for task in sweep.given_up}
    for name, hand_in in waiting.items():
        yield hand_in, why.get(name) or lost


def _words(arguments: argparse.Namespace, work: Work) -> list[str]:
    """Of the command line that marks one hand-in; paths are absolute, as a worker has another folder."""
    folder = work.folder.absolute()
    others = work.others.absolute() if work.others else folder
    words = [str(folder), "--others", str(others), "--rubric", str(work.lab.path.absolute())]
    words += ["--device", arguments.device, *["--unsafe"] * arguments.unsafe]
    return words + ([f"--timeout={arguments.timeout}"] if arguments.timeout is not None else [])


def _mark(words: Sequence[str], digest: str) -> str:
    """In a worker: one hand-in's marks as text; its digest is known from where the class is."""
    text = answer(["grade", *words], lambda text: (True, _has_fault(_decoded(text))))
    done = _decoded(text)
    if done.digest != digest:
        other = "other files or another version of the project than where the class is"
        why = other if done.digest else done.parts[0].detail
        raise WorkFailed(f"it read no such hand-in: {why}", get_worker().address)
    return text


def _has_fault(done: Marks) -> bool:
    """Whether a lost GPU may have led to the marks."""
    return any(part.result == "machine" for part in done.parts)


def _decoded(text: str) -> Marks:
    (done,) = decode(tuple[Marks, ...], json.loads(text))
    return done
