"""Mistakes in rotary."""

from functools import partial

from mutations import HUGE, Mutation

WILD = "values|illegal memory access|all written"
LOST = "values|NaN and infinity|all written"

t_pairs, t_token = (
    partial(Mutation, "rotary", f"triton.{variant}", file="triton_impl/rotary.py")
    for variant in ("pairs", "token")
)
pairs, token = (
    partial(Mutation, "rotary", f"cupy.{variant}", file="cuda_impl/kernels/rotary.cuh")
    for variant in ("pairs", "token")
)
launch_token = partial(Mutation, "rotary", "cupy.token", file="cuda_impl/rawkernel/rotary.py")

MUTATIONS = (
    # ------------------------------------------------------------------ Triton
    t_pairs(
        bug="keys taken for queries",
        what="the keys' heads are looked for behind the queries'",
        right="tl.where(h < H, q_ptrs, k_ptrs)",
        wrong="q_ptrs",
        sign=f"{LOST}|a crash",
        sign_with_gpu=f"{LOST}|illegal memory access",
    ),
    t_pairs(
        bug="off-by-one mask",
        what="the pair after the last is written",
        right="inside = n < pairs",
        wrong="inside = n <= pairs",
        sign="guard zones",
    ),
    t_pairs(
        bug="missed tail",
        what="the last program, which has less than a whole block, is not launched",
        right="triton.cdiv(count, BLOCK_SIZE)",
        wrong="max(1, count // BLOCK_SIZE)",
        sign="all written",
    ),
    t_pairs(
        bug="32-bit offset",
        what="program_id * BLOCK_SIZE overflows",
        right="n = tl.program_id(0).to(tl.int64) * BLOCK_SIZE",
        wrong="n = tl.program_id(0) * BLOCK_SIZE",
        sign=WILD,
        **HUGE,
    ),
    t_token(
        bug="neighbours turned",
        what="an element is turned with its neighbour and not with the one half a head away",
        right="second = tl.load(x_ptrs + half, mask=inside).to(tl.float32)\n        to_ptrs",
        wrong="second = tl.load(x_ptrs + 1, mask=inside).to(tl.float32)\n        to_ptrs",
        sign="values",
    ),
    t_token(
        bug="turned backwards",
        what="the angle's sign is wrong",
        right="to_ptrs = out_ptr + h * 2 * half + d\n        tl.store(to_ptrs, (first * cos - second * sin)",
        wrong="to_ptrs = out_ptr + h * 2 * half + d\n        tl.store(to_ptrs, (first * cos + second * sin)",
        sign="values|NaN and infinity",
    ),
    t_token(
        bug="wrong position",
        what="all tokens are turned as those of the first sequence's place would be in one long sequence",
        right="s, b = token % S, token // S\n    d =",
        wrong="s, b = token * 0, token // S\n    d =",
        sign="values",
    ),
    t_token(
        bug="heads lost",
        what="only as many heads are turned as a tile has",
        right="for begin in range(0, heads, BLOCK_H):",
        wrong="for begin in range(0, tl.minimum(heads, BLOCK_H), BLOCK_H):",
        sign="all written",
    ),
    t_token(
        bug="uninitialised element",
        what="the last pair of a head is not written",
        right="inside = (h < heads) & (d < half)",
        wrong="inside = (h < heads) & (d < half - 1)",
        sign="all written",
    ),
    t_token(
        bug="wrong stride",
        what="heads of a key are taken to be as far apart as those of a query",
        right="turn_heads(k_ptr, stride_kh,",
        wrong="turn_heads(k_ptr, stride_qh + stride_kh,",
        sign=f"{LOST}|a crash",
        sign_with_gpu=f"{LOST}|illegal memory access",
    ),
    # ------------------------------------------------------------------ CUDA
    pairs(
        bug="keys taken for queries",
        what="a key's head is counted from the first query",
        right="(h - H) * stride_kh",
        wrong="h * stride_kh",
        sign=f"{LOST}|a crash",
        sign_with_gpu=f"{LOST}|illegal memory access",
    ),
    pairs(
        bug="pairs beyond the last",
        what="threads without a pair turn one that is not there",
        right="    if (n >= pairs) return;\n",
        wrong="",
        sign="guard zones|a crash",
        sign_with_gpu="guard zones|illegal memory access",
    ),
    pairs(
        bug="32-bit offset",
        what="head * D overflows",
        right="T* to_ptr = out_ptr + head * 2 * half + d;",
        wrong="T* to_ptr = out_ptr + static_cast<int>(head * 2 * half) + d;",
        sign=WILD,
        **HUGE,
    ),
    token(
        bug="turned backwards",
        what="the angle's sign is wrong",
        right="turned[0][v] = x * c - y * s",
        wrong="turned[0][v] = x * c + y * s",
        sign="values|NaN and infinity",
    ),
    token(
        bug="half turned",
        what="the second half is turned with what has become of the first",
        right="turned[1][v] = y * c + x * s",
        wrong="turned[1][v] = y * c + turned[0][v] * s",
        sign="values",
    ),
    token(
        bug="products in fp16",
        what="a product is rounded before the sum",
        right="turned[1][v] = y * c + x * s",
        wrong="turned[1][v] = __half2float(__float2half(y * c)) + x * s",
        sign="values",
    ),
    token(
        bug="wrong position",
        what="every token is turned as the first one",
        right="cos_ptr + s * stride_cs",
        wrong="cos_ptr + 0 * stride_cs",
        sign="values",
    ),
    token(
        bug="heads lost",
        what="a thread turns no more than its first heads",
        right="begin < heads; begin += groups * HEADS",
        wrong="begin < groups; begin += groups * HEADS",
        sign="all written",
    ),
    token(
        bug="tokens beyond the last",
        what="a block's last tokens are turned though there are none",
        right="token >= tokens || ",
        wrong="",
        sign="guard zones|a crash",
        sign_with_gpu="guard zones|illegal memory access",
    ),
    token(
        bug="32-bit offset",
        what="token * heads * D overflows",
        right="out_ptr += token * heads * 2 * half + d;",
        wrong="out_ptr += static_cast<int>(token * heads * 2 * half) + d;",
        sign=WILD,
        **HUGE,
    ),
    launch_token(
        bug="too few pieces",
        what="a head longer than a block's threads is cut off",
        right="pieces = ceil_div(packs, lanes)",
        wrong="pieces = packs // lanes",
        sign="all written",
    ),
    launch_token(
        bug="alignment not looked at",
        what="tensors that start between two 16-byte boundaries are read in packs of 16",
        right="x.data_ptr() % 16 == 0 and ",
        wrong="",
        without_gpu="sanitizers",
        sign="misaligned address",
    ),
    launch_token(
        bug="wrong pack width",
        what="halves of a head that are no multiple of 16 bytes are moved in packs of 16",
        right="inputs[2].shape[1] % pack == 0 and ",
        wrong="",
        sign="values|guard zones|a crash",
        sign_with_gpu="misaligned address|guard zones|values",
    ),
)
