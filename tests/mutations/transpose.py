"""Mistakes in transpose."""

from functools import partial

from mutations import HUGE, Mutation

WILD = "values|illegal memory access|all written"
RACE = {"without_gpu": "apart", "with_gpu": "racecheck", "sign_with_gpu": "Race reported"}

t_naive, t_vectorized = (
    partial(Mutation, "transpose", f"triton.{variant}", file="triton_impl/transpose.py")
    for variant in ("naive", "vectorized")
)
naive, shared, padded, swizzled, vectorized = (
    partial(Mutation, "transpose", f"cupy.{variant}", file="cuda_impl/kernels/transpose.cuh")
    for variant in ("naive", "shared", "padded", "swizzled", "vectorized")
)
launch = partial(Mutation, "transpose", "cupy.vectorized", file="cuda_impl/rawkernel/transpose.py")

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_naive(
        bug="off-by-one mask",
        what="a row after the last is read, and written beside the others",
        right="inside = m < M\n",
        wrong="inside = m <= M\n",
        sign="guard zones|values|every bit",
    ),
    t_naive(
        bug="not transposed",
        what="elements are written where they were read from",
        right="y_ptr + n * M + m, x, mask=inside",
        wrong="y_ptr + m * N + n, x, mask=inside",
        sign="values",
    ),
    t_naive(
        bug="32-bit offset",
        what="program_id * BLOCK_SIZE overflows",
        right="tl.program_id(0).to(tl.int64) * BLOCK_SIZE",
        wrong="tl.program_id(0) * BLOCK_SIZE",
        sign=WILD,
        **HUGE,
    ),
    t_vectorized(
        bug="tile not turned",
        what="a tile is written to its place as it came",
        right="tl.trans(x), mask=tl.trans",
        wrong="x, mask=tl.trans",
        sign="values",
    ),
    t_vectorized(
        bug="mask not turned",
        what="of tiles that are cut short, the mask of the load is the store's too",
        right="mask=tl.trans(inside))",
        wrong="mask=inside)",
        sign="all written|guard zones",
    ),
    t_vectorized(
        bug="wrong stride",
        what="rows of x are taken to be N apart",
        right="x_ptr + m[:, None] * stride_xm",
        wrong="x_ptr + m[:, None] * N",
        sign="values|NaN and infinity",
    ),
    t_vectorized(
        bug="rounded on the way",
        what="elements pass through fp16",
        right="tl.trans(x), mask=tl.trans",
        wrong="tl.trans(x.to(tl.float16)), mask=tl.trans",
        sign="values|NaN and infinity",
    ),
    t_vectorized(
        bug="windows shifted the other way",
        what="windows of rows that begin within a sector leave gaps between each other",
        right="window - begin - n * M % SECTOR",
        wrong="window - begin + n * M % SECTOR",
        sign="all written",
    ),
    t_vectorized(
        bug="tile past the end",
        what="the last tile does not lie against the end of x's columns",
        right="tl.maximum(window - (SECTOR - 1), 0), M - ROWS)",
        wrong="tl.maximum(window - (SECTOR - 1), 0), M - 1)",
        sign="guard zones|values",
    ),
    # ------------------------------------------------------------------ CUDA
    naive(
        bug="missed tail",
        what="the last column of x is left out",
        right="if (m < M && n < N) y_ptr[n * M + m] = x_ptr[",
        wrong="if (m < M && n + 1 < N) y_ptr[n * M + m] = x_ptr[",
        sign="all written",
    ),
    naive(
        bug="32-bit offset",
        what="n * M overflows",
        right="y_ptr[n * M + m] = x_ptr[",
        wrong="y_ptr[int(n) * int(M) + int(m)] = x_ptr[",
        sign=WILD,
        **HUGE,
    ),
    naive(
        bug="columns taken to be neighbours",
        what="the stride along a row is not looked at",
        right="x_ptr[m * stride_xm + n * stride_xn];\n    }\n}\n\n// ---- shared",
        wrong="x_ptr[m * stride_xm + n];\n    }\n}\n\n// ---- shared",
        sign="values|NaN and infinity",
    ),
    shared(
        bug="missing barrier",
        what="columns are read while other warps have not written their rows",
        right="    __syncthreads();\n#pragma unroll\n    for (int column = 0;",
        wrong="#pragma unroll\n    for (int column = 0;",
        sign="values|NaN and infinity",
        **RACE,
    ),
    padded(
        bug="padding forgotten",
        what="the tile is made as if its rows were not longer, and its last rows lie past it",
        right="ELEMENTS = TILE * (TILE + 1)",
        wrong="ELEMENTS = TILE * TILE",
        without_gpu="sanitizers",
        sign="out of bounds|insufficient space",
        with_gpu="memcheck",
        sign_with_gpu="out of bounds|Invalid __shared__",
    ),
    swizzled(
        bug="wrong swizzle",
        what="an inclusive or: columns fall on each other",
        right="(column ^ row)",
        wrong="(column | row)",
        sign="values",
    ),
    vectorized(
        bug="halves exchanged",
        what="the two columns that share words of 16-bit elements change places",
        right="j % 2 == 0 ? (above & 0xffffu)",
        wrong="j % 2 != 0 ? (above & 0xffffu)",
        sign="values",
    ),
    vectorized(
        bug="square not turned",
        what="packs of a square go on as they came",
        right="row.word[w] = square[w].word[j];",
        wrong="row.word[w] = square[j].word[w];",
        sign="values",
    ),
    vectorized(
        bug="swizzle not undone",
        what="packs are read from where they would lie without it",
        right="corner.m + m, tile[Layout::place(n, pack)]",
        wrong="corner.m + m, tile[n * ROW_PACKS + pack]",
        sign="values",
    ),
    vectorized(
        bug="cut tile read on",
        what="of a tile that is cut short, rows beyond the last are read",
        right="corner.m + (m < rows ? m : rows - VEC)",
        wrong="corner.m + m",
        without_gpu="sanitizers",
        sign="heap-buffer-overflow",
        with_gpu="memcheck",
        sign_with_gpu="Invalid __global__ read",
    ),
    vectorized(
        bug="windows shifted the other way",
        what="they begin within sectors, and packs of 16 bytes with them",
        right="static_cast<int>(window - corner.m) - shift + pack",
        wrong="static_cast<int>(window - corner.m) + shift + pack",
        without_gpu="sanitizers",
        sign="misaligned address",
        sign_with_gpu="misaligned address",
    ),
    vectorized(
        bug="tile no higher than a window",
        what="what a row's shift takes from the tile's end is in no tile",
        right="WINDOW = ROWS - SECTOR;",
        wrong="WINDOW = ROWS;",
        sign="all written",
    ),
    vectorized(
        bug="odd begin taken for even",
        what="a pack of 16-bit elements that begins within a word begins with the element before",
        right="two >> m % PER_WORD * 16",
        wrong="two",
        sign="values",
    ),
    vectorized(
        bug="tile past the end",
        what="the last tile does not lie against the end of x's rows",
        right="right < N - Tile::COLUMNS ? right : N - Tile::COLUMNS",
        wrong="right < N ? right : N - Tile::COLUMNS",
        without_gpu="sanitizers",
        sign="heap-buffer-overflow",
        with_gpu="memcheck",
        sign_with_gpu="Invalid __global__",
    ),
    launch(
        bug="shift not in the grid",
        what="windows that are shifted back from the end of y's rows have no tile",
        right="(M + SECTOR - 2) // (ROWS - SECTOR) + 1",
        wrong="(M - 1) // (ROWS - SECTOR) + 1",
        sign="all written",
    ),
    launch(
        bug="alignment not looked at",
        what="rows that start between 16-byte boundaries are read in packs of 16",
        right="and x.data_ptr() % 16 == 0",
        wrong="and x.data_ptr() % 2 == 0",
        without_gpu="sanitizers",
        sign="misaligned address",
        sign_with_gpu="misaligned address",
    ),
    launch(
        bug="wrong grid",
        what="tiles along N are counted by M",
        right="-(-M // BLOCK) * -(-N // BLOCK)",
        wrong="-(-M // BLOCK) * -(-M // BLOCK)",
        sign="all written",
    ),
)
