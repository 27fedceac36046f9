"""Mistakes in reduce_sum."""

from functools import partial

from mutations import HUGE, Mutation

WILD = "values|illegal memory access|NaN and infinity"
UNDEFINED = "values|NaN and infinity"

t_tree, t_vectorized, t_atomic, t_last_block = (
    partial(Mutation, "reduce_sum", f"triton.{variant}", file="triton_impl/reduce_sum.py")
    for variant in ("tree", "vectorized", "atomic", "last_block")
)
tree, shuffle, vectorized, atomic, last_block = (
    partial(Mutation, "reduce_sum", f"cupy.{variant}", file="cuda_impl/kernels/reduce_sum.cuh")
    for variant in ("tree", "shuffle", "vectorized", "atomic", "last_block")
)
launch_vectorized, launch_atomic, launch_last_block = (
    partial(Mutation, "reduce_sum", f"cupy.{variant}", file="cuda_impl/rawkernel/reduce_sum.py")
    for variant in ("vectorized", "atomic", "last_block")
)

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_tree(
        bug="wrong identity",
        what="elements beyond the last count as 1",
        right="mask=n < N, other=0.0)\n    tl.store(y_ptr + block",
        wrong="mask=n < N, other=1.0)\n    tl.store(y_ptr + block",
        sign="values",
    ),
    t_tree(
        bug="summed as it came",
        what="fp16 and bf16 are summed in their own precision",
        right="tl.sum(x.to(tl.float32), axis=0))\n\n\n@triton.jit\ndef sum_of_chunks",
        wrong="tl.sum(x, axis=0))\n\n\n@triton.jit\ndef sum_of_chunks",
        sign=UNDEFINED,
    ),
    t_tree(
        bug="32-bit offset",
        what="program_id * BLOCK_SIZE overflows",
        right="block.to(tl.int64) * BLOCK_SIZE",
        wrong="block * BLOCK_SIZE",
        sign=WILD,
        **HUGE,
    ),
    t_vectorized(
        bug="missed tail",
        what="the chunk that the end cuts short is left out",
        right="tl.program_id(0) == whole % tl.num_programs(0)",
        wrong="tl.program_id(0) < 0",
        sign=UNDEFINED,
    ),
    t_vectorized(
        bug="tail counted twice",
        what="two programs add the chunk that the end cuts short",
        right="tl.program_id(0) == whole % tl.num_programs(0)",
        wrong="tl.program_id(0) <= whole % tl.num_programs(0)",
        sign="values",
    ),
    t_atomic(
        bug="last one wins",
        what="programs write their sums over each other's",
        right='tl.atomic_add(y_ptr, sum_of_chunks(x_ptr, N, stride_xn, PACKS, LANES), sem="relaxed")',
        wrong="tl.store(y_ptr, sum_of_chunks(x_ptr, N, stride_xn, PACKS, LANES))",
        sign="values",
    ),
    t_last_block(
        bug="first instead of last",
        what="who counts first adds up sums that are not there yet",
        right="if done == tl.num_programs(0) - 1:",
        wrong="if done == 0:",
        sign=UNDEFINED,
    ),
    # ------------------------------------------------------------------ CUDA
    tree(
        bug="missing barrier",
        what="a step of the tree begins before the one above has ended",
        right="of_thread[thread + half];\n        __syncthreads();",
        wrong="of_thread[thread + half];",
        sign=UNDEFINED,
        without_gpu="apart",
        with_gpu="racecheck",
        sign_with_gpu="Race reported",
    ),
    tree(
        bug="half a tree",
        what="the last step is left out",
        right="half > 0; half /= 2) {\n        if",
        wrong="half > 1; half /= 2) {\n        if",
        sign=UNDEFINED,
    ),
    tree(
        bug="wrong stride",
        what="elements are taken to be neighbours",
        right="of_thread[thread] = n < N ? to_float(x_ptr[n * stride_xn])",
        wrong="of_thread[thread] = n < N ? to_float(x_ptr[n])",
        sign=UNDEFINED,
    ),
    shuffle(
        bug="warps left out",
        what="only half of the warps' sums are added",
        right="threadIdx.x % WARP < WARPS ? of_warp",
        wrong="threadIdx.x % WARP < WARPS / 2 ? of_warp",
        sign="values",
    ),
    shuffle(
        bug="32-bit offset",
        what="blockIdx * THREADS overflows",
        right="const index_t n = index_t(blockIdx.x) * THREADS + threadIdx.x;\n    const float sum",
        wrong="const index_t n = int(blockIdx.x * THREADS + threadIdx.x);\n    const float sum",
        sign=WILD,
        **HUGE,
    ),
    vectorized(
        bug="missed head",
        what="elements before the first 16-byte boundary are left out",
        right="if (thread < head) sum[0] +=",
        wrong="if (thread < 0) sum[0] +=",
        sign="values",
    ),
    vectorized(
        bug="missed tail",
        what="elements behind the last whole pack are left out",
        right="if (behind < N) sum[0] +=",
        wrong="if (behind < 0) sum[0] +=",
        sign=UNDEFINED,
    ),
    vectorized(
        bug="wrong pack width",
        what="half of each pack's elements are added",
        right="for (int v = 0; v < VEC; ++v) sum[(p",
        wrong="for (int v = 0; v < (VEC + 1) / 2; ++v) sum[(p",
        sign=UNDEFINED,
    ),
    launch_vectorized(
        bug="alignment not looked at",
        what="packs begin where x does, between two 16-byte boundaries",
        right="head = min(N, -x.data_ptr() % 16 // x.element_size()) if dense else 0",
        wrong="head = 0",
        without_gpu="sanitizers",
        sign="misaligned address",
        sign_with_gpu="misaligned address",
    ),
    launch_vectorized(
        bug="stopped early",
        what="the first block's sum is taken for that of all",
        right="if of.blocks == 1:\n            return y\n",
        wrong="if of.blocks >= 1:\n            return y.flatten()[0].clone()\n",
        sign="values",
    ),
    launch_atomic(
        bug="not zeroed",
        what="blocks add to what was there before",
        right="y = x.new_zeros((), dtype=torch.float32)",
        wrong="y = x.new_empty((), dtype=torch.float32)",
        sign="NaN and infinity",
    ),
    last_block(
        bug="own sum only",
        what="the last block writes its own sum",
        right="if (threadIdx.x == 0) *y_ptr = total;",
        wrong="if (threadIdx.x == 0) *y_ptr = sum;",
        sign="values",
    ),
    last_block(
        bug="wrong count",
        what="the last block but one takes itself for the last",
        right="arrives_last(blocks_done, gridDim.x)",
        wrong="arrives_last(blocks_done, gridDim.x - 1)",
        sign="all written",
    ),
)
