"""Ceilings: what a plain copy and a plain read of memory reach on this device, in this run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial

import torch

from compare.spec import Ceilings
from compare.stopwatch import Call, CudaStopwatch, Stopwatch

CEILING_BYTES = 1 << 30
CEILING_SAMPLES = 15


class CeilingMeter:
    """What a plain copy and a plain read reach on this device, sampled as often as one asks.

    The copy is torch's ``copy_``, its bytes read plus written.  The read is the fastest of torch's
    reductions over the same memory, whichever that is here.
    """

    def __init__(self, watch: Stopwatch, copy: Call, reads: Mapping[str, Call], buffer_bytes: int) -> None:
        self._watch, self._bytes, self._copy = watch, buffer_bytes, copy
        self._copy_us: list[float] = []
        trials: dict[str, list[float]] = {name: [] for name in reads}
        for _ in range(4):
            for name, call in reads.items():
                trials[name].append(watch.cold(f"read {name}", call).gpu_us)
        medians = {
            name: statistics.median(times[1:]) for name, times in trials.items()
        }  # the first loads code
        self.read_by = min(medians, key=medians.__getitem__)
        self._read = reads[self.read_by]
        self._read_us = trials[self.read_by][1:]
        copy()  # loads its code
        self.sample()

    @classmethod
    def on(cls, device: torch.device) -> CeilingMeter:
        """Over buffers of 1 GiB, less on a card with little memory."""
        size = min(CEILING_BYTES, torch.cuda.get_device_properties(device).total_memory // 16) // 64 * 64
        with torch.cuda.device(device):
            # A generator of its own: a failed graph capture can leave the default one unusable.
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
            return cls(CudaStopwatch(device), partial(target.copy_, source), reads, size)

    def sample(self) -> None:
        """One cold sample of each."""
        self._copy_us.append(self._watch.cold("copy", self._copy).gpu_us)
        self._read_us.append(self._watch.cold(f"read {self.read_by}", self._read).gpu_us)

    def ceilings(self) -> Ceilings:
        """Medians of all samples so far, in GB/s (1e9 bytes a second)."""
        return Ceilings(
            copy_gbs=2 * self._bytes / statistics.median(self._copy_us) / 1e3,
            read_gbs=self._bytes / statistics.median(self._read_us) / 1e3,
        )


def measure_ceilings(device: torch.device) -> Ceilings:
    """The ceilings on their own; beside implementations rather give a `CeilingMeter` to `measure`."""
    meter = CeilingMeter.on(device)
    for _ in range(CEILING_SAMPLES):
        meter.sample()
    found = meter.ceilings()
    del meter
    torch.cuda.empty_cache()
    return found
