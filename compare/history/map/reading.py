"""The records that a map is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from compare import registry
from compare.records import archive
from compare.spec import Comparison, UsageError

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
    return [run for file in files for run in archive.read(file)]
