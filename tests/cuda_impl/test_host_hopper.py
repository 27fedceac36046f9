"""The host build's Hopper units: right results, and mistakes that show as wrong results or errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compare.checking.check import check
from compare.model.op import Case
from compare.registry import get_op
from cuda_impl.buffers import Buffer
from cuda_impl.layouts import for_tma
from cuda_impl.loader import kernel
from cuda_impl.tensor_maps import heads_map
from loops import for_each
from rows import labelled

CPU = torch.device("cpu")

MISTAKES = (
    "NONE",
    "NO_LOAD_WAIT",
    "WRONG_PARITY",
    "NO_PRODUCT_WAIT",
    "OPERAND_CHANGED",
    "REFILLED",
    "ARRIVES_TWICE",
    "NOT_ALIGNED",
    "NO_ANSWER",
    "NEXT_PHASE",
    "OTHER_COUNT",
)

TWO_PRODUCTS = """
#include "attention/hopper_tiles.cuh"

enum Mistake { MISTAKES };

// o = (q @ k.T, rounded) @ v, all 64 x 64, by one warpgroup.
__global__ void two_products(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                             const __grid_constant__ TensorMap v_map, float* o_ptr, int mistake) {
    constexpr int BYTES = 64 * 64 * 2;
    DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const q = align_1024(shared) + (mistake == NOT_ALIGNED ? 128 : 0);
    unsigned char *const k = q + BYTES, *const v = k + BYTES;
    __shared__ mbarrier_t full[2], other;
    if (threadIdx.x == 0) {
        mbarrier_init(&full[0], 1);
        mbarrier_init(&full[1], 1);
        mbarrier_init(&other, 1);
        mbarrier_arrive_expect_bytes(&full[0], 2 * BYTES);
        head_copy_to_shared(q, &q_map, 0, 0, 0, &full[0]);
        head_copy_to_shared(k, &k_map, 0, 0, 0, &full[0]);
        if (mistake == ARRIVES_TWICE) mbarrier_arrive(&full[0]);
        mbarrier_arrive_expect_bytes(&full[1], BYTES);
        head_copy_to_shared(v, &v_map, 0, 0, 0, &full[1]);
    }
    __syncthreads();
    if (mistake == NO_ANSWER) named_barrier_sync<256>(1);
    if (mistake == OTHER_COUNT) threadIdx.x < 64 ? named_barrier_sync<128>(1) : named_barrier_sync<64>(1);
    if (mistake == NEXT_PHASE) mbarrier_wait(&other, 0);
    float s[32], o[32] = {};
    unsigned p[16];
    if (mistake != NO_LOAD_WAIT) mbarrier_wait(&full[0], mistake == WRONG_PARITY ? 1 : 0);
    multiply_qk<__nv_bfloat16, 64, 64>(s, q, k);
    if (mistake != NO_PRODUCT_WAIT) wgmma_wait_group<0>(s);
    round_p<__nv_bfloat16>(p, s);
    mbarrier_wait(&full[1], 0);
    multiply_pv<__nv_bfloat16>(o, p, v);
    if (mistake == OPERAND_CHANGED) p[3] = 0;
    if (mistake == REFILLED && threadIdx.x == 0) {
        mbarrier_arrive_expect_bytes(&other, BYTES);
        head_copy_to_shared(v, &k_map, 0, 0, 0, &other);
    }
    wgmma_wait_group<0>(o);
    if (mistake == REFILLED) mbarrier_wait(&other, 0);
    for (int i = 0; i < 32; ++i) {
        const int row = threadIdx.x / 32 * 16 + i / 2 % 2 * 8 + threadIdx.x % 32 / 4;
        o_ptr[row * 64 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = o[i];
    }
}
""".replace("MISTAKES", ", ".join(MISTAKES))


def is_right(mistake: str) -> bool:
    """Whether the kernel with that mistake computes what it should."""
    q, k, v = torch.randn(3, 1, 64, 1, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    o = torch.empty(64, 64)
    maps = [heads_map(x, 64).encode(x.data_ptr()) for x in (q, k, v)]
    run = kernel(TWO_PRODUCTS, "two_products", CPU)
    number = np.int32(MISTAKES.index(mistake))
    run((1,), (128,), (*maps, o.data_ptr(), number), shared_mem=3 * 64 * 64 * 2 + 1024)
    p = (q[0, :, 0].double() @ k[0, :, 0].double().T).bfloat16().double()
    return bool(((o - p @ v[0, :, 0].double()).abs() < 1.0).all())  # a rounding of p that ties may differ


@for_each(
    "mistake, order",
    [
        ("NONE", "forward"),
        ("NO_LOAD_WAIT", "forward"),
        ("WRONG_PARITY", "forward"),
        ("NO_PRODUCT_WAIT", "forward"),
        ("OPERAND_CHANGED", "forward"),
        ("REFILLED", "reverse"),
    ],
)
def test_a_missing_wait_shows(mistake: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_THREAD_ORDER", order)
    assert is_right(mistake) == (mistake == "NONE")


@for_each(
    "mistake, message",
    [
        ("NEXT_PHASE", "deadlock in block .* 128 threads wait in mbarrier_wait"),
        ("NO_ANSWER", "deadlock in block .* 128 threads wait in bar.sync"),
        ("ARRIVES_TWICE", "mbarrier: more arrivals in a phase"),
        ("NOT_ALIGNED", "1024-byte aligned"),
        ("OTHER_COUNT", "barrier 1 is one of 64 threads, got 128"),
    ],
)
def test_what_a_gpu_hangs_on_or_leaves_undefined_is_an_error(mistake: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        is_right(mistake)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("variant", ["wgmma", "specialized", "overlapped", "persistent"])
def test_the_ring_goes_round(variant: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tiles of keys than stages, and of queries than blocks: the op's own cases are smaller."""
    monkeypatch.setenv("HOST_THREAD_ORDER", order)
    impl = labelled("attention", f"cupy.{variant}")
    q, k, v = torch.randn(3, 1, 450, 3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    o, lse = impl.run(q, k[:, :, :1], v[:, :, :1], causal=True)
    scores = torch.einsum("bihd,bjd->bhij", q.double(), k[:, :, 0].double()) / 8
    scores = scores.masked_fill(torch.ones(450, 450, dtype=torch.bool).triu(1), -torch.inf)
    expected = torch.einsum("bhij,bjd->bihd", scores.softmax(-1), v[:, :, 0].double())
    torch.testing.assert_close(o.double(), expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize(
    ("op", "variant", "words"),
    [
        ("rms_norm", "cluster", "M=90,N=1003,bf16"),
        ("layer_norm", "cluster", "M=90,N=1003,bf16"),
        ("layer_norm", "cluster", "M=90,N=1024,bf16"),
        ("matmul", "multicast", "M=600,N=600,K=340,bf16"),
        ("matmul", "tma_store", "M=600,N=600,K=340,bf16"),
        ("matmul", "split_k", "M=600,N=600,K=340,bf16"),
        ("fp8_matmul", "multicast", "M=600,N=600,K=700,fp8"),
    ],
)
def test_rings_of_clusters_go_round(
    op: str, variant: str, words: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows or tiles than clusters, and than stages."""
    monkeypatch.setenv("HOST_THREAD_ORDER", order)
    of = get_op(op)
    agreement = check(of, labelled(op, f"cupy.{variant}"), Case.parse(words, of), CPU, seeds=(0,))
    assert agreement.passed, agreement.reason


CLUSTERS = """
#include "hopper.cuh"

// Each block sends its rank to all of a cluster of 4, and adds what it gets.
__global__ void ranks(int* y, int mistake) {
    __shared__ mbarrier_t arrived;
    __shared__ unsigned long long got[4];
    const int rank = cluster_block_rank();
    if (threadIdx.x == 0) {
        mbarrier_init(&arrived, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect_bytes(&arrived, sizeof(got));
    }
    __syncthreads();
    if (mistake != 1) {
        cluster_arrive_relaxed();
        cluster_wait();
    }
    if (mistake == 2 && rank == 3) return;
    if (threadIdx.x < 4) store_async_to_block(&got[rank], threadIdx.x, rank, &arrived);
    if (mistake != 3) mbarrier_wait(&arrived, 0);
    if (threadIdx.x == 0) y[blockIdx.x] = int(got[0] + got[1] + got[2] + got[3]);
}
"""


def sums_of_ranks(mistake: int, cluster: int = 4) -> list[int]:
    y = torch.zeros(8, dtype=torch.int32)
    kernel(CLUSTERS, "ranks", CPU, cluster=cluster)((8,), (64,), (y.data_ptr(), np.int32(mistake)))
    return y.tolist()


def test_blocks_of_a_cluster_write_into_each_other() -> None:
    assert sums_of_ranks(0) == [0 + 1 + 2 + 3] * 8


@for_each(
    "mistake, cluster, message",
    [
        (1, 4, "block 1 of the cluster has not started, or has ended"),
        (2, 4, "block 3 of the cluster has not started, or has ended"),
        (3, 4, "block 3 of the cluster has not started, or has ended"),
        (0, 1, "block 1 of the cluster has not started, or has ended"),
        (0, 3, "clusters of 3 of 8 blocks"),
    ],
)
def test_a_block_that_is_not_there_is_an_error(mistake: int, cluster: int, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        sums_of_ranks(mistake, cluster)


def test_rows_that_tma_cannot_step_through_are_copied() -> None:
    x = torch.zeros(2, 5, 3, 64, dtype=torch.float16)
    assert for_tma(x) is x
    heads_first = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert for_tma(heads_first) is heads_first
    one_head = x.as_strided((2, 5, 1, 64), (960, 192, 7, 1))  # its stride of 7 is never used
    assert for_tma(one_head) is one_head
    for other in (x[..., ::2], x[:, :1].expand(2, 5, 3, 64), torch.zeros(2, 5, 3, 65).half()[..., :64]):
        copied = for_tma(other)
        assert isinstance(copied, Buffer)
        assert copied.source is other
