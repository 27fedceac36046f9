"""This project's own cache: what is in it, and clearing it.

Every file's name holds a hash of all it was made from (`cuda_impl.build`,
`compare.records.result_cache`), so nothing stale is ever used, and old files are removed only by ``--clear``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from compare.spec import DTYPES, LIBRARY, UsageError
from compare.toolchain.caches.records import Cleared, Entry, File, Part
from cuda_impl import build

VARIABLE = "COMPARE_CACHE_DIR"

_HASH = r"[0-9a-f]{20}"
_DTYPE = f"({'|'.join(DTYPES)})"
_COMPILERS = "the compiler's path, size and date; all flags"
_SOURCES = "the text, and that of all it includes"

_KINDS = (
    # what it is called, how its file is named, and what its key is made of
    ("scheduler of host builds", rf"libhost-(?P<key>{_HASH})\.so", (_SOURCES, _COMPILERS)),
    ("header of host builds", rf"(host|pybind)-(?P<key>{_HASH})\.h(\.gch)?", (_SOURCES, _COMPILERS)),
    (
        "pybind11 module",
        rf"(library-)?(?P<of>\w+)-(?P<what>host|sm_\w+(-{_DTYPE})?)-(?P<key>{_HASH})\.[\w.-]+\.so",
        (_SOURCES, _COMPILERS, "pybind11's version", "whether host builds are sanitized"),
    ),
    ("kernel by nvcc", rf"nvcc-(?P<what>sm_\w+)-(?P<key>{_HASH})\.(cubin|fatbin)", (_SOURCES, _COMPILERS)),
    (
        "kernel by NVRTC",
        rf"nvrtc-(?P<what>sm_\w+)-(?P<key>{_HASH})\.cubin",
        (_SOURCES, "the kernels' names; all options", "NVRTC's version"),
    ),
    ("host build of a kernel", rf"(?P<of>\w+)-(?P<key>{_HASH})\.so", (_SOURCES, _COMPILERS)),
)
"""Files beside which a lock may lie, in this order: a name is of the first kind that it fits."""

_FOLDERS = {"resources": "static figures", "code_size": "code sizes", "hash_of_code": "hashes of code"}
_KEPT = {"calibration": "calibration (doctor --calibrate took minutes for it)"}


def folder() -> Path:
    """Where it is, or would be: unlike `cuda_impl.build.cache_dir` it is not made."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "gpu-three-ways")


def kind_of(path: Path) -> tuple[str, re.Match[str] | None]:
    """The kind of a file or folder; ``""`` for what is not ours."""
    name = path.name
    if path.is_symlink():
        return "", None
    if path.is_dir():
        if re.fullmatch(r"tmp\w{8}|.+\.part", name):
            return "left by an interrupted build", None
        return _FOLDERS.get(name) or _KEPT.get(name, ""), None
    for kind, pattern, _ in _KINDS:
        if found := re.fullmatch(pattern, name.removesuffix(".lock")):
            return ("lock" if name.endswith(".lock") else kind), found
    return "", None


def entries(op: str, kernels: set[str], archs: Sequence[str] = ()) -> list[Entry]:
    """The builds of an op's modules and kernels.

    Args:
        op: its name.
        kernels: names that its kernels' machine code is known by.
        archs: whose modules are looked for, to tell them from those of older sources.
    """
    current = _modules_looked_for(op, archs)
    made_of = {kind: parts for kind, _, parts in _KINDS}
    found = []
    for path in _listed(folder()):
        kind, name = kind_of(path)
        if name is None or kind == "lock":
            continue
        of = name.groupdict().get("of") or ""
        held = sorted(kernels_in(path.read_bytes(), kernels)) if kind.startswith("kernel by") else []
        if of == op or of.startswith(tuple(kernels)) or held:
            what = " for ".join(filter(None, (kind, name.groupdict().get("what"))))
            what += ", the one in use" if path.name in current else ""
            files = (File(path.name, path.stat().st_size),)
            parts = tuple(Part("made of", part) for part in made_of[kind])
            found.append(Entry("ours", ", ".join(held) or of, what, name["key"], path, files, parts))
    return found


def _modules_looked_for(op: str, archs: Sequence[str]) -> set[str]:
    """Names under which the modules of today's sources are kept; none where a compiler is missing."""
    if not folder().is_dir():
        return set()
    on_gpus = [target for arch in archs for target in (arch, *(f"{arch}-{dtype}" for dtype in DTYPES))]
    wanted = [(op, target) for target in ("host", *on_gpus)]
    if (build.PYBIND / LIBRARY / f"{op}.cu").is_file():
        wanted += [(f"{LIBRARY}/{op}", target) for target in on_gpus]
    with contextlib.suppress(build.BuildError):
        return {build.module_name(name, target) for name, target in wanted}
    return set()


def kernels_in(image: bytes, kernels: set[str]) -> set[str]:
    """Which of these kernels a file with machine code in it holds, as its sections' names say."""
    names = b"\n".join(re.findall(rb"\.text\.(\w+)", image)).decode(errors="replace")
    return {kernel for kernel in kernels if re.search(rf"(?<![A-Za-z_]){re.escape(kernel)}(?![a-z_])", names)}


def clear(op: str = "", kernels: frozenset[str] = frozenset()) -> Cleared:
    """Remove what was built, of one op or all; measurements stay.

    A library that a process has loaded may go: the process keeps what it has.

    Raises:
        UsageError: something there is not ours, or is being built; nothing was removed then.
    """
    at = folder()
    things = _listed(at)
    strange = [path for path in things if not kind_of(path)[0]]
    if strange:
        raise UsageError(
            f"{strange[0]} is nothing that this project builds, so nothing in {at} was removed; move it "
            f"away, or set {VARIABLE} to a folder of its own"
        )
    with _nothing_being_built(at, things):
        kept = tuple(_KEPT[path.name] for path in things if path.name in _KEPT)
        going = {entry.place for entry in entries(op, set(kernels))} if op else {*things}
        files: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for path in things:
            kind, _ = kind_of(path)
            goes = path in going or (kind == "lock" and path.with_suffix("") in going)
            if not goes or path.name in _KEPT:
                continue
            inside = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            if kind != "lock":
                files[kind] += len(inside)
                sizes[kind] += sum(file.stat().st_size for file in inside)
            try:
                path.unlink() if path.is_file() else shutil.rmtree(path)
            except OSError as error:
                before = sum(files.values()) - len(inside)
                raise UsageError(
                    f"{path} could not be removed ({error.strerror}); {before} files before it were"
                ) from None
    return Cleared(at, tuple((kind, files[kind], sizes[kind]) for kind in sorted(files)), kept)


def _listed(at: Path) -> list[Path]:
    if not at.exists():
        return []
    try:
        return sorted(at.iterdir())
    except OSError as error:
        raise UsageError(f"{at} cannot be read: {error.strerror}. Set {VARIABLE} to another folder") from None


@contextlib.contextmanager
def _nothing_being_built(at: Path, things: list[Path]) -> Iterator[None]:
    """Holds every lock in the context, so that no build begins."""
    with contextlib.ExitStack() as held:
        for path in things:
            if path.suffix != ".lock":
                continue
            try:
                held.enter_context(FileLock(path, timeout=0))
            except Timeout:
                why = f"{at / path.stem} is being built by another process, so nothing was removed"
                raise UsageError(f"{why}; wait until it has ended") from None
            except OSError as error:
                why = f"{path} cannot be locked ({error.strerror}), so nothing was removed"
                raise UsageError(why) from None
        yield
