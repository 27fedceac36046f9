"""Builds of the CUDA sources, and the one place that locates compilers.

Every product is in `cache_dir` under a name with a hash of all its inputs, so nothing stale is loaded.  A
lock and an atomic rename make concurrent requests safe.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pybind11
from cuda import pathfinder
from filelock import FileLock, Timeout

from cuda_impl import cache_folders, flags, host_flags
from cuda_impl.source import advice, by_users_lines, errors_in, for_host

PYBIND = flags.KERNELS.parent / "pybind"
_ONLY = PYBIND / "only.h"
"""Included before the source of a module for one dtype."""
_C_HEADERS = flags.KERNELS.parent / "nvrtc"
"""For CUDA text that was written for nvcc, which has C's headers."""
PREBUILT = PYBIND / "prebuilt"
"""Where setup.py puts the modules that it builds ahead of time."""


class BuildError(RuntimeError):
    """A compiler is missing or refused the source.  The first line says what, and what to do next."""


# --------------------------------------------------------------------------- locating compilers


@functools.cache
def nvcc() -> Path:
    """CUDA's compiler: from CUDA_HOME, PATH, or the PyPI package, in this order.

    Raises:
        BuildError: there is none.
    """
    home = os.environ.get("CUDA_HOME")
    if home:
        compiler = Path(home) / "bin" / "nvcc"
        if not compiler.is_file():
            raise BuildError(f"no nvcc at {compiler}: set CUDA_HOME to a CUDA toolkit, or unset it")
        return compiler
    found = shutil.which("nvcc") or pathfinder.find_nvidia_binary_utility("nvcc")
    if found is None:
        raise BuildError(
            "no nvcc in CUDA_HOME, on PATH or from PyPI: "
            "pip install 'cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]==13.0.*'"
        )
    return Path(found)


@functools.cache
def gxx() -> str:
    """The host C++ compiler: $CXX or g++.

    Raises:
        BuildError: there is none.
    """
    name = os.environ.get("CXX") or "g++"
    return _on_path(name, f"C++ compiler {name!r}", "g++ (or set CXX)")


@functools.cache
def gcc() -> str:
    """The host C compiler: $CC or gcc.

    Raises:
        BuildError: there is none.
    """
    name = os.environ.get("CC") or "gcc"
    return _on_path(name, f"C compiler {name!r}", "gcc (or set CC)")


@functools.cache
def make_tool() -> str:
    """make.

    Raises:
        BuildError: there is none.
    """
    return _on_path("make", "make", "make")


