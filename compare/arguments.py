"""Checks of arguments, shared by every Python way of an op.  Imports nothing but torch.

Each raises, with the op's name, the argument, what it got, and what is accepted:

- TypeError for an argument that is no strided tensor, or of a dtype that is not taken or not the others';
- ValueError for a number of dimensions, a shape or a device that does not go with the others'.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, strided

TAKEN = (torch.float32, torch.float16, torch.bfloat16)


def check_same(op: str, ndim: int, taken: tuple[torch.dtype, ...] = TAKEN, **tensors: torch.Tensor) -> None:
    """Check that the named arguments are alike: ``check_same("vector_add", 1, x=x, y=y)``.

    Args:
        op: the op's name, for the message.
        ndim: how many dimensions each argument has.
        taken: the dtypes that are taken.
        tensors: the arguments; the first one sets the shape, dtype and device that the others must have.
    """
    _check(op, ndim, taken, tensors)


def _check(
    op: str,
    ndim: int,
    taken: tuple[torch.dtype, ...],
    tensors: Mapping[str, torch.Tensor],
    other_name: str = "",
    other: torch.Tensor | None = None,
) -> None:
    """`check_same`, and that they are on the device of another argument and, if it is taken, of its dtype."""
    first_name, first = "", None
    for name, tensor in tensors.items():
        # Every launch pays for this, so nothing is asked twice of a tensor that is as it should be.
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{op}: {name} is a {type(tensor).__name__}; it takes a torch.Tensor")
        if tensor.layout is not strided:
            raise TypeError(f"{op}: {name} is {tensor.layout}; it takes a strided (dense) tensor")
        dtype = tensor.dtype
        if dtype not in taken:
            raise TypeError(f"{op}: {name} is {dtype}; it takes {', '.join(map(str, taken))}")
        if tensor.dim() != ndim:
            raise ValueError(
                f"{op}: {name} has {tensor.dim()} dimensions, shape {tuple(tensor.shape)}; it takes {ndim}"
            )
        if first is None:
            first_name, first, first_dtype = name, tensor, dtype
        elif dtype is not first_dtype:
            raise _of_two_dtypes(op, {name: tensor, first_name: first})
        elif tensor.shape != first.shape:
            raise _of_two_shapes(op, {name: tensor, first_name: first}, "equal shapes")
        elif tensor.device != first.device:
            raise _on_two_devices(op, {name: tensor, first_name: first})
    if first is not None and other is not None:
        if first_dtype is not other.dtype and other.dtype in taken:
            raise _of_two_dtypes(op, {first_name: first, other_name: other})
        if first.device != other.device:
            raise _on_two_devices(op, {first_name: first, other_name: other})


Named = dict[str, torch.Tensor]
"""The two arguments that do not go together, by their names."""


def _of_two_dtypes(op: str, two: Named) -> TypeError:
    return TypeError(f"{op}: {' and '.join(f'{n} is {x.dtype}' for n, x in two.items())}; it takes one dtype")


def _on_two_devices(op: str, two: Named) -> ValueError:
    (name, tensor), (other_name, other) = two.items()
    return ValueError(
        f"{op}: {name} is on {tensor.device} and {other_name} on {other.device}; it takes one device"
    )


def _of_two_shapes(op: str, two: Named, takes: str) -> ValueError:
    (name, tensor), (other_name, other) = two.items()
    shapes = f"{name} has shape {tuple(tensor.shape)} and {other_name} {tuple(other.shape)}"
    return ValueError(f"{op}: {shapes}; it takes {takes}")


def check_bytes(op: str, x: torch.Tensor) -> None:
    """Check that ``x[N]`` is a vector of bytes, as uint8."""
    check_same(op, 1, (torch.uint8,), x=x)


def check_product(op: str, a: torch.Tensor, b: torch.Tensor, names: tuple[str, str] = ("a", "b")) -> None:
    """Check that ``a[M,K]`` and ``b[K,N]`` are matrices to multiply; ``names``: what the op calls them."""
    left, right = names
    check_same(op, 2, TAKEN, **{left: a})
    _check(op, 2, TAKEN, {right: b}, left, a)
    if b.shape[0] != a.shape[1]:
        raise _of_two_shapes(op, {right: b, left: a}, f"as many rows of {right} as {left} has columns")


def check_linear(op: str, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> None:
    """Check that ``x[M,K] @ w[K,N] + bias[N]`` can be computed, by tensor cores and with sums in fp32.

    Raises:
        TypeError: also for fp32, which tensor cores would multiply as TF32.
    """
    check_product(op, x, w, ("x", "w"))
    if x.dtype is torch.float32:
        raise TypeError(f"{op}: x is {x.dtype}; it takes {', '.join(map(str, TAKEN[1:]))}")
    _check(op, 1, TAKEN, {"bias": bias}, "x", x)
    if bias.shape[0] != w.shape[1]:
        raise _of_two_shapes(op, {"bias": bias, "w": w}, "as many elements of bias as w has columns")


def check_batched_squares(op: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Check that ``a[B,N,N]`` and ``b[B,N,N]`` are as many square matrices of one size."""
    check_same(op, 3, a=a, b=b)
    if a.shape[1] != a.shape[2]:
        raise ValueError(
            f"{op}: a and b have shape {tuple(a.shape)}; it takes square matrices, as many rows as columns"
        )


