"""Mistakes in softmax."""

from functools import partial

from mutations import Mutation

HUGE = {"without_gpu": "", "with_gpu": "huge", "needs": "more than 2^31 elements"}
HOPPER = {"without_gpu": "", "needs": "a Hopper GPU"}
GPU = {"without_gpu": "", "needs": "a GPU: Gluon has no interpreter"}
WILD = "values|illegal memory access|all written|NaN and infinity"
UNDEFINED = "values|NaN and infinity"
RACE = {"without_gpu": "apart", "with_gpu": "racecheck", "sign": UNDEFINED, "sign_with_gpu": "Race reported"}

t_online, t_onepass, t_split, t_gluon = (
    partial(Mutation, "softmax", f"triton.{variant}", file="triton_impl/softmax.py")
    for variant in ("online", "onepass", "split", "gluon")
)
online, onepass, split, cluster, ring = (
    partial(Mutation, "softmax", f"cupy.{variant}", file="cuda_impl/kernels/softmax.cuh")
    for variant in ("online", "onepass", "split", "cluster", "ring")
)
running = partial(Mutation, "softmax", "cupy.online", file="cuda_impl/kernels/running.cuh")
launch_online, launch_onepass, launch_split = (
    partial(Mutation, "softmax", f"cupy.{variant}", file="cuda_impl/rawkernel/softmax.py")
    for variant in ("online", "onepass", "split")
)

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_online(
        bug="missing finite_shift",
        what="exp(-inf - -inf) is NaN where a lane has seen nothing but -inf",
        right='tl.where(maximum == -float("inf"), 0.0, maximum)',
        wrong="maximum",
        sign="NaN and infinity",
    ),
    t_online(
        bug="maximum from 0",
        what="the maximum of a row that has nothing above 0 is taken to be 0",
        right='lane_max = tl.full([BLOCK_N], -float("inf"), tl.float32)',
        wrong="lane_max = tl.zeros([BLOCK_N], tl.float32)",
        sign="NaN and infinity",
    ),
    t_online(
        bug="missing rescale",
        what="the sum so far is not scaled to the new maximum",
        right="lane_sum = lane_sum * fast_expf(lane_max - shift)",
        wrong="lane_sum = lane_sum",
        sign="values",
    ),
    t_online(
        bug="wrong combine",
        what="the lanes' sums are added though each is relative to its own maximum",
        right="tl.sum(lane_sum * fast_expf(lane_max - finite_shift(row_max)), axis=0)",
        wrong="tl.sum(lane_sum, axis=0)",
        sign="values",
    ),
    t_online(
        bug="missing max subtraction",
        what="the output's exponentials are not shifted",
        right="fast_expf(x - row_max) * inverse_sum",
        wrong="fast_expf(x) * inverse_sum",
        sign=UNDEFINED,
    ),
    t_online(
        bug="off-by-one mask",
        what="the column after the last is written",
        right="inverse_sum, mask=n < N",
        wrong="inverse_sum, mask=n <= N",
        sign="guard zones",
    ),
    t_online(
        bug="missed tail",
        what="the last column is not written",
        right="inverse_sum, mask=n < N",
        wrong="inverse_sum, mask=n < N - 1",
        sign="all written",
    ),
    t_online(
        bug="uninitialised element",
        what="one element of each row is not written",
        right="inverse_sum, mask=n < N",
        wrong="inverse_sum, mask=(n < N) & (n != 64)",
        sign="all written",
    ),
    t_online(
        bug="wrong stride",
        what="rows of x are taken to be N apart",
        right="x_row = x_ptr + m * stride_xm",
        wrong="x_row = x_ptr + m * N",
        sign=UNDEFINED,
    ),
    t_online(
        bug="32-bit offset",
        what="program_id * stride_xm overflows",
        right="m = tl.program_id(0).to(tl.int64)\n",
        wrong="m = tl.program_id(0)\n",
        sign=WILD,
        **HUGE,
    ),
    t_onepass(
        bug="missing max subtraction",
        what="exponentials overflow",
        right="e = fast_expf(x - row_max)",
        wrong="e = fast_expf(x)",
        sign="NaN and infinity",
    ),
    t_onepass(
        bug="wrong identity",
        what="columns beyond the last count as 0, not as -inf",
        right='mask=inside, other=-float("inf")',
        wrong="mask=inside, other=0.0",
        sign="values",
    ),
    t_onepass(
        bug="fp16 accumulator",
        what="the row is summed in fp16",
        right="tl.sum(e, axis=1, keep_dims=True)",
        wrong="tl.sum(e.to(tl.float16), axis=1, keep_dims=True).to(tl.float32)",
        sign="values",
    ),
    t_onepass(
        bug="swapped rows",
        what="rows are written in reverse order",
        right="y_ptr + m * N + n, e",
        wrong="y_ptr + (M - 1 - m) * N + n, e",
        sign="values",
    ),
    t_onepass(
        bug="wrong axis",
        what="the maximum is that of a column",
        right="row_max = tl.max(x, axis=1",
        wrong="row_max = tl.max(x, axis=0",
        sign="values",
    ),
    t_onepass(
        bug="missed rows",
        what="the last program, which has less than BLOCK_M rows, is not launched",
        right="grid = (triton.cdiv(M, BLOCK_M),)",
        wrong="grid = (max(1, M // BLOCK_M),)",
        sign="all written",
    ),
    t_split(
        bug="wrong combine",
        what="the chunks' sums are added though each is relative to its own maximum",
        right="tl.sum(total * fast_expf(maximum - finite_shift(row_max)), axis=0)",
        wrong="tl.sum(total, axis=0)",
        without_gpu="",
        needs="programs that run side by side",
        sign="values",
    ),
    t_gluon(
        bug="places mixed up",
        what="a tile is reduced from the place that the next one is fetched into",
        right="ring.index(turn % STAGES).load(TILE)",
        wrong="ring.index((turn + 1) % STAGES).load(TILE)",
        sign=UNDEFINED,
        **GPU,
    ),
    t_gluon(
        bug="last turn missed",
        what="rows are written a turn late, and after the last there is none",
        right="for m in range(first, M + step, step)",
        wrong="for m in range(first, M, step)",
        sign="all written",
        **GPU,
    ),
    t_gluon(
        bug="padding counted",
        what="columns that are not there are 0, as they were fetched, and exp(0) is 1",
        right='gl.where(inside, ring.index(turn % STAGES).load(TILE).to(gl.float32), -float("inf"))',
        wrong="ring.index(turn % STAGES).load(TILE).to(gl.float32)",
        sign="values",
        **GPU,
    ),
    # ------------------------------------------------------------------ CUDA
    running(
        bug="missing finite_shift",
        what="exp(-inf - -inf) is NaN where a thread has seen nothing but -inf",
        right="max == negative_infinity() ? 0.0f : max",
        wrong="max",
        sign="NaN and infinity",
    ),
    onepass(
        bug="maximum from 0",
        what="the maximum of a row that has nothing above 0 is taken to be 0",
        right="    float max = negative_infinity();",
        wrong="    float max = 0.0f;",
        sign="NaN and infinity",
    ),
    online(
        bug="missing rescale",
        what="the sum so far is not scaled to the new maximum",
        right="seen.sum * __expf(seen.max - shift)",
        wrong="seen.sum",
        sign="values",
    ),
    online(
        bug="fp16 accumulator",
        what="a thread sums its tiles in fp16",
        right="return {max, seen.sum * __expf(seen.max - shift) + sum}",
        wrong="return {max, __half(seen.sum * __expf(seen.max - shift) + sum)}",
        sign="values",
    ),
    online(
        bug="missing max subtraction",
        what="the output's exponentials are not shifted",
        right=" - row.max) * inverse_sum",
        wrong=") * inverse_sum",
        sign=UNDEFINED,
    ),
    online(
        bug="missed tail",
        what="the last tile, which is not whole, is left out of the sum",
        right="Running row = nothing_seen();\n    for (index_t begin = 0; begin < N;",
        wrong="Running row = nothing_seen();\n    for (index_t begin = 0; begin + BLOCK_N <= N;",
        sign=UNDEFINED,
    ),
    online(
        bug="wrong stride",
        what="rows of x are taken to be N apart",
        right="x_ptr + blockIdx.x * stride_xm",
        wrong="x_ptr + blockIdx.x * N",
        sign=UNDEFINED,
    ),
    online(
        bug="32-bit offset",
        what="blockIdx * stride_xm overflows",
        right="x_ptr + blockIdx.x * stride_xm",
        wrong="x_ptr + static_cast<int>(blockIdx.x * stride_xm)",
        sign=WILD,
        **HUGE,
    ),
    online(
        bug="off-by-one mask",
        what="the column after the last is written",
        right="if (n < columns) store(tile_ptr",
        wrong="if (n <= columns) store(tile_ptr",
        sign="guard zones",
    ),
    online(
        bug="wrong identity",
        what="columns beyond the last count as 0, not as -inf",
        right="nothing[v] = negative_infinity()",
        wrong="nothing[v] = 0.0f",
        sign="values",
    ),
    running(
        bug="wrong shuffle width",
        what="half of the lanes are left out of a warp's sum",
        right="for (int offset = WIDTH / 2; offset > 0; offset /= 2) sum",
        wrong="for (int offset = WIDTH / 4; offset > 0; offset /= 2) sum",
        sign="values",
    ),
    running(
        bug="too few warps",
        what="half of the warps are left out of the block's combination",
        right="warp_combine<WARPS>(",
        wrong="warp_combine<WARPS / 2>(",
        sign=UNDEFINED,
    ),
    running(
        bug="dropped barrier",
        what="warps read each other's results before they are there",
        right="    __syncthreads();\n#pragma unroll\n    for (int i = 0; i < COUNT; ++i) seen[i]",
        wrong="#pragma unroll\n    for (int i = 0; i < COUNT; ++i) seen[i]",
        **RACE,
    ),
    running(
        bug="shared memory overrun",
        what="an array in shared memory has fewer elements than are written",
        right="of_warp[COUNT][WARPS];",
        wrong="of_warp[COUNT][WARPS / 4];",
        without_gpu="sanitizers",
        with_gpu="memcheck",
        sign="out of bounds|insufficient space",
        sign_with_gpu="Invalid __shared__",
    ),
    onepass(
        bug="missing max subtraction",
        what="exponentials overflow",
        right="Running own = {tile_max(x), 0.0f}",
        wrong="Running own = {0.0f, 0.0f}",
        sign="NaN and infinity",
    ),
    onepass(
        bug="wrong rescale",
        what="exponentials relative to a thread's own maximum are taken for those of the row",
        right="__expf(own.max - row.max) / row.sum",
        wrong="1.0f / row.sum",
        sign="values",
    ),
    onepass(
        bug="fp16 accumulator",
        what="a thread sums its elements in fp16",
        right="own.sum += e[p][v]",
        wrong="own.sum = __half2float(__float2half(own.sum + e[p][v]))",
        sign="values",
    ),
    onepass(
        bug="swapped rows",
        what="rows are written in reverse order",
        right="y_ptr + m * N + n, y",
        wrong="y_ptr + (M - 1 - m) * N + n, y",
        sign="values",
    ),
    onepass(
        bug="wrong stride",
        what="rows of x are taken to be N apart",
        right="x_ptr + m * stride_xm,",
        wrong="x_ptr + m * N,",
        sign=UNDEFINED,
    ),
    onepass(
        bug="32-bit offset",
        what="m * N overflows",
        right="y_ptr + m * N + n, y",
        wrong="y_ptr + static_cast<int>(m * N) + n, y",
        sign=WILD,
        **HUGE,
    ),
    onepass(
        bug="uninitialised element",
        what="a pack of each row is not written",
        right="if (n < columns) store(y_ptr",
        wrong="if (n < columns && n != 64) store(y_ptr",
        sign="all written",
    ),
    onepass(
        bug="rows beyond the last",
        what="threads without a row work on one that is not there",
        right="m < M ? static_cast<int>(N) : 0",
        wrong="static_cast<int>(N)",
        sign="guard zones",
    ),
    launch_onepass(
        bug="too few threads",
        what="the row is longer than what its threads hold",
        right="(ceil_div(packs, PACKS) - 1).bit_length()",
        wrong="(packs // PACKS - 1).bit_length()",
        sign="all written",
    ),
    launch_online(
        bug="alignment not looked at",
        what="a tensor that starts between two 16-byte boundaries is read in packs of 16",
        right="x.data_ptr() % 16 == 0 and ",
        wrong="",
        without_gpu="sanitizers",
        sign="misaligned address",
    ),
    launch_onepass(
        bug="stride not looked at",
        what="rows that start between two 16-byte boundaries are read in packs of 16",
        right="x.stride(0) % pack == 0 and ",
        wrong="",
        without_gpu="sanitizers",
        sign="misaligned address",
    ),
    launch_online(
        bug="wrong pack width",
        what="rows that are no multiple of 16 bytes are moved in packs of 16",
        right=" and x.size(1) % pack == 0",
        wrong="",
        sign="guard zones|a crash",
        sign_with_gpu="misaligned address|guard zones",
    ),
    split(
        bug="dropped barrier",
        what="a turn's combination may overwrite that of the turn before, which not all warps have read",
        right="__syncthreads();  // all have read what block_combine shared",
        wrong="",
        **RACE,
    ),
    split(
        bug="wrong turn",
        what="the output is written a turn too early, of another chunk",
        right="writes = turn >= 2;",
        wrong="writes = turn >= 1;",
        sign=UNDEFINED,
    ),
    split(
        bug="chunk never published",
        what="the other blocks wait for ever",
        right="*static_cast<volatile word_t*>(of_chunk) = ",
        wrong="if (blockIdx.x != 1) *static_cast<volatile word_t*>(of_chunk) = ",
        sign="deadlock",
        sign_with_gpu="time limit",
    ),
    launch_split(
        bug="workspace not zeroed",
        what="what lies in fresh memory passes for a published chunk",
        right='torch.zeros(M * chunks, dtype=torch.int64, device=x.device)\n    name = f"softmax_split',
        wrong='torch.empty(M * chunks, dtype=torch.int64, device=x.device)\n    name = f"softmax_split',
        sign=UNDEFINED,
        with_gpu="",
        needs="blocks that run one after another: side by side, all have published before one looks",
    ),
    cluster(
        bug="dropped wait",
        what="a tile is reduced before the copy engine has brought it",
        right="mbarrier_wait(&landed[tile], 0);",
        wrong="",
        sign=UNDEFINED,
        **HOPPER,
    ),
    cluster(
        bug="missed tail",
        what="the row's last slice is taken for a whole one",
        right="begin + slice < N ? slice : N - begin",
        wrong="slice",
        sign="guard zones|values|illegal memory access",
        **HOPPER,
    ),
    ring(
        bug="dropped wait",
        what="a chunk is reduced before the copy engine has brought it",
        right="mbarrier_wait(&landed[slot], parity);",
        wrong="",
        sign=UNDEFINED,
        **HOPPER,
    ),
)
