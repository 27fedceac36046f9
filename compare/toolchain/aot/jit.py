"""The same call from Python, in a process of its own, started by `running`.

It reads its order as JSON from stdin, takes the same files as the program without Python, and prints the same
lines.  It imports only what the call needs: imports take most of the start.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable

import torch

SAMPLES, LAUNCHES = 50, 100  # as compare/toolchain/aot/program/main.c


def main() -> None:
    order = json.load(sys.stdin)
    device = torch.device("cuda", torch.cuda.current_device())
    run = getattr(importlib.import_module(order["module"]), order["function"])
    inputs = [_read(device, *layout) for layout in order["inputs"]]
    host = run(*inputs).cpu()
    print("first_result_ns", time.monotonic_ns())
    del host
    if not order["timed"]:
        return

    def call() -> None:
        run(*inputs)

    replay = _graph(call)
    for one in (call, replay):
        _host_us(one)
    for _ in range(SAMPLES):
        print("launch_us", _host_us(call))
        print("graph_us", _host_us(replay))


def _read(
    device: torch.device, file: str, dtype: str, shape: list[int], strides: list[int], offset: int
) -> torch.Tensor:
    """The tensor in the bytes of ``file``, with the strides and offset that it was written with."""
    with open(file, "rb") as opened:  # noqa: PTH123 - pathlib is not needed otherwise
        data = bytearray(opened.read())
    storage = torch.frombuffer(data, dtype=torch.uint8).to(device).untyped_storage()
    return torch.empty(0, dtype=getattr(torch, dtype), device=device).set_(storage, offset, shape, strides)


def _graph(call: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()  # what a call sets up on a stream it has not seen cannot be captured
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    replay: Callable[[], None] = graph.replay
    return replay


def _host_us(call: Callable[[], None]) -> float:
    """Microseconds of the host's time for one of LAUNCHES calls in a row."""
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(LAUNCHES):
        call()
    end = time.perf_counter_ns()
    torch.cuda.synchronize()
    return (end - begin) / LAUNCHES / 1000


if __name__ == "__main__":
    main()
