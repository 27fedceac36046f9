"""Records one call: captures it as a CUDA graph, and reads the graph's nodes by the driver.

What cannot be replayed is refused by name, with the way out.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from cuda.bindings import driver

from compare.checking.stage import tensors_of
from compare.replay.arena import BASE, Arena, Pool, checked
from compare.replay.nodes import ArenaOutput, Copy, Kept, KernelLaunch, Memset, Node, Recording, Source, words
from compare.replay.sources import Sources

_WARM_UP = 2
"""Calls before the recorded one: they compile, search for configurations and allocate what stays."""

_REFUSED = {
    "HOST": "a host callback: compute on the GPU only",
    "GRAPH": "another graph: launch its kernels by themselves",
    "EMPTY": "an empty node: use torch's current stream only",
    "WAIT_EVENT": "an event wait: use torch's current stream only",
    "EVENT_RECORD": "an event: leave events out of the call",
    "MEM_ALLOC": "a stream-ordered allocation: allocate by PyTorch",
    "MEM_FREE": "a stream-ordered free: allocate by PyTorch",
    "CONDITIONAL": "a conditional node: launch the same kernels for all inputs",
}
"""By kind of node."""
_FILL = re.compile(r"vectorized_elementwise_kernel.*FillFunctor")
"""PyTorch's kernel of ``fill_`` and ``zeros``: element count, value, address."""


class NotReplayable(Exception):
    """The call cannot be recorded; the text says what stands in the way."""


class Recorder:
    """Records calls on inputs in an arena."""

    def __init__(self, arena: Arena, pool: Pool, sources: Sources) -> None:
        self._arena, self._pool, self._sources = arena, pool, sources
        self._stream = torch.cuda.Stream(arena.device)

    def allocating(self) -> AbstractContextManager[None]:
        """What this thread allocates within is part of recordings."""
        return self._pool.used()

    def record(self, call: Callable[[], Any]) -> Recording:
        """One call.

        Raises:
            NotReplayable: it cannot be captured, or holds what cannot be replayed.
            Exception: what the call raised.
        """
        current = torch.cuda.current_stream(self._arena.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), self._pool.used():
            for _ in range(_WARM_UP):
                call()
        torch.cuda.synchronize(self._arena.device)
        gc.collect()
        kept = tuple(self._kept(*each) for each in self._pool.live())
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        try:
            with torch.cuda.graph(
                graph, pool=self._pool.id, stream=self._stream, capture_error_mode="thread_local"
            ):
                returned = call()
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise NotReplayable(f"its call cannot be captured as a CUDA graph: {reason}") from error
        current.wait_stream(self._stream)
        outputs = tuple(map(self._output, tensors_of(returned)))
        sources: list[Source] = []
        nodes = tuple(self._node(node, overlap, sources) for node, overlap in chain(graph.raw_cuda_graph()))
        return Recording(nodes, tuple(sources), outputs, kept, self._pool.end)

    def _kept(self, address: int, nbytes: int) -> Kept:
        content = self._arena.part(address - BASE, nbytes).cpu().numpy().tobytes()
        return Kept(address, content)

    def _output(self, x: Any) -> ArenaOutput:
        if type(x) is not torch.Tensor or not self._has(x.data_ptr(), 0):
            raise NotReplayable("its output is no plain tensor that its call allocated by PyTorch")
        return ArenaOutput(x.data_ptr(), str(x.dtype).removeprefix("torch."), tuple(x.shape), x.stride())

    def _has(self, address: int, nbytes: int) -> bool:
        return BASE <= address <= address + nbytes <= BASE + self._arena.nbytes

    def _node(self, node: Any, overlap: bool, sources: list[Source]) -> Node:
        kind = checked(driver.cuGraphNodeGetType(node), "a graph's node")
        name = kind.name.removeprefix("CU_GRAPH_NODE_TYPE_")
        if name == "KERNEL":
            return self._kernel(node, overlap, sources)
        if name == "MEMSET":
            return self._memset(checked(driver.cuGraphMemsetNodeGetParams(node), "a memset"))
        if name == "MEMCPY":
            return self._copy(checked(driver.cuGraphMemcpyNodeGetParams(node), "a copy"))
        raise NotReplayable(f"its call has {_REFUSED.get(name, f'a node of the kind {name}')}")

    def _memset(self, params: Any) -> Memset:
        count, address = int(params.width), int(params.dst)
        if int(params.height) > 1:
            raise NotReplayable("its call has a memset of separate rows: fill contiguous memory")
        if not self._has(address, count * params.elementSize):
            raise NotReplayable("its call fills memory that it did not allocate by PyTorch")
        return Memset(address, int(params.value), params.elementSize, count)

    def _copy(self, params: Any) -> Copy:
        nbytes, origin, address = int(params.WidthInBytes), int(params.srcDevice), int(params.dstDevice)
        of_host = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        if of_host in (params.srcMemoryType, params.dstMemoryType):
            raise NotReplayable("its call copies from or to the host: keep constants in parameters")
        if max(params.Height, params.Depth) > 1:
            raise NotReplayable("its call copies separate rows: copy contiguous memory, or by a kernel")
        if not (self._has(origin, nbytes) and self._has(address, nbytes)):
            raise NotReplayable("its call copies from or to memory that it did not allocate by PyTorch")
        return Copy(origin, address, nbytes)

    def _kernel(self, node: Any, overlap: bool, sources: list[Source]) -> KernelLaunch | Memset:
        params = checked(driver.cuGraphKernelNodeGetParams(node), "a kernel's launch")
        function = params.func
        if not int(function):
            function = checked(driver.cuKernelGetFunction(params.kern), "a kernel's function")
        name = checked(driver.cuFuncGetName(function), "a kernel's name").decode()
        error, module = driver.cuFuncGetModule(function)  # a library's may have none
        source = self._sources.of(int(module)) if error == driver.CUresult.CUDA_SUCCESS else None
        if source is None:
            filled = parameters_of(function, int(params.kernelParams)) if _FILL.search(name) else []
            if filling := self._filling(filled):
                return filling
            raise NotReplayable(
                f"its call launches {name[:120]}, a library's kernel: not compiled from its source"
            )
        parameters = parameters_of(function, int(params.kernelParams))
        for word in (word for parameter in parameters for word in words(parameter)):
            if not self._has(word, 0) and _is_memory(word):
                raise NotReplayable(f"{name} takes memory that was not allocated by PyTorch in its thread")
        if source not in sources:
            sources.append(source)
        cluster = _attribute(node, "CLUSTER_DIMENSION").clusterDim
        return KernelLaunch(
            name,
            sources.index(source),
            (params.gridDimX, params.gridDimY, params.gridDimZ),
            (params.blockDimX, params.blockDimY, params.blockDimZ),
            (cluster.x, cluster.y, cluster.z),
            params.sharedMemBytes,
            bool(_attribute(node, "COOPERATIVE").cooperative),
            overlap,
            tuple(parameters),
        )

    def _filling(self, parameters: Sequence[bytes]) -> Memset | None:
        """PyTorch's ``fill_`` as a memset; None where it is none."""
        if list(map(len, parameters))[::2] != [4, 8]:
            return None
        count, value, address = parameters
        size, times = len(value), 1
        if size == 8 and value[:4] == value[4:]:
            size, times = 4, 2
        filling = Memset(
            int.from_bytes(address, "little"),
            int.from_bytes(value[:size], "little"),
            size,  # type: ignore[arg-type]
            int.from_bytes(count, "little") * times,
        )
        known = size in (1, 2, 4) and self._has(filling.address, filling.count * size)
        return filling if known else None


