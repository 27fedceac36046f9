"""Mistakes in layer_norm, and with them in most of what it shares with rms_norm."""

from functools import partial

from mutations import GLUON, HOPPER, HUGE, Mutation

WILD = "values|illegal memory access|all written|NaN and infinity"
UNDEFINED = "values|NaN and infinity"
RACE = {"without_gpu": "apart", "with_gpu": "racecheck", "sign": UNDEFINED, "sign_with_gpu": "Race reported"}

t_online, t_onepass, t_packed, t_split, t_gluon = (
    partial(Mutation, "layer_norm", f"triton.{variant}", file="triton_impl/norm.py")
    for variant in ("online", "onepass", "packed", "split", "gluon")
)
online, onepass, cluster = (
    partial(Mutation, "layer_norm", f"cupy.{variant}", file="cuda_impl/kernels/norm.cuh")
    for variant in ("online", "onepass", "cluster")
)
launch_online, launch_onepass = (
    partial(Mutation, "layer_norm", f"cupy.{variant}", file="cuda_impl/rawkernel/norm.py")
    for variant in ("online", "onepass")
)

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_onepass(
        bug="variance by subtraction",
        what="the mean of the squares less the square of the mean, which of a row far from 0 leaves no digit",
        right="0.0)\n    return mean, tl.sum(deviation * deviation, axis=1, keep_dims=True)",
        wrong="0.0)\n    return mean, tl.sum(x * x, axis=1, keep_dims=True) - count * mean * mean",
        sign=UNDEFINED,
    ),
    t_onepass(
        bug="columns that are not there",
        what="what lies beyond the last column counts as a deviation",
        right="tl.where(inside, x - mean, 0.0)\n    return mean, tl.sum(deviation * deviation, axis=1",
        wrong="x - mean\n    return mean, tl.sum(deviation * deviation, axis=1",
        sign="values",
    ),
    t_onepass(
        bug="bias lost",
        what="y is scaled and not shifted",
        right=" * weight.to(tl.float32) + bias.to(tl.float32)",
        wrong=" * weight.to(tl.float32)",
        sign="values",
    ),
    t_onepass(
        bug="bias read for weight",
        what="what columns are shifted by they are scaled by as well",
        right="weight = tl.load(weight_ptr + n",
        wrong="weight = tl.load(bias_ptr + n",
        sign="values",
    ),
    t_onepass(
        bug="off-by-one mask",
        what="the column after the last is written",
        right="    inside = (m < M) & (n < N)\n",
        wrong="    inside = (m < M) & (n <= N)\n",
        sign="guard zones",
    ),
    t_onepass(
        bug="missed rows",
        what="the last program, which has less than BLOCK_M rows, is not launched",
        right="(triton.cdiv(M, BLOCK_M),)",
        wrong="(max(1, M // BLOCK_M),)",
        sign="all written",
    ),
    t_onepass(
        bug="wrong stride",
        what="rows of x are taken to be N apart",
        right="x_ptr + m * stride_xm + n, mask=inside, other=0.0",
        wrong="x_ptr + m * N + n, mask=inside, other=0.0",
        sign=UNDEFINED,
    ),
    t_online(
        bug="wrong share",
        what="a new element moves the mean as if it were the first",
        right="(1.0 / (begin // BLOCK_N + 1))",
        wrong="1.0",
        sign="values",
    ),
    t_online(
        bug="lanes' means ignored",
        what="the lanes' deviations are added though each is from its own mean",
        right="squares + count * deviation * deviation",
        wrong="squares + 0.0 * deviation",
        sign="values",
    ),
    t_online(
        bug="32-bit offset",
        what="program_id * stride_xm overflows",
        right="    m = tl.program_id(0).to(tl.int64)\n    x_row",
        wrong="    m = tl.program_id(0)\n    x_row",
        sign=WILD,
        **HUGE,
    ),
    t_packed(
        bug="halves swapped",
        what="neighbouring columns change places on their way in",
        right="tl.interleave(low, high)",
        wrong="tl.interleave(high, low)",
        sign="values",
    ),
    t_packed(
        bug="missed tile",
        what="a row's last tile, which is cut short, is not taken",
        right="TILES=triton.cdiv(N, BLOCK_N)",
        wrong="TILES=max(1, N // BLOCK_N)",
        sign="all written",
    ),
    t_packed(
        bug="padding deviates",
        what="columns that are not there count as deviations from the mean",
        right="tl.where(inside, in_order(stay_packed(tiles[t]), DTYPE) - mean, 0.0)",
        wrong="in_order(stay_packed(tiles[t]), DTYPE) - mean",
        sign="values",
    ),
    t_split(
        bug="halves swapped",
        what="neighbouring columns change places on their way out",
        right="(low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)",
        wrong="(high.to(tl.int32) & 0xFFFF) | (low.to(tl.int32) << 16)",
        sign="values",
    ),
    t_split(
        bug="words counted for elements",
        what="a row of 16-bit elements is taken for half as long",
        right="tl.rsqrt(squares / (N * PER_WORD) +",
        wrong="tl.rsqrt(squares / N +",
        sign="values",
    ),
    t_gluon(
        bug="places mixed up",
        what="a tile is reduced from the place that the next one is fetched into",
        right="ring.index(turn % STAGES).load(TILE)",
        wrong="ring.index((turn + 1) % STAGES).load(TILE)",
        sign=UNDEFINED,
        **GLUON,
    ),
    t_gluon(
        bug="last turn missed",
        what="rows are written a turn late, and after the last there is none",
        right="for m in range(first, M + step, step)",
        wrong="for m in range(first, M, step)",
        sign="all written",
        **GLUON,
    ),
    t_gluon(
        bug="distance of means lost",
        what="chunks' deviations are added though each is from its own mean",
        right="squares += count * deviation * deviation",
        wrong="squares += 0.0 * deviation",
        sign="values",
        **GLUON,
    ),
    # ------------------------------------------------------------------ CUDA
    onepass(
        bug="variance by subtraction",
        what="the mean of the squares less the square of the mean, which of a row far from 0 leaves no digit",
        right="tile.squares = sum(tile_squares<Norm, THREADS>(x, tile.mean, columns, thread));",
        wrong="tile.squares = sum(tile_squares<Norm, THREADS>(x, 0.0f, columns, thread)) - "
        "tile.mean * tile.mean * count;",
        sign=UNDEFINED,
    ),
    onepass(
        bug="columns that are not there",
        what="what lies beyond the last column counts as a deviation",
        right="if (Norm::CENTERED && (p * THREADS + thread) * VEC >= columns) continue;",
        wrong="",
        sign="values",
    ),
    onepass(
        bug="fp16 accumulator",
        what="a thread sums its elements in fp16",
        right="sum += get(x[p], v);",
        wrong="sum = __half2float(__float2half(sum + get(x[p], v)));",
        sign=UNDEFINED,
    ),
    onepass(
        bug="bias lost",
        what="y is scaled and not shifted",
        right=" * scale * weight + get(parameters.bias[p], v)",
        wrong=" * scale * weight",
        sign="values",
    ),
    onepass(
        bug="eps lost",
        what="the root is taken of the variance alone: of 0, where all elements of a row are equal",
        right="static_cast<float>(N) + eps)",
        wrong="static_cast<float>(N))",
        sign=UNDEFINED,
    ),
    onepass(
        bug="too few warps",
        what="half of the warps are left out of the row's moments",
        right="return warp_sum<WARPS>(value); };",
        wrong="return warp_sum<WARPS / 2>(value); };",
        sign=UNDEFINED,
    ),
    onepass(
        bug="rows beyond the last",
        what="threads without a row work on one that is not there",
        right="m < M ? static_cast<int>(N) : 0",
        wrong="static_cast<int>(N)",
        sign="guard zones",
    ),
    onepass(
        bug="dropped barrier",
        what="warps read each other's moments before they are there",
        right="of_warp[warp] = part;\n    __syncthreads();",
        wrong="of_warp[warp] = part;",
        **RACE,
    ),
    onepass(
        bug="warps' counts ignored",
        what="a warp that the row's end leaves with less counts as much as the others",
        right="min(max(last, 0), WARP)",
        wrong="WARP",
        sign=UNDEFINED,
    ),
    online(
        bug="one place for all sums",
        what="the second sum may overwrite the first, which not all warps have read",
        right="turn ^= 1;",
        wrong="",
        **RACE,
    ),
    onepass(
        bug="32-bit offset",
        what="m * N overflows",
        right="store_tile<Norm, ROW_THREADS>(y_ptr + m * N,",
        wrong="store_tile<Norm, ROW_THREADS>(y_ptr + static_cast<int>(m * N),",
        sign=WILD,
        **HUGE,
    ),
    online(
        bug="wrong share",
        what="a tile's mean counts as much as that of all tiles before it",
        right="count / (seen_count + count)",
        wrong="0.5f",
        sign="values",
    ),
    online(
        bug="distance of means lost",
        what="tiles' deviations are added though each is from its own mean",
        right="seen.squares += (further * seen_count) * (further * share);",
        wrong="",
        sign="values",
    ),
    online(
        bug="packs counted for elements",
        what="a thread's count is that of its packs",
        right="/ THREADS * VEC;  // of this thread",
        wrong="/ THREADS;  // of this thread",
        sign="values",
    ),
    launch_onepass(
        bug="too few threads",
        what="the row is longer than what its threads hold",
        right="(ceil_div(packs, PACKS) - 1).bit_length()",
        wrong="(packs // PACKS - 1).bit_length()",
        sign="all written",
    ),
    launch_onepass(
        bug="weight's alignment not looked at",
        what="a weight that starts between two 16-byte boundaries is read in packs of 16",
        right="dense = parameter.stride(0) == 1 and parameter.data_ptr() % 16 == 0",
        wrong="dense = parameter.stride(0) == 1",
        without_gpu="sanitizers",
        sign="misaligned address",
    ),
    launch_online(
        bug="weight taken for dense",
        what="a weight with gaps is read as if it had none",
        right="dense = parameter.stride(0) == 1 and ",
        wrong="dense = ",
        sign=UNDEFINED,
    ),
    cluster(
        bug="dropped wait",
        what="a slice is reduced before the copy engine has brought it",
        right="mbarrier_wait(&landed[row], 0);",
        wrong="",
        sign=UNDEFINED,
        **HOPPER,
    ),
    cluster(
        bug="blocks' means ignored",
        what="the blocks' deviations are added though each is from its own mean",
        right="all.squares += count * deviation * deviation;",
        wrong="",
        sign="values",
        **HOPPER,
    ),
)
