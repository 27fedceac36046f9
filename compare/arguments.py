"""Checks of arguments, shared by every Python way of an op.  Imports nothing but torch."""

from __future__ import annotations

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

    Raises:
        TypeError: an argument is no strided tensor, of a dtype that is not taken, or of another dtype than
            the first.
        ValueError: an argument has another number of dimensions, or another shape or device than the first.
    """
    first_name = ""
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
        if not first_name:
            first_name, first, first_dtype = name, tensor, dtype
            continue
        if dtype is not first_dtype:
            raise _of_two_dtypes(op, {name: tensor, first_name: first})
        if tensor.shape != first.shape:
            raise _of_two_shapes(op, {name: tensor, first_name: first}, "equal shapes")
        if tensor.device != first.device:
            raise _on_two_devices(op, {name: tensor, first_name: first})


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
    """Check that ``x[N]`` is a vector of bytes.

    Raises:
        TypeError: it is no strided tensor, or not of uint8.
        ValueError: it has another number of dimensions than one.
    """
    check_same(op, 1, (torch.uint8,), x=x)


def check_product(op: str, a: torch.Tensor, b: torch.Tensor, names: tuple[str, str] = ("a", "b")) -> None:
    """Check that ``a[M,K]`` and ``b[K,N]`` are matrices that can be multiplied.

    Args:
        op: the op's name, for the message.
        a: the left one.
        b: the right one.
        names: what the op calls them.

    Raises:
        TypeError: as `check_same`.
        ValueError: one is no matrix, b is on another device than a, or has not as many rows as a columns.
    """
    left, right = names
    check_same(op, 2, TAKEN, **{left: a})
    check_same(op, 2, TAKEN, **{right: b})
    if b.dtype is not a.dtype:
        raise _of_two_dtypes(op, {right: b, left: a})
    if b.shape[0] != a.shape[1]:
        raise _of_two_shapes(op, {right: b, left: a}, f"as many rows of {right} as {left} has columns")
    if b.device != a.device:
        raise _on_two_devices(op, {right: b, left: a})


def check_linear(op: str, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> None:
    """Check that ``x[M,K] @ w[K,N] + bias[N]`` can be computed, by tensor cores and with sums in fp32.

    Raises:
        TypeError: as `check_same`, or they are fp32, which tensor cores would multiply as TF32.
        ValueError: as `check_product`, or bias is no vector, on another device, or has another length.
    """
    check_product(op, x, w, ("x", "w"))
    check_same(op, 1, bias=bias)
    if x.dtype is torch.float32:
        raise TypeError(f"{op}: x is {x.dtype}; it takes {', '.join(map(str, TAKEN[1:]))}")
    if bias.dtype is not x.dtype:
        raise _of_two_dtypes(op, {"bias": bias, "x": x})
    if bias.shape[0] != w.shape[1]:
        raise _of_two_shapes(op, {"bias": bias, "w": w}, "as many elements of bias as w has columns")
    if bias.device != x.device:
        raise _on_two_devices(op, {"bias": bias, "x": x})


def check_batched_squares(op: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Check that ``a[B,N,N]`` and ``b[B,N,N]`` are as many square matrices of one size.

    Raises:
        TypeError: as `check_same`.
        ValueError: as `check_same`, or the matrices are not square.
    """
    check_same(op, 3, a=a, b=b)
    if a.shape[1] != a.shape[2]:
        raise ValueError(
            f"{op}: a and b have shape {tuple(a.shape)}; it takes square matrices, as many rows as columns"
        )


def check_targets(op: str, logits: torch.Tensor, targets: torch.Tensor) -> None:
    """Check that ``logits[M,V]`` and ``targets[M]`` are rows of numbers and the index of one in each.

    Raises:
        TypeError: as `check_same`, or targets is no strided tensor of int64.
        ValueError: as `check_same`, or targets is no vector, on another device, or has another length.
    """
    check_same(op, 2, logits=logits)
    check_same(op, 1, (torch.int64,), targets=targets)
    if targets.shape[0] != logits.shape[0]:
        takes = "as many elements of targets as logits has rows"
        raise _of_two_shapes(op, {"targets": targets, "logits": logits}, takes)
    if targets.device != logits.device:
        raise _on_two_devices(op, {"targets": targets, "logits": logits})


