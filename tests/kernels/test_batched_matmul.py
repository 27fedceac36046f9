"""batched_matmul: the waste of padding a tile to a power of two, and the shared memory of its launches."""

from __future__ import annotations

import re
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from compare import device, registry
from compare.capture import capture
from compare.model.architecture import LIMITS, limits
from compare.model.op import CudaLaunch, case
from compare.registry import ROOT
from compare.resources.banks import WARP, Access, conflicts
from cuda_impl.launches import batched_matmul as cuda
from cuda_impl.loader import kernel
from loops import for_each
from on_device import each_of
from rows import labelled
from triton_impl.batched_matmul import block_of, useful_share

pytestmark = pytest.mark.thorough

OP = "batched_matmul"
SIZES = (16, 32, 40, 48, 64, 80, 96, 128)


def padding_table() -> str:
    """The table of docs/ops/batched_matmul.md: what of a tile is useful, by Triton's block and by CUDA's."""
    lines = [
        "| N | Triton's BLOCK_N | elements | products | CUDA's BLOCK_N | elements | products |",
        "|--:|-----------------:|---------:|---------:|---------------:|---------:|---------:|",
    ]
    for N in SIZES:
        cells = [str(N)]
        for BLOCK_N in (block_of(N), cuda.ceil_div(N, 16) * 16):
            cells += [str(BLOCK_N), *(f"{share:.0%}" for share in useful_share(N, BLOCK_N))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


@for_each("N", SIZES)
def test_the_useful_share_counts_what_is_in_the_tile(N: int):
    BLOCK_N = block_of(N)
    inside = torch.arange(BLOCK_N) < N
    elements, products = useful_share(N, BLOCK_N)
    assert elements == pytest.approx((inside[:, None] & inside).double().mean().item())
    assert products == pytest.approx(
        (inside[:, None, None] & inside[:, None] & inside).double().mean().item()
    )


def test_the_page_s_table_is_what_the_helper_counts():
    page = (ROOT / "docs/ops/batched_matmul.md").read_text()
    found = re.search(r"(?s)<!-- padding -->\n(.*?)\n<!-- /padding -->", page)
    assert found[1] == padding_table()


@for_each("N", [1, 15, 16, 17, 48, 100, 128])
def test_a_block_of_triton_holds_the_matrix_and_is_a_power_of_two(N: int):
    BLOCK_N = block_of(N)
    assert max(N, 16) <= BLOCK_N
    assert BLOCK_N & (BLOCK_N - 1) == 0
    assert 2 * max(N, 16) > BLOCK_N


LIMITED = [
    impl
    for impl in registry.implementations("batched_matmul")
    if impl.way != "torch" and impl.label not in ("cupy.naive", "pybind.naive")
]


@each_of("batched_matmul", where=lambda impl: impl in LIMITED)
def test_larger_matrices_are_refused_with_the_reason(impl, device: torch.device):
    a = torch.ones(1, 129, 129, dtype=torch.float16, device=device)
    with pytest.raises(NotImplementedError, match=r"N=129: .* up to 128 rows; torch.eager"):
        impl.run(a, a)


@pytest.mark.parametrize("arch", [f"sm_{number}" for number in LIMITS])
@pytest.mark.parametrize("label", [impl.label for impl in LIMITED if impl.route != "pybind"])
def test_what_a_gpu_s_shared_memory_does_not_hold_is_refused(label: str, arch: str):
    """Every size either fits the shared memory of a block, or is refused with the reason."""
    most, op = limits(arch).block_shared_bytes, registry.get_op(OP)
    taken, refused = set(), []
    for dtype, N in product(("fp32", "fp16"), SIZES):
        try:
            (launch,) = capture(labelled(OP, label), op, case(dtype, B=100_000, N=N), arch)
        except NotImplementedError as reason:
            refused.append(str(reason))
            continue
        taken.add(N)
        if isinstance(launch, CudaLaunch):
            assert launch.dynamic_shared_bytes <= most
            assert launch.block[0] <= 1024
    why = re.compile(rf"fp32: tensor cores|N=\d+[^:]*: \d+ bytes of shared memory a block, .* {most}; ")
    assert all(why.match(reason) for reason in refused), refused
    assert taken >= {N for N in SIZES if N <= 48}
    if most >= limits("sm_90").block_shared_bytes:
        assert taken == set(SIZES)


@pytest.mark.parametrize("label", ["cupy.tensor_core", "cupy.pipelined"])
def test_values_that_make_too_large_a_block_are_refused_with_one_that_does_not(label: str):
    """Every combination of parameters can be launched, or is refused before the launch."""
    op, impl = registry.get_op(OP), labelled(OP, label)
    names, values = zip(*impl.tunable, strict=True)
    refused = []
    for N, choice in product(SIZES, product(*values)):
        tried = registry.with_parameters(impl, label, dict(zip(names, choice, strict=True)))
        try:
            (launch,) = capture(tried, op, case("fp16", B=100_000, N=N), "sm_90")
        except NotImplementedError as reason:
            refused.append(str(reason))
            continue
        assert launch.block[0] <= 1024
        assert launch.dynamic_shared_bytes <= limits("sm_90").block_shared_bytes
    threads = (
        "MATRICES=8: with tiles of 80 rows that is 1280 threads a block, which has at most 1024; "
        "take MATRICES=6 or fewer"
    )
    assert threads in refused
    why = re.compile(r"MATRICES=8: with tiles of (80|96|128) rows|N=\d+[^:]*: \d+ bytes of shared memory")
    assert all(why.match(reason) for reason in refused), refused


def test_the_gpu_itself_is_asked_how_much_shared_memory_it_has(monkeypatch: pytest.MonkeyPatch):
    properties = SimpleNamespace(shared_memory_per_block_optin=1000)
    monkeypatch.setattr(device, "_properties_of", lambda index: properties)
    assert device.shared_bytes_of_a_block(torch.device("cuda", 0)) == 1000
    assert device.shared_bytes_of_a_block(torch.device("cpu")) == 227 << 10


@pytest.mark.gpu
def test_it_is_what_the_table_says_of_such_a_gpu(card: torch.device):
    arch = device.arch(card)
    if int(arch.removeprefix("sm_")) not in LIMITS:
        pytest.skip(f"{arch} is not in the table")
    assert device.shared_bytes_of_a_block(card) == limits(arch).block_shared_bytes


@pytest.mark.parametrize("N", SIZES)
def test_a_hopper_multiprocessor_has_room_for_the_blocks_and_they_keep_it_busy(N: int):
    op = registry.get_op(OP)
    (launch,) = capture(labelled(OP, "cupy.pipelined"), op, case("fp16", B=100_000, N=N), "sm_90")
    BLOCK_N, STAGES = cuda.ceil_div(N, 16) * 16, 3
    MATRICES = cuda.matrices_of(BLOCK_N)
    BLOCKS = cuda.blocks_of(MATRICES, BLOCK_N, STAGES)
    assert launch.grid[0] == 132 * BLOCKS
    assert BLOCKS * (launch.dynamic_shared_bytes + 1024) <= 228 << 10
    in_flight = BLOCKS * (STAGES - 1) * cuda.group_bytes(MATRICES, BLOCK_N)
    assert in_flight >= 64 << 10, "bytes in flight that a multiprocessor needs to copy at full speed"


# --------------------------------------------------------------------------- by rows, by columns


def lying(x: torch.Tensor, by_rows: bool) -> torch.Tensor:
    """The same matrices, by rows or by columns, with NaN behind each row or column."""
    B, N, _ = x.shape
    memory = torch.full((B, N, N + 8), torch.nan, dtype=x.dtype, device=x.device)[..., :N]
    return (memory if by_rows else memory.mT).copy_(x)


@pytest.mark.parametrize("N", [8, 24, 64, 80])
@pytest.mark.parametrize(("A_BY_ROWS", "B_BY_ROWS"), list(product((True, False), repeat=2)))
def test_vectors_are_multiplied_however_they_lie(
    N: int, A_BY_ROWS: bool, B_BY_ROWS: bool, device: torch.device
):
    """Tensor cores get the same numbers in the same order: equal bits on every route."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(5, N, N, generator=generator).to(device, torch.float16) for _ in "ab")
    lie = lying(a, A_BY_ROWS), lying(b, B_BY_ROWS)
    assert cuda.lie(*lie) == (True, A_BY_ROWS, B_BY_ROWS)
    expected = labelled(OP, "cupy.tensor_core").run(a, b)
    torch.testing.assert_close(expected.double(), a.double() @ b.double(), rtol=1e-3, atol=1e-2)
    for label in ("cupy.tensor_core", "cupy.pipelined", "pybind.tensor_core", "pybind.pipelined"):
        assert torch.equal(labelled(OP, label).run(*lie), expected), label


@pytest.mark.parametrize("N", [1, 3, 16, 33, 47, 63, 100])
def test_runs_are_multiplied_wherever_they_begin(N: int, device: torch.device):
    """Without gaps, by rows or by columns and on any boundary, as with gaps."""
    generator = torch.Generator().manual_seed(0)
    for B in (1, 11):
        a, b = (torch.randn(B, N, N, generator=generator).to(device, torch.float16) for _ in "ab")
        memory = torch.full((2, a.numel() + 11), torch.nan, dtype=a.dtype, device=device)
        begun = [x[begin:][: a.numel()].view_as(a) for x, begin in zip(memory, (3, 11), strict=True)]
        gaps = [torch.cat((x, x), 2)[..., :N] for x in (a, b)]
        expected = labelled(OP, "cupy.tensor_core").run(*gaps)
        torch.testing.assert_close(expected.double(), a.double() @ b.double(), rtol=1e-3, atol=1e-2)
        for a_dense, b_dense in ((a, b), (a.mT.contiguous().mT, b), begun, [x.mT for x in begun]):
            for label in ("cupy.tensor_core", "pybind.tensor_core"):
                lie = a_dense.copy_(a), b_dense.copy_(b)
                assert torch.equal(labelled(OP, label).run(*lie), expected), (B, label)


def test_what_lies_neither_way_is_not_packed():
    memory = torch.ones(3, 16, 48, dtype=torch.float16)
    packed = memory[..., :16]
    for x in (memory[..., ::3], memory[..., ::3].mT, memory[..., 1:17], memory[:, :15, :15].mT):
        assert not cuda.lie(x, packed[:, : x.size(1), : x.size(1)])[0]
        assert not cuda.lie(packed[:, : x.size(1), : x.size(1)].mT, x)[0]
    assert cuda.lie(packed.mT, packed[:1].expand(3, 16, 16)) == (True, False, True)


# --------------------------------------------------------------------------- where tiles lie, and their banks

PLACES = """
#include "batched_matmul.cuh"
template <int BLOCK_N>
__global__ void places(int* y) {
    y[blockIdx.x * BLOCK_N / 8 + threadIdx.x] = swizzle<BLOCK_N>(blockIdx.x, threadIdx.x);
}
"""


def places(BLOCK_N: int) -> list[list[int]]:
    """Offsets of the 16-byte vectors of a tile's rows by the kernels' own function, in elements."""
    y = torch.empty(BLOCK_N, BLOCK_N // 8, dtype=torch.int32)
    run = kernel(PLACES, f"places<{BLOCK_N}>", torch.device("cpu"))
    run((BLOCK_N,), (BLOCK_N // 8,), (y.data_ptr(),))
    return y.tolist()


@for_each("BLOCK_N", range(16, 129, 16))
def test_each_vector_of_a_tile_has_a_place_and_no_access_has_bank_conflicts(BLOCK_N: int):
    place, vectors = places(BLOCK_N), BLOCK_N // 8
    assert sorted(at for row in place for at in row) == [8 * i for i in range(BLOCK_N * vectors)]
    lanes = range(WARP)
    rows_of_a_warp = [place[row][pack] for row in range(16) for pack in range(vectors)]
    accesses = [
        # ldmatrix: a quarter of a warp reads one 16-byte vector of each of 8 rows
        *(
            Access("load", tuple(2 * place[row + down][pack + right] for down, right in squares), 16)
            for row in range(0, BLOCK_N, 16)
            for pack in range(0, vectors, 2)
            for squares in (
                # by rows the second of the four matrices is below the first, by columns beside it
                [(lane % 16, lane // 16) for lane in lanes],
                [(lane // 16 * 8 + lane % 8, lane // 8 % 2) for lane in lanes],
            )
        ),
        # a lane's pairs of c
        *(
            Access("store", tuple(2 * place[half + lane // 4][pack] + lane % 4 * 4 for lane in lanes), 4)
            for half in (0, 8)
            for pack in range(vectors)
        ),
        # 16-byte vectors along the rows: stores of inputs, loads of outputs
        *(
            Access(kind, tuple(2 * at for at in rows_of_a_warp[first : first + WARP]), 16)
            for kind in ("store", "load")
            for first in range(0, len(rows_of_a_warp), WARP)
        ),
    ]
    assert [conflicts(access) for access in accesses] == [0] * len(accesses)
