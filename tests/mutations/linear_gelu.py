"""Mistakes in linear_gelu: in what it adds to matmul's product."""

from functools import partial

from mutations import HOPPER, Mutation

t_tensor_core, t_unfused, t_fused = (
    partial(Mutation, "linear_gelu", f"triton.{variant}", file="triton_impl/linear_gelu.py")
    for variant in ("tensor_core", "unfused", "fused")
)
tensor_core, unfused, fused = (
    partial(Mutation, "linear_gelu", f"cupy.{variant}", file="cuda_impl/kernels/linear_gelu.cuh")
    for variant in ("tensor_core", "unfused", "fused")
)
launch_tensor_core = partial(
    Mutation, "linear_gelu", "cupy.tensor_core", file="cuda_impl/rawkernel/linear_gelu.py"
)

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_tensor_core(
        bug="bias's stride not looked at",
        what="every element of the bias is taken to lie next to the last",
        right="tl.load(bias_ptr + n * stride_bias, mask=n < N, other=0.0).to(tl.float32)\n    y =",
        wrong="tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)\n    y =",
        sign="values|NaN and infinity",
    ),
    t_unfused(
        bug="bias after GELU",
        what="the bias is added to what GELU made of the sum",
        right="gelu(sums + bias)",
        wrong="(gelu(sums) + bias)",
        sign="values",
    ),
    t_fused(
        bug="bias of the other half",
        what="the right half of a tile gets the left half's bias",
        right="next_ptrs = bias_ptrs + BLOCK_N // 2 * stride_bias",
        wrong="next_ptrs = bias_ptrs",
        sign="values",
    ),
    t_fused(
        bug="cubic term lost",
        what="tanh gets its argument without the cubic term",
        right="CUBIC * (v * v) + LINEAR",
        wrong="LINEAR",
        sign="values",
    ),
    # ------------------------------------------------------------------ CUDA
    tensor_core(
        bug="bias swapped",
        what="neighbouring columns get each other's bias",
        right="gelu(x + bias.x), gelu(y + bias.y)",
        wrong="gelu(x + bias.y), gelu(y + bias.x)",
        sign="values",
    ),
    tensor_core(
        bug="exponential to another base",
        what="the argument is scaled for e^x, and 2^x is taken of it",
        right="LINEAR = -2.302208198f",
        wrong="LINEAR = -1.595769122f",
        sign="values",
    ),
    unfused(
        bug="bias of another column",
        what="each pack gets the bias of the next",
        right="pack * VEC % N",
        wrong="(pack + 1) * VEC % N",
        sign="values",
        **HOPPER,
    ),
    fused(
        bug="bias of the first tile",
        what="all tiles get the first one's bias",
        right="return n < N ? *reinterpret_cast<const unsigned*>(bias_ptr + n) : 0;",
        wrong="return n < N ? *reinterpret_cast<const unsigned*>(bias_ptr + n % 64) : 0;",
        sign="values",
        **HOPPER,
    ),
    launch_tensor_core(
        bug="bias taken for dense",
        what="a bias with gaps is read as if it had none",
        right="dense = bias.stride(0) == 1 and",
        wrong="dense =",
        sign="values|NaN and infinity",
    ),
)
