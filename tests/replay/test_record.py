"""What a captured graph holds, read through a made-up driver: the order, each kind of node, the refusals."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from cuda.bindings import driver as real

from compare.replay import record
from compare.replay.arena import BASE, GRANULE
from compare.replay.nodes import Copy, CudaSource, KernelLaunch, Memset, Source
from compare.replay.record import NotReplayable, Recorder, chain
from loops import for_each

OK = real.CUresult.CUDA_SUCCESS
SOURCE = CudaSource("code", (), ())
FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"


class FakeGraphDriver:
    """A graph of nodes 1, 2, ... in a row: each a kind, and what the driver tells of it."""

    def __init__(self, *nodes: tuple[str, Any], edges: Sequence[tuple[int, int]] | None = None) -> None:
        self.nodes = nodes
        self.edges = [(n, n + 1) for n in range(1, len(nodes))] if edges is None else edges
        self.early: tuple[int, ...] = ()
        """Nodes that may begin before the one before them ends."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def cuGraphGetNodes(self, graph: int, count: int = 0) -> tuple[Any, ...]:
        return OK, [real.CUgraphNode(n) for n in range(1, count + 1)], len(self.nodes)

    def cuGraphGetEdges(self, graph: int, count: int = 0) -> tuple[Any, ...]:
        ends = [[real.CUgraphNode(edge[side]) for edge in self.edges[:count]] for side in (0, 1)]
        data = [SimpleNamespace(type=int(end in self.early)) for _, end in self.edges[:count]]
        return OK, *ends, data, len(self.edges)

    def told(self, node: Any) -> Any:
        return self.nodes[int(node) - 1][1]

    def cuGraphNodeGetType(self, node: Any) -> tuple[Any, ...]:
        kind = self.nodes[int(node) - 1][0]
        return OK, getattr(real.CUgraphNodeType, f"CU_GRAPH_NODE_TYPE_{kind}")

    def cuGraphMemsetNodeGetParams(self, node: Any) -> tuple[Any, ...]:
        return OK, self.told(node)

    cuGraphMemcpyNodeGetParams = cuGraphKernelNodeGetParams = cuGraphMemsetNodeGetParams

    def cuGraphKernelNodeGetAttribute(self, node: Any, which: Any) -> tuple[Any, ...]:
        return OK, self.told(node).attributes[which.name.removeprefix("CU_LAUNCH_ATTRIBUTE_")]

    def cuFuncGetName(self, function: Any) -> tuple[Any, ...]:
        return OK, self.told(function).name.encode()

    def cuFuncGetModule(self, function: Any) -> tuple[Any, ...]:
        return OK, real.CUmodule(self.told(function).module)

    def cuFuncGetParamInfo(self, function: Any, index: int) -> tuple[Any, ...]:
        sizes = self.told(function).sizes
        if index < len(sizes):
            return OK, 0, sizes[index]
        return real.CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0

    def cuPointerGetAttribute(self, which: Any, address: int) -> tuple[Any, ...]:
        return (OK if address == 0x7F00_0000_0000 else real.CUresult.CUDA_ERROR_INVALID_VALUE), None


def kernel(
    number: int, *parameters: bytes, name: str = "k", module: int = 7, **attributes: Any
) -> tuple[str, Any]:
    """What the driver tells of a launch; ``number``: of the node, which stands for the function as well."""
    held = [ctypes.create_string_buffer(value, len(value)) for value in parameters]
    pointers = np.array([ctypes.addressof(each) for each in held], np.uint64)
    told = SimpleNamespace(
        func=real.CUfunction(number),
        kernelParams=pointers.ctypes.data,
        held=(held, pointers),
        **dict(zip(("gridDimX", "gridDimY", "gridDimZ"), (4, 2, 1), strict=True)),
        **dict(zip(("blockDimX", "blockDimY", "blockDimZ"), (128, 1, 1), strict=True)),
        sharedMemBytes=1024,
        name=name,
        module=module,
        sizes=list(map(len, parameters)),
        attributes={
            "CLUSTER_DIMENSION": SimpleNamespace(
                clusterDim=SimpleNamespace(x=attributes.get("cluster", 0), y=1, z=1)
            ),
            "COOPERATIVE": SimpleNamespace(cooperative=attributes.get("cooperative", 0)),
        },
    )
    return "KERNEL", told


def memset(address: int, height: int = 1) -> tuple[str, Any]:
    return "MEMSET", SimpleNamespace(
        dst=real.CUdeviceptr(address), value=3, elementSize=2, width=8, height=height
    )


def memcpy(origin: int, address: int, height: int = 1, kind: str = "DEVICE") -> tuple[str, Any]:
    memory = getattr(real.CUmemorytype, f"CU_MEMORYTYPE_{kind}")
    return "MEMCPY", SimpleNamespace(
        srcDevice=real.CUdeviceptr(origin),
        dstDevice=real.CUdeviceptr(address),
        WidthInBytes=64,
        Height=height,
        Depth=1,
        srcMemoryType=memory,
        dstMemoryType=real.CUmemorytype.CU_MEMORYTYPE_DEVICE,
    )


