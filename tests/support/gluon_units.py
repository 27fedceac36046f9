"""Gluon without a GPU: what some kernels use of it, on tensors of the CPU and a thread per partition.

Gluon has no interpreter.  Here mbarriers count arrivals and bytes and have phases, copies by TMA land at some
later time, and a product reads its operands in shared memory as late as it may: at the wait for it.  So a
phase that is wrong, a stage that is released too early and a deadlock show.  Layouts are ignored, and with
them which block of a cluster has what.
"""

from __future__ import annotations

import random
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

PATIENCE_S = 30.0
"""A wait that takes longer is a deadlock."""

NAN_BITS = 0x7FFFFFFF
"""Of the NaN that every fp32 instruction of a GPU returns."""


class Barrier:
    """An mbarrier: a phase ends when all arrivals and bytes that it expects are there."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.pending = self.bytes = self.phase = 0

    def init(self, count: int) -> None:
        self.count = self.pending = count

    def add(self, arrivals: int, expected_bytes: int) -> None:
        with self.changed:
            self.pending -= arrivals
            self.bytes += expected_bytes
            assert self.pending >= 0, "more arrivals than the mbarrier counts"
            if self.pending == self.bytes == 0:
                self.pending = self.count
                self.phase += 1
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            done = self.changed.wait_for(lambda: self.phase & 1 != parity, PATIENCE_S)
        assert done, f"deadlock: {threading.current_thread().name} waits for parity {parity}"


class Shared:
    """Shared memory, or a view of it; of int64, mbarriers."""

    def __init__(self, data: torch.Tensor, barriers: Sequence[Barrier] = ()) -> None:
        self.data, self.barriers = data, barriers
        self.shape, self.dtype = list(data.shape), data.dtype

    def index(self, i: int) -> Any:
        assert 0 <= i < self.shape[0]
        return self.barriers[i] if self.barriers else Shared(self.data[i])

    def reshape(self, shape: Sequence[int]) -> Shared:
        return Shared(self.data.view(shape))

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.data.permute(order))

    def store(self, value: torch.Tensor) -> None:
        linger()
        self.data.copy_(value)

    def load(self, layout: object) -> torch.Tensor:
        return self.data.clone()


class Values(torch.Tensor):
    """A tensor in registers."""

    def __iadd__(self, other: Any) -> Any:  # another name of the old values keeps them
        return self + other

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> torch.Tensor:  # type: ignore[override]
        if not bitcast:
            return super().to(dtype)
        bits = self.view(dtype)
        return torch.where(self.isnan(), NAN_BITS, bits) if dtype is torch.int32 else bits


class Scalar(int):
    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Any:
        return torch.tensor(int(self), dtype=torch.int32).view(dtype).item() if bitcast else self


class TensorPointer:
    def __init__(self, data: torch.Tensor, offset: Any = 0) -> None:
        self.data, self.offset = data, offset

    def __add__(self, offset: Any) -> TensorPointer:
        return TensorPointer(self.data, self.offset + offset)


class Descriptor:
    """Of x[B,H,S,D]; a tile is ``rows`` rows of a head."""

    layout = None

    def __init__(self, data: torch.Tensor, rows: int) -> None:
        self.data, self.rows, self.dtype = data, rows, data.dtype
        self.block_type = types.SimpleNamespace(shape=[1, 1, rows, data.shape[3]])

    def inside(self, at: Sequence[int]) -> torch.Tensor:
        b, h, first, _ = at
        return self.data[b, h, first : first + self.rows]


class MatrixDescriptor(Descriptor):
    """Of x[M,N], whose columns are whole boxes."""

    def __init__(self, data: torch.Tensor, rows: int, columns: int) -> None:
        self.data, self.rows, self.dtype, self.block_shape = data, rows, data.dtype, [rows, columns]

    def inside(self, at: Sequence[int]) -> torch.Tensor:
        row, column = at
        return self.data[row : row + self.rows, column : column + self.block_shape[1]]


here = threading.local()


def linger() -> None:
    """Now and then, so that partitions meet in other orders."""
    if random.random() < 0.2:
        time.sleep(random.random() * 0.002)


def later(action: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        linger()
        action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def load_by_tma(desc: Descriptor, at: Sequence[int], barrier: Barrier, to: Shared) -> None:
    def copy() -> None:
        rows, tile = desc.inside(at), to.data.view(desc.rows, -1)
        tile[: len(rows)] = rows
        tile[len(rows) :] = 0
        barrier.add(0, -tile.numel() * tile.element_size())

    later(copy)


def store_by_tma(desc: Descriptor, at: Sequence[int], tile: Shared) -> None:
    rows = desc.inside(at)
    here.stores.append(later(lambda: rows.copy_(tile.data.view(desc.rows, -1)[: len(rows)])))


def store_wait(pending: int) -> None:
    while len(here.stores) > pending:
        here.stores.pop(0).join()


def product(a: Any, b: Shared, acc: torch.Tensor, use_acc: bool = True, is_async: bool = True) -> Any:
    left = (lambda: a.data) if isinstance(a, Shared) else (lambda: a)
    return lambda: (left().float() @ b.data.float() + (acc if use_acc else 0)).as_subclass(Values)


def finished(product: Any) -> torch.Tensor:
    """Of one that was waited for before, the same."""
    return product if torch.is_tensor(product) else product()


def allocate(dtype: torch.dtype, shape: Sequence[int], layout: object) -> Shared:
    if dtype is torch.int64:
        return Shared(torch.empty(shape, dtype=dtype), [Barrier() for _ in range(shape[0])])
    return Shared(torch.full(shape, float("nan") if dtype.is_floating_point else -99, dtype=dtype))


def warp_specialize(partitions: Sequence[Any], worker_num_warps: object, worker_num_regs: object) -> None:
    program, failed = here.program, here.failed

    def run(function: Callable[..., None], arguments: Sequence[Any]) -> None:
        here.program, here.stores = program, []
        try:
            function(*arguments)
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=run, args=of, name=f"{of[0].__name__} of program {program}")
        for of in partitions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def where(condition: Any, yes: Any, no: Any) -> Any:
    if torch.is_tensor(condition):
        return torch.where(condition, yes, no)
    return yes if condition else no


def least(a: Any, b: Any) -> Any:
    if torch.is_tensor(a) or torch.is_tensor(b):
        return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))
    return min(a, b)


def maximum(a: Any, b: Any) -> Any:
    if torch.is_tensor(a) or torch.is_tensor(b):
        return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))
    return max(a, b)


def maximum_along(x: torch.Tensor, axis: int) -> Any:
    highest = x.amax(axis)
    return highest if highest.ndim > 0 or x.is_floating_point() else Scalar(highest)


def load(
    at: TensorPointer, mask: Any = True, other: float = 0, eviction_policy: str = ""
) -> torch.Tensor:  # a wrong address is an IndexError
    offset = torch.as_tensor(at.offset)
    mask = torch.as_tensor(mask).expand(offset.shape)
    loaded = torch.full(offset.shape, other, dtype=at.data.dtype)
    loaded[mask] = at.data.view(-1)[offset[mask]]
    return loaded.as_subclass(Values)


def store(at: TensorPointer, value: torch.Tensor, mask: Any = True) -> None:
    offset = torch.as_tensor(at.offset)
    mask = torch.as_tensor(mask).expand(offset.shape)
    at.data.view(-1)[offset[mask]] = value.to(at.data.dtype)[mask]


_counter = threading.Lock()


def atomic_add(at: TensorPointer, value: int, sem: str) -> int:
    with _counter:
        at.data += value
        return int(at.data) - value


def names(programs: int) -> dict[str, Any]:
    """What the kernel's file imports, for its functions to be run in."""
    any_layout = {name: lambda *_, **__: None for name in (
        "BlockedLayout", "SliceLayout", "NVMMADistributedLayout", "DotOperandLayout", "SwizzledSharedLayout",
    )}  # fmt: skip
    gl = types.SimpleNamespace(
        **any_layout,
        constexpr=lambda x: x,
        bfloat16=torch.bfloat16, float32=torch.float32, int32=torch.int32, int64=torch.int64,
        static_range=range, static_assert=lambda *_: None,
        program_id=lambda _: Scalar(here.program), num_programs=lambda _: programs,
        allocate_shared_memory=allocate, warp_specialize=warp_specialize,
        cdiv=lambda a, b: -(-a // b), minimum=least, maximum=maximum, where=where,
        max=maximum_along, sum=torch.sum, exp2=torch.exp2, log2=torch.log2, zeros_like=torch.zeros_like,
        log=torch.log, rsqrt=torch.rsqrt, num_warps=lambda: 4, load=load,
        arange=lambda begin, end, _: torch.arange(begin, end).as_subclass(Values),
        full=lambda shape, value, dtype, _: torch.full(shape, value, dtype=dtype),
        zeros=lambda shape, dtype, _: torch.zeros(shape, dtype=dtype).as_subclass(Values),
        convert_layout=lambda x, _: x,
        store=store, atomic_add=atomic_add,
    )  # fmt: skip
    mbarrier = types.SimpleNamespace(
        MBarrierLayout=lambda: None,
        init=lambda barrier, count: barrier.init(count),
        expect=lambda barrier, expected: barrier.add(1, expected),
        arrive=lambda barrier, count=1, pred=True: pred and (linger(), barrier.add(count, 0)),
        wait=lambda barrier, phase, pred=True: pred and barrier.wait(phase),
    )
    hopper = types.SimpleNamespace(
        fence_async_shared=lambda: None,
        warpgroup_mma=product,
        warpgroup_mma_wait=lambda pending, products: (linger(), finished(products[0]))[1],
    )
    tma = types.SimpleNamespace(async_load=load_by_tma, async_store=store_by_tma, store_wait=store_wait)
    gluon = types.SimpleNamespace(jit=lambda function: function, constexpr_function=lambda function: function)
    nvidia = {"mbarrier": mbarrier, "hopper": hopper, "tma": tma}
    return nvidia | {"gl": gl, "gluon": gluon, "tl": gl, "triton": gluon, "fast_expf": torch.exp}


def run(source: str, kernel: str, programs: int, *arguments: Any, **constants: Any) -> None:
    """Run ``kernel`` of ``source``, each program in a thread.

    Raises:
        AssertionError: a deadlock, or more arrivals than an mbarrier counts.
        IndexError: an address outside of the memory that a pointer is to.
    """
    space = names(programs)
    exec(compile(source, kernel, "exec"), space)
    failed: list[BaseException] = []

    def program(number: int) -> None:
        here.program, here.failed = number, failed
        try:
            space[kernel](*arguments, **constants)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=program, args=(number,)) for number in range(programs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
