"""Checks of arguments, shared by every Python way of an op.  Imports nothing but torch.

Each raises, with the op's name, the argument, what it got, and what is accepted:

- TypeError for an argument that is no strided tensor, or of a dtype that is not taken or not the others';
- ValueError for a number of dimensions, a shape or a device that does not go with the others'.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, strided

TAKEN = (torch.float32, torch.float16, torch.bfloat16)

RANK_BLOCKS = 128
"""The most blocks of a kernel whose blocks wait for another GPU's: no more than any with NVLink holds."""
MESSAGES = 1024
"""4-byte words that a block of such a kernel sends at a time, each with its flag in 8 bytes."""


def check_same(op: str, ndim: int, taken: tuple[torch.dtype, ...] = TAKEN, **tensors: torch.Tensor) -> None:
    """Check that the named arguments are alike: ``check_same("vector_add", 1, x=x, y=y)``.

    Args:
        op: the op's name, for the message.
        ndim: how many dimensions each argument has.
        taken: the dtypes that are taken.
        tensors: the arguments; the first one sets the shape, dtype and device that the others must have.
    """
    first_name, first = "", None
    for name, tensor in tensors.items():
        if first is None:
            _check_alone(op, name, tensor, ndim, taken)
            first_name, first = name, tensor
        else:
            _check(op, name, tensor, first.shape, first_name, first, taken)


def _check_alone(op: str, name: str, tensor: torch.Tensor, ndim: int, taken: tuple[torch.dtype, ...]) -> None:
    # Every launch pays for this, so nothing is asked twice of a tensor that is as it should be.
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{op}: {name} is a {type(tensor).__name__}; it takes a torch.Tensor")
    if tensor.layout is not strided:
        raise TypeError(f"{op}: {name} is {tensor.layout}; it takes a strided (dense) tensor")
    if tensor.dtype not in taken:
        raise TypeError(f"{op}: {name} is {tensor.dtype}; it takes {', '.join(map(str, taken))}")
    if tensor.dim() != ndim:
        raise ValueError(
            f"{op}: {name} has {tensor.dim()} dimensions, shape {tuple(tensor.shape)}; it takes {ndim}"
        )


def _check(
    op: str,
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int | None],
    other_name: str,
    other: torch.Tensor,
    taken: tuple[torch.dtype, ...] = TAKEN,
) -> None:
    """Check an argument's shape, None for any size, and that it is on the device of another one.

    It has the dtype of the other one, too, if that is among those taken.
    """
    _check_alone(op, name, tensor, len(shape), taken)
    if tensor.dtype is not other.dtype and other.dtype in taken:
        both = f"{name} is {tensor.dtype} and {other_name} is {other.dtype}"
        raise TypeError(f"{op}: {both}; it takes one dtype")
    if tensor.shape != shape and not _is_of(shape, tensor.shape):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        takes = f"({sizes}{',' * (len(shape) == 1)}) for {name}"
        raise _of_two(op, name, tensor, other_name, other, "equal shapes" if shape == other.shape else takes)
    if tensor.device != other.device:
        both = f"{name} is on {tensor.device} and {other_name} on {other.device}"
        raise ValueError(f"{op}: {both}; it takes one device")


def _is_of(shape: Sequence[int | None], sizes: torch.Size) -> bool:
    for taken, size in zip(shape, sizes, strict=True):  # noqa: SIM110 - a generator takes a microsecond
        if taken is not None and taken != size:
            return False
    return True


def _of_two(
    op: str, name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor, takes: str
) -> ValueError:
    shapes = f"{name} has shape {tuple(tensor.shape)} and {other_name} {tuple(other.shape)}"
    return ValueError(f"{op}: {shapes}; it takes {takes}")


def check_bytes(op: str, x: torch.Tensor) -> None:
    """Check that ``x[N]`` is a vector of bytes, as uint8."""
    check_same(op, 1, (torch.uint8,), x=x)


def check_product(op: str, a: torch.Tensor, b: torch.Tensor, names: tuple[str, str] = ("a", "b")) -> None:
    """Check that ``a[M,K]`` and ``b[K,N]`` are matrices to multiply; ``names``: what the op calls them."""
    left, right = names
    _check_alone(op, left, a, 2, TAKEN)
    _check(op, right, b, (a.shape[1], None), left, a)


