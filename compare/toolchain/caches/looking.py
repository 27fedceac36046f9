"""Finding all caches, and what they keep of an op."""

from __future__ import annotations

import getpass
import importlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from compare import registry
from compare.capture import capture
from compare.device import lacks
from compare.spec import CudaLaunch, Implementation, TritonLaunch
from compare.toolchain.caches import ours, triton_cache
from compare.toolchain.caches.records import Cache, Entry, File, Found, Part

_CUPY_KEY = (
    "the source's text, which includes headers by name only",
    "all options, among them the architecture and a hash of those headers",
    "NVRTC's version and cupy's",
    "the names of the kernels asked for",
)


def caches() -> tuple[Cache, ...]:
    """Every cache that a comparison may meet, ours last."""
    user = re.sub(r"[^\w.-]", "_", _user())
    inductor = Path(tempfile.gettempdir()) / f"torchinductor_{user}"
    driver = Path.home() / ".nv" / "ComputeCache"
    written = "what Inductor wrote, graphs, their Triton kernels"
    return (
        _measured("Triton", "a folder for each kernel", triton_cache.VARIABLE, triton_cache.folder()),
        _measured("cupy", "kernels by NVRTC", "CUPY_CACHE_DIR", _cupy_folder()),
        _measured("torch.compile", written, "TORCHINDUCTOR_CACHE_DIR", inductor),
        _measured("CUDA driver", "machine code made of PTX", "CUDA_CACHE_PATH", driver),
        _measured("ours", "modules, host builds, kernels, figures", ours.VARIABLE, ours.folder()),
    )


def of_op(name: str, only: Sequence[str], archs: Sequence[str]) -> Found:
    """What is kept of an op's kernels, and what each key is made of.

    Triton's keys are worked out for the op's default case; entries of others are found by the kernel's name.

    Raises:
        UsageError: ``only`` matches nothing.
    """
    impls = registry.implementations(name, only)
    entries: list[Entry] = []
    notes: dict[str, None] = {}
    of_triton = [impl for impl in impls if impl.way == "triton"]
    modules = [importlib.import_module(impl.run.__module__) for impl in of_triton]
    kernels = {kernel for module in modules for kernel in triton_cache.kernels_of(module)}
    for impl, arch in product(of_triton, archs):
        try:
            for launch in _launches(impl, arch):
                entries.append(triton_cache.entry_of(impl.label, launch, arch))
        except NotImplementedError as error:
            notes[f"{impl.label} for {arch}: {error}"] = None
    entries += triton_cache.others(kernels, {entry.key for entry in entries})
    if any(impl.way == "cuda" for impl in impls):
        built = cuda_kernels(name)
        entries += _of_cupy(built)
        entries += ours.entries(name, built, archs)
    return Found(name, caches(), tuple(entries), tuple(notes))


def _launches(impl: Implementation, arch: str) -> Iterator[TritonLaunch]:
    if impl.requires and (reason := lacks(impl.requires, arch)):
        raise NotImplementedError(reason)
    op = registry.get_op(impl.op)
    for launch in capture(impl, op, op.cases.default, arch):
        if isinstance(launch, TritonLaunch):
            yield launch


def cuda_kernels(name: str) -> set[str]:
    """Names of the CUDA kernels that an op's implementations launch, on the cases that they take."""
    op = registry.get_op(name)
    found = set()
    impls = [impl for impl in registry.implementations(name) if impl.route == "cupy"]
    for impl, case in product(impls, (op.cases.default, *op.cases.smoke)):
        with suppress(NotImplementedError):
            launches = capture(impl, op, case, impl.requires or "sm_80")
            found |= {
                launch.kernel.partition("<")[0] for launch in launches if isinstance(launch, CudaLaunch)
            }
    return found


def _cupy_folder() -> Path:
    return Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")


def _of_cupy(kernels: set[str]) -> list[Entry]:
    """Files that hold one of these kernels; cupy keeps no record of their keys."""
    found = []
    for file in sorted(_cupy_folder().glob("*.cubin")):
        held = ours.kernels_in(file.read_bytes(), kernels)
        if held:
            parts = tuple(Part("made of", part) for part in _CUPY_KEY)
            files = (File(file.name, file.stat().st_size),)
            found.append(Entry("cupy", ", ".join(sorted(held)), "kernel", file.stem, file, files, parts))
    return found


def _measured(whose: str, holds: str, variable: str, usual: Path) -> Cache:
    """Where its variable says, or where it usually is."""
    folder = Path(os.environ.get(variable) or usual)
    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    sizes = [path.stat().st_size for path in paths if path.is_file() and not path.is_symlink()]
    return Cache(whose, holds, folder, variable, folder.is_dir(), len(sizes), sum(sizes))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