def parameters_of(function: Any, addresses: int) -> list[bytes]:
    """The parameters of a kernel's launch.

    Args:
        function: a CUfunction.
        addresses: of an array of pointers, one for each parameter.
    """
    values: list[bytes] = []
    while True:
        error, _, size = driver.cuFuncGetParamInfo(function, len(values))
        if error != driver.CUresult.CUDA_SUCCESS:  # there are no more
            return values
        if not addresses:
            raise NotReplayable("a kernel is launched with a buffer of arguments: pass them one by one")
        at = ctypes.c_void_p.from_address(addresses + 8 * len(values)).value
        assert at is not None
        values.append(ctypes.string_at(at, size))


def _attribute(node: Any, name: str) -> Any:
    """A launch's attribute; zeros where the GPU does not know it."""
    which = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    error, value = driver.cuGraphKernelNodeGetAttribute(node, which)
    return value if error == driver.CUresult.CUDA_SUCCESS else driver.CUlaunchAttributeValue()


def _is_memory(word: int) -> bool:
    """Whether CUDA knows a number as an address: of the device, of managed or of pinned host memory."""
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    return bool(word and driver.cuPointerGetAttribute(kind, word)[0] == driver.CUresult.CUDA_SUCCESS)


def chain(graph: int) -> list[tuple[Any, bool]]:
    """A graph's nodes in their order, and whether each may begin before the one before it ends.

    Raises:
        NotReplayable: they are no chain.
    """
    _, count = checked(driver.cuGraphGetNodes(graph), "a graph's nodes")
    nodes, _ = checked(driver.cuGraphGetNodes(graph, count), "a graph's nodes")
    *_, edges = checked(driver.cuGraphGetEdges(graph), "a graph's edges")
    begins, ends, data, _ = checked(driver.cuGraphGetEdges(graph, edges), "a graph's edges")
    after: dict[int, tuple[Any, bool]] = {}
    early = driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
    for begin, end, each in zip(begins[:edges], ends[:edges], data[:edges], strict=True):
        after[int(begin)] = end, driver.CUgraphDependencyType(each.type) == early
    targets = {int(end) for end, _ in after.values()}
    roots = [node for node in nodes[:count] if int(node) not in targets]
    if not len(roots) == 1 == count - edges or len(after) != edges or len(targets) != edges:
        if count == 0:
            return []
        raise NotReplayable("its GPU operations are no chain: use torch's current stream only")
    order = [(roots[0], False)]
    while int(order[-1][0]) in after:
        order.append(after[int(order[-1][0])])
    return order
