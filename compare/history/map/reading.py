"""The records that a map is made of, and the sources as they are now."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from compare import registry
from compare.records import archive
from compare.spec import CodeSize, Comparison, UsageError

RECORD_IT = "python -m compare all --sweep --record"


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files that ``--records`` names: those given, and the records in folders given.

    Raises:
        UsageError: one is not there, or a folder holds none.
    """
    found: list[Path] = []
    for path in paths:
        inside = sorted((*path.glob("*.jsonl"), *path.glob("*.json"))) if path.is_dir() else [path]
        if not inside:
            raise UsageError(
                f"--records {path}: there is no .jsonl or .json file in this folder; {RECORD_IT} writes some"
            )
        if not path.exists():
            hint = (
                f"; ops go before --records: map {path} --records ..."
                if str(path) in registry.op_names()
                else ""
            )
            raise UsageError(f"--records {path}: there is no such file or folder{hint}")
        found += inside
    return list(dict.fromkeys(found))


def recorded_here(device: str | None, root: Path = archive.RESULTS) -> list[Path]:
    """The files of this machine's GPU in ``results/``, else of the one device that there is.

    Args:
        device: the GPU's name; None: there is none.

    Raises:
        UsageError: nothing is recorded, or of several devices, none of which is this one.
    """
    folders = sorted({path.parent for path in root.glob("*/*.jsonl")})
    own = [folder for folder in folders if device and folder.name == archive.device_slug(device)]
    if not folders:
        raise UsageError(f"nothing is recorded in {root.name}/: on a machine with a GPU, run {RECORD_IT}")
    if not own and len(folders) > 1:
        names = ", ".join(f"{root.name}/{folder.name}" for folder in folders)
        raise UsageError(
            f"several devices are on record, and none is this machine's: --records with one of {names}"
        )
    return sorted((own or folders)[0].glob("*.jsonl"))


def read(files: Iterable[Path]) -> list[Comparison]:
    """The runs in them; a `UsageError` if one cannot be read."""
    return [with_code_sizes(run) for file in files for run in archive.read(file)]


def with_code_sizes(run: Comparison) -> Comparison:
    """``run`` with the sizes of today's sources where older records hold none."""
    missing = {row.label for case in run.cases for row in case.rows} - run.code_sizes.keys()
    sizes = _sizes_of(run.op, missing) if run.op in registry.op_names() else {}
    return replace(run, code_sizes=run.code_sizes | sizes)


def _sizes_of(op: str, labels: Collection[str]) -> dict[str, CodeSize]:
    found = {}
    for impl in registry.implementations(op) if labels else ():
        if impl.label in labels:
            with suppress(OSError, SyntaxError, RuntimeError):
                found[impl.label] = _size_of(op, impl.label)
    return found


@functools.cache
def _size_of(op: str, label: str) -> CodeSize:
    from compare.code_size.count import kept_code_size  # PyTorch: most runs need no counting

    (impl,) = registry.implementations(op, [label])
    return kept_code_size(impl)
