"""What compilers keep of a kernel on disk: where, under which key, and what the key is a hash of."""

from __future__ import annotations

import functools
import getpass
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from compare.pipeline.records import CacheEntry, Opened
from cuda_impl import build

FOLDERS = {
    "Triton": "TRITON_CACHE_DIR",
    "cupy": "CUPY_CACHE_DIR",
    "torch.compile": "TORCHINDUCTOR_CACHE_DIR",
    "CUDA driver": "CUDA_CACHE_PATH",
    "this project": "COMPARE_CACHE_DIR",
}
"""Every cache that a comparison may meet, and the environment variable that sets its folder."""

_CUPY_KEY = {
    "source": "the source's text, which includes headers by name only",
    "options": "all, among them the architecture and a hash of those headers",
    "versions": "NVRTC's and cupy's",
    "kernels": "the names of those asked for",
}
_OUR_KEY = {
    "source": "the text, and that of all it includes",
    "compiler": "its path, size and date; NVRTC's version",
    "options": "all flags",
}
_MODULE_KEY = _OUR_KEY | {"pybind11": "its version"}

_OURS = re.compile(
    r"(?P<of>\w+)-((?P<target>host|sm_[\w-]+)-)?(?P<key>[0-9a-f]{20})\.[\w.-]*(so|cubin|fatbin)"
)
"""The name of a file of ours: the op, the tool or the kernel, and for what it was built."""


def folder(cache: str) -> Path:
    """Where its variable says, or where it is by default; it need not exist."""
    home = Path.home()
    user = re.sub(r"[^\w.-]", "_", _user())
    usual = {
        "Triton": Path(os.environ.get("TRITON_HOME") or home, ".triton", "cache"),
        "cupy": home / ".cupy" / "kernel_cache",
        "torch.compile": Path(tempfile.gettempdir(), f"torchinductor_{user}"),
        "CUDA driver": home / ".nv" / "ComputeCache",
        "this project": home / ".cache" / "gpu-three-ways",
    }
    return Path(os.environ.get(FOLDERS[cache]) or usual[cache])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def size(cache: str) -> tuple[int, int]:
    """The files in a cache, and their bytes."""
    paths = [Path(parent, name) for parent, _, names in os.walk(folder(cache)) for name in names]
    sizes = [path.stat().st_size for path in paths if path.is_file() and not path.is_symlink()]
    return len(sizes), sum(sizes)


def with_entries(opened: Sequence[Opened]) -> list[Opened]:
    """The same kernels, each with what is kept of it; of Triton's, also where nothing is kept yet."""
    compiled = [*folder("cupy").glob("*.cubin"), *folder("this project").glob("nv*-*")]
    held = {file: kernels_in(file.read_bytes()) for file in compiled if file.is_file()}
    found = []
    for one in opened:
        entries = [*_of_triton(one), *_of_cupy(one, held), *_of_ours(one, held)]
        found.append(replace(one, cached=tuple(entries)))
    return found


def kernels_in(image: bytes) -> set[str]:
    """The mangled names of the kernels in a file with machine code, as its sections' names say."""
    return {name.decode() for name in re.findall(rb"\.text\.(\w+)", image)}


def _of_triton(one: Opened) -> Iterator[CacheEntry]:
    if re.fullmatch(r"[A-Z2-7]{20,}", one.cache_key) and one.kernel.isidentifier():
        place = folder("Triton") / one.cache_key
        yield _entry("Triton", "kernel", one.cache_key, place, one.key_parts)
        for file in sorted(folder("Triton").glob(f"*/{one.kernel}.json")):
            if file.parent != place:
                what = "kernel for other sizes, options or sources"
                yield _entry("Triton", what, file.parent.name, file.parent, {})


def _of_cupy(one: Opened, held: Mapping[Path, set[str]]) -> Iterator[CacheEntry]:
    """Files that hold the kernel, for any architecture: cupy keeps no record of their keys."""
    if one.label.startswith("cupy."):
        for file, names in sorted(held.items()):
            if file.is_relative_to(folder("cupy")) and names & _names(one):
                yield _entry("cupy", "kernel", file.stem, file, _CUPY_KEY)


def _of_ours(one: Opened, held: Mapping[Path, set[str]]) -> Iterator[CacheEntry]:
    """The module of a pybind11 row, its kernel by nvcc or NVRTC, and its build for the CPU."""
    tool = {"cupy": "nvrtc", "pybind": "nvcc"}.get(one.label.partition(".")[0])
    for file in sorted(folder("this project").glob("*")) if tool else ():
        if (name := _OURS.fullmatch(file.name)) is None:
            continue
        of, target = name["of"], name["target"] or ""
        if tool == "nvcc" and of == one.op and target.startswith(("host", one.arch)):
            what = f"pybind11 module for {target}{_in_use(one.op, target, file.name)}"
            yield _entry("this project", what, name["key"], file, _MODULE_KEY)
        elif of == tool and target == one.arch and held.get(file, set()) & _names(one):
            yield _entry("this project", f"kernel by {tool} for {target}", name["key"], file, _OUR_KEY)
        elif not target and of.startswith(one.kernel.partition("<")[0]):
            yield _entry("this project", "host build of the kernel", name["key"], file, _OUR_KEY)


def _names(one: Opened) -> set[str]:
    """The kernel's mangled names, which the cubin has beside those of its helpers."""
    cubin = one.stage("cubin")
    return {
        name for name in kernels_in(cubin.content if cubin else b"") if one.kernel.partition("<")[0] in name
    }


@functools.cache
def _in_use(op: str, target: str, file: str) -> str:
    """Whether today's sources give the module this name; unknown where a compiler is missing."""
    with suppress(build.BuildError, OSError):
        return ", the one in use" if build.module_name(op, target) == file else ", of older sources"
    return ""


def _entry(cache: str, what: str, key: str, place: Path, made_of: Mapping[str, str]) -> CacheEntry:
    files = [place] if place.is_file() else sorted(place.glob("*"))
    sizes = {file.name: file.stat().st_size for file in files if file.is_file()}
    return CacheEntry(cache, what, key, str(place), sizes, made_of)
