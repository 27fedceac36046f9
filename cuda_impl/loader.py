"""Compiles a kernel, given its source and name, and launches it on the tensors' device.

``kernel(source, name, device)`` returns a callable with the interface of cupy's ``RawKernel``: ``k(grid,
block, args, shared_mem=0)``.  On a GPU it uses cupy, on torch's current stream.  On a CPU it runs a host
build of the same source. On meta tensors it only records the launch, for capturing launches without a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from cuda_impl import build, watch
from cuda_impl.source import with_names

Argument = int | float | np.generic
"""A plain number is converted to the parameter's type; ``np.int32(n)`` states its size."""


class Kernel(Protocol):
    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Argument], shared_mem: int = 0
    ) -> None: ...


@functools.cache
def kernel(
    source: str,
    name: str,
    device: torch.device,
    *,
    cluster: int = 1,
    overlap: bool = False,
    cooperative: bool = False,
) -> Kernel:
    """The kernel ``name`` of ``source``, compiled for ``device`` at first use and cached.

    Args:
        source: an op, whose ``kernels/<op>.cuh`` has the kernel, or CUDA text.
        name: the kernel as a C++ expression, ``softmax_online_kernel<float, 256>``.
        device: where the tensors are.
        cluster: blocks per cluster; sizes above 8 are not portable and need a kernel attribute.
        overlap: programmatic dependent launch (sm_90 and later): the kernel may start while the previous one
            on its stream still runs, and itself waits for that one's output.
        cooperative: all blocks are resident before any starts; a launch of more blocks fails.

    Raises:
        build.BuildError: a compiler is missing or refuses the source.
        TypeError: the device is neither cuda, cpu nor meta.
    """
    if device.type == "cuda":
        return _CudaKernel(source, name, device, cluster, overlap, cooperative)
    if device.type == "meta":
        return _MetaKernel(source, name, cluster)
    if device.type == "cpu":
        return HostKernel(source, name, cluster)
    raise TypeError(f"{name}: tensors are on {device}; it takes tensors on cuda, cpu or meta")


# --------------------------------------------------------------------------- GPU: cupy


_PORTABLE_SHARED_BYTES = 48 * 1024
_PORTABLE_CLUSTER = 8
_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14  # CUfunction_attribute; cupy has no name for it


class _Stream:
    """A raw stream with the CUDA stream protocol."""

    def __init__(self, raw: int) -> None:
        self._raw = raw

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._raw


class _CudaKernel:
    """``cupy.RawModule`` on torch's device and stream."""

    def __init__(
        self,
        source: str,
        name: str,
        device: torch.device,
        cluster: int,
        overlap: bool,
        cooperative: bool,
    ) -> None:
        cupy = build.cupy()
        self._device = torch.cuda.current_device() if device.index is None else device.index
        self._current = torch._C._cuda_getDevice
        self._raw_stream = torch._C._cuda_getCurrentRawStream
        self._streams: dict[int, Any] = {}
        self._new_stream = cupy.cuda.Stream.from_external
        self._has_plain_floats: bool | None = None
        major, minor = torch.cuda.get_device_capability(self._device)
        options = build.nvrtc_options(source, f"sm_{major}{minor}")
        # cupy's cache key covers source text and options, but no headers.
        options = (*options, f"-DHEADERS_{build.headers_digest(source)}")
        text = build.source_text(source)
        with torch.cuda.device(self._device), cupy.cuda.Device(self._device):
            torch.cuda.init()
            module = cupy.RawModule(code=text, options=options, name_expressions=(name,))
            try:
                self._raw_kernel = module.get_function(name)
                self._function = self._raw_kernel.kernel
            except cupy.cuda.compiler.CompileException as error:
                raise build.refusal(name, "NVRTC", str(error), text) from error
            # The kernel's static shared memory counts too.
            self._shared_bytes = _PORTABLE_SHARED_BYTES - self._raw_kernel.shared_size_bytes
            if cluster > _PORTABLE_CLUSTER:
                from cupy_backends.cuda.api import driver

                driver.funcSetAttribute(self._function.ptr, _NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        self._by_attribute = None
        if overlap or cooperative:
            self._by_attribute = _LaunchByAttribute(
                self._function.ptr, "overlap" if overlap else "cooperative"
            )

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Argument], shared_mem: int = 0
    ) -> None:
        if self._current() != self._device:
            with torch.cuda.device(self._device):
                return self(grid, block, args, shared_mem)
        if self._has_plain_floats is None:  # decided once: a launch costs a few microseconds
            self._has_plain_floats = any(type(arg) is float for arg in args)
        if self._has_plain_floats:
            args = _sized(self._function.ptr, args)
        if shared_mem > self._shared_bytes:
            self._raw_kernel.max_dynamic_shared_size_bytes = shared_mem
            self._shared_bytes = shared_mem
        raw = self._raw_stream(self._device)
        if self._by_attribute is not None:
            return self._by_attribute(raw, grid, block, shared_mem, args)
        stream = self._streams.get(raw)
        if stream is None:
            stream = self._streams[raw] = self._new_stream(_Stream(raw))
        self._function(grid, block, args, shared_mem, stream)
        return None


def _sized(function: int, args: Sequence[Argument]) -> list[Argument]:
    """``args`` with every plain float in its parameter's size: cupy passes all as double."""
    from cuda.bindings import driver

    sizes = [int(driver.cuFuncGetParamInfo(driver.CUfunction(function), i)[2]) for i in range(len(args))]
    return [
        np.dtype(f"f{size}").type(arg) if type(arg) is float else arg
        for size, arg in zip(sizes, args, strict=True)
    ]


