"""Every Triton kernel with the Triton at hand: right in the interpreter, and compiled for every architecture.

`make test-triton` runs this file with an older and the newest Triton put before the environment's own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import triton

from compare import registry
from compare.check import check
from compare.device import lacks, supports
from compare.resources import Request, from_cubins
from compare.run import STATIC_ARCHS
from compare.spec import Implementation

EXPECTED = os.environ.get("TRITON_LEG")
"""The folder whose Triton this run is about, where it is not the environment's own."""

KERNELS = [
    impl for op in registry.op_names() for impl in registry.implementations(op) if impl.way == "triton"
]


def test_the_expected_triton_is_imported():
    home = Path(triton.__file__).resolve().parent
    if EXPECTED is not None:
        assert home.is_relative_to(Path(EXPECTED).resolve())
    assert tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)


def test_there_are_kernels():
    assert {impl.op for impl in KERNELS} == set(registry.op_names())


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton 3.6's own
@pytest.mark.parametrize("impl", KERNELS, ids=lambda impl: f"{impl.op}-{impl.label}")
def test_agrees(impl: Implementation, device: torch.device):
    op = registry.get_op(impl.op)
    for case in op.cases.smoke:
        if (reason := supports(impl, device)) is not None:
            pytest.skip(reason)
        agreement = check(op, impl, case, device, seeds=(0,))
        assert agreement.passed, f"{case}: {agreement.reason}"


def test_compiles_for_every_architecture():
    requests = [
        Request(op, impl, op.cases.smoke[-1], arch)  # of one dtype, as this takes a second each
        for impl in KERNELS
        for op in (registry.get_op(impl.op),)
        for arch in STATIC_ARCHS
    ]
    for request, kernels in zip(requests, from_cubins(requests), strict=True):
        what = f"{request.impl.label} on {request.case} for {request.arch}"
        if isinstance(kernels, NotImplementedError):
            needs = request.impl.requires
            assert "is autotuned" in str(kernels) or (needs and lacks(needs, request.arch)), what
            continue
        assert isinstance(kernels, tuple), f"{what}: {kernels}"
        assert kernels, f"{what}: nothing was launched"
        for kernel in kernels:
            assert kernel.registers > 0, what
            assert kernel.code_bytes, what
