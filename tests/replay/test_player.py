"""What the player asks of the driver, which is made up, and what it does to an arena's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from cuda.bindings import driver as real
from msgspec.structs import replace

from compare.checking.guarded_memory import POISON
from compare.replay import player
from compare.replay.arena import BASE
from compare.replay.nodes import (
    ArenaOutput,
    Copy,
    CudaSource,
    Kept,
    KernelLaunch,
    Memset,
    Recording,
    TritonSource,
)
from compare.replay.player import Player

OK = real.CUresult.CUDA_SUCCESS
INPUTS_BYTES, USED_BYTES = 1024, 4096
KERNEL = KernelLaunch(
    "k", 0, (4, 2, 1), (128, 1, 1), (0, 0, 0), 1024, False, False, (b"\x01\x02\x03\x04", bytes(range(8)))
)
RECORDING = Recording(
    (Memset(BASE + 1024, 0x1_02_03, 2, 8), KERNEL, Copy(BASE, BASE + 2048, 64)),
    (CudaSource("code", (), ()), TritonSource("module", "ttir", {})),
    (ArenaOutput(BASE + 1024, "float32", (2, 3), (4, 1)),),
    (Kept(BASE + 3072, b"kept"),),
    USED_BYTES,
)


class FakeDriver:
    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.set: list[tuple[str, int]] = []
        self.refused = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):
            return getattr(real, name)

        def enqueued(*arguments: Any) -> tuple[Any, ...]:
            self.asked.append((name, *map(int, arguments[:-1]), int(arguments[-1])))
            return (OK,)

        return enqueued

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        return OK, image

    def cuModuleGetFunction(self, module: bytes, name: bytes) -> tuple[Any, ...]:
        return (OK, (module, name)) if name == b"k" else (real.CUresult.CUDA_ERROR_NOT_FOUND, None)

    def cuFuncGetAttribute(self, which: Any, function: Any) -> tuple[Any, ...]:
        return OK, 40 << 10

    def cuFuncSetAttribute(self, function: Any, which: Any, value: int) -> tuple[Any, ...]:
        self.set.append((which.name.removeprefix("CU_FUNC_ATTRIBUTE_"), value))
        return (OK,)

    def cuFuncSetCacheConfig(self, function: Any, which: Any) -> tuple[Any, ...]:
        self.set.append((which.name, 0))
        return (OK,)

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: int) -> tuple[Any, ...]:
        pointers = (ctypes.c_void_p * 2).from_address(parameters)
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        attributes = [each.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_") for each in config.attrs or []]
        values = [ctypes.string_at(pointer or 0, n) for pointer, n in zip(pointers, (4, 8), strict=True)]
        shape = grid, config.blockDimX, config.sharedMemBytes
        self.asked.append((function, *shape, int(config.hStream), attributes, *values))
        return (real.CUresult.CUDA_ERROR_INVALID_VALUE if self.refused else OK,)


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    found = FakeDriver()
    stream = SimpleNamespace(cuda_stream=77)
    with (
        mock.patch.object(player, "driver", found),
        mock.patch("torch.cuda.current_stream", return_value=stream),
    ):
        yield found


def made(recording: Recording = RECORDING) -> tuple[Player, Any]:
    """A player, and its arena in the host's memory."""
    memory = torch.zeros(USED_BYTES, dtype=torch.uint8)

    def part(start: int, nbytes: int) -> torch.Tensor:
        return torch.frombuffer(memory.numpy(), dtype=torch.uint8, count=nbytes, offset=start)

    arena = SimpleNamespace(device=memory.device, bytes=memory, part=part)
    return Player(recording, [b"cuda", b"triton"], arena, INPUTS_BYTES), arena  # type: ignore[arg-type]


def test_nodes_are_enqueued_in_their_order_on_the_current_stream(fake: FakeDriver) -> None:
    found, _ = made()
    found(torch.ones(1), option=3)
    assert fake.asked == [
        ("cuMemsetD16Async", BASE + 1024, 0x0203, 8, 77),
        ((b"cuda", b"k"), (4, 2, 1), 128, 1024, 77, [], b"\x01\x02\x03\x04", bytes(range(8))),
        ("cuMemcpyDtoDAsync", BASE + 2048, BASE, 64, 77),
    ]
    assert fake.set == []  # 41 KiB of shared memory need no permission


def test_launch_attributes_and_permissions_are_those_recorded(fake: FakeDriver) -> None:
    kernel = replace(
        KERNEL, source=1, cluster=(16, 1, 1), shared_bytes=9 << 10, cooperative=True, overlap=True
    )
    found, _ = made(replace(RECORDING, nodes=(kernel,)))
    found()
    ((function, *_, attributes, _, _),) = fake.asked
    assert function == (b"triton", b"k")
    assert attributes == ["CLUSTER_DIMENSION", "COOPERATIVE", "PROGRAMMATIC_STREAM_SERIALIZATION"]
    assert fake.set == [
        ("CU_FUNC_CACHE_PREFER_SHARED", 0),
        ("MAX_DYNAMIC_SHARED_SIZE_BYTES", 9 << 10),
        ("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1),
    ]


def test_a_kernel_that_its_source_does_not_have_is_refused(fake: FakeDriver) -> None:
    """A library's kernel under the name of a source of one's own."""
    with pytest.raises(RuntimeError, match="ampere_sgemm in its own source"):
        made(replace(RECORDING, nodes=(replace(KERNEL, name="ampere_sgemm"),)))


def test_a_launch_that_the_driver_refuses_raises(fake: FakeDriver) -> None:
    found, _ = made()
    fake.refused = "launches"
    with pytest.raises(RuntimeError, match="replaying: CUDA_ERROR_INVALID_VALUE"):
        found()


def test_outputs_lie_at_their_addresses(fake: FakeDriver) -> None:
    found, arena = made()
    arena.part(1024, 32).view(torch.float32).copy_(torch.arange(8))
    assert found().tolist() == [[0, 1, 2], [4, 5, 6]]
    several, _ = made(
        replace(RECORDING, outputs=(*RECORDING.outputs, ArenaOutput(0, "int64", (0, 3), (3, 1))))
    )
    assert [tuple(x.shape) for x in several()] == [(2, 3), (0, 3)]


def test_nothing_is_left_from_one_replay_to_the_next(fake: FakeDriver) -> None:
    """All but the inputs is poisoned, and what was allocated before the call is as the call found it."""
    found, arena = made()
    arena.bytes.fill_(5)
    found.reset()
    assert arena.part(0, INPUTS_BYTES).eq(5).all()
    assert bytes(arena.part(3072, 4).tolist()) == b"kept"
    poisoned = arena.part(INPUTS_BYTES, USED_BYTES - INPUTS_BYTES).view(torch.int16).eq(POISON)
    assert poisoned.sum() == (USED_BYTES - INPUTS_BYTES - 4) // 2