class _LaunchByAttribute:
    """Launch of a kernel with an attribute for which cupy's launch has no argument, or a slow one.

    ``overlap``: programmatic dependent launch, which may start while the previous one on its stream still
    runs.  ``cooperative``: all blocks are resident together, or the launch fails; cupy would ask for the
    occupancy at every launch.
    """

    def __init__(self, function: int, attribute: str) -> None:
        from cuda.bindings import driver

        self._attribute = attribute
        self._driver, self._function = driver, driver.CUfunction(function)
        self._configs: dict[tuple[object, ...], Any] = {}
        self._places: list[int] = []
        """Of the arguments among their bytes: the same at every launch."""

    def __call__(
        self,
        stream: int,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared_bytes: int,
        args: Sequence[Argument],
    ) -> None:
        shape = stream, grid, block, shared_bytes
        config = self._configs.get(shape)
        if config is None:
            config = self._configs[shape] = self._config(*shape)
        parts = [arg.to_bytes(8, "little") if isinstance(arg, int) else arg.tobytes() for arg in args]  # type: ignore[union-attr]
        if not self._places:
            self._places = [0, *itertools.accumulate(map(len, parts[:-1]))]
        values = ctypes.create_string_buffer(b"".join(parts))
        begin = ctypes.addressof(values)
        addresses = (ctypes.c_void_p * len(parts))(*[begin + place for place in self._places])
        (error,) = self._driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(addresses), 0)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuLaunchKernelEx: {error.name}")

    def _config(self, stream: int, grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> Any:
        ids, attribute = self._driver.CUlaunchAttributeID, self._driver.CUlaunchAttribute()
        value = self._driver.CUlaunchAttributeValue()
        if self._attribute == "overlap":
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value.programmaticStreamSerializationAllowed = 1
        else:
            attribute.id, value.cooperative = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1
        attribute.value = value
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
        config.sharedMemBytes = shared_bytes
        config.hStream = self._driver.CUstream(stream)
        config.attrs, config.numAttrs = [attribute], 1
        return config


# --------------------------------------------------------------------------- CPU: the host build


class _HostArgument(ctypes.Structure):
    """``host::Argument`` of host/launch.h."""

    _fields_ = (("bytes", ctypes.c_char_p), ("size", ctypes.c_size_t), ("kind", ctypes.c_char))


class HostKernel:
    """The kernel compiled by g++, its threads run as fibers."""

    def __init__(self, source: str, name: str, cluster: int) -> None:
        self._source, self._name, self._cluster = source, name, cluster
        self._plain = self._built(watched=False)

    @functools.cached_property
    def _watched(self) -> tuple[Path, Any]:
        return self._built(watched=True)

    def _built(self, *, watched: bool) -> tuple[Path, Any]:
        """A build of the kernel, and the function that launches it."""
        library = build.host_kernel(self._source, self._name, watched=watched)
        try:
            return library, ctypes.CDLL(str(library)).host_launch
        except OSError as error:  # the kernel uses what the watching library has no function for
            raise build.BuildError(f"{self._name} cannot be watched: {error}") from None

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Argument], shared_mem: int = 0
    ) -> None:
        packed = (_HostArgument * len(args))(*(self._packed(i, arg) for i, arg in enumerate(args)))
        error = ctypes.create_string_buffer(512)
        library, launch = self._watched if watch.watching.get() else self._plain
        watch.launched.append((library, self._source))
        failed = launch(
            _three(grid),
            _three(block),
            ctypes.c_uint(self._cluster),
            ctypes.c_size_t(shared_mem),
            packed,
            ctypes.c_size_t(len(args)),
            error,
            ctypes.c_size_t(len(error)),
        )
        if failed:
            problem = with_names(error.value.decode(), self._source, self._name)
            raise RuntimeError(f"{self._name}: {watch.with_lines(problem, library, self._source)}")

    def _packed(self, index: int, argument: Argument) -> _HostArgument:
        if isinstance(argument, np.generic):
            kind = {"i": b"i", "u": b"i", "b": b"i", "f": b"f", "V": b"V"}.get(argument.dtype.kind)
            if kind is not None:
                raw = argument.tobytes()
                return _HostArgument(raw, len(raw), kind)
        elif isinstance(argument, int):
            return _HostArgument(argument.to_bytes(8, "little", signed=argument < 0), 8, b"P")
        elif isinstance(argument, float):
            return _HostArgument(np.float64(argument).tobytes(), 8, b"d")
        raise TypeError(
            with_names(
                f"{self._name}: argument {index} is a {type(argument).__name__}", self._source, self._name
            )
            + "; a kernel takes x.data_ptr() of a tensor, or a number such as np.float32(x)"
        )


def _three(sizes: Sequence[int]) -> ctypes.Array[ctypes.c_uint]:
    if max(sizes) >= 1 << 32:  # ctypes would truncate to the lower 32 bits
        raise RuntimeError(f"grid or block {tuple(sizes)}: 32 bits count them")
    return (ctypes.c_uint * 3)(*(*sizes, 1, 1, 1)[:3])


# --------------------------------------------------------------------------- meta: nothing runs


class _MetaKernel:
    """Records the launch for `compare.capture`."""

    def __init__(self, source: str, name: str, cluster: int) -> None:
        self._source = source
        self._name = name
        self._cluster = cluster

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Argument], shared_mem: int = 0
    ) -> None:
        from compare import capture
        from compare.model.op import CudaLaunch

        shape = capture.three(grid), capture.three(block), shared_mem
        capture.record(CudaLaunch(self._source, self._name, *shape, tuple(args), self._cluster))