def pointer(address: int) -> bytes:
    return address.to_bytes(8, "little")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    arena, sources = mock.Mock(nbytes=4 * GRANULE), mock.Mock()
    sources.of.side_effect = {7: SOURCE}.get
    with mock.patch("torch.cuda.Stream"):
        yield Recorder(arena, mock.Mock(), sources)


def nodes_of(recorder: Recorder, fake: FakeGraphDriver) -> list[Any]:
    found: list[Source] = []
    with mock.patch.object(record, "driver", fake):
        return [recorder._node(node, overlap, found) for node, overlap in chain(0)]


def test_every_kind_of_node_is_read(recorder: Recorder) -> None:
    fake = FakeGraphDriver(
        memset(BASE + 512),
        kernel(2, pointer(BASE), b"\x05\0\0\0", bytes(128), cluster=2),
        memcpy(BASE, BASE + 1024),
        kernel(4, cooperative=1),
    )
    fake.early = (4,)
    grid = (4, 2, 1), (128, 1, 1)
    assert nodes_of(recorder, fake) == [
        Memset(BASE + 512, 3, 2, 8),
        KernelLaunch(
            "k", 0, *grid, (2, 1, 1), 1024, False, False, (pointer(BASE), b"\x05\0\0\0", bytes(128))
        ),
        Copy(BASE, BASE + 1024, 64),
        KernelLaunch("k", 0, *grid, (0, 1, 1), 1024, True, True, ()),
    ]


def test_pytorchs_fill_is_a_memset(recorder: Recorder) -> None:
    def filled(value: bytes, count: int = 6) -> list[Any]:
        parameters = count.to_bytes(4, "little"), value, pointer(BASE)
        return nodes_of(recorder, FakeGraphDriver(kernel(1, *parameters, name=FILL, module=8)))

    assert filled(b"\0\0\x80\x3f") == [Memset(BASE, 0x3F80_0000, 4, 6)]
    assert filled(b"\x05") == [Memset(BASE, 5, 1, 6)]
    assert filled(bytes(8)) == [Memset(BASE, 0, 4, 12)]
    with pytest.raises(NotReplayable, match="FillFunctor"):
        filled(bytes(7) + b"\x01")  # eight bytes that are not twice the same four
    with pytest.raises(NotReplayable, match="FillFunctor"):
        filled(bytes(4), 1 << 30)


REFUSED: dict[str, tuple[tuple[str, Any], str]] = {
    "library": (kernel(1, name="ampere_sgemm_128x64", module=9), "ampere_sgemm_128x64, a library's kernel"),
    "outside": (kernel(1, pointer(0x7F00_0000_0000)), "k takes memory that was not allocated by PyTorch"),
    "in a struct": (kernel(1, bytes(8) + pointer(0x7F00_0000_0000)), "not allocated by PyTorch"),
    "host": (("HOST", None), "a host callback: compute on the GPU only"),
    "graph": (("GRAPH", None), "another graph"),
    "allocation": (("MEM_ALLOC", None), "allocate by PyTorch"),
    "event": (("EVENT_RECORD", None), "an event"),
    "condition": (("CONDITIONAL", None), "the same kernels for all inputs"),
    "semaphore": (("EXT_SEMAS_WAIT", None), "EXT_SEMAS_WAIT"),
    "memset of rows": (memset(BASE, height=2), "fill contiguous memory"),
    "memset elsewhere": (memset(BASE + 4 * GRANULE), "fills memory that it did not allocate"),
    "copy of rows": (memcpy(BASE, BASE, height=2), "copy contiguous memory"),
    "copy from the host": (memcpy(BASE, BASE, kind="HOST"), "from or to the host"),
    "copy from elsewhere": (memcpy(512, BASE), "copies from or to memory that it did not allocate"),
}


@for_each("what", REFUSED)
def test_what_cannot_be_replayed_is_refused_by_name(recorder: Recorder, what: str) -> None:
    node, why = REFUSED[what]
    with pytest.raises(NotReplayable, match=why):
        nodes_of(recorder, FakeGraphDriver(node))


@for_each(
    "count, edges",
    [(2, []), (3, [(1, 2), (1, 3)]), (3, [(1, 3), (2, 3)]), (4, [(1, 2), (1, 3), (2, 4), (3, 4)])],
)
def test_only_a_chain_is_replayed(recorder: Recorder, count: int, edges: list[tuple[int, int]]) -> None:
    with pytest.raises(NotReplayable, match="no chain: use torch's current stream only"):
        nodes_of(recorder, FakeGraphDriver(*[memset(BASE)] * count, edges=edges))


def test_a_chain_is_read_in_its_own_order(recorder: Recorder) -> None:
    """The driver may list nodes in any."""
    nodes = [memset(BASE + 1024), memset(BASE + 512), memset(BASE)]
    found = nodes_of(recorder, FakeGraphDriver(*nodes, edges=[(2, 1), (3, 2)]))
    assert [node.address - BASE for node in found] == [0, 512, 1024]
    assert nodes_of(recorder, FakeGraphDriver()) == []


def test_an_output_lies_in_the_arena(recorder: Recorder) -> None:
    for output in (torch.ones(1), None):
        with pytest.raises(NotReplayable, match="no plain tensor that its call allocated"):
            recorder._output(output)
