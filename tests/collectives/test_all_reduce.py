"""all_reduce's kernels on one device, where each rank has its own memory and, on a GPU, its own stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from compare import registry
from compare.arguments import MESSAGES, RANK_BLOCKS
from compare.collectives import memory
from compare.inputs import TORCH_DTYPES
from compare.model.op import Implementation

CALLS = 24
SIZES = (1, 7, 1025, 4096, 60_001)
"""The grids of two ranks, and of four with at most 30,001 elements, are resident on one GPU."""


@dataclass
class Arguments:
    """What one rank's kernels get."""

    shared: torch.Tensor
    x: torch.Tensor
    peers: torch.Tensor
    epochs: torch.Tensor
    layout: memory.Layout

    def receive(self, inputs: torch.Tensor) -> None:
        """As if all ranks had sent the messages of the first epoch."""
        buffers = self.shared[self.layout.receive_buffers : self.layout.flags].view(torch.int64)
        buffers = buffers.view(RANK_BLOCKS, 2, len(inputs), MESSAGES)
        for rank, x in enumerate(inputs):
            words = torch.zeros(RANK_BLOCKS * MESSAGES, dtype=torch.int32)
            words.view(x.dtype)[: len(x)] = x
            buffers[:, 1, rank] = (1 << 32) | (words.long() & 0xFFFFFFFF).view(RANK_BLOCKS, -1)


def ranks_of(count: int, N: int, dtype: torch.dtype, device: torch.device) -> list[Arguments]:
    layout = memory.Layout(count, N * dtype.itemsize)
    shared = [torch.zeros(layout.nbytes, dtype=torch.uint8, device=device) for _ in range(count)]
    addresses = [each.data_ptr() for each in shared]
    return [
        Arguments(
            each,
            each[: N * dtype.itemsize].view(dtype),
            layout.peers(addresses, device),
            memory.new_epochs(device),
            layout,
        )
        for each in shared
    ]


def own(*routes: str) -> list[Any]:
    impls = registry.implementations("all_reduce")
    return [pytest.param(impl, id=impl.label) for impl in impls if impl.route in routes]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [2, 4])  # a GPU has eight queues, and streams may share one
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("impl", own("triton", "cupy", "pybind"))
def test_ranks_on_streams_of_one_gpu_get_the_same_sums(impl: Implementation, dtype: str, count: int):
    """Inputs change from call to call, and a rank is late at random: a missing barrier gives an older sum."""
    device, of = torch.device("cuda"), TORCH_DTYPES[dtype]
    generator = torch.Generator(device).manual_seed(count)
    streams = [torch.cuda.Stream() for _ in range(count)]
    for N in SIZES if count == 2 else (4096, 30_001):
        ranks = ranks_of(count, N, of, device)
        inputs = torch.randn(CALLS, count, N, device=device, generator=generator).to(of)
        outputs = torch.full_like(inputs, float("nan"))
        late = torch.randint(0, 200_000, (CALLS, count)).tolist()
        for stream in streams:  # memory for outputs: to allocate more would wait for kernels that wait
            with torch.cuda.stream(stream):
                torch.empty_like(inputs[0, 0])
        torch.cuda.synchronize()
        for number, rank in enumerate(ranks):
            with torch.cuda.stream(streams[number]):
                for call in range(CALLS):
                    torch.cuda._sleep(late[call][number])
                    rank.x.copy_(inputs[call, number])
                    outputs[call, number] = impl.run(rank.x, rank.peers, rank.epochs, rank=number)
        torch.cuda.synchronize()
        assert torch.equal(outputs, outputs[:, :1].expand_as(outputs))
        torch.testing.assert_close(outputs[:, 0], inputs.double().sum(1).to(of))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("impl", own("cupy", "pybind"))
def test_a_cpu_runs_one_rank_after_another(impl: Implementation, dtype: str):
    """With all flags set, and all messages there, before."""
    of = TORCH_DTYPES[dtype]
    for count, N in (*((2, N) for N in SIZES), (4, 1025), (8, 1025)):
        ranks = ranks_of(count, N, of, torch.device("cpu"))
        inputs = torch.randn(count, N, generator=torch.Generator().manual_seed(N)).to(of)
        for rank, x in zip(ranks, inputs, strict=True):
            rank.x.copy_(x)
            rank.shared[rank.layout.flags :] = 127  # epochs that no call reaches
            rank.receive(inputs)
        sums = inputs.double().sum(0).to(of)
        for number, rank in enumerate(ranks):
            buffers = rank.shared[: rank.layout.flags].clone()
            y = impl.run(rank.x, rank.peers, rank.epochs, rank=number)
            if impl.variant != "two_shot":
                torch.testing.assert_close(y, sums)
                assert torch.equal(buffers, rank.shared[: rank.layout.flags])  # sent is what was there
        if impl.variant == "two_shot":
            for rank in ranks:
                torch.testing.assert_close(rank.x, sums)
