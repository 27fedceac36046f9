"""Speedups over another implementation, for tests of a page's claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from compare import registry
from compare.device import supports
from compare.model.op import Case
from compare.model.result import Estimate, Timing
from in_workers import settings_on, timed


def cold_speeds(op: str, pattern: str, against: str, case: str, budget_s: float) -> dict[str, Estimate]:
    """Speedup vs. ``against`` by label, for labels like ``pattern``, by cold GPU time in interleaved rounds.

    Leaves out what this GPU cannot run; skips the test if that is all, or ``against``.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    (yardstick,) = registry.implementations(op, [against])
    reasons = {impl: supports(impl, device) for impl in registry.implementations(op, [pattern])}
    ours = [impl for impl, reason in reasons.items() if reason is None]
    if (reason := supports(yardstick, device)) is not None or not ours:
        pytest.skip(str(reason or reasons))
    described = replace(registry.get_op(op), baseline=against)
    settings = settings_on(device, budget_s)
    found = timed(described, (*ours, yardstick), Case.parse(case, described), settings, device)
    speeds = {}
    for impl in ours:
        result = found[impl.label]
        if not isinstance(result, Timing):
            raise result
        (speeds[impl.label],) = (ratio.value for ratio in result.ratios if ratio.against == against)
    return speeds
