"""Mistakes in histogram."""

from functools import partial

from mutations import GLUON, HUGE, STRAY, Mutation

WRONG = "values"

t_global, t_shared, t_gluon = (
    partial(Mutation, "histogram", f"triton.{variant}", file="triton_impl/histogram.py")
    for variant in ("global", "shared", "gluon")
)
globally, shared, warps, lanes = (
    partial(Mutation, "histogram", f"cupy.{variant}", file="cuda_impl/kernels/histogram.cuh")
    for variant in ("global", "shared", "warps", "lanes")
)
launch_lanes = partial(Mutation, "histogram", "cupy.lanes", file="cuda_impl/rawkernel/histogram.py")

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_global(
        bug="tail counted",
        what="what lies behind the end is counted as zeros",
        right="one, mask=n < N, sem",
        wrong="one, sem",
        sign=WRONG,
    ),
    t_shared(
        bug="masked elements counted",
        what="the zeros that stand for what is not there are counted",
        right="tl.where(tl.arange(0, BINS) == 0, nowhere, 0)",
        wrong="tl.where(tl.arange(0, BINS) == 0, 0, 0)",
        sign=WRONG,
    ),
    t_shared(
        bug="end counted by all",
        what="every program counts the block that the end cuts short",
        right="if tl.program_id(0) == whole % tl.num_programs(0):",
        wrong="if whole >= 0:",
        sign=WRONG,
    ),
    t_shared(
        bug="signed bytes",
        what="bytes from 128 on are taken for negative numbers",
        right="tl.load(x_ptr + n * stride_xn).to(tl.int32)",
        wrong="tl.load(x_ptr + n * stride_xn).to(tl.int8).to(tl.int32)",
        sign=WRONG,
        with_gpu="",
        needs="an interpreter: a GPU looks at the last eight bits of a bin's number",
    ),
    t_global(
        bug="32-bit offset",
        what="program_id * BLOCK_SIZE overflows",
        right="tl.program_id(0).to(tl.int64)",
        wrong="tl.program_id(0)",
        sign=f"{WRONG}|{STRAY}",
        **HUGE,
    ),
    t_gluon(
        bug="a byte counted twice",
        what="a word's third byte is counted for its fourth",
        right="fourth, $1, $2, 0x5534",
        wrong="fourth, $1, $2, 0x5524",
        sign=WRONG,
        **GLUON,
    ),
    t_gluon(
        bug="masked elements counted",
        what="the zeros that stand for what is not there are counted",
        right="count_words(x, lanes, inside.to(gl.int32))",
        wrong="count_words(x, lanes, everywhere)",
        sign=WRONG,
        **GLUON,
    ),
    t_gluon(
        bug="end out of step",
        what="behind the last whole word elements are taken for those at the beginning",
        right="gl.where(e < head, e, e + words * 4)",
        wrong="e",
        sign=WRONG,
        **GLUON,
    ),
    # ------------------------------------------------------------------ CUDA
    globally(
        bug="wrong stride",
        what="elements are taken to be neighbours",
        right="x_ptr[n * stride_xn], count_t(1)",
        wrong="x_ptr[n], count_t(1)",
        sign=WRONG,
    ),
    shared(
        bug="no atomic",
        what="two threads read a counter before either writes it",
        right="atomicAdd(count + x_ptr[n * stride_xn], 1u);",
        wrong="++count[x_ptr[n * stride_xn]];",
        sign=WRONG,
        without_gpu="",
        needs="threads that run at the same time",
    ),
    shared(
        bug="counters not emptied",
        what="only the first counters of a block start as 0",
        right="    count[threadIdx.x] = 0;",
        wrong="    if (threadIdx.x < BINS / 2) count[threadIdx.x] = 0;",
        sign=WRONG,
    ),
    warps(
        bug="a warp forgotten",
        what="the last warp's counts are not added",
        right="for (int warp = 0; warp < WARPS; ++warp)",
        wrong="for (int warp = 0; warp < WARPS - 1; ++warp)",
        sign=WRONG,
    ),
    warps(
        bug="missed tail",
        what="what lies behind the last whole pack is not counted",
        right="if (behind < N) counters.add",
        wrong="if (behind < N - 1) counters.add",
        sign=WRONG,
    ),
    warps(
        bug="byte of another pack",
        what="the words of a pack are taken in a wrong order",
        right="pack.word[v / 4] >> v % 4 * 8",
        wrong="pack.word[v % 4] >> v % 4 * 8",
        sign=WRONG,
    ),
    lanes(
        bug="place out of its copy",
        what="a lane's place is not multiplied by a counter's bytes, so that counters overlap",
        right="threadIdx.x % COPIES * 4",
        wrong="threadIdx.x % COPIES",
        sign="values|misaligned address",
        sign_with_gpu="values|misaligned address",
    ),
    lanes(
        bug="missing barrier",
        what="counts are added up before all are there",
        right="    __syncthreads();\n    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {\n"
        "        unsigned all = 0;\n        // Every",
        wrong="    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {\n"
        "        unsigned all = 0;\n        // Every",
        sign=WRONG,
        without_gpu="apart",  # no tool counts an atomic operation among the accesses that may race
    ),
    lanes(
        bug="a copy forgotten",
        what="the counters of the last lane are not added, and others are twice",
        right="(copy + bin) % COPIES",
        wrong="(copy + bin) % (COPIES - 1)",
        sign=WRONG,
    ),
    launch_lanes(
        bug="alignment not looked at",
        what="packs begin where x does, between two 16-byte boundaries",
        right="head = min(N, -x.data_ptr() % 16) if dense else 0",
        wrong="head = 0",
        without_gpu="sanitizers",
        sign="misaligned address",
        sign_with_gpu="misaligned address",
    ),
    launch_lanes(
        bug="shared memory too small",
        what="the launch asks for a copy less than there is",
        right="shared_bytes=BINS * COPIES * 4",
        wrong="shared_bytes=BINS * (COPIES - 1) * 4",
        without_gpu="sanitizers",
        sign="overflow",
        with_gpu="memcheck",
        sign_with_gpu="Invalid __shared__",
    ),
)
