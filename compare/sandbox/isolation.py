"""Isolation of a process that runs a user's file, by the operating system.

`found` says which of the kernel's mechanisms work here; `enter` applies them.  What each of them guarantees
is in docs/trust.md.
"""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from compare.sandbox import kernel, scratch
from compare.sandbox.limits import close_all_but, limit
from cuda_impl import cache_folders

PRIVATE_BYTES = 1 << 30
"""Size of the private folder."""
_PRIVATE_FILES = 1 << 16
_PROCESSES = 4096

_DEVICES = ("null", "zero", "full", "random", "urandom", "dxg", "nvidia*", "nvidia-caps/*")
_SHARED_MEMORY = Path("/dev/shm")
_THREADS, _ALL_THREADS = Path("/proc/self/task"), Path("/proc")
"""Of this process, and of all: CUDA writes its threads' names there, and does not start where it cannot."""

_NAMESPACES = kernel.NEW_USER | kernel.NEW_MOUNTS | kernel.NEW_NETWORK
_OF_PROCESSES = kernel.NEW_PIDS | kernel.NEW_IPC
"""Not on a GPU: CUDA opens another process's memory within one PID namespace only."""


Hidden = tuple[tuple[str, tuple[str, ...]], ...]
"""Folders that are hidden, each with the paths in it that are not."""


@dataclass(frozen=True)
class Isolation:
    """Which mechanisms work here."""

    namespaces: bool = False
    """User, mount, network, PID and IPC namespaces."""
    landlock: int = 0
    """Version of Landlock's ABI; 0: none."""
    seccomp: bool = False
    refused: Sequence[str] = ()
    """Why not more: ``namespaces: Operation not permitted``."""

    @property
    def holds(self) -> bool:
        """Whether a user's file can change no file, reach no other process and no network."""
        return self.seccomp and (self.namespaces or self.landlock >= 1)

    def __str__(self) -> str:
        active = ["namespaces"] * self.namespaces
        active += [f"Landlock {self.landlock}"] * bool(self.landlock) + ["seccomp"] * self.seccomp
        return ", ".join(active) or "none"

    @property
    def warning(self) -> str:
        """One line for whoever gives a user's file; empty where the isolation holds."""
        if self.holds:
            return ""
        return f"a file given with --load runs with all your rights: this machine {self.lack}"

    @property
    def lack(self) -> str:
        """What a machine that is refused for it does, with the reasons."""
        return f"offers no isolation ({'; '.join(self.refused)})"


@functools.cache
def found() -> Isolation:
    """The mechanisms that work here, each tried in a process of its own."""
    version, private = kernel.landlock_version(), scratch.private_folder()
    try:
        why = {name: _why_not(name, private) for name in ("namespaces", "Landlock", "seccomp")}
    finally:
        scratch.remove(private)
    refused = tuple(f"{name}: {reason}" for name, reason in why.items() if reason)
    return Isolation(not why["namespaces"], 0 if why["Landlock"] else version, not why["seccomp"], refused)


_ROOT = str(Path(__file__).resolve().parents[2])


def _why_not(mechanism: str, private: Path) -> str:
    """Why a mechanism does not work here; empty: it does."""
    program = f"import sys; sys.path.append({_ROOT!r}); from {__name__} import probe; probe(*sys.argv[1:])"
    command = [sys.executable, "-I", "-c", program]  # else Python's own modules come from the current folder
    try:
        done = subprocess.run([*command, mechanism, str(private)], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return f"the probe failed: {error}"
    if done.returncode == 0:
        return ""
    return done.stderr.strip().rpartition("\n")[2][:300] or f"its process ended with status {done.returncode}"


def probe(mechanism: str, folder: str) -> None:
    """Try a mechanism in this process, and on a GPU CUDA with it, whose driver may need what that refuses."""
    private, gpu = Path(folder), has_gpu()
    try:
        if mechanism == "namespaces":
            _into_namespaces(private, None, gpu=gpu)
        elif mechanism == "Landlock":
            _into_landlock(kernel.landlock_version(), private, _of_cuda(_THREADS) if gpu else (), ())
        else:
            kernel.seccomp(gpu=gpu)
        if gpu:
            start_cuda()
    except OSError as error:
        sys.exit(str(error))
    os._exit(0)


def has_gpu() -> bool:
    """Whether the driver of a GPU is loaded, which reserves more address space than any limit."""
    return Path("/dev/nvidiactl").exists()


def start_cuda() -> None:
    """Make a CUDA context; an `OSError` if that fails."""
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    if error := cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
        raise OSError(f"CUDA does not start with it (error {error})")


def protect_judge() -> None:
    """Close this process's memory to others, and warn where users' files are not isolated."""
    with suppress(OSError):
        kernel.not_dumpable()
    if warning := found().warning:
        print(f"python -m compare: {warning}", file=sys.stderr)


_FOLDERS = {
    "TMPDIR": "tmp",
    "XDG_CACHE_HOME": "cache",
    "COMPARE_CACHE_DIR": "compare",
    "TRITON_CACHE_DIR": "triton",
    "TRITON_DUMP_DIR": "triton-dump",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "CUPY_CACHE_DIR": "cupy",
    "CUDA_CACHE_PATH": "cuda",
}


def environment(private: Path) -> dict[str, str]:
    """Variables that send what compilers and libraries write into the private folder."""
    shared = str(cache_folders.folder("COMPARE_CACHE_DIR"))
    folders = {name: str(private / folder) for name, folder in _FOLDERS.items()}
    programs = os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)  # ninja, of a package
    # cupy 14.2 reads CUPY_CACHE_DIR when it is imported, and that was before the isolation.
    return folders | {
        "CUPY_CACHE_IN_MEMORY": "1",
        "PATH": os.pathsep.join(programs),
        "COMPARE_CACHE_SHARED": os.environ.get("COMPARE_CACHE_SHARED", shared),
    }