def _on_path(name: str, what: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise BuildError(f"no {what} on PATH: apt-get install {package}")
    return found


def triton_nvidia() -> Path:
    """The folder of CUDA tools in Triton's wheel: ``bin``, with ptxas and nvdisasm, and ``include``.

    Does not import Triton, which takes a second.

    Raises:
        ModuleNotFoundError: Triton is not installed.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'triton'")
    return Path(spec.origin).parent / "backends" / "nvidia"


@functools.cache
def driver_include() -> Path:
    """The folder of ``cuda.h``, which declares the driver API: CUDA's, or Triton's.

    Raises:
        BuildError: not found.
    """
    folders = [triton_nvidia() / "include"]
    with contextlib.suppress(BuildError):
        folders.insert(0, cuda_include())
    for folder in folders:
        if (folder / "cuda.h").is_file():
            return folder
    raise BuildError("no cuda.h: pip install 'cuda-toolkit[cudart,crt,cccl]==13.0.*', or set CUDA_HOME")


@functools.cache
def cuda_include() -> Path:
    """The folder of ``cuda_fp16.h`` and all it includes, which NVRTC and g++ do not locate by themselves.

    Raises:
        BuildError: not found.
    """
    found = pathfinder.find_nvidia_header_directory("cudart")
    folders = [Path(found)] if found else []
    with contextlib.suppress(BuildError):
        folders.append(nvcc().resolve().parent.parent / "include")
    for folder in folders:
        # PyPI splits CUDA's headers over several packages, and PyTorch depends on some of them only.
        if (folder / "crt" / "host_defines.h").is_file() and (folder / "cuda_fp16.h").is_file():
            return folder
    raise BuildError("no CUDA headers: pip install 'cuda-toolkit[cudart,crt,cccl]==13.0.*', or set CUDA_HOME")


@functools.cache
def cccl_include() -> Path:
    """The folder of CUB's headers: nvcc's, or PyPI's.

    Raises:
        BuildError: not found.
    """
    toolkit = nvcc().resolve().parent.parent / "include"
    found = pathfinder.find_nvidia_header_directory("cccl")
    for folder in (toolkit / "cccl", toolkit, *([Path(found)] if found else [])):
        if (folder / "cub" / "cub.cuh").is_file():
            return folder
    raise BuildError("no headers of CUB: pip install 'cuda-toolkit[cccl]==13.0.*', or set CUDA_HOME")


def cupy() -> Any:
    """The cupy module; importing it creates its kernel cache folder.

    Raises:
        BuildError: the folder cannot be created.
    """
    cache_folders.begin()
    try:
        return importlib.import_module("cupy")
    except OSError as error:
        if error.filename is None:  # a shared library that fails to load
            raise
        raise BuildError(f"cannot write {error.filename} ({error.strerror}): set CUPY_CACHE_DIR") from error


@functools.cache
def nvrtc_library() -> Any:
    """NVRTC's functions, its library loaded.

    Raises:
        BuildError: it is not installed.
    """
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise BuildError(
            "no NVRTC, the compiler of cupy's kernels: pip install 'cuda-bindings==13.*' "
            f"'nvidia-cuda-nvrtc==13.0.*'\n{error}"
        ) from error
    return nvrtc


# --------------------------------------------------------------------------- sources and the cache


def cache_dir() -> Path:
    """``$COMPARE_CACHE_DIR`` or ``~/.cache/gpu-three-ways``, created if necessary: `cache_folders`.

    Raises:
        BuildError: it is not writable.
    """
    path = cache_folders.folder("COMPARE_CACHE_DIR")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"cannot write {path} ({error.strerror}): set COMPARE_CACHE_DIR") from error
    return path


def source_text(source: str) -> str:
    """The text to compile for a kernel's ``source``: an op's name includes its file, CUDA text stays."""
    return f'#include "{source}.cuh"\n' if source.isidentifier() else source


def nvrtc_options(source: str, arch: str) -> tuple[str, ...]:
    """Options for NVRTC: those of the project's kernels, and for CUDA text that was written for nvcc also the
    C headers that NVRTC lacks."""
    options = flags.nvrtc(arch, cuda_include())
    if source.isidentifier():
        return options
    options = (*options, f"-I{_C_HEADERS}", "-include=nvcc_macros.h")
    if re.search(r"#\s*include\s*<(cooperative_groups|cuda/)", source):
        return (*options, f"-I{cccl_include()}")
    return options


def included(text: str, folders: Sequence[Path] = (flags.KERNELS,)) -> dict[Path, str]:
    """The project's own files that ``text`` includes, directly or not, with their contents."""
    files: dict[Path, str] = {}
    waiting = [text]
    while waiting:
        for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', waiting.pop(), re.MULTILINE):
            path = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if path is not None and path not in files:
                files[path] = path.read_text()
                waiting.append(files[path])
    return files


def digest(*parts: object) -> str:
    """Short hash of ``parts``, for file names."""
    text = "\0".join(str(part) for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _contents(text: str, folders: Sequence[Path]) -> str:
    files = included(text, folders)
    return digest(text, *(f"{path.name}\0{content}" for path, content in sorted(files.items())))


def headers_digest(source: str) -> str:
    """Hash of everything that a kernel's source includes: cupy's own cache key does not cover it."""
    return _contents(source_text(source), (flags.KERNELS, _C_HEADERS))


def _identity(compiler: str | Path) -> str:
    """Identifies an installed compiler without running it."""
    stat = Path(compiler).resolve().stat()
    return f"{compiler} {stat.st_size} {stat.st_mtime_ns}"


_CANNOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    """The file ``name`` in the cache; if missing or damaged, ``make`` writes it to a given path."""
    shared = os.environ.get("COMPARE_CACHE_SHARED")  # to read from only, where user code runs
    if shared and _is_whole(Path(shared, name)):
        return Path(shared, name)
    folder = cache_dir()
    path = folder / name
    if _is_whole(path):
        return path
    lock = folder / f"{name}.lock"
    patience_s = float(os.environ.get("COMPARE_LOCK_S") or BUILD_S)  # less in workers, whose time is limited
    try:
        with FileLock(lock, timeout=patience_s):
            if not _is_whole(path):
                scratch = folder / f"{name}.part"
                shutil.rmtree(scratch, ignore_errors=True)  # of a build that was killed
                scratch.mkdir()
                try:
                    make(scratch / name)
                    _seal(scratch / name)
                    (scratch / name).replace(path)
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
    except Timeout:
        raise BuildError(
            f"{lock} has been held for {patience_s:g} s: another process builds {name}, or hangs. End it"
        ) from None
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise BuildError(f"cannot write {folder} ({error.strerror}): set COMPARE_CACHE_DIR") from error
    return path


BUILD_S = 900
"""The most seconds that one build may take, on any machine."""
_SEAL = b"\n// sealed "
_SEAL_BYTES = len(_SEAL) + 65
_MOST_HASHED = 1 << 25
"""Larger files, which are precompiled headers, are only checked for the seal at their end."""


def _seal(product: Path) -> None:
    """Append a line with the hash of what stands before: to C++ a comment, to loaders of objects nothing."""
    with product.open("ab") as file:
        file.write(_SEAL + hashlib.sha256(product.read_bytes()).hexdigest().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _is_whole(path: Path) -> bool:
    """Whether a file exists and ends as `_seal` left it, with the contents of then."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) - _SEAL_BYTES
            file.seek(max(size, 0))
            seal = file.read()
            file.seek(0)
            if size < 0:
                return False
            found = hashlib.sha256(file.read(size)).hexdigest().encode() if size <= _MOST_HASHED else b""
    except OSError:  # missing; or of a shared cache that is a file, or another user's
        return False
    return seal.startswith(_SEAL) and found in seal


def _unsealed(path: Path) -> bytes:
    return path.read_bytes()[:-_SEAL_BYTES]


def run(command: Iterable[str | Path], what: str, text: str = "") -> str:
    """Run a compiler, on ``text`` of a user's file if given, and return what it printed.

    Raises:
        BuildError: it failed at ``what``.
    """
    words, folders = _without_apostrophes([str(word) for word in command])
    folders += filter(None, [os.environ.get("CPLUS_INCLUDE_PATH")])
    variables = os.environ | ({"CPLUS_INCLUDE_PATH": os.pathsep.join(folders)} if folders else {})
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=variables
    )
    if done.returncode != 0:
        raise refusal(what, Path(words[0]).name, f"{done.stdout.strip()}\n{' '.join(words)}", text)
    return done.stdout


def _without_apostrophes(words: list[str]) -> tuple[list[str], list[str]]:
    """A command without the folders of headers that nvcc would pass on wrongly quoted, and these folders."""
    if Path(words[0]).name != "nvcc":
        return words, []
    left: list[str] = []
    folders: list[str] = []
    for word in words:
        folder = word.removeprefix("-I")
        if "'" in folder and left[-1:] == ["-isystem"]:
            left.pop()
            folders.append(folder)
        elif "'" in folder and word.startswith("-I"):
            folders.append(folder)
        else:
            left.append(word)
    return left, folders


def refusal(what: str, compiler: str, log: str, text: str = "") -> BuildError:
    """The `BuildError` for a compiler's refusal of ``what``; its first line has the log's errors.

    Places in ``text``, from a user's file, are shown as places in that file.
    """
    log = by_users_lines(log, text) if text else log
    if problem := advice(text):
        return BuildError(f"{what}: {problem}\n{log}")
    errors = errors_in(log)
    return BuildError(f"{what}: {compiler} failed{f': {errors}' if errors else ''}\n{log}")


def is_asserted(said: str) -> bool:
    """Whether a kernel's own static assertion stopped the compilation: a NotImplementedError at compile time.

    Args:
        said: the first line of a `BuildError`.
    """
    return "static assertion failed" in said


def _refuse_remarks(log: str, what: str) -> None:
    """Raise for ptxas remarks about what makes a kernel slow or wrong."""
    for line in log.splitlines():
        if any(code in line for code in flags.PTXAS_REMARKS_THAT_ARE_ERRORS):
            raise BuildError(f"{what}: {line.strip()}")


# --------------------------------------------------------------------------- the CPU: g++ and host/


def sanitizing() -> bool:
    """Whether host builds carry AddressSanitizer and UBSan; decided by HOST_SANITIZE=1."""
    return os.environ.get("HOST_SANITIZE") == "1"


def _host_command(sanitize: bool) -> list[str]:
    # Line numbers, for problems that are found: a precompiled header fits only where all builds have them.
    return [gxx(), "-shared", "-g1", *host_flags.host(cuda_include(), sanitize)]


_RUNTIME = tuple(host_flags.HOST / name for name in ("fibers.cpp", "launch.cpp", "watch.cpp"))

_WATCH = (
    # Calls before each access, to host/watch.cpp.  AddressSanitizer's leave out a write after a read.
    "-fsanitize=thread",
    "--param=tsan-distinguish-volatile=1",
    "-fsanitize=alignment,bounds,integer-divide-by-zero",
)
_NOT_THE_SANITIZERS_OWN = ("-nodefaultlibs", "-lstdc++", "-lm", "-lc", "-lgcc_s")


def host_runtime() -> Path:
    """What all host builds share and load, compiled once: the scheduler, and a launch's checks."""

    def make(product: Path) -> None:
        command, what = _host_command(sanitizing()), "the scheduler of host builds"

        def compiled(file: Path) -> Path:
            run([*command, "-c", file, "-o", product.with_name(f"{file.stem}.o")], what)
            return product.with_name(f"{file.stem}.o")

        with ThreadPoolExecutor(len(_RUNTIME)) as pool:
            objects = list(pool.map(compiled, _RUNTIME))
        run([*command, *objects, "-o", product], what)

    return _cached(_host_runtime_name(), make)


def _host_runtime_name() -> str:
    contents = [_contents(file.read_text(), (host_flags.HOST,)) for file in _RUNTIME]
    return f"libhost-{digest(*contents, _host_command(sanitizing()), _identity(gxx()))}.so"


def host_header(watched: bool = False) -> Path:
    """The header that every host build of a kernel starts with; its precompiled form, which g++ uses, is
    beside it.

    Parsing CUDA's headers takes longer than compiling most kernels.
    """
    text, command = '#include "launch.h"\n', _kernel_command(watched)
    # g++ does not check whether a header has changed since it was precompiled.
    compilers = _identity(gxx()), _identity(cuda_include() / "cuda_fp16.h")
    name = f"host-{digest(_contents(text, (host_flags.HOST,)), command, *compilers)}.h"

    def write(product: Path) -> None:
        product.write_text(text)

    def compile_it(product: Path) -> None:
        run([*command, "-x", "c++-header", header, "-o", product], name)

    header = _cached(name, write)
    _cached(f"{name}.gch", compile_it)
    return header


def shared_host_builds() -> list[Path]:
    """The files that host builds of all kernels share, built."""
    headers = [host_header(), host_header(watched=True)]
    return [host_runtime(), *headers, *(header.with_name(f"{header.name}.gch") for header in headers)]


def _kernel_command(watched: bool) -> list[str]:
    return [*_host_command(sanitizing()), *(_WATCH if watched else ())]


def host_kernel(source: str, name: str, watched: bool = False) -> Path:
    """A shared object whose ``host_launch`` runs one kernel on the CPU.

    Args:
        source: an op's name or CUDA text.
        name: the kernel as a C++ expression, ``softmax_online_kernel<float, 256>``.
        watched: check every access to memory: `cuda_impl.watch`.

    Raises:
        BuildError: g++ is missing or refuses the source.
    """
    users = source_text(source)
    text = f"{for_host(users)}\nHOST_ENTRY({name})\n"
    runtime, header = host_runtime(), host_header(watched)
    command = [*_kernel_command(watched), "-include", str(header)]
    libraries = _NOT_THE_SANITIZERS_OWN if watched else ()
    folders = flags.KERNELS, host_flags.HOST
    key = digest(_contents(text, folders), command, runtime.name, _identity(gxx()))

    def make(product: Path) -> None:
        file = product.with_suffix(".cpp")
        file.write_text(text)
        run([*command, file, runtime, *libraries, "-o", product], name, users)

    return _cached(f"{_stem(name)}-{key}.so", make)


def _stem(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_")[:60]


def shared_library(source: Path) -> Path:
    """A C++ file as a shared library, without CUDA's headers.

    Raises:
        BuildError: g++ is missing or refuses the source.
    """
    command = [gxx(), "-shared", "-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    key = digest(source.read_text(), command, _identity(gxx()))
    return _cached(
        f"lib{source.stem}-{key}.so", lambda product: run([*command, source, "-o", product], source.name)
    )


# --------------------------------------------------------------------------- machine code: NVRTC and nvcc


def cubin(source: str, names: Sequence[str], arch: str) -> tuple[bytes, dict[str, str]]:
    """Compile kernels with NVRTC as cupy does; needs neither GPU nor driver.

    Args:
        source: an op's name or CUDA text.
        names: kernels as C++ expressions.
        arch: ``sm_90``.

    Returns:
        The ELF image, and each kernel's mangled name.

    Raises:
        BuildError: NVRTC refuses the source, or ptxas makes a remark that counts as an error.
    """
    image, mangled, _ = _nvrtc(source, tuple(names), arch)
    return image, mangled


def ptxas_log(source: str, names: Sequence[str], arch: str) -> str:
    """ptxas's output for the same compilation as `cubin`: registers, stack and spills of each kernel."""
    return _nvrtc(source, tuple(names), arch)[2]


def _nvrtc(source: str, names: tuple[str, ...], arch: str) -> tuple[bytes, dict[str, str], str]:
    nvrtc = nvrtc_library()
    options = (*nvrtc_options(source, arch), "-default-device", "-Xptxas=-v")
    _, major, minor = nvrtc.nvrtcVersion()
    key = digest(headers_digest(source), names, options, major, minor)

    def make(folder: Path) -> tuple[bytes, dict[str, Any]]:
        made = compile_nvrtc(source, names, options)
        return made.cubin, {"mangled": made.mangled, "log": made.log}

    image, facts = _image(f"nvrtc-{arch}-{key}.cubin", make)
    return image, facts["mangled"], facts["log"]


def _image(name: str, make: Callable[[Path], tuple[bytes, dict[str, Any]]]) -> tuple[bytes, dict[str, Any]]:
    """Machine code in the cache, and the facts that ``make``, given a folder to work in, returned with it."""

    def write(product: Path) -> None:
        image, facts = make(product.parent)
        product.write_bytes(json.dumps(facts).encode() + b"\n" + image)

    header, _, image = _unsealed(_cached(name, write)).partition(b"\n")
    return image, json.loads(header)


@dataclass(frozen=True)
class ByNvrtc:
    """The results of one compilation by NVRTC."""

    cubin: bytes
    ptx: bytes
    mangled: dict[str, str]
    """By the kernel's C++ expression."""
    log: str
    """The output of NVRTC and ptxas."""


def compile_nvrtc(source: str, names: tuple[str, ...], options: tuple[str, ...]) -> ByNvrtc:
    """`cubin` without the cache.

    Raises:
        BuildError: as `cubin`.
    """
    nvrtc = nvrtc_library()
    what = f"{source}.cuh" if source.isidentifier() else ", ".join(names[:1]) or "CUDA source"

    def checked(result: tuple[object, ...]) -> object:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(f"{what}: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
        return result[1] if len(result) > 1 else None

    program = checked(nvrtc.nvrtcCreateProgram(source_text(source).encode(), b"kernels.cu", 0, [], []))
    try:
        for name in names:
            checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
        result = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log_bytes = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
        checked(nvrtc.nvrtcGetProgramLog(program, log_bytes))
        log = log_bytes.rstrip(b"\0 ").decode()
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise refusal(what, "NVRTC", f"{log}\n{', '.join(names)}", source_text(source))
        _refuse_remarks(log, what)
        mangled = {
            name: checked(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode() for name in names
        }
        cubin, ptx = (
            bytearray(checked(size(program))) for size in (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetPTXSize)
        )
        checked(nvrtc.nvrtcGetCUBIN(program, cubin))
        checked(nvrtc.nvrtcGetPTX(program, ptx))
        return ByNvrtc(bytes(cubin), bytes(ptx).rstrip(b"\0"), mangled, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def instances(source: str, names: Sequence[str]) -> str:
    """Source text that makes nvcc instantiate these kernels."""
    pointers = "\n".join(f"auto* instance_{i} = &{name};" for i, name in enumerate(names))
    return f"{source_text(source)}\n{pointers}\n"


SIDE_BY_SIDE = ("--threads", "--split-compile")
"""Options by which nvcc compiles a module of many kernels in parallel.  ``--split-compile`` changes some
instructions, as it optimises parts of a module apart; NVRTC does not split."""


def nvcc_cubin(source: str, names: Sequence[str], arch: str) -> bytes:
    """Compile the same kernels with nvcc, to compare its machine code with NVRTC's."""
    return _nvcc("cubin", source, names, arch)[0]


def fatbin(source: str, name: str, arch: str) -> tuple[bytes, str]:
    """Compile one kernel with nvcc into a fat binary, as ``cuModuleLoadData`` takes it.

    Args:
        source: an op's name or CUDA text.
        name: the kernel as a C++ expression.
        arch: ``sm_90``.

    Returns:
        The fat binary, and the kernel's mangled name.

    Raises:
        BuildError: nvcc is missing or refuses the source.
    """
    image, log = _nvcc("fatbin", source, [name], arch)
    # ptxas reports every kernel that it compiles: here only the one whose address is taken.
    entries = re.findall(r"Compiling entry function '(\w+)'", log)
    stem = name.partition("<")[0]
    (mangled,) = {entry for entry in entries if stem in entry}
    return image, mangled


def _nvcc(kind: str, source: str, names: Sequence[str], arch: str) -> tuple[bytes, str]:
    """Kernels as a ``cubin`` or a ``fatbin``, and ptxas's output."""
    text = instances(source, names)
    options = [word for word in flags.nvcc((arch,)) if not word.startswith(SIDE_BY_SIDE)]
    command = [str(nvcc()), f"-{kind}", *options]
    key = digest(_identity(nvcc()), command, _contents(text, (flags.KERNELS,)))

    def make(folder: Path) -> tuple[bytes, dict[str, Any]]:
        file, product = folder / "kernels.cu", folder / "kernels.image"
        file.write_text(text)
        log = run([*command, file, "-o", product], names[0], source_text(source))
        _refuse_remarks(log, names[0])
        return product.read_bytes(), {"log": log}

    image, facts = _image(f"nvcc-{arch}-{key}.{kind}", make)
    return image, facts["log"]


# --------------------------------------------------------------------------- pybind11 modules


def pybind_module(op: str, target: str, took: Callable[[float], None] = lambda seconds: None) -> Path:
    """The Python module of an op's kernels: a prebuilt one if it fits, else from the cache.

    Args:
        op: the op's name; ``library/<op>`` for the module that calls a library instead, on GPUs only;
            ``launcher`` for the one that executes all ops' launch tables on the CPU.
        target: ``host`` for the CPU; a GPU's architecture, ``sm_90``; or that and a dtype, ``sm_90-bf16``:
            a module with the kernels for one dtype only builds in half the time.
        took: called with the build's seconds, if this call built the module.

    Raises:
        BuildError: a compiler is missing or refuses the source.
    """
    prebuilt = _prebuilt(op, target)
    if prebuilt is not None:
        return prebuilt
    name, make = _pybind(op, target)

    def timed(product: Path) -> None:
        begin = time.perf_counter()
        make(product)
        took(time.perf_counter() - begin)

    return _cached(name, timed)


def module_name(op: str, target: str) -> str:
    """The module's file name in `cache_dir`.

    Raises:
        BuildError: a compiler is missing.
    """
    return _pybind(op, target)[0]


def pybind_is_built(op: str, target: str) -> bool:
    """Whether `pybind_module` would find the module built.

    Raises:
        BuildError: it would not, and a compiler is missing.
    """
    return _prebuilt(op, target) is not None or (cache_dir() / _pybind(op, target)[0]).exists()


LAUNCHER = "launcher"
"""The module that executes all launch tables on the CPU, where each kernel has a build of its own."""


def by_hand(op: str) -> Path | None:
    """The C++ of an op's module where it is written by hand; None: its launch tables give it."""
    file = PYBIND / f"{op}.cu"
    return file if file.is_file() else None


def on_host(op: str) -> str:
    """The module that executes an op's launches on the CPU: its own where it is written by hand."""
    return op if by_hand(op) else LAUNCHER


def module_text(op: str, dtype: str = "") -> str:
    """The C++ of an op's module: ``pybind/<op>.cu``, or what its launch tables give, for one dtype or all."""
    if file := by_hand(op):
        return file.read_text()
    text: str = importlib.import_module("cuda_impl.launch").module_text(op, dtype)
    return text


def _prebuilt(op: str, target: str) -> Path | None:
    arch = target.partition("-")[0]
    if arch != "host" and PREBUILT.is_dir():
        for path in PREBUILT.glob(_pybind_name(op, "*", _pybind_sources(module_text(op)))):
            if flags.target(arch) in path.name.split("-"):
                return path
    return None


def _pybind(op: str, target: str) -> tuple[str, Callable[[Path], None]]:
    """The module's name in the cache, and the function that builds it."""
    arch, _, dtype = target.partition("-")
    text = module_text(op, dtype)
    libraries: list[str | Path] = []
    if target == "host":
        runtime = host_flags.HOST / "cuda_runtime.h"
        includes = ["-include", str(runtime), *_pybind_includes(), "-fvisibility=hidden"]
        command = [*_host_command(sanitizing()), *includes, "-x", "c++"]
        libraries += ["-x", "none", cache_dir() / _host_runtime_name()]
        compiler = _identity(gxx()) + _contents(runtime.read_text(), (host_flags.HOST,))
    else:
        command = _nvcc_module_command(op, (arch,))
        command += [f"-DONLY={dtype.upper()}", "-include", str(_ONLY)] if dtype else []
        compiler = _identity(nvcc()) + _identity(gxx()) + (_ONLY.read_text() if dtype else "")

    def make(product: Path) -> None:
        if target == "host":
            host_runtime()
        _make_module(_module_source(op, text), command, libraries, product)

    sources = _pybind_sources(text, *((host_flags.HOST,) if target == "host" else ()))
    key = digest(sources, target, command, libraries, compiler)
    return _pybind_name(op, target, key), make


def prebuild(op: str, archs: tuple[str, ...], folder: Path) -> Path:
    """Build an op's module for several architectures into ``folder``, as `PREBUILT` modules are named."""
    folder.mkdir(parents=True, exist_ok=True)
    text = module_text(op)
    product = folder / _pybind_name(op, "-".join(map(flags.target, archs)), _pybind_sources(text))
    _make_module(_module_source(op, text), _nvcc_module_command(op, archs), [], product)
    return product


def calls_a_library(name: str) -> bool:
    """Whether ``name`` is ``library/<op>``: ``pybind/<name>.cu`` then calls a library, on GPUs only."""
    return "/" in name


def _pybind_name(op: str, targets: str, key: str) -> str:
    return f"{op.replace('/', '-')}-{targets}-{key}{sysconfig.get_config_var('EXT_SUFFIX')}"


def _pybind_sources(text: str, *more: Path) -> str:
    """Hash of everything that a module's text includes, from further folders as well."""
    return digest(_contents(text, (PYBIND, flags.KERNELS, *more)), flags.DEVICE, pybind11.__version__)


def _pybind_includes() -> list[str]:
    # Of PyTorch's headers only dlpack.h, which is DLPack's own and includes nothing of PyTorch.
    folders = (pybind11.get_include(), sysconfig.get_path("include"), str(_torch_include() / "ATen"))
    return [f"-I{PYBIND}", *(word for folder in folders for word in ("-isystem", folder))]


def _torch_include() -> Path:
    """The folder of PyTorch's headers, without importing it, which takes seconds."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "include"


def _nvcc_module_command(op: str, archs: tuple[str, ...]) -> list[str]:
    host = ["-ccbin", gxx(), "-Xcompiler=-fPIC,-fvisibility=hidden", "-shared", "-cudart=static"]
    cccl = ["-isystem", str(cccl_include())] if calls_a_library(op) else []
    return [str(nvcc()), *host, *flags.nvcc(archs), *_pybind_includes(), *cccl]


def _module_source(op: str, text: str) -> Path:
    """The file of an op's module: written by hand, or in the cache, for the reader too."""

    def write(product: Path) -> None:
        product.write_text(text)

    return by_hand(op) or _cached(f"{op}-{digest(text)}.cu", write)


def _make_module(source: Path, command: list[str], libraries: list[str | Path], product: Path) -> None:
    log = run([*command, source, *libraries, "-o", product], source.name)
    _refuse_remarks(log, source.name)
