"""The records that a map is made of, and those that `show` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from compare import registry
from compare.model.op import UsageError
from compare.model.result import Comparison
from compare.records import archive

RECORD_IT = "python -m compare all --sweep --record"


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files that ``--records`` names: those given, and the records in folders given.

    Raises:
        UsageError: one is not there, or a folder holds none.
    """
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not path.exists():
            hint = "; ops go before --records" if str(path) in registry.op_names() else ""
            raise UsageError(f"--records {path}: there is no such file or folder{hint}")
        if not inside:
            raise UsageError(
                f"--records {path}: there is no .json file in this folder; {RECORD_IT} writes some"
            )
        files += inside
    return list(dict.fromkeys(files))


def recorded_here(
    device: Callable[[], str | None], ops: Sequence[str] = (), root: Path = archive.RESULTS
) -> list[Path]:
    """The files of this machine's GPU in ``results/``, else of the device with the most of the ops on record,
    of several that recorded last.

    Args:
        device: gives the GPU's name, or None without a GPU; called where there are records of several.
        ops: those that matter; none: all.

    Raises:
        UsageError: nothing is recorded.
    """
    folders: dict[str, list[Path]] = {}
    for file in archive.files_in(root):
        folders.setdefault(file.parent.name, []).append(file)
    if not folders:
        raise UsageError(f"nothing is recorded in {root.name}/: on a machine with a GPU, run {RECORD_IT}")
    name = device() if len(folders) > 1 else None
    if name and archive.device_slug(name) in folders:
        return folders[archive.device_slug(name)]

    def rank(files: list[Path]) -> tuple[int, str]:
        named = [file for file in files if not ops or file.stem in ops]
        return len(named), max((run.created for run in read(named)), default="")

    return max(folders.values(), key=rank)


def read(files: Iterable[Path]) -> list[Comparison]:
    """The runs in them; a `UsageError` if one cannot be read."""
    return [run for file in files for run in archive.read(file)]


def check_device(runs: Iterable[Comparison]) -> None:
    """A `UsageError` if they are of several devices."""
    devices = list(dict.fromkeys(run.environment.device for run in runs))
    if len(devices) > 1:
        raise UsageError(
            f"these records are of {len(devices)} devices ({'; '.join(devices)}), and times of one say "
            "nothing of another: --records with the files of one"
        )