# --------------------------------------------------------------------------- inside


def enter(
    isolation: Isolation,
    private: Path,
    lifeline: int,
    *,
    gpu: bool,
    children: bool = False,
    hidden: Hidden = (),
) -> None:
    """Isolate this process and all that it will start; the caller continues inside.

    With a PID namespace the caller's process stays outside: it waits, and ends as the isolated one ends.

    Args:
        isolation: as `found` it.
        private: an empty folder, the only one that can be written to.
        lifeline: a descriptor that becomes readable when the judge has exited.
        gpu: whether CUDA is used; its memory is shared with the judge.
        children: whether processes that this one starts use CUDA.
        hidden: what cannot be read.

    Raises:
        OSError: a mechanism that was found does not work.
    """
    if isolation.namespaces:
        _into_namespaces(private, lifeline, gpu=gpu, hidden=hidden)
    for folder in _FOLDERS.values():
        (private / folder).mkdir()
    os.environ.update(environment(private))
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    if isolation.landlock:
        of_cuda = _of_cuda(_ALL_THREADS if children else _THREADS)
        _into_landlock(
            isolation.landlock,
            private,
            of_cuda if gpu or children or isolation.namespaces else (),
            hidden,
        )
    if isolation.seccomp:
        kernel.seccomp(gpu=gpu)


def _devices() -> list[Path]:
    """The devices that may be used."""
    found = (file for pattern in _DEVICES for file in Path("/dev").glob(pattern))
    return [file for file in found if not file.is_dir()]


def _of_cuda(threads: Path = _THREADS) -> list[Path]:
    """The folders that CUDA writes to."""
    return [folder for folder in (_SHARED_MEMORY, threads) if folder.is_dir()]


def _into_landlock(version: int, private: Path, of_cuda: Sequence[Path], hidden: Hidden) -> None:
    kernel.landlock(version, [private, *of_cuda], _devices(), _readable(Path("/"), dict(hidden)))


def _readable(folder: Path, hidden: Mapping[str, Sequence[str]]) -> Iterator[Path]:
    """What may be read of a folder: whole entries, and what is not hidden of others."""
    kept = hidden.get(str(folder))
    for path in map(Path, kept) if kept is not None else folder.iterdir():
        # Terminals and disks are devices too.  Of a link its target's own place decides.
        if path == Path("/dev") or not path.exists() or (kept is None and path.is_symlink()):
            continue
        if any(Path(other).is_relative_to(path) for other in hidden):
            with suppress(PermissionError):  # then nothing of it can be read anyway
                yield from _readable(path, hidden)
        else:
            yield path


def _hide(hidden: Hidden, private: Path) -> None:
    """Show folders with less in them."""
    for number, (folder, kept) in enumerate(hidden):
        stage = private / "hidden" / str(number)
        stage.mkdir(parents=True)
        for path in (*map(Path, kept), *([private] if Path(folder) in private.parents else [])):
            place = stage / path.relative_to(folder)
            (place if path.is_dir() else place.parent).mkdir(parents=True, exist_ok=True)
            if not path.is_dir():
                place.touch()
            kernel.bind(path, place)
        kernel.bind(stage, Path(folder))
    with suppress(OSError):
        os.chdir(Path.cwd())  # a folder that was opened before still shows all


def _into_namespaces(private: Path, lifeline: int | None, *, gpu: bool, hidden: Hidden = ()) -> None:
    kernel.unshare(_NAMESPACES if gpu else _NAMESPACES | _OF_PROCESSES)
    shared = _of_cuda() if gpu else []
    kernel.read_only_but(private, PRIVATE_BYTES, _PRIVATE_FILES, _devices(), shared)
    _hide(hidden, private)
    if not gpu:
        if _SHARED_MEMORY.is_dir():
            (private / "shm").mkdir()
            kernel.bind(private / "shm", _SHARED_MEMORY)
        _continue_as_child(lifeline)
    limit(resource.RLIMIT_NPROC, _PROCESSES)
    kernel.drop_capabilities()


def _continue_as_child(lifeline: int | None) -> None:
    """Return in a process of the new PID namespace; the kernel kills all others in it with its first one."""
    receiver, sender = os.pipe()
    first = os.fork()
    if first:
        watched = [receiver] if lifeline is None else [receiver, lifeline]
        close_all_but(*watched)
        if receiver not in select.select(watched, [], [])[0]:
            os._exit(1)
        status = os.read(receiver, 4)
        os.waitpid(first, 0)
        _end_like(int.from_bytes(status, "little") if status else signal.SIGKILL)
    kernel.end_with_parent()
    with suppress(OSError):  # refused in some containers, which show the processes but let none be reached
        kernel.mount_proc(_PROCESSES)
    inner = os.fork()
    if inner:
        close_all_but(sender)
        while (ended := os.wait())[0] != inner:
            pass
        os.write(sender, ended[1].to_bytes(4, "little"))
        os._exit(0)
    os.close(receiver)
    os.close(sender)


def _end_like(status: int) -> NoReturn:
    """End as a process with this wait status ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)
