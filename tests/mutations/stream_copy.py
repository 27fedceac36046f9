"""Mistakes in stream_copy."""

from functools import partial

from mutations import HOPPER, HUGE, Mutation

GOES_ON = {"with_gpu": "huge"}  # a GPU has blocks for every chunk of a small case
WILD = "values|illegal memory access|all written"
LOST = "all written"
MIXED = "values|all written"

t_naive, t_vectorized, t_hinted, t_prefetch, t_cp_async, t_tma = (
    partial(Mutation, "stream_copy", f"triton.{variant}", file="triton_impl/stream_copy.py")
    for variant in ("naive", "vectorized", "hinted", "prefetch", "cp_async", "tma")
)
naive, vectorized, hinted, prefetch, cp_async, tma = (
    partial(Mutation, "stream_copy", f"cupy.{variant}", file="cuda_impl/kernels/stream_copy.cuh")
    for variant in ("naive", "vectorized", "hinted", "prefetch", "cp_async", "tma")
)
launch_vectorized, launch_cp_async = (
    partial(Mutation, "stream_copy", f"cupy.{variant}", file="cuda_impl/rawkernel/stream_copy.py")
    for variant in ("vectorized", "cp_async")
)

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_naive(
        bug="off-by-one mask",
        what="the element after the last is written",
        right="* BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)\n    inside = n < N\n",
        wrong="* BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)\n    inside = n <= N\n",
        sign="guard zones",
    ),
    t_naive(
        bug="wrong stride",
        what="elements are taken to be neighbours",
        right="tl.load(x_ptr + n * stride_xn, mask=inside), mask=inside)\n\n\n@triton.jit\ndef copy_rest",
        wrong="tl.load(x_ptr + n, mask=inside), mask=inside)\n\n\n@triton.jit\ndef copy_rest",
        sign="values|NaN and infinity",
    ),
    t_vectorized(
        bug="missed tail",
        what="the elements behind the last whole pack are left out",
        right="    n = tl.cast(packed, tl.int64) + tl.arange(0, 16)\n    inside = n < N\n",
        wrong="    n = tl.cast(packed, tl.int64) + tl.arange(0, 16)\n    inside = n < packed\n",
        sign=LOST,
    ),
    t_vectorized(
        bug="32-bit offset",
        what="program_id * BLOCK_SIZE overflows",
        right='elements."""\n    begin = tl.program_id(0).to(tl.int64)',
        wrong='elements."""\n    begin = tl.program_id(0)',
        sign=WILD,
        **HUGE,
    ),
    t_hinted(
        bug="rounded on the way",
        what="elements pass through fp16",
        right="tl.store(y_ptr + n, x, cache_modifier=STORE_CACHE",
        wrong="tl.store(y_ptr + n, x.to(tl.float16), cache_modifier=STORE_CACHE",
        sign="values",
    ),
    t_prefetch(
        bug="places mixed up",
        what="what was loaded for the one place is stored from the other",
        right="tl.store(y_ptr + after, odd,",
        wrong="tl.store(y_ptr + after, even,",
        sign="values",
        **GOES_ON,
    ),
    t_prefetch(
        bug="loaded too near",
        what="a place is loaded again with the chunk that the other one holds",
        right="ahead = tl.cast(2 * step, tl.int64) * BLOCK_SIZE",
        wrong="ahead = tl.cast(step, tl.int64) * BLOCK_SIZE",
        sign="values",
        **GOES_ON,
    ),
    t_cp_async(
        bug="missed tail",
        what="no program takes what is behind the last whole chunk",
        right="if tl.program_id(0) == whole % step:",
        wrong="if tl.program_id(0) == whole:",
        sign=LOST,
    ),
    t_tma(
        bug="rows counted down",
        what="the last tile, which the end cuts short, is left out",
        right="grid = (triton.cdiv(rows, BLOCK_ROWS),)",
        wrong="grid = (max(1, rows // BLOCK_ROWS),)",
        sign=LOST,
    ),
    t_tma(
        bug="missed tail",
        what="elements behind the last whole row are left out",
        right="copy_rest(x_ptr, y_ptr, tl.cast(rows, tl.int64) * COLUMNS, N, 1, COLUMNS)",
        wrong="copy_rest(x_ptr, y_ptr, tl.cast(rows, tl.int64) * COLUMNS, rows * COLUMNS, 1, COLUMNS)",
        sign=LOST,
    ),
    # ------------------------------------------------------------------ CUDA
    naive(
        bug="off-by-one mask",
        what="the element after the last is written",
        right="if (n < N) y_ptr[n] = x_ptr[n * stride_xn];",
        wrong="if (n <= N) y_ptr[n] = x_ptr[n * stride_xn];",
        sign="guard zones",
    ),
    naive(
        bug="32-bit offset",
        what="blockIdx * blockDim overflows",
        right="index_t(blockIdx.x) * blockDim.x + threadIdx.x",
        wrong="int(blockIdx.x * blockDim.x + threadIdx.x)",
        sign=WILD,
        **HUGE,
    ),
    vectorized(
        bug="wrong pack width",
        what="neighbouring threads' packs overlap by half",
        right="return (p * THREADS + threadIdx.x) * VEC; }",
        wrong="return (p * THREADS + threadIdx.x) * (VEC / 2); }",
        sign=LOST,
        sign_with_gpu="misaligned address",
    ),
    vectorized(
        bug="missed tail",
        what="the elements behind the last whole pack are left out",
        right="behind = packed + threadIdx.x;\n    Own part;",
        wrong="behind = N;\n    Own part;",
        sign=LOST,
    ),
    vectorized(
        bug="elements mixed up",
        what="of 16-bit elements that are read one by one neighbours go into neighbouring words",
        right="ptr[(w * PER_WORD + e) * step]",
        wrong="ptr[(w + e * 4) * step]",
        sign="values",
    ),
    vectorized(
        bug="wrong stride",
        what="a chunk of a strided vector begins as if elements were neighbours",
        right="part.gather_from(x_ptr + begin * stride_xn, stride_xn);",
        wrong="part.gather_from(x_ptr + begin, stride_xn);",
        sign="values",
    ),
    launch_vectorized(
        bug="alignment not looked at",
        what="a vector that starts between two 16-byte boundaries is read in packs of 16",
        right="and x.data_ptr() % 16 == 0",
        wrong="and x.data_ptr() % 2 == 0",
        without_gpu="sanitizers",
        sign="misaligned address",
    ),
    hinted(
        bug="lanes mixed up",
        what="a thread writes where its neighbour should",
        right="reinterpret_cast<uint4*>(y_ptr + begin) + threadIdx.x;",
        wrong="reinterpret_cast<uint4*>(y_ptr + begin) + (threadIdx.x ^ 1);",
        sign=MIXED,
    ),
    prefetch(
        bug="written before it is loaded",
        what="a place is loaded again before what it holds is written",
        right="            ring[stage].store_to(y_ptr + chunk * Own::CHUNK);\n"
        "            const index_t next = chunk + STAGES * step;\n"
        "            if (next < whole) ring[stage].load_from(x_ptr + next * Own::CHUNK);\n",
        wrong="            const index_t next = chunk + STAGES * step;\n"
        "            if (next < whole) ring[stage].load_from(x_ptr + next * Own::CHUNK);\n"
        "            ring[stage].store_to(y_ptr + chunk * Own::CHUNK);\n",
        sign="values",
        **GOES_ON,
    ),
    cp_async(
        bug="not waited for",
        what="a chunk is written while it may still be on its way",
        right="cp_async_wait<STAGES - 1>();",
        wrong="cp_async_wait<STAGES>();",
        sign="values|NaN and infinity",
    ),
    cp_async(
        bug="places mixed up",
        what="the place that was emptied is not the one that is filled again",
        right="fetch(stage, chunk + STAGES * step);",
        wrong="fetch(0, chunk + STAGES * step);",
        sign="values",
        **GOES_ON,
    ),
    cp_async(
        bug="groups not counted",
        what="where no chunk is left no group is made, so that the last chunks are not waited for",
        right="        }\n        cp_async_commit();  // an empty",
        wrong="            cp_async_commit();\n        }  // an empty",
        sign="values|NaN and infinity",
    ),
    launch_cp_async(
        bug="grid of none",
        what="a vector shorter than a chunk gets no block",
        right="return max(1, min(chunks, BLOCKS * multiprocessors(x.device)))",
        wrong="return min(chunks, BLOCKS * multiprocessors(x.device))",
        sign="takes 1 to",
        with_gpu="",
        needs="a launch without any block, of which cupy makes one of a block",
    ),
    tma(
        bug="missed tail",
        what="the elements behind the last whole pack are left out",
        right="const index_t behind = packed + threadIdx.x;\n    if (blockIdx.x == 0 &&",
        wrong="const index_t behind = N;\n    if (blockIdx.x == 0 &&",
        sign=LOST,
        **HOPPER,
    ),
    tma(
        bug="not waited for",
        what="the phase before the first counts as complete: what leaves is what the chunk before left there",
        right="mbarrier_wait(landed, 0);",
        wrong="mbarrier_wait(landed, 1);",
        sign="values",
        **HOPPER,
    ),
)