def check_targets(op: str, logits: torch.Tensor, targets: torch.Tensor) -> None:
    """Check that ``logits[M,V]`` and ``targets[M]``, of int64, are rows of numbers and an index in each."""
    check_same(op, 2, logits=logits)
    _check(op, 1, (torch.int64,), {"targets": targets}, "logits", logits)
    if targets.shape[0] != logits.shape[0]:
        takes = "as many elements of targets as logits has rows"
        raise _of_two_shapes(op, {"targets": targets, "logits": logits}, takes)


def check_heads(op: str, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Check that ``q[B,S,H,D]`` and ``k[B,S,Hk,D]`` are heads for ``cos[S,D/2]`` and ``sin[S,D/2]``."""
    check_same(op, 4, q=q)
    _check(op, 4, TAKEN, {"k": k}, "q", q)
    _check(op, 2, TAKEN, {"cos": cos, "sin": sin}, "q", q)
    B, S, _, D = q.shape
    if D % 2 != 0:
        raise ValueError(f"{op}: q has shape {tuple(q.shape)}; it takes heads of an even length")
    if k.shape[:2] != q.shape[:2] or k.shape[3] != D:
        raise _of_two_shapes(op, {"k": k, "q": q}, f"({B}, {S}, any, {D}) for k")
    if cos.shape != (S, D // 2):
        raise _of_two_shapes(op, {"cos": cos, "q": q}, f"{(S, D // 2)} for cos")


def check_queries(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, taken: tuple[int, ...]) -> None:
    """Check that ``q[B,Sq,Hq,D]`` are queries for the heads ``k[B,Skv,Hk,D]`` and ``v[B,Skv,Hk,D]``.

    Args:
        op: the op's name, for the message.
        q: the queries; Hq is a multiple of Hk.
        k: the keys.
        v: the values.
        taken: the values of D that are taken.
    """
    check_same(op, 4, q=q)
    _check(op, 4, TAKEN, {"k": k, "v": v}, "q", q)
    B, _, _, D = q.shape
    if D not in taken:
        takes = " or ".join(map(str, taken))
        raise ValueError(f"{op}: q has shape {tuple(q.shape)}; it takes heads of length {takes}")
    if k.shape[0] != B or k.shape[3] != D:
        raise _of_two_shapes(op, {"k": k, "q": q}, f"({B}, any, any, {D}) for k")
    _check_groups_of_heads(op, q, "k", k)


def _check_groups_of_heads(op: str, q: torch.Tensor, name: str, k: torch.Tensor) -> None:
    Hq, Hk = q.shape[2], k.shape[2]
    if Hq != 0 if Hk == 0 else Hq % Hk != 0:
        raise _of_two_shapes(op, {name: k, "q": q}, f"a number of heads of {name} that divides {Hq}")


def check_norm(op: str, x: torch.Tensor, **parameters: torch.Tensor) -> None:
    """Check that the rows of ``x[M,N]`` can be normalised with these: ``check_norm(op, x, weight=weight)``.

    Args:
        op: the op's name, for the message.
        x: the rows.
        parameters: vectors of N elements, by their names.
    """
    check_same(op, 2, x=x)
    for name, parameter in parameters.items():
        _check(op, 1, TAKEN, {name: parameter}, "x", x)
        if parameter.shape[0] != x.shape[1]:
            takes = f"as many elements of {name} as x has columns"
            raise _of_two_shapes(op, {name: parameter, "x": x}, takes)


def check_pages(
    op: str,
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
) -> None:
    """Check that ``q[B,1,Hq,D]`` are queries for sequences in a paged cache.

    ``k_pages`` and ``v_pages[P,PAGE,Hk,D]`` hold the tokens, ``block_table[B,pages]`` names each sequence's
    pages and ``lengths[B]`` says how many tokens it has, both as int32.  What these two hold is checked on a
    CPU only, as a launch on a GPU does not wait for values: a length must fit its row of block_table, and
    the pages it needs must exist.
    """
    check_same(op, 4, q=q)
    _check(op, 4, TAKEN, {"k_pages": k_pages, "v_pages": v_pages}, "q", q)
    _check(op, 2, (torch.int32,), {"block_table": block_table}, "q", q)
    _check(op, 1, (torch.int32,), {"lengths": lengths}, "q", q)
    B, queries, _, D = q.shape
    P, PAGE = k_pages.shape[:2]
    if queries != 1 or D not in (64, 128):
        raise ValueError(f"{op}: q has shape {tuple(q.shape)}; it takes (any, 1, any, 64 or 128)")
    if PAGE not in (16, 64) or k_pages.shape[3] != D:
        raise _of_two_shapes(op, {"k_pages": k_pages, "q": q}, f"(any, 16 or 64, any, {D}) for k_pages")
    _check_groups_of_heads(op, q, "k_pages", k_pages)
    for name, tensor in (("block_table", block_table), ("lengths", lengths)):
        if tensor.shape[0] != B:
            raise _of_two_shapes(op, {name: tensor, "q": q}, f"{B} rows of {name}")
    if q.device.type == "cpu":
        _check_table(op, P, PAGE, block_table, lengths)


def _check_table(op: str, P: int, PAGE: int, block_table: torch.Tensor, lengths: torch.Tensor) -> None:
    room = block_table.shape[1] * PAGE
    for b in range(len(lengths)):
        length = int(lengths[b])
        if not 0 <= length <= room:
            raise ValueError(f"{op}: lengths[{b}] is {length}; it takes 0 to {room}, {PAGE} tokens a page")
        for i, page in enumerate(block_table[b, : -(-length // PAGE)].tolist()):
            if not 0 <= page < P:
                raise ValueError(f"{op}: block_table[{b}, {i}] is {page}; it takes 0 to {P - 1}, a page")


def check_gradients(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    taken: tuple[int, ...],
) -> None:
    """Check that attention of ``q[B,Sq,Hq,D]``, ``k[B,Skv,Hk,D]`` and ``v`` can be differentiated.

    ``o[B,Sq,Hq,D]`` and ``do`` are like q, ``lse[B,Hq,Sq]`` is fp32; ``taken`` as in `check_queries`.
    """
    check_queries(op, q, k, v, taken)
    _check(op, 4, TAKEN, {"o": o, "do": do}, "q", q)
    _check(op, 3, (torch.float32,), {"lse": lse}, "q", q)
    B, Sq, Hq, _ = q.shape
    if o.shape != q.shape:
        raise _of_two_shapes(op, {"o": o, "q": q}, "equal shapes")
    if lse.shape != (B, Hq, Sq):
        raise _of_two_shapes(op, {"lse": lse, "q": q}, f"{(B, Hq, Sq)} for lse")


def check_groups(op: str, x: torch.Tensor, group: int) -> None:
    """Check that ``x[M,K]`` are rows whose columns can be taken by ``group``, or all together if it is 0."""
    check_same(op, 2, x=x)
    if type(group) is not int:
        raise TypeError(f"{op}: group is a {type(group).__name__}; it takes an int")
    if group < 0:
        raise ValueError(f"{op}: group is {group}; it takes 0, for a whole row, or a number of columns")


def check_block_product(
    op: str, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> None:
    """Check that ``a[M,K]`` and ``b[N,K]`` are e4m3 with fp32 scales of each 1 x 128 and 128 x 128."""
    e4m3, fp32 = (torch.float8_e4m3fn,), (torch.float32,)
    check_same(op, 2, e4m3, a=a)
    _check(op, 2, e4m3, {"b": b}, "a", a)
    _check(op, 2, fp32, {"scale_a": scale_a}, "a", a)
    _check(op, 2, fp32, {"scale_b": scale_b}, "a", a)
    (M, K), N = a.shape, b.shape[0]
    if b.shape[1] != K:
        raise _of_two_shapes(op, {"b": b, "a": a}, "as many columns of b as a has")
    blocks = -(-K // 128)
    if scale_a.shape != (M, blocks):
        raise _of_two_shapes(op, {"scale_a": scale_a, "a": a}, f"{(M, blocks)} for scale_a")
    if scale_b.shape != (-(-N // 128), blocks):
        raise _of_two_shapes(op, {"scale_b": scale_b, "b": b}, f"{(-(-N // 128), blocks)} for scale_b")


MOST_EXACT_TERMS = 2**17 - 1
"""Of products of int8, whose sum is below 2^31 then."""


def check_scaled_product(
    op: str,
    taken: torch.dtype,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
) -> None:
    """Check ``a[M,K]`` and ``b[N,K]``, of an 8-bit dtype, with fp32 ``scale_a[M]`` and ``scale_b[N]``.

    Raises:
        ValueError: also if int32 sums of K products may overflow.
    """
    check_same(op, 2, (taken,), a=a)
    _check(op, 2, (taken,), {"b": b}, "a", a)
    K = a.shape[1]
    if b.shape[1] != K:
        raise _of_two_shapes(op, {"b": b, "a": a}, "as many columns of b as a has")
    for name, scale, of, matrix in (("scale_a", scale_a, "a", a), ("scale_b", scale_b, "b", b)):
        _check(op, 1, (torch.float32,), {name: scale}, "a", a)
        if scale.shape[0] != matrix.shape[0]:
            takes = f"as many elements of {name} as {of} has rows"
            raise _of_two_shapes(op, {name: scale, of: matrix}, takes)
    if taken is torch.int8 and K > MOST_EXACT_TERMS:
        raise ValueError(
            f"{op}: a has shape {tuple(a.shape)}; it takes at most {MOST_EXACT_TERMS} columns, whose "
            "products int32 can sum"
        )


def check_quantized_linear(
    op: str, a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> None:
    """Check 16-bit ``a[M,K]``, ``packed[N,K/8]`` of int32, ``scales[N,K/128]`` of a's dtype, and
    ``zeros[N,K/128]`` of uint8; sizes are rounded up."""
    check_same(op, 2, TAKEN[1:], a=a)
    _check(op, 2, (torch.int32,), {"packed": packed}, "a", a)
    _check(op, 2, TAKEN[1:], {"scales": scales}, "a", a)
    _check(op, 2, (torch.uint8,), {"zeros": zeros}, "a", a)
    K, N = a.shape[1], packed.shape[0]
    if packed.shape[1] != -(-K // 8):
        takes = f"(any, {-(-K // 8)}) for packed, 8 weights in a word"
        raise _of_two_shapes(op, {"packed": packed, "a": a}, takes)
    shape = (N, -(-K // 128))
    for name, tensor in (("scales", scales), ("zeros", zeros)):
        if tensor.shape != shape:
            raise _of_two_shapes(op, {name: tensor, "packed": packed}, f"{shape} for {name}")
