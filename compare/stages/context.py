"""What every stage is given, and what the first one returns.  No stage changes any of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from compare.device import capability, default_archs
from compare.model.op import Case, Implementation, Op
from compare.model.result import Configuration, Options, Row, Status
from compare.stages.meter import Meter
from compare.tuning import sweep
from compare.worker.pool import WorkerPool


@dataclass(frozen=True)
class Step:
    """What is done with one case."""

    case: Case
    check: bool
    inspect: bool


@dataclass(frozen=True)
class Context:
    """One run: what is compared, how, where, and with which workers."""

    op: Op
    impls: tuple[Implementation, ...]
    steps: tuple[Step, ...]
    options: Options
    device: torch.device
    pool: WorkerPool
    meter: Meter
    hashes: Mapping[str, str]
    """Of the implementations' sources, by label."""
    tried: sweep.Trials | None = None
    """What ``--tune`` added."""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures that kernels are compiled for."""
        return self.options.archs or default_archs(self.device)

    def archs_of(self, impl: Implementation) -> list[str]:
        """Those of `archs` that ``impl`` can be compiled for."""
        needed = capability(impl.requires) if impl.requires else 0
        return [arch for arch in self.archs if capability(arch) >= needed]

    def inputs(self, case: Case) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator(self.device).manual_seed(self.options.seed)
        return self.op.make_inputs(case, generator, self.device)

    def row(self, impl: Implementation, status: Status = "ok", reason: str = "") -> Row:
        """A row of ``impl`` with nothing but its verdict."""
        configuration = Configuration(
            default=impl.base or impl.untuned, model=impl.matches if impl.base else ""
        )
        if self.tried is not None:
            values = self.tried.parameters.get(impl.label, ())
            note = self.tried.notes.get(impl.label, "")
            configuration = replace(
                configuration, parameters=values, text=sweep.worded(values), unmatched=note
            )
        return Row(
            impl.label,
            impl.level,
            status,
            reason,
            impl.accumulator,
            self.hashes[impl.label],
            configuration=configuration,
        )


@dataclass(frozen=True)
class Checked:
    """One implementation on one case after its check."""

    impl: Implementation
    """As it was run: with ``--matched`` it has another's configuration."""
    row: Row
    first_call_ms: float | None = None
    held_bytes: int = 0
    """The most GPU memory that PyTorch held for it."""
