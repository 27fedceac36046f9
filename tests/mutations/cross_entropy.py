"""Mistakes in cross_entropy."""

from functools import partial

from mutations import HOPPER, HUGE, Mutation

WILD = "values|illegal memory access|all written|NaN and infinity"
UNDEFINED = "values|NaN and infinity"
RACE = {"without_gpu": "apart", "with_gpu": "racecheck", "sign": UNDEFINED, "sign_with_gpu": "Race reported"}
SIDE_BY_SIDE = {
    "with_gpu": "",
    "needs": "blocks that run one after another: side by side, all parts are there before one is read",
}

t_online, t_split = (
    partial(Mutation, "cross_entropy", f"triton.{variant}", file="triton_impl/cross_entropy.py")
    for variant in ("online", "split")
)
online, split, cluster = (
    partial(Mutation, "cross_entropy", f"cupy.{variant}", file="cuda_impl/kernels/cross_entropy.cuh")
    for variant in ("online", "split", "cluster")
)
running, running_split = (
    partial(Mutation, "cross_entropy", f"cupy.{variant}", file="cuda_impl/kernels/running.cuh")
    for variant in ("online", "split")
)
launch_split = partial(Mutation, "cross_entropy", "cupy.split", file="cuda_impl/rawkernel/cross_entropy.py")

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_online(
        bug="missing finite_shift",
        what="exp(-inf - -inf) is NaN where a thread has seen nothing but -inf",
        right='tl.where(maximum == -float("inf"), 0.0, maximum)',
        wrong="maximum",
        sign="NaN and infinity",
    ),
    t_online(
        bug="maximum from 0",
        what="the maximum of a row that has nothing above 0 is taken to be 0",
        right='own_max = tl.full([THREADS], -float("inf"), tl.float32)',
        wrong="own_max = tl.zeros([THREADS], tl.float32)",
        sign="NaN and infinity",
    ),
    t_online(
        bug="missing rescale",
        what="the sum so far is not scaled to the new maximum",
        right="own_sum * fast_expf(own_max - shift) + new_sum",
        wrong="own_sum + new_sum",
        sign="values",
    ),
    t_online(
        bug="wrong combine",
        what="the threads' sums are added though each is relative to its own maximum",
        right="tl.sum(total * fast_expf(maximum - finite_shift(of_all)), axis=0)",
        wrong="tl.sum(total, axis=0)",
        sign="values",
    ),
    t_online(
        bug="wrong identity",
        what="columns beyond the last count as 0, not as -inf",
        right='mask=pack < packs, other=-float("inf")',
        wrong="mask=pack < packs, other=0.0",
        sign="values",
    ),
    t_online(
        bug="missed tail",
        what="the last pack is left out of the sum",
        right="tl.minimum(end_pack - begin, AT_A_TIME)",
        wrong="tl.minimum(end_pack - begin - 1, AT_A_TIME)",
        sign="values",
    ),
    t_online(
        bug="neighbours counted",
        what="what follows a row's last element in its pack counts as the row's",
        right=" & (at < first + count)",
        wrong=" & (e < 2 * VEC)",
        sign="values",
    ),
    t_online(
        bug="beginning lost",
        what="what comes before a row's first whole pack is left out",
        right="((e >= VEC) | (at < first_pack * VEC))",
        wrong="(e >= VEC)",
        sign="values",
    ),
    t_online(
        bug="targets taken for dense",
        what="targets with gaps are read as if there were none",
        right="target = tl.load(targets_ptr + m * stride_tm)\n    row_max",
        wrong="target = tl.load(targets_ptr + m)\n    row_max",
        sign=UNDEFINED,
    ),
    t_online(
        bug="nothing ignored",
        what="a row without a target has a loss",
        right="tl.where(target == IGNORED, 0.0, tl.log(row_sum) - (picked - row_max))",
        wrong="tl.log(row_sum) - (picked - row_max)",
        sign="NaN and infinity",
    ),
    t_online(
        bug="logarithm lost",
        what="it is added to the maximum first, beside which it is nothing where that is large",
        right="tl.log(row_sum) - (picked - row_max)",
        wrong="(tl.log(row_sum) + row_max) - picked",
        sign="values",
    ),
    t_online(
        bug="32-bit offset",
        what="program_id * stride_lm overflows",
        right="m = tl.program_id(0).to(tl.int64)\n",
        wrong="m = tl.program_id(0)\n",
        sign=WILD,
        **HUGE,
    ),
    t_split(
        bug="combined too early",
        what="a program combines the parts before the last one is there",
        right='sem="acq_rel") == splits - 1:',
        wrong='sem="acq_rel") == tl.maximum(splits - 2, 0):',
        sign=UNDEFINED,
        **SIDE_BY_SIDE,
    ),
    t_split(
        bug="wrong slice",
        what="a program reads on into its neighbour's slice",
        right="tl.minimum(slice_columns, V - begin)",
        wrong="V - begin",
        sign="values",
    ),
    t_split(
        bug="workspace not zeroed",
        what="programs are counted from whatever lies in fresh memory",
        right="arrived = torch.zeros(M,",
        wrong="arrived = torch.empty(M,",
        sign="all written",
    ),
    # ------------------------------------------------------------------ CUDA
    running(
        bug="missing finite_shift",
        what="exp(-inf - -inf) is NaN where a thread has seen nothing but -inf",
        right="max == negative_infinity() ? 0.0f : max",
        wrong="max",
        sign="NaN and infinity",
    ),
    running(
        bug="maximum from 0",
        what="the maximum of a row that has nothing above 0 is taken to be 0",
        right="return {negative_infinity(), 0.0f};",
        wrong="return {0.0f, 0.0f};",
        sign="NaN and infinity",
    ),
    running(
        bug="missing rescale",
        what="the sum so far is not scaled to the new maximum",
        right="seen.sum * __expf(seen.max - shift)",
        wrong="seen.sum",
        sign="values",
    ),
    running(
        bug="fp16 accumulator",
        what="a thread sums its packs in fp16",
        right="return {max, seen.sum * __expf(seen.max - shift) + sum}",
        wrong="return {max, __half(seen.sum * __expf(seen.max - shift) + sum)}",
        sign="values",
    ),
    running(
        bug="wrong combine",
        what="a part is added though it is relative to another maximum",
        right="b.sum * __expf(b.max - shift)",
        wrong="b.sum",
        sign="values",
    ),
    running(
        bug="too few warps",
        what="half of the warps are left out of the block's combination",
        right="warp_combine<WARPS>(",
        wrong="warp_combine<WARPS / 2>(",
        sign=UNDEFINED,
    ),
    running_split(
        bug="dropped barrier",
        what="warps read each other's results before they are there",
        right="    __syncthreads();\n",
        wrong="",
        **RACE,
    ),
    online(
        bug="missed head",
        what="what lies before the first 16-byte boundary is left out",
        right="if (thread < edges) seen = combine",
        wrong="if (thread >= head && thread < edges) seen = combine",
        sign="values",
    ),
    online(
        bug="missed tail",
        what="the last tile, which is not whole, is left out",
        right="for (index_t begin = 0; begin < packs; begin += TILE)",
        wrong="for (index_t begin = 0; begin + TILE <= packs; begin += TILE)",
        sign=UNDEFINED,
    ),
    online(
        bug="boundary not looked for",
        what="rows that begin between two 16-byte boundaries are read in packs of 16",
        right="(VEC - misplaced) % VEC",
        wrong="0 * misplaced",
        without_gpu="sanitizers",
        sign="misaligned address",
    ),
    online(
        bug="targets taken for dense",
        what="targets with gaps are read as if there were none",
        right="targets_ptr[m * stride_tm];\n\n    Running row",
        wrong="targets_ptr[m];\n\n    Running row",
        sign=UNDEFINED,
    ),
    online(
        bug="nothing ignored",
        what="a row without a target has a loss",
        right="target == IGNORED ? 0.0f : ",
        wrong="",
        sign="NaN and infinity",
    ),
    online(
        bug="logarithm lost",
        what="it is added to the maximum first, beside which it is nothing where that is large",
        right="logf(row.sum) - (picked - row.max)",
        wrong="(logf(row.sum) + row.max) - picked",
        sign="values",
    ),
    online(
        bug="rows beyond the last",
        what="warps without a row write the loss of one that is not there",
        right="    if (m >= M) return;\n",
        wrong="",
        sign="guard zones|a crash",
        sign_with_gpu="guard zones|illegal memory access",
    ),
    online(
        bug="32-bit offset",
        what="m * stride_lm overflows",
        right="if (m >= M) return;\n    const T* row_ptr = logits_ptr + m * stride_lm;",
        wrong="if (m >= M) return;\n    const T* row_ptr = logits_ptr + static_cast<int>(m * stride_lm);",
        sign=WILD,
        **HUGE,
    ),
    split(
        bug="combined too early",
        what="a block combines the parts before the last one is there",
        right="arrives_last(&arrived[m], splits)",
        wrong="arrives_last(&arrived[m], splits > 1 ? splits - 1 : 1)",
        sign=UNDEFINED,
        **SIDE_BY_SIDE,
    ),
    split(
        bug="rows counted together",
        what="all rows' blocks are counted in one place",
        right="&arrived[m]",
        wrong="&arrived[0]",
        sign="all written",
    ),
    split(
        bug="missed parts",
        what="only the first part of every warp's worth is looked at",
        right="s < splits; s += WARP",
        wrong="s < 1; s += WARP",
        sign="values",
    ),
    launch_split(
        bug="workspace not zeroed",
        what="blocks are counted from whatever lies in fresh memory",
        right="workspace = torch.zeros(",
        wrong="workspace = torch.empty(",
        sign="all written",
    ),
    cluster(
        bug="dropped wait",
        what="the parts are combined before the other blocks have sent theirs",
        right="mbarrier_wait(&heard, 0);",
        wrong="",
        sign=UNDEFINED,
        **HOPPER,
    ),
    cluster(
        bug="missed tail",
        what="the row's last slice is taken for a whole one",
        right="begin >= V ? 0 : begin + slice < V ? slice : V - begin",
        wrong="slice",
        sign="values|NaN and infinity|illegal memory access",
        **HOPPER,
    ),
)
