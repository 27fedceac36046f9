"""Rows shared by Triton programs that wait for each other: properties that no test over all ops covers."""

from __future__ import annotations

import pytest
import torch

from compare import capture, registry
from compare.model.architecture import LIMITS
from compare.model.op import Case, CudaLaunch, TritonLaunch, case
from on_device import assert_correct
from rows import labelled
from triton_impl import shared_rows

pytestmark = pytest.mark.thorough

OPS = ("softmax", "layer_norm", "rms_norm")


def captured(op: str, label: str, c: Case, arch: str = "sm_90") -> list[CudaLaunch | TritonLaunch]:
    return capture.capture(labelled(op, label), registry.get_op(op), c, arch)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("M", "N", "programs"),
    [
        (2048, 65536, 16 * 16),
        (1024, 131072, 8 * 32),
        (32768, 4096, 264),
        (1, 131072, 32),
        (9, 8, 3),  # two tiles, and one of a single row
    ],
)
def test_programs_of_gluon_share_rows_in_whole_groups(
    op: str, M: int, N: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All programs are resident: at most two on each of 132 multiprocessors."""
    monkeypatch.setattr(shared_rows, "INTERPRETED", False)  # there they run one after another
    (launch,) = captured(op, "triton.gluon", case("bf16", M=M, N=N))
    assert launch.grid == (programs, 1, 1)


@pytest.mark.parametrize("op", OPS)
def test_a_row_of_more_columns_than_all_programs_hold_is_refused(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_rows, "INTERPRETED", False)
    with pytest.raises(NotImplementedError, match="chunks take as many programs at a time: 264 fit"):
        captured(op, "triton.gluon", case("bf16", M=1, N=1081352))


@pytest.mark.parametrize(
    ("arch", "blocks"),
    [("sm_90", 2 * 132), ("sm_120", LIMITS[120].multiprocessors)],
)
def test_of_softmaxs_ring_as_many_blocks_are_launched_as_are_resident(arch: str, blocks: int) -> None:
    """Shared memory fits two blocks on a multiprocessor of sm_90, and one on sm_120."""
    (launch,) = captured("softmax", "cupy.ring", case("fp32", M=4096, N=131072), arch)
    assert launch.grid == (blocks, 1, 1)


@pytest.mark.parametrize(
    ("op", "label", "M", "N"),
    [
        *((op, "triton.online", 1, 2**31 - 1) for op in OPS),
        *((op, "triton.gluon", 2**31 - 1, 8) for op in OPS),
        *((op, "triton.split", 2**31 - 1, 8) for op in OPS[1:]),
    ],
)
def test_what_a_loop_would_count_beyond_32_bits_is_refused(op: str, label: str, M: int, N: int) -> None:
    """More than that is counted in 64."""
    with pytest.raises(NotImplementedError, match="=2147483647: a loop's last step would pass"):
        captured(op, label, case("bf16", M=M, N=N))
    if label == "triton.online":
        captured(op, label, case("bf16", M=M, N=N + 9))


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    ("variant", "M", "N", "fill"),
    [
        *(("split", M, N, "normal") for M, N in ((1, 131072), (600, 65536), (67, 40000), (5, 1048576))),
        *(
            ("gluon", M, N, "normal")
            for M, N in (
                *((1, 131072), (600, 65536), (67, 40000), (1001, 8), (300, 262144)),
                *((7, 15), (1001, 3001), (67, 32001), (300, 50257)),  # unaligned: in shared memory
            )
        ),
        *(
            (variant, 301, 40000, fill)
            for variant in ("split", "gluon")
            for fill in ("neg_inf", "nan", "zero")
        ),
    ],
)
def test_they_agree(
    op: str, variant: str, dtype: str, M: int, N: int, fill: str, device: torch.device
) -> None:
    assert_correct(labelled(op, f"triton.{variant}"), case(dtype, fill=fill, M=M, N=N), device, (0, 1))
