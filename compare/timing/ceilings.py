"""Ceilings: the rates of a copy, a read and a library's matrix product on this device, in this run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from compare.model.op import QUANTIZED, Cost
from compare.model.result import Card, Ceilings
from compare.timing.gpu_clock import Monitor
from compare.timing.stopwatch import Call, CudaStopwatch, Stopwatch

CEILING_BYTES = 1 << 30
CEILING_SAMPLES = 15

PRODUCT = 4096
"""M = N = K of the timed matrix product."""
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Dtypes of the timed matrix product; of int8 and fp8 see `_quantized_product`."""


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
        self._monitor = monitor or Monitor({})
        self._watch, self._loads = watch, loads
        self._product_us: list[float] = []
        self._own_product_us: list[float] = []
        self._copy_us: list[float] = []
        trials: dict[str, list[float]] = {name: [] for name in loads.reads}
        for _ in range(4):
            for name, call in loads.reads.items():
                trials[name].append(watch.cold(f"read {name}", call).gpu_us)
        medians = {
            name: statistics.median(times[1:]) for name, times in trials.items()
        }  # the first call loads code
        self.read_by = min(medians, key=medians.__getitem__)
        self._read_us = trials[self.read_by][1:]
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
            product: Call | None = None
            own_product: Call | None = None
            if cost is not None and cost.compute_bound:
                shape = (PRODUCT, PRODUCT)
                factors = [torch.randn(shape, device=device, generator=generator) for _ in range(2)]

                def multiply(kind: torch.dtype) -> Call:
                    a, b = (factor.to(kind) for factor in factors)
                    return partial(torch.mm, a, b, out=torch.empty_like(a))

                product = multiply(torch.float16)
                own_product = multiply(DTYPES[dtype]) if dtype != "fp16" and dtype in DTYPES else None
                if dtype in QUANTIZED:
                    own_product = _quantized_product(dtype, *factors)
            loads = Loads(partial(target.copy_, source), reads, size, product, own_product)
            return cls(CudaStopwatch(device), loads, Monitor.on(device))

    def sample(self) -> None:
        """One cold sample of each, and the state of the card: once a round."""
        watch, loads = self._watch, self._loads
        self._copy_us.append(watch.cold("copy", loads.copy, loads.buffer_bytes).gpu_us)
        self._read_us.append(watch.cold(f"read {self.read_by}", loads.reads[self.read_by]).gpu_us)
        if loads.product is not None:
            # Warm, because a kernel may find its operands in the L2 too.
            self._product_us.append(watch.warm("product", loads.product, 2).gpu_us)
        if loads.own_product is not None:
            self._own_product_us.append(watch.warm("own product", loads.own_product, 2).gpu_us)
        self._monitor.end_round()

    def clock_mhz(self) -> float | None:
        """The card's SM clock now; None where it is unknown."""
        return self._monitor.clock_mhz()

    def restart(self) -> None:
        """Forget the card's state of the warm-up rounds."""
        self._monitor.restart()

    def card(self) -> Card | None:
        """The card's state by round."""
        return self._monitor.card()

    def ceilings(self) -> Ceilings:
        """The ceilings so far, in GB/s (1e9 bytes a second) and TFLOP/s: medians, as the rows' times are.

        The floor's limits, `best_gbs` and the fp16 product, are of the fastest sample, because disturbances
        pass: freeing gigabytes slows copies by 14% for about a second on an H100, the power limit products.
        """
        own_us = self._own_product_us or self._product_us
        return Ceilings(
            copy_gbs=2 * self._loads.buffer_bytes / statistics.median(self._copy_us) / 1e3,
            read_gbs=self._loads.buffer_bytes / statistics.median(self._read_us) / 1e3,
            matmul_tflops=2 * PRODUCT**3 / min(self._product_us) / 1e6 if self._product_us else None,
            product_tflops=2 * PRODUCT**3 / statistics.median(own_us) / 1e6 if own_us else None,
            best_gbs=self._loads.buffer_bytes / min(min(self._copy_us) / 2, min(self._read_us)) / 1e3,
        )


def _quantized_product(dtype: str, a: torch.Tensor, b: torch.Tensor) -> Call | None:
    """The library's product of two matrices in int8 or fp8 (fast accumulation); None where it has none.

    The second operand is given by its columns, as cuBLAS takes it.
    """
    if dtype == "int8":
        narrow, other = ((32 * x).clamp(-128, 127).to(torch.int8) for x in (a, b))
        product: Call = partial(torch._int_mm, narrow, other.t())
    else:
        one = torch.ones((), device=a.device)
        narrow, other = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        product = partial(
            torch._scaled_mm, narrow, other.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
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
    found = meter.ceilings()
    del meter
    torch.cuda.empty_cache()
    return found
