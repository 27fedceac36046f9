"""Mistakes in vector_add."""

from functools import partial

from mutations import HUGE, Mutation

WILD = "values|illegal memory access|all written"

triton = partial(Mutation, "vector_add", "triton.blocked", file="triton_impl/vector_add.py")
scalar = partial(Mutation, "vector_add", "cupy.scalar", file="cuda_impl/kernels/vector_add.cuh")
vectorized = partial(Mutation, "vector_add", "cupy.vectorized", file="cuda_impl/kernels/vector_add.cuh")
launch = partial(Mutation, "vector_add", "cupy.vectorized", file="cuda_impl/rawkernel/vector_add.py")

MUTATIONS = (
    triton(
        bug="off-by-one mask",
        what="the element after the last is written",
        right="inside = n < N",
        wrong="inside = n <= N",
        sign="guard zones",
    ),
    triton(
        bug="missed tail",
        what="the last program, which has less than a whole block, is not launched",
        right="triton.cdiv(N, BLOCK_SIZE)",
        wrong="max(1, N // BLOCK_SIZE)",
        sign="all written",
    ),
    triton(
        bug="32-bit offset",
        what="program_id * BLOCK_SIZE overflows",
        right="tl.program_id(0).to(tl.int64) * BLOCK_SIZE",
        wrong="tl.program_id(0) * BLOCK_SIZE",
        sign=WILD,
        **HUGE,
    ),
    triton(
        bug="fp16 arithmetic",
        what="fp32 and bf16 are added in fp16",
        right="x.to(tl.float32) + y.to(tl.float32)",
        wrong="x.to(tl.float16) + y.to(tl.float16)",
        sign="values",
    ),
    triton(
        bug="wrong operand",
        what="y is read from where x is",
        right="tl.load(y_ptr + n",
        wrong="tl.load(x_ptr + n",
        sign="values",
    ),
    triton(
        bug="input overwritten",
        what="the sum is stored into y as well",
        right="    tl.store(z_ptr + n,",
        wrong="    tl.store(y_ptr + n, x + y, mask=inside)\n    tl.store(z_ptr + n,",
        sign="inputs unchanged",
    ),
    scalar(
        bug="off-by-one mask",
        what="the element after the last is written",
        right="if (n < N) z_ptr[n]",
        wrong="if (n <= N) z_ptr[n]",
        sign="guard zones",
    ),
    scalar(
        bug="32-bit offset",
        what="blockIdx * blockDim overflows",
        right="index_t(blockIdx.x) * blockDim.x + threadIdx.x",
        wrong="int(blockIdx.x * blockDim.x + threadIdx.x)",
        sign=WILD,
        **HUGE,
    ),
    vectorized(
        bug="missed tail",
        what="the elements after the last whole pack are left out",
        right="tail < N; ++tail",
        wrong="tail < n; ++tail",
        sign="all written",
    ),
    vectorized(
        bug="wrong stride",
        what="the packs of a thread overlap those of its neighbours",
        right="const index_t step = index_t(blockDim.x) * VEC",
        wrong="const index_t step = index_t(blockDim.x)",
        sign="all written",
    ),
    vectorized(
        bug="wrong pack width",
        what="threads start half a pack apart",
        right="PACKS * blockDim.x + threadIdx.x) * VEC;",
        wrong="PACKS * blockDim.x + threadIdx.x) * (VEC / 2);",
        sign="all written|values",
        sign_with_gpu="misaligned address",
    ),
    launch(
        bug="wrong grid",
        what="half as many blocks as there is work for",
        right="elements = THREADS * PACKS * 16 //",
        wrong="elements = THREADS * PACKS * 32 //",
        sign="all written",
    ),
    launch(
        bug="alignment not looked at",
        what="arrays that start between 16-byte boundaries are read in packs of 16",
        right="(x.data_ptr() | y.data_ptr()) % 16 != 0",
        wrong="(x.data_ptr() | y.data_ptr()) % 2 != 0",
        without_gpu="sanitizers",
        sign="misaligned address",
    ),
)
