"""Mistakes in compact."""

from functools import partial

from mutations import GLUON, HUGE, STRAY, Mutation

WILD = "values|illegal memory access|all written|NaN and infinity"
MISPLACED = "values|all written|NaN and infinity"
ASTRAY = f"{MISPLACED}|{STRAY}"

t_twopass, t_onepass, t_gluon = (
    partial(Mutation, "compact", f"triton.{variant}", file="triton_impl/compact.py")
    for variant in ("twopass", "onepass", "gluon")
)
twopass, onepass, ring = (
    partial(Mutation, "compact", f"cupy.{variant}", file="cuda_impl/kernels/compact.cuh")
    for variant in ("twopass", "onepass", "ring")
)
launch_onepass, launch_ring = (
    partial(Mutation, "compact", f"cupy.{variant}", file="cuda_impl/rawkernel/compact.py")
    for variant in ("onepass", "ring")
)

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_twopass(
        bug="inclusive scan",
        what="an element counts itself among those before it",
        right="tl.cumsum(kept, axis=0) - kept",
        wrong="tl.cumsum(kept, axis=0)",
        sign=MISPLACED,
    ),
    t_twopass(
        bug="threshold kept",
        what="what is not greater than 0 but equal is kept",
        right="x.to(tl.float32) > 0.0",
        wrong="x.to(tl.float32) >= 0.0",
        sign=MISPLACED + "|guard zones",
    ),
    t_twopass(
        bug="no end",
        what="what ends the kept elements is not written",
        right="mask=count < N)",
        wrong="mask=count < 0)",
        sign="all written",
    ),
    t_twopass(
        bug="end out of bounds",
        what="an end is written though there is no room for it",
        right="mask=count < N)",
        wrong="mask=count <= N)",
        sign="guard zones",
    ),
    t_twopass(
        bug="32-bit offset",
        what="program_id * BLOCK_SIZE overflows",
        right="tile = tl.program_id(0).to(tl.int64)\n    x, kept",
        wrong="tile = tl.program_id(0)\n    x, kept",
        sign=WILD,
        **HUGE,
    ),
    t_onepass(
        bug="own tile counted",
        what="a tile begins where it should end",
        right="store_kept(y_ptr, before, x, kept)\n    if tile ==",
        wrong="store_kept(y_ptr, before + count, x, kept)\n    if tile ==",
        sign=MISPLACED + "|guard zones",
    ),
    t_onepass(
        bug="own count published for all",
        what="what a tile keeps itself is taken for what all up to it keep",
        right="publish(of_tile_ptr, tile, ALL, before + count)",
        wrong="publish(of_tile_ptr, tile, ALL, count)",
        sign=MISPLACED,
        with_gpu="huge",  # with few tiles all look back before one has what all keep
    ),
    t_gluon(
        bug="own lane counted",
        what="a lane counts itself among those before it",
        right="%lanemask_lt",
        wrong="%lanemask_le",
        sign=MISPLACED,
        **GLUON,
    ),
    # ------------------------------------------------------------------ CUDA
    twopass(
        bug="subnormals flushed",
        what="numbers compare as arithmetic takes them: what is less than the least normal one, as 0",
        right="setp.gt.f32",
        wrong="setp.gt.ftz.f32",
        sign=MISPLACED,
        without_gpu="",
        needs="a GPU: the host build flushes nothing",
    ),
    twopass(
        bug="own lane counted",
        what="a lane counts itself among those before it",
        right="return (1u << threadIdx.x % WARP) - 1;",
        wrong="return (2u << threadIdx.x % WARP) - 1;",
        sign=MISPLACED,
    ),
    twopass(
        bug="step forgotten",
        what="every step of a warp begins where the first does",
        right="place += __popc(kept);",
        wrong="place += 0;",
        sign=MISPLACED,
    ),
    twopass(
        bug="no end",
        what="what ends the kept elements is not written",
        right="if (blockIdx.x == 0) store_end(",
        wrong="if (false) store_end(",
        sign="all written",
    ),
    twopass(
        bug="missing barrier",
        what="a round of the sum over tiles begins before the one above has been read",
        right="        __syncthreads();  // all have read what among_warps shared",
        wrong="",
        sign="values|all written",
        case="N=4198401,K=2099200,bf16",  # more tiles than the scan's block has threads
        without_gpu="apart",
        with_gpu="",
        needs="a warp that is late",
    ),
    twopass(
        bug="wrong stride",
        what="elements are taken to be neighbours",
        right="n < N ? x_ptr[n * stride_xn] :",
        wrong="n < N ? x_ptr[n] :",
        sign=MISPLACED,
    ),
    onepass(
        bug="nearest tile not looked at",
        what="the look back begins one tile too far",
        right="int nearest = tile - 1;",
        wrong="int nearest = tile - 2;",
        sign=MISPLACED,
    ),
    onepass(
        bug="farther tiles counted twice",
        what="what is known of tiles behind one that knows all is added once more",
        right="needed = knows_all ^ (knows_all - 1);",
        wrong="needed = FULL_WARP;",
        sign=ASTRAY,
    ),
    onepass(
        bug="warps in one place",
        what="every warp of a tile begins where the first does",
        right="tile.store(y_ptr + before + counted.before);",
        wrong="tile.store(y_ptr + before);",
        sign=MISPLACED,
    ),
    onepass(
        bug="missed tail",
        what="the tile that the end cuts short loses its last element",
        right="x[i] = n < N ? x_ptr",
        wrong="x[i] = n < N - 1 ? x_ptr",
        sign=MISPLACED,
    ),
    onepass(
        bug="missing barrier",
        what="what the tiles before keep is read before it is known",
        right="        }\n    }\n    __syncthreads();\n    return shared_before;",
        wrong="        }\n    }\n    return shared_before;",
        sign=ASTRAY,
        without_gpu="apart",
        with_gpu="racecheck",
        sign_with_gpu="Race reported",
    ),
    onepass(
        bug="end out of bounds",
        what="an end is written though there is no room for it",
        right="if (threadIdx.x == 0 && count < N)",
        wrong="if (threadIdx.x == 0 && count <= N)",
        sign="guard zones",
    ),
    onepass(
        bug="wrong stride",
        what="elements are taken to be neighbours",
        right="x_ptr[(first + i * WARP) * stride_xn]",
        wrong="x_ptr[first + i * WARP]",
        sign=MISPLACED,
    ),
    launch_onepass(
        bug="wrong grid",
        what="half as many tiles as there is work for",
        right="tiles = ceil_div(N, THREADS * ITEMS)\n    words",
        wrong="tiles = ceil_div(N, THREADS * ITEMS * 2)\n    words",
        sign=MISPLACED,
    ),
    ring(
        bug="tile counted twice",
        what="the next tile is published as what all up to it keep",
        right="publish(of_tile + next, OWN, next_counted.all);",
        wrong="publish(of_tile + next, ALL, next_counted.all);",
        sign=ASTRAY,
        without_gpu="",
        with_gpu="huge",
        needs="sm_90, and a tile of another block's in front",
    ),
    ring(
        bug="phase forgotten",
        what="a place of the ring is read before its second tile has come",
        right="next_phase = next_stage > 0 ? phase : phase ^ 1;",
        wrong="next_phase = phase;",
        sign=ASTRAY + "|not finished",  # a place may also be waited for that nobody fills again
        without_gpu="",
        with_gpu="huge",
        needs="sm_90, and more tiles than rings have places",
    ),
    ring(
        bug="missed tail",
        what="the tile that the end cuts short loses its last element",
        right="0 <= n && n < N ? x_ptr[n]",
        wrong="0 <= n && n < N - 1 ? x_ptr[n]",
        sign=MISPLACED,
        without_gpu="",
        needs="sm_90",
    ),
    launch_ring(
        bug="skew forgotten",
        what="x is taken to begin at a multiple of 16 bytes",
        right="skew = x.data_ptr() % 16 // x.element_size()",
        wrong="skew = 0",
        sign=ASTRAY + "|misaligned address",
        without_gpu="",
        needs="sm_90",
    ),
)