def check_heads(op: str, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Check that ``q[B,S,H,D]`` and ``k[B,S,Hk,D]`` are heads that ``cos[S,D/2]`` and ``sin[S,D/2]`` turn.

    Raises:
        TypeError: as `check_same`, or they are of several dtypes.
        ValueError: as `check_same`, D is odd, a shape does not go with q's, or a device is another than q's.
    """
    check_same(op, 4, q=q)
    check_same(op, 4, k=k)
    check_same(op, 2, cos=cos, sin=sin)
    B, S, _, D = q.shape
    if D % 2 != 0:
        raise ValueError(f"{op}: q has shape {tuple(q.shape)}; it takes heads of an even length")
    if k.shape[:2] != q.shape[:2] or k.shape[3] != D:
        raise _of_two_shapes(op, {"k": k, "q": q}, f"({B}, {S}, any, {D}) for k")
    if cos.shape != (S, D // 2):
        raise _of_two_shapes(op, {"cos": cos, "q": q}, f"{(S, D // 2)} for cos")
    for name, tensor in (("k", k), ("cos", cos)):
        if tensor.dtype is not q.dtype:
            raise _of_two_dtypes(op, {name: tensor, "q": q})
        if tensor.device != q.device:
            raise _on_two_devices(op, {name: tensor, "q": q})


def check_queries(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, taken: tuple[int, ...]) -> None:
    """Check that ``q[B,Sq,Hq,D]`` are queries for the heads ``k[B,Skv,Hk,D]`` and ``v[B,Skv,Hk,D]``.

    Args:
        op: the op's name, for the message.
        q: the queries; Hq is a multiple of Hk.
        k: the keys.
        v: the values.
        taken: the values of D that are taken.

    Raises:
        TypeError: as `check_same`, or they are of several dtypes.
        ValueError: as `check_same`, D is not taken, a shape does not go with q's, or k is on another device.
    """
    check_same(op, 4, q=q)
    check_same(op, 4, k=k, v=v)
    if k.dtype is not q.dtype:
        raise _of_two_dtypes(op, {"k": k, "q": q})
    B, _, Hq, D = q.shape
    Hk = k.shape[2]
    if D not in taken:
        takes = " or ".join(map(str, taken))
        raise ValueError(f"{op}: q has shape {tuple(q.shape)}; it takes heads of length {takes}")
    if k.shape[0] != B or k.shape[3] != D:
        raise _of_two_shapes(op, {"k": k, "q": q}, f"({B}, any, any, {D}) for k")
    if Hq != 0 if Hk == 0 else Hq % Hk != 0:
        raise _of_two_shapes(op, {"k": k, "q": q}, f"a number of heads of k that divides {Hq}")
    if k.device != q.device:
        raise _on_two_devices(op, {"k": k, "q": q})


def check_norm(op: str, x: torch.Tensor, **parameters: torch.Tensor) -> None:
    """Check that the rows of ``x[M,N]`` can be normalised with these: ``check_norm(op, x, weight=weight)``.

    Args:
        op: the op's name, for the message.
        x: the rows.
        parameters: vectors of N elements, by their names.

    Raises:
        TypeError: as `check_same`.
        ValueError: as `check_same`, or a parameter is no vector of N elements, or on another device than x.
    """
    check_same(op, 2, x=x)
    for name, parameter in parameters.items():
        check_same(op, 1, TAKEN, **{name: parameter})
        if parameter.dtype is not x.dtype:
            raise _of_two_dtypes(op, {name: parameter, "x": x})
        if parameter.shape[0] != x.shape[1]:
            takes = f"as many elements of {name} as x has columns"
            raise _of_two_shapes(op, {name: parameter, "x": x}, takes)
        if parameter.device != x.device:
            raise _on_two_devices(op, {name: parameter, "x": x})


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
    pages and ``lengths[B]`` says how many tokens it has.  What these two hold is checked on a CPU only: a
    launch on a GPU does not wait for values.

    Raises:
        TypeError: as `check_same`, or block_table or lengths is not of int32.
        ValueError: as `check_same`, a shape or device does not go with q's, D or PAGE is not taken, a length
            is negative or longer than its row of block_table, or one of the pages it needs does not exist.
    """
    check_same(op, 4, q=q)
    check_same(op, 4, k_pages=k_pages, v_pages=v_pages)
    check_same(op, 2, (torch.int32,), block_table=block_table)
    check_same(op, 1, (torch.int32,), lengths=lengths)
    if k_pages.dtype is not q.dtype:
        raise _of_two_dtypes(op, {"k_pages": k_pages, "q": q})
    B, queries, Hq, D = q.shape
    _, PAGE, Hk, _ = k_pages.shape
    if queries != 1 or D not in (64, 128):
        raise ValueError(f"{op}: q has shape {tuple(q.shape)}; it takes (any, 1, any, 64 or 128)")
    if PAGE not in (16, 64) or k_pages.shape[3] != D:
        raise _of_two_shapes(op, {"k_pages": k_pages, "q": q}, f"(any, 16 or 64, any, {D}) for k_pages")
    if Hq != 0 if Hk == 0 else Hq % Hk != 0:
        raise _of_two_shapes(
            op, {"k_pages": k_pages, "q": q}, f"a number of heads of k_pages that divides {Hq}"
        )
    for name, tensor in (("block_table", block_table), ("lengths", lengths)):
        if tensor.shape[0] != B:
            raise _of_two_shapes(op, {name: tensor, "q": q}, f"{B} rows of {name}")
    for name, tensor in (("k_pages", k_pages), ("block_table", block_table), ("lengths", lengths)):
        if tensor.device != q.device:
            raise _on_two_devices(op, {name: tensor, "q": q})
    if q.device.type == "cpu":
        _check_table(op, k_pages.shape[0], PAGE, block_table, lengths)


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

    Raises:
        TypeError: as `check_queries`, or o is of another dtype than q, or lse not of fp32.
        ValueError: as `check_queries`, or the shape or device of o, do or lse does not go with that of q.
    """
    check_queries(op, q, k, v, taken)
    B, Sq, Hq, _ = q.shape
    check_same(op, 4, o=o, do=do)
    if o.dtype is not q.dtype:
        raise _of_two_dtypes(op, {"o": o, "q": q})
    if o.shape != q.shape:
        raise _of_two_shapes(op, {"o": o, "q": q}, "equal shapes")
    check_same(op, 3, (torch.float32,), lse=lse)
    if lse.shape != (B, Hq, Sq):
        raise _of_two_shapes(op, {"lse": lse, "q": q}, f"{(B, Hq, Sq)} for lse")
    for name, tensor in (("o", o), ("lse", lse)):
        if tensor.device != q.device:
            raise _on_two_devices(op, {name: tensor, "q": q})


def check_groups(op: str, x: torch.Tensor, group: int) -> None:
    """Check that ``x[M,K]`` are rows whose columns can be taken by ``group``, or all together if it is 0.

    Raises:
        TypeError: as `check_same`, or group is no int.
        ValueError: as `check_same`, or group is negative.
    """
    check_same(op, 2, x=x)
    if type(group) is not int:
        raise TypeError(f"{op}: group is a {type(group).__name__}; it takes an int")
    if group < 0:
        raise ValueError(f"{op}: group is {group}; it takes 0, for a whole row, or a number of columns")


def check_block_product(
    op: str, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> None:
    """Check that ``a[M,K]`` and ``b[N,K]`` are e4m3 with fp32 scales of each 1 x 128 and 128 x 128.

    Raises:
        TypeError: as `check_same`: a or b is not of e4m3, or a scale not of fp32.
        ValueError: as `check_same`, b has not as many columns as a, a scale's shape does not go with its
            matrix, or one is on another device than a.
    """
    e4m3, fp32 = (torch.float8_e4m3fn,), (torch.float32,)
    check_same(op, 2, e4m3, a=a)
    check_same(op, 2, e4m3, b=b)
    check_same(op, 2, fp32, scale_a=scale_a)
    check_same(op, 2, fp32, scale_b=scale_b)
    (M, K), N = a.shape, b.shape[0]
    if b.shape[1] != K:
        raise _of_two_shapes(op, {"b": b, "a": a}, "as many columns of b as a has")
    blocks = -(-K // 128)
    if scale_a.shape != (M, blocks):
        raise _of_two_shapes(op, {"scale_a": scale_a, "a": a}, f"{(M, blocks)} for scale_a")
    if scale_b.shape != (-(-N // 128), blocks):
        raise _of_two_shapes(op, {"scale_b": scale_b, "b": b}, f"{(-(-N // 128), blocks)} for scale_b")
    for name, tensor in (("b", b), ("scale_a", scale_a), ("scale_b", scale_b)):
        if tensor.device != a.device:
            raise _on_two_devices(op, {name: tensor, "a": a})


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
    """Check that ``a[M,K]`` and ``b[N,K]`` are of an 8-bit dtype, with fp32 ``scale_a[M]``, ``scale_b[N]``.

    Raises:
        TypeError: as `check_same`: a or b is not of the dtype ``taken``, or a scale not of fp32.
        ValueError: as `check_same`, b has not as many columns as a, a scale has not as many elements as its
            matrix has rows, one is on another device than a, or int32 sums of K products may overflow.
    """
    check_same(op, 2, (taken,), a=a)
    check_same(op, 2, (taken,), b=b)
    check_same(op, 1, (torch.float32,), scale_a=scale_a)
    check_same(op, 1, (torch.float32,), scale_b=scale_b)
    K = a.shape[1]
    if b.shape[1] != K:
        raise _of_two_shapes(op, {"b": b, "a": a}, "as many columns of b as a has")
    for name, scale, of, matrix in (("scale_a", scale_a, "a", a), ("scale_b", scale_b, "b", b)):
        if scale.shape[0] != matrix.shape[0]:
            takes = f"as many elements of {name} as {of} has rows"
            raise _of_two_shapes(op, {name: scale, of: matrix}, takes)
    for name, tensor in (("b", b), ("scale_a", scale_a), ("scale_b", scale_b)):
        if tensor.device != a.device:
            raise _on_two_devices(op, {name: tensor, "a": a})
    if taken is torch.int8 and K > MOST_EXACT_TERMS:
        raise ValueError(
            f"{op}: a has shape {tuple(a.shape)}; it takes at most {MOST_EXACT_TERMS} columns, whose "
            "products int32 can sum"
        )


def check_quantized_linear(
    op: str, a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> None:
    """Check ``a[M,K]``, ``packed[N,K/8]``, ``scales[N,K/128]`` and ``zeros[N,K/128]``, sizes rounded up.

    Raises:
        TypeError: as `check_same`: a is not of fp16 or bf16, packed not of int32, zeros not of uint8, or
            scales of another dtype than a.
        ValueError: as `check_same`, a shape does not go with a's, or a device is another than a's.
    """
    check_same(op, 2, TAKEN[1:], a=a)
    check_same(op, 2, (torch.int32,), packed=packed)
    check_same(op, 2, TAKEN[1:], scales=scales)
    check_same(op, 2, (torch.uint8,), zeros=zeros)
    if scales.dtype is not a.dtype:
        raise _of_two_dtypes(op, {"scales": scales, "a": a})
    K, N = a.shape[1], packed.shape[0]
    if packed.shape[1] != -(-K // 8):
        takes = f"(any, {-(-K // 8)}) for packed, 8 weights in a word"
        raise _of_two_shapes(op, {"packed": packed, "a": a}, takes)
    wanted = (N, -(-K // 128))
    for name, tensor in (("scales", scales), ("zeros", zeros)):
        if tensor.shape != wanted:
            raise _of_two_shapes(op, {name: tensor, "packed": packed}, f"{wanted} for {name}")
    for name, tensor in (("packed", packed), ("scales", scales), ("zeros", zeros)):
        if tensor.device != a.device:
            raise _on_two_devices(op, {name: tensor, "a": a})
