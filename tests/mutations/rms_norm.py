"""Mistakes in rms_norm, in what it does otherwise than layer_norm; what they share is that one's."""

from functools import partial

from mutations import HOPPER, Mutation

UNDEFINED = "values|NaN and infinity"

t_online, t_onepass, t_split = (
    partial(Mutation, "rms_norm", f"triton.{variant}", file="triton_impl/norm.py")
    for variant in ("online", "onepass", "split")
)
online, onepass, cluster = (
    partial(Mutation, "rms_norm", f"cupy.{variant}", file="cuda_impl/kernels/norm.cuh")
    for variant in ("online", "onepass", "cluster")
)
sums = partial(Mutation, "rms_norm", "cupy.onepass", file="cuda_impl/kernels/reduction.cuh")
launch_onepass = partial(Mutation, "rms_norm", "cupy.onepass", file="cuda_impl/rawkernel/norm.py")

MUTATIONS = (
    t_online(
        bug="squares of one tile",
        what="only the last tile's squares count",
        right="lane_squares += x * x",
        wrong="lane_squares = x * x",
        sign="values",
    ),
    t_onepass(
        bug="weight lost",
        what="y is not scaled by the weight",
        right="return x * scale * weight.to(tl.float32)",
        wrong="return x * scale",
        sign="values",
    ),
    t_onepass(
        bug="sum taken for the mean",
        what="the root is taken of the sum of the squares",
        right="mean, squares = row_moments(x, inside, N, CENTERED)\n    scale = tl.rsqrt(squares / N +",
        wrong="mean, squares = row_moments(x, inside, N, CENTERED)\n    scale = tl.rsqrt(squares +",
        sign="values",
    ),
    t_onepass(
        bug="fp16 accumulator",
        what="fp16 squares overflow, and others lose digits",
        right="tl.sum(deviation * deviation, axis=1, keep_dims=True)",
        wrong="tl.sum((deviation * deviation).to(tl.float16), axis=1, keep_dims=True).to(tl.float32)",
        sign=UNDEFINED,
    ),
    t_split(
        bug="missed tail",
        what="the last word of a row is not written",
        right="narrow(y, DTYPE), mask=n < N)",
        wrong="narrow(y, DTYPE), mask=n < N - 1)",
        sign="all written",
    ),
    t_split(
        bug="wrong turn",
        what="what is written is the chunk of another row",
        right="widen(kept, DTYPE), mean",
        wrong="widen(x, DTYPE), mean",
        sign=UNDEFINED,
    ),
    onepass(
        bug="weight lost",
        what="y is not scaled by the weight",
        right="out[v] = get(x[p], v) * scale * weight;",
        wrong="out[v] = get(x[p], v) * scale;",
        sign="values",
    ),
    sums(
        bug="wrong shuffle width",
        what="half of the lanes are left out of a warp's sum",
        right="for (int offset = WIDTH / 2; offset > 0; offset /= 2) {\n        value +=",
        wrong="for (int offset = WIDTH / 4; offset > 0; offset /= 2) {\n        value +=",
        sign="values",
    ),
    onepass(
        bug="rows of y swapped",
        what="rows are written in reverse order",
        right="store_tile<Norm, ROW_THREADS>(y_ptr + m * N,",
        wrong="store_tile<Norm, ROW_THREADS>(y_ptr + (M - 1 - m) * N,",
        sign="values",
    ),
    online(
        bug="missed tail",
        what="the last tile, which is not whole, is left out of the sum",
        right="float seen_count = 0.0f;\n    for (index_t begin = 0; begin < N;",
        wrong="float seen_count = 0.0f;\n    for (index_t begin = 0; begin + BLOCK_N <= N;",
        sign=UNDEFINED,
    ),
    online(
        bug="weight of the first tile",
        what="every tile is scaled by the first one's weight",
        right="(weight_ptr + begin, bias_ptr + begin, columns, thread);\n        store_tile",
        wrong="(weight_ptr, bias_ptr, columns, thread);\n        store_tile",
        sign="values",
    ),
    launch_onepass(
        bug="stride not looked at",
        what="rows that start between two 16-byte boundaries are read in packs of 16",
        right="x.stride(0) % pack == 0 and ",
        wrong="",
        without_gpu="sanitizers",
        sign="misaligned address",
    ),
    cluster(
        bug="a row too few",
        what="a block does not write the last of its rows",
        right="for (int row = 0; row <= rows; ++row) {\n        if (row < rows) reduce",
        wrong="for (int row = 0; row < rows; ++row) {\n        if (row < rows) reduce",
        sign="all written",
        **HOPPER,
    ),
)
