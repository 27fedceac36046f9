"""The floor of each route's launch overhead: an output and an empty kernel, launched hot, nothing checked.

An implementation's launch overhead above its route's floor is its own: checks, strides, grids, more kernels.
"""

from __future__ import annotations

import gc
import importlib
import statistics
from collections.abc import Callable, Mapping

import torch

from compare.timing.stopwatch import Call, CudaStopwatch, Stopwatch
from cuda_impl import build, pybind

LIMIT_S = 1.0
"""For one route: its 275 calls take a few milliseconds."""

_EMPTY = 'extern "C" __global__ void floor_kernel(const float* x, float* y) {}'


def floors_us(
    device: torch.device, watch: Stopwatch | None = None, routes: Mapping[str, Route] | None = None
) -> dict[str, float]:
    """Microseconds by route; a route that cannot be built here is left out.

    Args:
        device: a GPU.
        watch: the clock; None: the GPU's.
        routes: for each one, what makes its call; None: all.
    """
    clock, x = watch or CudaStopwatch(device), torch.ones(64, 256, device=device)
    floors: dict[str, float] = {}
    gc.disable()  # a collection during a launch would delay the host
    try:
        for route, make in (routes or ROUTES).items():
            try:
                call = make(x)
                call()
            except (ImportError, build.BuildError):
                continue
            if host_us := clock.hot(call, LIMIT_S).host_us:
                floors[route] = round(statistics.median(host_us), 3)
    finally:
        gc.enable()
    return floors


Route = Callable[[torch.Tensor], Call]


def _torch(x: torch.Tensor) -> Call:
    """PyTorch has no empty kernel: an elementwise one in its place."""
    return lambda: torch.neg(x)


def _triton(x: torch.Tensor) -> Call:
    triton = importlib.import_module("triton")

    def floor_kernel(x_ptr, y_ptr):  # type: ignore[no-untyped-def]
        pass

    kernel = triton.jit(floor_kernel)
    return lambda: kernel[(1,)](x, torch.empty_like(x))


def _cupy(x: torch.Tensor) -> Call:
    kernel = build.cupy().RawKernel(_EMPTY, "floor_kernel")
    return lambda: kernel((1,), (32,), (x.data_ptr(), torch.empty_like(x).data_ptr()))


def _pybind(x: torch.Tensor) -> Call:
    launched = pybind.module("floor", x.device, "fp32").launched
    return lambda: launched(x)


ROUTES: Mapping[str, Route] = {"torch": _torch, "triton": _triton, "cupy": _cupy, "pybind": _pybind}
