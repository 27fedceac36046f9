"""Mistakes in batched_matmul."""

from functools import partial

from mutations import Mutation

UNDEFINED = "values|NaN and infinity"
RACE = {"without_gpu": "apart", "with_gpu": "racecheck", "sign": UNDEFINED, "sign_with_gpu": "Race reported"}
GOES_ON = {"with_gpu": "huge"}  # a GPU has blocks for every group of a small case

t_naive, t_tiled, t_tensor_core, t_pipelined = (
    partial(Mutation, "batched_matmul", f"triton.{variant}", file="triton_impl/batched_matmul.py")
    for variant in ("naive", "tiled", "tensor_core", "pipelined")
)
naive, tiled, tensor_core, pipelined = (
    partial(Mutation, "batched_matmul", f"cupy.{variant}", file="cuda_impl/kernels/batched_matmul.cuh")
    for variant in ("naive", "tiled", "tensor_core", "pipelined")
)
launch_tiled, launch_tensor_core = (
    partial(Mutation, "batched_matmul", f"cupy.{variant}", file="cuda_impl/rawkernel/batched_matmul.py")
    for variant in ("tiled", "tensor_core")
)

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_naive(
        bug="wrong stride",
        what="the next term takes b's next column, not its next row",
        right="b_ptrs += stride_bi",
        wrong="b_ptrs += stride_bj",
        sign=UNDEFINED,
    ),
    t_tiled(
        bug="missing mask over the batch",
        what="the last group writes matrices that are not there",
        right="inside = (i < N) & (j < N) & (matrix < B)",
        wrong="inside = (i < N) & (j < N) & (matrix < B + 1)",
        sign="guard zones",
    ),
    t_tensor_core(
        bug="the other operand's stride",
        what="b's matrices are taken to be as far apart as a's",
        right="b_ptr + matrix * stride_bb + i * stride_bi",
        wrong="b_ptr + matrix * stride_ab + i * stride_bi",
        sign=UNDEFINED,
    ),
    t_pipelined(
        bug="missed group",
        what="matrices that do not fill a group are nobody's",
        right="tl.range(first, (B - 1) // MATRICES + 1,",
        wrong="tl.range(first, B // MATRICES,",
        sign="all written",
    ),
    # ------------------------------------------------------------------ CUDA
    naive(
        bug="off-by-one bound",
        what="the element after the last is written",
        right="if (element >= B * N * N) return;",
        wrong="if (element > B * N * N) return;",
        sign="guard zones",
    ),
    naive(
        bug="wrong stride",
        what="rows of a are taken to be as far apart as its columns",
        right="i * stride_ai;",
        wrong="i * stride_aj;",
        sign=UNDEFINED,
    ),
    tiled(
        bug="transposed operand",
        what="a's rows are read as columns",
        right="get(a[r], step) * get(b, s)",
        wrong="get(a[step], r % 4) * get(b, s)",
        sign="values",
    ),
    tensor_core(
        bug="fragments swapped",
        what="the halves of b's fragment along K change places",
        right="a, b[0], b[1]);",
        wrong="a, b[1], b[0]);",
        sign="values",
    ),
    tensor_core(
        bug="missing wait",
        what="what is multiplied is still on its way",
        right="cp_async_wait<0>();\n    } else",
        wrong="} else",
        without_gpu="apart",
        sign=UNDEFINED + "|all written",
    ),
    tensor_core(
        bug="missing barrier",
        what="a warp multiplies rows of b that another has not seen arrive",
        right="__syncthreads();  // other",
        wrong="// other",
        **RACE,
    ),
    tensor_core(
        bug="missing bound over the batch",
        what="the last block writes matrices that are not there",
        right="if (matrix >= B) return;\n    if constexpr",
        wrong="if constexpr",
        sign="guard zones",
    ),
    pipelined(
        bug="stages mixed up",
        what="a group is multiplied that is still on its way",
        right="stage + 1 == STAGES ? 0 : stage + 1;",
        wrong="stage + 2 >= STAGES ? 0 : stage + 2;",
        sign=UNDEFINED,
        **GOES_ON,
    ),
    pipelined(
        bug="wrong step",
        what="a group between one turn and the next is nobody's",
        right="index_t(gridDim.x) * MATRICES;",
        wrong="index_t(gridDim.x + 1) * MATRICES;",
        sign="all written",
        **GOES_ON,
    ),
    pipelined(
        bug="place fetched into too early",
        what="the next group arrives where the present one is still to be multiplied",
        right="fetch(free, first",
        wrong="fetch(stage, first",
        sign=UNDEFINED,
        **GOES_ON,
    ),
    tensor_core(
        bug="packs misplaced",
        what="a row's packs change places on their way in, and not when they are read",
        right="Tile::place(below * 8 + in_matrix, column / 8 + right)",
        wrong="((below * 8 + in_matrix) * Tile::PACKS + column / 8 + right) * 8",
        sign=UNDEFINED,
    ),
    tensor_core(
        bug="order of the other layout",
        what="of an operand that lies by columns the lower left square changes places with the upper right",
        right="right * 8 + in_matrix, row / 8 + below)",
        wrong="below * 8 + in_matrix, row / 8 + right)",
        sign="values",
    ),
    tensor_core(
        bug="c too early",
        what="c takes the place of rows that other warps still read, where a lies by columns",
        right="} else {\n        __syncthreads();\n    }",
        wrong="} else {\n        __syncwarp();\n    }",
        case="B=3,N=32,fp16,transposed",
        **{**RACE, "sign": "values"},
    ),
    tensor_core(
        bug="skew forgotten",
        what="a run that begins within a pack is taken to begin with it",
        right="return tiles + before;",
        wrong="return tiles;",
        sign=UNDEFINED,
    ),
    tensor_core(
        bug="packs past the end",
        what="the pack that holds a run's last elements is read where no operand is any more",
        right="ptr <= packs && packs + end <= ptr + B * N * N;",
        wrong="ptr <= packs && packs <= ptr + B * N * N;",
        case="B=5,N=3,fp16",
        without_gpu="sanitizers",
        with_gpu="memcheck",
        sign="AddressSanitizer",
        sign_with_gpu="Invalid",
    ),
    tensor_core(
        bug="tiles too early",
        what="tiles take the place of a run that other threads still read",
        right="__syncthreads();\n    T* to",
        wrong="T* to",
        case="B=5,N=17,fp16",
        **RACE,
    ),
    tensor_core(
        bug="missing bound over columns",
        what="the next row's packs fill a wider tile: they are multiplied with 0, but may be NaN",
        right="first + share.own < B && share.pack * 8 < N;",
        wrong="first + share.own < B;",
        sign=UNDEFINED,
    ),
    launch_tensor_core(
        bug="the other operand's layout",
        what="b is taken to lie as a does",
        right="A_BY_ROWS or not PACKED, B_BY_ROWS or not PACKED",
        wrong="A_BY_ROWS or not PACKED, A_BY_ROWS or not PACKED",
        sign="values",
        sign_with_gpu="values|misaligned address",
    ),
    launch_tiled(
        bug="layout not looked at",
        what="matrices whose elements lie apart are read in packs",
        right="x.stride(along) == 1",
        wrong="True",
        sign=UNDEFINED,
    ),
    launch_tiled(
        bug="alignment not looked at",
        what="matrices that start between 16-byte boundaries are read in packs of 16",
        right="x.data_ptr() % 16 == 0",
        wrong="x.data_ptr() % 2 == 0",
        without_gpu="sanitizers",
        sign="misaligned address",
    ),
)
