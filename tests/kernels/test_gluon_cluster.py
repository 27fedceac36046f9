"""Rows in the registers of a cluster, in Gluon: values on the CPU by `gluon_units`, launches and refusals."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest
import torch

import case_sets
import gluon_units
from compare import capture, registry
from compare.checking.check import check
from compare.code_size.python import reached
from compare.device import outdated
from compare.model.op import TritonLaunch, case
from rows import labelled

pytestmark = pytest.mark.thorough

LABEL = "triton.gluon_cluster"
OPS = ("cross_entropy", "layer_norm", "rms_norm", "softmax")
CPU = torch.device("cpu")


class KernelOnCpu:
    """In place of a Gluon kernel: launches run in `gluon_units`, a program for each cluster."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*arguments: Any, num_warps: int, num_ctas: int, **constants: Any) -> None:
            assert num_ctas == constants["CLUSTER"]
            pointers = [from_its_start(x) if isinstance(x, torch.Tensor) else x for x in arguments]
            gluon_units.run(self.source, self.name, *grid, *pointers, **constants)

        return launch


def from_its_start(x: torch.Tensor) -> gluon_units.TensorPointer:
    """A pointer to all memory from the first element of ``x`` on."""
    elements = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return gluon_units.TensorPointer(x.as_strided((elements,), (1,)))


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernels run on the CPU."""
    for op in OPS:
        code = reached(labelled(op, LABEL).run)
        pieces = [piece.text for piece in (*code.kernels, *code.others)]
        source = "\n".join(text for text in pieces if text.startswith(("@gluon", "@triton", "IGNORED")))
        name = f"{op}_gluon_cluster_kernel"
        module = importlib.import_module(f"triton_impl.gluon_cluster.{op}")
        monkeypatch.setattr(module, name, KernelOnCpu(name, source))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("op", OPS)
def test_it_agrees(op: str) -> None:
    found = registry.get_op(op)
    wrong = {}
    for c in case_sets.brief(found):
        agreement = check(found, labelled(op, LABEL), c, CPU, (0,))
        if not agreement.passed:
            wrong[str(c)] = agreement.reason
    assert wrong == {}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("N", "dtype"), [(50257, "bf16"), (50264, "bf16"), (32001, "fp32"), (262144, "fp32")]
)
def test_it_agrees_on_long_rows(op: str, N: int, dtype: str) -> None:
    agreement = check(registry.get_op(op), labelled(op, LABEL), sized(op, 2, N, dtype), CPU, (0,))
    assert agreement.passed, agreement.reason


def sized(op: str, M: int, N: int, dtype: str) -> Any:
    found = registry.get_op(op)
    return case(dtype, **dict(zip(found.dims, (M, N), strict=True)))


def captured(op: str, M: int, N: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> TritonLaunch:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "3.10.1")
    (launch,) = capture.capture(labelled(op, LABEL), registry.get_op(op), sized(op, M, N, dtype), "sm_90")
    assert isinstance(launch, TritonLaunch)
    return launch


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("N", "dtype", "cluster"),
    [
        (1, "fp32", 2),
        (16384, "bf16", 2),  # 16 KB per block
        (16392, "bf16", 4),
        (50257, "bf16", 8),
        (65536, "fp32", 16),
        (262144, "fp32", 16),  # 64 KB per block
        (262147, "bf16", 16),
    ],
)
def test_the_cluster_s_blocks_hold_the_row(
    op: str, N: int, dtype: str, cluster: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = captured(op, 3, N, dtype, monkeypatch)
    slice_columns, constants = launch.arguments["slice_columns"], launch.arguments
    assert launch.grid == (3, 1, 1)
    assert launch.options["num_ctas"] == constants["CLUSTER"] == cluster
    assert slice_columns % 16 == 0
    assert slice_columns <= constants["BLOCK_N"] < 2 * max(slice_columns, 16)
    VEC, ALIGNED = constants["VEC"], constants["ALIGNED"]
    assert ALIGNED is (N % VEC == 0)
    assert slice_columns * cluster >= N // VEC * VEC - (0 if ALIGNED else VEC)


@pytest.mark.parametrize("op", OPS)
def test_a_row_that_16_blocks_do_not_hold_is_refused(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotImplementedError, match="N=262160: the registers of 16 blocks hold 262144 columns"):
        captured(op, 1, 262160, "bf16", monkeypatch)


@pytest.mark.parametrize(("version", "refused"), [("3.7.1", True), ("3.8.0", False), ("4.0.0+git1", False)])
@pytest.mark.parametrize("op", OPS)
def test_a_triton_that_does_not_compile_it_is_named(
    op: str, version: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: version)
    reason = outdated(labelled(op, LABEL))
    assert reason == (f"needs Triton 3.8, this is {version}" if refused else None)
    if refused:
        with pytest.raises(NotImplementedError, match=r"needs Triton 3\.8"):
            capture.capture(labelled(op, LABEL), registry.get_op(op), sized(op, 2, 300, "fp32"), "sm_90")
