"""What reduce_sum promises beyond its values: bits that come back, and speed that CUB has."""

from __future__ import annotations

import statistics

import pytest
import torch

from compare import registry
from compare.device import supports
from compare.spec import Implementation

IMPLEMENTATIONS = registry.implementations("reduce_sum")
OWN = [impl for impl in IMPLEMENTATIONS if impl.way != "torch"]


def test_what_adds_in_no_certain_order_says_so() -> None:
    assert {impl.variant for impl in IMPLEMENTATIONS if not impl.deterministic} == {"atomic"}


@pytest.mark.parametrize("impl", IMPLEMENTATIONS, ids=lambda impl: impl.label)
def test_sums_that_its_input_s_dtype_could_not_hold(impl: Implementation, device: torch.device) -> None:
    if (reason := supports(impl, device)) is not None:
        pytest.skip(reason)
    if impl.label == "torch.compile" and device.type == "cpu":
        pytest.skip("PyTorch's own")
    y = impl.run(torch.full((4096,), 512.0, dtype=torch.float16, device=device))
    assert (y.dtype, tuple(y.shape), float(y)) == (torch.float32, (), 4096 * 512.0)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", [i for i in OWN if i.deterministic], ids=lambda impl: impl.label)
def test_the_same_bits_come_back(impl: Implementation) -> None:
    x = torch.randn(2**24 + 3, device="cuda")
    assert len({float(impl.run(x)) for _ in range(20)}) == 1


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("label", ["cupy.vectorized", "cupy.last_block", "cupy.atomic"])
def test_it_is_as_fast_as_cub(label: str) -> None:
    """CUB's DeviceReduce as cupy carries it, round by round beside ours; 1 GiB, so no cache helps."""
    import cupy

    cub = pytest.importorskip("cupy.cuda.cub")
    if not cub.available:
        pytest.skip("this cupy has no CUB")
    (impl,) = registry.implementations("reduce_sum", [label])
    x = torch.randn(2**28, device="cuda")
    same = cupy.from_dlpack(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def ms(run) -> float:
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def by_cub() -> object:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            return cub.device_reduce(same, cub.CUPY_CUB_SUM, (0,), ())

    torch.testing.assert_close(float(by_cub()), float(x.double().sum()), rtol=1e-3, atol=1.0)
    ratios = [ms(by_cub) / ms(lambda: impl.run(x)) for _ in range(30)]
    assert statistics.median(ratios) >= 0.995, f"{statistics.median(ratios):.3f} times as fast as CUB"
