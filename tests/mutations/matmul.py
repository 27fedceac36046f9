"""Mistakes in matmul."""

from functools import partial

from mutations import HOPPER, Mutation

RACE = {"without_gpu": "apart", "with_gpu": "racecheck", "sign": "values", "sign_with_gpu": "Race reported"}
UNDEFINED = "values|NaN and infinity"

t_tiled, t_grouped, t_persistent = (
    partial(Mutation, "matmul", f"triton.{variant}", file="triton_impl/matmul.py")
    for variant in ("tiled", "grouped", "persistent")
)
naive, shared, register, tensor_core, wgmma, multicast, tma_store = (
    partial(Mutation, "matmul", f"cupy.{variant}", file="cuda_impl/kernels/matmul.cuh")
    for variant in ("naive", "shared", "register", "tensor_core", "wgmma", "multicast", "tma_store")
)
launch_shared, launch_tensor_core = (
    partial(Mutation, "matmul", f"cupy.{variant}", file="cuda_impl/rawkernel/matmul.py")
    for variant in ("shared", "tensor_core")
)

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_tiled(
        bug="wrong stride",
        what="b's next tile is looked for to the right, not below",
        right="b_ptrs += BLOCK_K * stride_bk",
        wrong="b_ptrs += BLOCK_K * stride_bn",
        sign=UNDEFINED,
    ),
    t_tiled(
        bug="missing mask along K",
        what="what lies behind a row of a is multiplied by zeros, and NaN times 0 is NaN",
        right="mask=(m < M) & (k[None, :] < left)",
        wrong="mask=(m < M)",
        sign=UNDEFINED,
    ),
    t_grouped(
        bug="last group taken for a whole one",
        what="where fewer than GROUP_M rows of tiles are left, some tiles come twice and some never",
        right="within // height",
        wrong="within // GROUP_M",
        sign="all written",
    ),
    t_persistent(
        bug="missed tile",
        what="the last tile of all is nobody's",
        right="tl.range(tl.program_id(0), tiles, ",
        wrong="tl.range(tl.program_id(0), tiles - 1, ",
        sign="all written",
    ),
    # ------------------------------------------------------------------ CUDA
    naive(
        bug="off-by-one bound",
        what="the row after the last is written",
        right="if (m >= M || n >= N) return;",
        wrong="if (m > M || n >= N) return;",
        sign="guard zones",
    ),
    shared(
        bug="missing barrier",
        what="a tile is overwritten while others still read it",
        right="b_tile[k][column];\n        __syncthreads();",
        wrong="b_tile[k][column];",
        **RACE,
    ),
    register(
        bug="lines past the end of K",
        what="they are copied, where they have to be zeros",
        right="ALONG_K || along > i * STEP ? elements : 0",
        wrong="elements",
        sign=UNDEFINED,
    ),
    register(
        bug="wrong rows",
        what="a thread's rows are taken by its place among the columns",
        right="begin_m + AFragment::index_of(i, thread_m)",
        wrong="begin_m + AFragment::index_of(i, thread_n)",
        sign="all written|values|guard zones",
    ),
    tensor_core(
        bug="fragments swapped",
        what="the halves of b's fragment along K change places",
        right="b_two[j % 2 * 2], b_two[j % 2 * 2 + 1]",
        wrong="b_two[j % 2 * 2 + 1], b_two[j % 2 * 2]",
        sign="values",
    ),
    tensor_core(
        bug="bound of a pair",
        what="with odd N, the last column's neighbour is written as well",
        right="if (n + 1 < N) c[1] = two[1];",
        wrong="if (n < N) c[1] = two[1];",
        sign="guard zones|values",
    ),
    wgmma(
        bug="wrong half",
        what="the lower rows are multiplied by what belongs to the upper ones",
        right="(bottom, a + PIECE_BYTES,",
        wrong="(bottom, a,",
        sign="values",
        **HOPPER,
    ),
    multicast(
        bug="equal halves",
        what="both blocks fetch the same half of b",
        right="n = place.n * BLOCK_N + rank * HALF_N;",
        wrong="n = place.n * BLOCK_N;",
        sign="values",
        **HOPPER,
    ),
    tma_store(
        bug="missing permutation",
        what="c is put into shared memory as it is, and the copy engine undoes what was not done",
        right="((j + first) ^ row % 8) * 16",
        wrong="(j + first) * 16",
        sign="values",
        **HOPPER,
    ),
    launch_shared(
        bug="wrong grid",
        what="rows of c that do not fill a tile have no block",
        right="blocks = ceil_div(M, BLOCK) *",
        wrong="blocks = max(1, M // BLOCK) *",
        sign="all written",
    ),
    launch_tensor_core(
        bug="wrong operand's layout",
        what="b is taken to lie as a does",
        right="    WARPS_N = warps_across(",
        wrong="    B_BY_ROWS = A_BY_ROWS\n    WARPS_N = warps_across(",
        sign=UNDEFINED,
    ),
)
