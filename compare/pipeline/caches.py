"""What compilers keep of a kernel on disk: where, under which key, and what the key is a hash of."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from compare.pipeline.records import CacheEntry, Opened
from compare.sandbox.scratch import inductor_cache
from cuda_impl import build, cache_folders


@dataclass(frozen=True)
class Cache:
    """A folder in which a compiler keeps what it made."""

    variable: str
    """The environment variable that sets the folder."""
    usual: str = ""
    """The folder where it is not set; empty: as `cuda_impl.cache_folders` says."""
    made_of: str = ""
    """What a key is a hash of; empty: unknown, or said of each entry."""

    @property
    def folder(self) -> Path:
        """It need not exist."""
        if not self.usual:
            return cache_folders.folder(self.variable)
        return Path(os.environ.get(self.variable) or self.usual).expanduser()

    @property
    def shown_folder(self) -> str:
        """Its folder, from the user's own on where it lies there."""
        home = re.escape(os.path.expanduser("~"))  # noqa: PTH111 - never raises
        return re.sub(rf"^{home}(?=/)", "~", str(self.folder))

    def size(self) -> tuple[int, int]:
        """The files in it, and their bytes."""
        paths = [Path(parent, name) for parent, _, names in os.walk(self.folder) for name in names]
        sizes = [path.stat().st_size for path in paths if path.is_file() and not path.is_symlink()]
        return len(sizes), sum(sizes)


@functools.cache
def caches() -> dict[str, Cache]:
    """Every cache that a comparison may meet, by whose it is."""
    return {
        "Triton": Cache("TRITON_CACHE_DIR"),
        "cupy": Cache(
            "CUPY_CACHE_DIR",
            "",
            "the source's text, which includes headers by name only; all options, among them the "
            "architecture and a hash of those headers; NVRTC's version and cupy's; the names of the kernels",
        ),
        "torch.compile": Cache("TORCHINDUCTOR_CACHE_DIR", inductor_cache(tempfile.gettempdir())),
        "CUDA driver": Cache("CUDA_CACHE_PATH"),
        "this project": Cache(
            "COMPARE_CACHE_DIR",
            "",
            "the text, and that of all it includes; the compiler's path, size and date, or NVRTC's version; "
            "all flags; of a module pybind11's version",
        ),
    }


def with_entries(opened: Sequence[Opened]) -> list[Opened]:
    """The same kernels, each with what is kept of it; of Triton's, also where nothing is kept yet."""
    compiled = [*caches()["cupy"].folder.glob("*.cubin"), *caches()["this project"].folder.glob("nv*-*")]
    held = {file: kernels_in(file.read_bytes()) for file in sorted(compiled) if file.is_file()}
    return [replace(one, cached=(*_of_triton(one), *_of_cuda(one, held))) for one in opened]


def kernels_in(image: bytes) -> set[str]:
    """The mangled names of the kernels in a file with machine code, as its sections' names say."""
    return {name.decode() for name in re.findall(rb"\.text\.(\w+)", image)}


def _of_triton(one: Opened) -> Iterator[CacheEntry]:
    folder = caches()["Triton"].folder
    for entry in one.cached:
        if re.fullmatch(r"[A-Z2-7]{20,}", entry.key) and one.kernel.isidentifier():
            yield _kept(entry, folder / entry.key)
            for file in sorted(folder.glob(f"*/{one.kernel}.json")):
                if file.parent.name != entry.key:
                    what = "kernel for other sizes, options or sources"
                    yield _kept(CacheEntry("Triton", what, file.parent.name), file.parent)


def _of_cuda(one: Opened, held: Mapping[Path, set[str]]) -> Iterator[CacheEntry]:
    """Files that hold the kernel - cupy's for any architecture: it keeps no record - and what we built."""
    tool = {"cupy": "nvrtc", "pybind": "nvcc"}.get(one.label.partition(".")[0])
    cubin, name = one.stage("cubin"), one.kernel.partition("<")[0]
    if tool is None or cubin is None or not name.isidentifier():
        return
    own = {mangled for mangled in kernels_in(cubin.content) if name in mangled}
    ours = caches()["this project"].folder
    for file, names in held.items():
        if names & own and tool == "nvrtc" and file.parent != ours:
            yield _entry("cupy", "kernel", file)
        elif names & own and file.name.startswith(f"{tool}-{one.arch}-"):
            yield _entry("this project", f"kernel by {tool} for {one.arch}", file)
    for file in sorted(ours.glob(f"{name}*-*.so")):
        yield _entry("this project", "host build of the kernel", file)
    for file in sorted(ours.glob(f"{one.op}-*-*.so")) if tool == "nvcc" else ():
        target = re.sub(r"-[0-9a-f]{20}\..*", "", file.name.removeprefix(f"{one.op}-"))
        if target.startswith(("host", one.arch)):
            what = f"pybind11 module for {target}{_in_use(one.op, target, file.name)}"
            yield _entry("this project", what, file)


@functools.cache
def _in_use(op: str, target: str, file: str) -> str:
    """Whether today's sources give the module this name; unknown where a compiler is missing."""
    with suppress(build.BuildError, OSError):
        return ", the one in use" if build.module_name(op, target) == file else ", of older sources"
    return ""


def _entry(cache: str, what: str, file: Path) -> CacheEntry:
    key = re.search(r"[0-9a-f]{20,}", file.name)
    return _kept(CacheEntry(cache, what, key[0] if key else ""), file)


def _kept(entry: CacheEntry, place: Path) -> CacheEntry:
    files = [place] if place.is_file() else sorted(place.glob("*"))
    sizes = {file.name: file.stat().st_size for file in files if file.is_file()}
    return replace(entry, place=str(place), files=sizes)
