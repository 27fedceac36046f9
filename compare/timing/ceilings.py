"""Ceilings: the rates of a copy, a read and a library's matrix product on this device, in this run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Literal

import torch

from compare.device import clock_readers
from compare.model.op import Cost
from compare.model.result import Ceilings
from compare.timing.gpu_clock import Monitor
from compare.timing.stopwatch import Call, CudaStopwatch, Stopwatch

CEILING_BYTES = 1 << 30
CEILING_SAMPLES = 15

PRODUCT = 4096
"""M = N = K of the timed matrix product."""
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Dtypes of the timed matrix product; of int8 and fp8 see `_product`."""


@dataclass(frozen=True)
class Loads:
    """The calls whose times give the ceilings."""

    copy: Call
    """torch's ``copy_``; its bytes are those read plus those written."""
    reads: Mapping[str, Call]
    """torch's reductions over the same memory; the fastest one is the read."""
    buffer_bytes: int
    """Bytes read by the copy and by each of the reads."""
    product: Call | None = None
    """torch's product of two `PRODUCT` x `PRODUCT` matrices in fp16; None for a case of little arithmetic."""
    own_product: Call | None = None
    """The same in the case's dtype; None where that is fp16, or one that the library does not multiply."""


class CeilingMeter:
    """Times `Loads` once a round; ``monitor`` reads the card's state."""

    def __init__(self, watch: Stopwatch, loads: Loads, monitor: Monitor | None = None) -> None:
        self.monitor = monitor or Monitor({})
        self._watch, self._loads = watch, loads
        self._us: dict[Literal["copy", "read", "product", "own product"], list[float]] = defaultdict(list)
        trials: dict[str, list[float]] = {name: [] for name in loads.reads}
        for _ in range(4):
            for name, call in loads.reads.items():
                trials[name].append(watch.cold(f"read {name}", call).gpu_us)
        for times in trials.values():
            del times[0]  # the first call loads code
        self.read_by = min(trials, key=lambda name: median(trials[name]))
        self._us["read"] = trials[self.read_by]
        for load in filter(None, (loads.copy, loads.product, loads.own_product)):
            load()  # loads its code
        self.sample()

    @classmethod
    def on(cls, device: torch.device, cost: Cost | None = None, dtype: str = "fp16") -> CeilingMeter:
        """A meter with buffers of 1 GiB, at most 1/16 of the memory; with products where ``cost`` is high."""
        size = min(CEILING_BYTES, torch.cuda.get_device_properties(device).total_memory // 16) // 64 * 64
        with torch.cuda.device(device):
            # Its own generator: a failed graph capture can leave the default one unusable.
            generator = torch.Generator(device).manual_seed(0)
            source = torch.randn(size // 4, dtype=torch.float32, device=device, generator=generator)
            target = torch.empty_like(source)
            wide, whole = source.view(torch.float64), source.view(torch.int32)
            reads: dict[str, Call] = {
                "sum fp32": source.sum,
                "sum fp64": wide.sum,
                "sum int32": whole.sum,
                "max fp32": source.max,
                "max int32": whole.max,
            }
            products: list[Call | None] = []
            if cost is not None and cost.compute_bound:
                shape = (PRODUCT, PRODUCT)
                a, b = (torch.randn(shape, device=device, generator=generator) for _ in range(2))
                products = [_product(kind, a, b) for kind in dict.fromkeys(("fp16", dtype))]
            loads = Loads(partial(target.copy_, source), reads, size, *products)
            return cls(CudaStopwatch(device), loads, Monitor(clock_readers(device)))

    def sample(self) -> None:
        """One cold sample of each, and the state of the card: once a round."""
        watch, loads = self._watch, self._loads
        self._us["copy"].append(watch.cold("copy", loads.copy, loads.buffer_bytes).gpu_us)
        self._us["read"].append(watch.cold(f"read {self.read_by}", loads.reads[self.read_by]).gpu_us)
        # Products warm, because a kernel may find its operands in the L2 too.
        if loads.product is not None:
            self._us["product"].append(watch.warm("product", loads.product, 2).gpu_us)
        if loads.own_product is not None:
            self._us["own product"].append(watch.warm("own product", loads.own_product, 2).gpu_us)
        self.monitor.end_round()

    def ceilings(self) -> Ceilings:
        """The ceilings so far, in GB/s (1e9 bytes a second) and TFLOP/s: medians, as the rows' times are.

        The floor's limits, `best_gbs` and the fp16 product, are of the fastest sample, because disturbances
        pass: freeing gigabytes slows copies by 14% for about a second on an H100, the power limit products.
        """
        copy_us, read_us, product_us = self._us["copy"], self._us["read"], self._us["product"]
        own_us, nbytes, flops = (
            self._us["own product"] or product_us,
            self._loads.buffer_bytes,
            2 * PRODUCT**3,
        )
        return Ceilings(
            copy_gbs=2 * nbytes / median(copy_us) / 1e3,
            read_gbs=nbytes / median(read_us) / 1e3,
            matmul_tflops=flops / min(product_us) / 1e6 if product_us else None,
            product_tflops=flops / median(own_us) / 1e6 if own_us else None,
            best_gbs=nbytes / min(min(copy_us) / 2, min(read_us)) / 1e3,
        )


def _product(dtype: str, a: torch.Tensor, b: torch.Tensor) -> Call | None:
    """The library's product of two fp32 matrices rounded to ``dtype``; None where it has none.

    fp8 is summed with fast accumulation.  The second operand of int8 and fp8 is given by its columns, as
    cuBLAS takes it.
    """
    if dtype in DTYPES:
        a, b = a.to(DTYPES[dtype]), b.to(DTYPES[dtype])
        return partial(torch.mm, a, b, out=torch.empty_like(a))
    if dtype == "int8":
        narrow, other = ((32 * x).clamp(-128, 127).to(torch.int8) for x in (a, b))
        product: Call = partial(torch._int_mm, narrow, other.t())
    elif dtype == "fp8":
        one = torch.ones((), device=a.device)
        narrow, other = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        product = partial(
            torch._scaled_mm, narrow, other.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    else:
        return None
    try:
        product()
    except (RuntimeError, ValueError):  # fp8 needs sm_89
        return None
    return product


def measure_ceilings(device: torch.device) -> Ceilings:
    """The ceilings without implementations; `Rounds` takes a `CeilingMeter` instead."""
    meter = CeilingMeter.on(device)
    for _ in range(CEILING_SAMPLES):
        meter.sample()
    ceilings = meter.ceilings()
    del meter
    torch.cuda.empty_cache()
    return ceilings
