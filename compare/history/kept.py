"""The map of records, kept under a hash of these, of the sources and of the question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from compare import registry
from compare.history import reading
from compare.history.map import Map, survey
from compare.model.op import UsageError
from compare.records import archive, result_cache
from compare.records.encoding import decode
from compare.records.reading import read_bytes

_KIND = "map"


@dataclass(frozen=True)
class Charted:
    """A map, and what is on record."""

    chart: Map
    ops: tuple[str, ...]
    labels: tuple[str, ...]


def charted(
    files: Sequence[Path],
    ops: Sequence[str] = (),
    only: Sequence[str] = (),
    begin: Callable[[], None] = lambda: None,
) -> Charted:
    """The map of what ``files`` have recorded.

    The hashes of all sources, which say what has changed since, take PyTorch, Triton and seconds to find out.

    Args:
        files: records of one device.
        ops: only these; none means all.
        only: glob patterns over labels; none means all.
        begin: called where the map is not kept, and takes seconds.

    Raises:
        UsageError: a file cannot be read, or an op is not on record; or as of `survey`.
    """
    read = (
        f"{file.name} {hashlib.sha256(read_bytes(file, archive.MOST_BYTES)).hexdigest()}" for file in files
    )
    name = result_cache.key(
        *read, "ops", *ops, "only", *only, result_cache.of_sources("torch", "triton", "Pygments")
    )
    kept = result_cache.read(_KIND, name)
    if kept is not None:
        return decode(Charted, kept)
    begin()
    runs = reading.read(files)
    known = sorted({run.op for run in runs})
    for op in ops:
        if op not in known:
            raise UsageError(registry.unknown("op on record", op, known))
    labels = dict.fromkeys(row.label for run in runs for case in run.cases for row in case.rows)
    result = Charted(survey(runs, ops, only), tuple(known), tuple(labels))
    result_cache.write(_KIND, name, msgspec.to_builtins(result))
    return result