def check_grouped_product(op: str, a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> None:
    """Check that rows of 16-bit ``a[M,K]`` are groups for ``b[G,K,N]``, which end at int32 ``offsets[G]``.

    What offsets hold is checked on a CPU only, as a launch on a GPU does not wait for values.
    """
    _check_alone(op, "a", a, 2, TAKEN[1:])
    M, K = a.shape
    _check(op, "b", b, (None, K, None), "a", a, TAKEN[1:])
    _check(op, "offsets", offsets, (b.shape[0],), "b", b, (torch.int32,))
    if M > 0 and b.shape[0] == 0:
        raise _of_two(op, "b", b, "a", a, "one matrix at least where a has rows")
    if a.device.type == "cpu":
        begin = 0
        for g, end in enumerate(offsets.tolist()):
            is_last = g == len(offsets) - 1
            if not begin <= end <= M or (is_last and end != M):
                takes = f"{M}, a's rows" if is_last else f"{begin} to {M}"
                raise ValueError(f"{op}: offsets[{g}] is {end}; it takes {takes}")
            begin = end


def check_linear(op: str, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> None:
    """Check that ``x[M,K] @ w[K,N] + bias[N]`` can be computed, by tensor cores and with sums in fp32.

    Raises:
        TypeError: also for fp32, which tensor cores would multiply as TF32.
    """
    check_product(op, x, w, ("x", "w"))
    if x.dtype is torch.float32:
        raise TypeError(f"{op}: x is {x.dtype}; it takes {', '.join(map(str, TAKEN[1:]))}")
    _check(op, "bias", bias, (w.shape[1],), "w", w)


def check_batched_squares(op: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Check that ``a[B,N,N]`` and ``b[B,N,N]`` are as many square matrices of one size."""
    check_same(op, 3, a=a, b=b)
    if a.shape[1] != a.shape[2]:
        raise ValueError(
            f"{op}: a and b have shape {tuple(a.shape)}; it takes square matrices, as many rows as columns"
        )


def check_targets(op: str, logits: torch.Tensor, targets: torch.Tensor) -> None:
    """Check that ``logits[M,V]`` and ``targets[M]``, of int64, are rows of numbers and an index in each."""
    _check_alone(op, "logits", logits, 2, TAKEN)
    _check(op, "targets", targets, (logits.shape[0],), "logits", logits, (torch.int64,))


def check_heads(op: str, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Check that ``q[B,S,H,D]`` and ``k[B,S,Hk,D]`` are heads for ``cos[S,D/2]`` and ``sin[S,D/2]``."""
    _check_alone(op, "q", q, 4, TAKEN)
    B, S, _, D = q.shape
    if D % 2 != 0:
        raise ValueError(f"{op}: q has shape {tuple(q.shape)}; it takes heads of an even length")
    _check(op, "k", k, (B, S, None, D), "q", q)
    _check(op, "cos", cos, (S, D // 2), "q", q)
    _check(op, "sin", sin, cos.shape, "cos", cos)


def check_queries(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, taken: tuple[int, ...]) -> None:
    """Check that ``q[B,Sq,Hq,D]`` are queries for the heads ``k[B,Skv,Hk,D]`` and ``v[B,Skv,Hk,D]``.

    Args:
        op: the op's name, for the message.
        q: the queries; Hq is a multiple of Hk.
        k: the keys.
        v: the values.
        taken: the values of D that are taken.
    """
    _check_alone(op, "q", q, 4, TAKEN)
    B, _, _, D = q.shape
    if D not in taken:
        takes = " or ".join(map(str, taken))
        raise ValueError(f"{op}: q has shape {tuple(q.shape)}; it takes heads of length {takes}")
    _check(op, "k", k, (B, None, None, D), "q", q)
    _check(op, "v", v, k.shape, "k", k)
    _check_groups_of_heads(op, q, "k", k)


def _check_groups_of_heads(op: str, q: torch.Tensor, name: str, k: torch.Tensor) -> None:
    Hq, Hk = q.shape[2], k.shape[2]
    if Hq != 0 if Hk == 0 else Hq % Hk != 0:
        raise _of_two(op, name, k, "q", q, f"a number of heads of {name} that divides {Hq}")


def check_norm(op: str, x: torch.Tensor, **parameters: torch.Tensor) -> None:
    """Check that the rows of ``x[M,N]`` can be normalised with these: ``check_norm(op, x, weight=weight)``.

    Args:
        op: the op's name, for the message.
        x: the rows.
        parameters: vectors of N elements, by their names.
    """
    _check_alone(op, "x", x, 2, TAKEN)
    for name, parameter in parameters.items():
        _check(op, name, parameter, (x.shape[1],), "x", x)


def check_residual_norm(op: str, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> None:
    """Check that rows of ``x[M,N]`` and ``residual[M,N]`` can be added and normalised with ``weight[N]``."""
    check_same(op, 2, x=x, residual=residual)
    _check(op, "weight", weight, (x.shape[1],), "x", x)


def check_norm_gradients(
    op: str, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, rstd: torch.Tensor
) -> None:
    """Check that ``dy[M,N]`` is the gradient of ``x[M,N]``'s rows, normalised with the fp32 ``rstd[M]``."""
    check_same(op, 2, dy=dy, x=x)
    _check(op, "weight", weight, (x.shape[1],), "x", x)
    _check(op, "rstd", rstd, (x.shape[0],), "x", x, (torch.float32,))


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
    _check_alone(op, "q", q, 4, TAKEN)
    B, queries, _, D = q.shape
    if queries != 1 or D not in (64, 128):
        raise ValueError(f"{op}: q has shape {tuple(q.shape)}; it takes (any, 1, any, 64 or 128)")
    _check(op, "k_pages", k_pages, (None, None, None, D), "q", q)
    _check(op, "v_pages", v_pages, k_pages.shape, "k_pages", k_pages)
    P, PAGE = k_pages.shape[:2]
    if PAGE not in (16, 64):
        raise _of_two(op, "k_pages", k_pages, "q", q, f"(any, 16 or 64, any, {D}) for k_pages")
    _check_groups_of_heads(op, q, "k_pages", k_pages)
    _check(op, "block_table", block_table, (B, None), "q", q, (torch.int32,))
    _check(op, "lengths", lengths, (B,), "q", q, (torch.int32,))
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
    B, Sq, Hq, _ = q.shape
    _check(op, "o", o, q.shape, "q", q)
    _check(op, "do", do, q.shape, "q", q)
    _check(op, "lse", lse, (B, Hq, Sq), "q", q, (torch.float32,))


def check_groups(op: str, x: torch.Tensor, group: int) -> None:
    """Check that ``x[M,K]`` are rows whose columns can be taken by ``group``, or all together if it is 0."""
    _check_alone(op, "x", x, 2, TAKEN)
    if type(group) is not int:
        raise TypeError(f"{op}: group is a {type(group).__name__}; it takes an int")
    if group < 0:
        raise ValueError(f"{op}: group is {group}; it takes 0, for a whole row, or a number of columns")


def check_largest(op: str, x: torch.Tensor, K: int) -> None:
    """Check that the rows of ``x[M,N]`` have at least K elements."""
    _check_alone(op, "x", x, 2, TAKEN)
    if type(K) is not int:
        raise TypeError(f"{op}: K is a {type(K).__name__}; it takes an int")
    if not 0 <= K <= x.shape[1]:
        shape = f"x has shape {tuple(x.shape)} and K is {K}"
        raise ValueError(f"{op}: {shape}; it takes 0 to {x.shape[1]} for K")


def check_block_product(
    op: str, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> None:
    """Check that ``a[M,K]`` and ``b[N,K]`` are e4m3 with fp32 scales of each 1 x 128 and 128 x 128."""
    e4m3, fp32 = (torch.float8_e4m3fn,), (torch.float32,)
    _check_alone(op, "a", a, 2, e4m3)
    M, K = a.shape
    _check(op, "b", b, (None, K), "a", a, e4m3)
    _check(op, "scale_a", scale_a, (M, -(-K // 128)), "a", a, fp32)
    _check(op, "scale_b", scale_b, (-(-b.shape[0] // 128), -(-K // 128)), "b", b, fp32)


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
    _check_alone(op, "a", a, 2, (taken,))
    _check(op, "b", b, (None, a.shape[1]), "a", a, (taken,))
    _check(op, "scale_a", scale_a, (a.shape[0],), "a", a, (torch.float32,))
    _check(op, "scale_b", scale_b, (b.shape[0],), "b", b, (torch.float32,))
    if taken is torch.int8 and a.shape[1] > MOST_EXACT_TERMS:
        raise ValueError(
            f"{op}: a has shape {tuple(a.shape)}; it takes at most {MOST_EXACT_TERMS} columns, whose "
            "products int32 can sum"
        )


def check_quantized_linear(
    op: str, a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> None:
    """Check 16-bit ``a[M,K]``, ``packed[N,K/8]`` of int32, ``scales[N,K/128]`` of a's dtype, and
    ``zeros[N,K/128]`` of uint8; sizes are rounded up."""
    _check_alone(op, "a", a, 2, TAKEN[1:])
    K = a.shape[1]
    _check(op, "packed", packed, (None, -(-K // 8)), "a", a, (torch.int32,))
    groups = packed.shape[0], -(-K // 128)
    _check(op, "scales", scales, groups, "packed", packed, TAKEN[1:])
    _check(op, "scales", scales, groups, "a", a, TAKEN[1:])
    _check(op, "zeros", zeros, groups, "packed", packed, (torch.uint8,))


def check_ranks(
    op: str, x: torch.Tensor, peers: torch.Tensor, epochs: torch.Tensor, taken: Sequence[int] = ()
) -> None:
    """Check a rank's ``x[N]``, which starts on 16 bytes, int64 ``peers[3, RANKS]`` and int32 ``epochs``.

    Another number of ranks than those of ``taken`` is a NotImplementedError; none of these: any is taken.
    """
    _check_alone(op, "x", x, 1, TAKEN)
    _check(op, "peers", peers, (3, None), "x", x, (torch.int64,))
    _check(op, "epochs", epochs, (2, None), "x", x, (torch.int32,))
    if not x.is_contiguous() or x.data_ptr() % 16:
        raise ValueError(
            f"{op}: x has stride {x.stride(0)} and address {x.data_ptr():#x}; it takes a "
            "contiguous x that starts on 16 bytes"
        )
    if taken and peers.shape[1] not in taken:
        raise NotImplementedError(f"{peers.shape[1]} ranks; it takes {', '.join(map(str, taken))}")
