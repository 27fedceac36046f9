"""A right file of a task of each lab, from its starter, and usual mistakes in it."""

from __future__ import annotations

from dataclasses import dataclass

from compare.labs import lab as labs

ONCE = "    raise NotImplementedError("
"""How the line begins that a student deletes."""


@dataclass(frozen=True)
class Right:
    """How a starter becomes right."""

    lab: str
    file: str
    behind: str
    """The starter's line behind which the code is written."""
    code: str
    changes: tuple[tuple[str, str], ...] = ()
    mistakes: tuple[tuple[str, str], ...] = ()
    """Each replaces right code."""

    @property
    def text(self) -> str:
        starter = labs.find(self.lab).path.parent / "starter" / self.file
        lines = [line for line in starter.read_text().split("\n") if not line.startswith(ONCE)]
        (place,) = [number for number, line in enumerate(lines) if self.behind in line]
        lines.insert(place + 1, self.code.strip("\n"))
        return changed("\n".join(lines), *self.changes)


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


ADD = """
    n = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = n < N
    tl.store(z_ptr + n, tl.load(x_ptr + n, mask=inside) + tl.load(y_ptr + n, mask=inside), mask=inside)
"""
NO_MASK = "inside = n < N", "inside = n >= 0"
FIXED_GRID = "(triton.cdiv(N, BLOCK_SIZE),)", "(4,)"
ALL = (
    Right("01", "triton_add.py", "# Step 5", ADD, mistakes=(NO_MASK, FIXED_GRID)),
    Right(
        *("01", "cuda_add.py", "// Step 3"),
        """
    const long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (n < N) z_ptr[n] = T(float(x_ptr[n]) + float(y_ptr[n]));
""",
        (("blocks = 1 ", "blocks = -(-N // THREADS) "),),
        (
            ("if (n < N) ", ""),
            ("-(-N // THREADS)", "min(16, -(-N // THREADS))"),  # a loop over the grid's stride is missing
            ("-(-N // THREADS)", "max(1, N // THREADS)"),
        ),
    ),
    Right("02", "triton_blocks.py", "# Step 1", ADD, mistakes=(NO_MASK, ("(x, y, z, N,", "(x, y, z, 4096,"))),
    Right(
        *("03", "cuda_naive.py", "// Step 3"),
        """
        const long long m = m0 + i, n = n0 + threadIdx.x;
        if (m < M && n < N) y_ptr[n * M + m] = x_ptr[m * N + n];
""",
        mistakes=(("m < M && n < N", "m < M"), ("y_ptr[n * M + m]", "y_ptr[n * N + m]")),
    ),
    Right(
        *("04", "triton_onepass.py", "#         that changes neither"),
        """
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + m * N + n, mask=n < N, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + m * N + n, e / tl.sum(e, axis=0), mask=n < N)
""",
        (("BLOCK_N = 1024", "BLOCK_N = triton.next_power_of_2(N)"), ("num_warps = 4", "num_warps = 8")),
        ((" - tl.max(x, axis=0)", ""), ('other=-float("inf")', "other=0.0")),
    ),
    Right(
        *("05", "torch_online.py", "maximum of -inf. "),
        """
    new_max = torch.maximum(seen_max, chunk.amax(dim=1, keepdim=True))
    base = new_max.masked_fill(new_max == -torch.inf, 0.0)
    seen_sum = seen_sum * (seen_max - base).exp() + (chunk - base).exp().sum(dim=1, keepdim=True)
    seen_max = new_max
""",
        mistakes=(
            (" * (seen_max - base).exp()", ""),
            ("base = new_max.masked_fill(new_max == -torch.inf, 0.0)", "base = new_max"),
        ),
    ),
    Right(
        *("06", "triton_sum.py", "# Step 4"),
        """
    n = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    x = tl.load(x_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    tl.atomic_add(y_ptr, tl.sum(x, axis=0), sem="relaxed")
""",
        mistakes=(
            ("other=0.0", "other=1.0"),
            ('tl.atomic_add(y_ptr, tl.sum(x, axis=0), sem="relaxed")', "tl.store(y_ptr, tl.sum(x, axis=0))"),
        ),
    ),
    Right(
        *("07", "triton_matmul.py", "    k = tl.arange(0, BLOCK_K)"),
        """
    m = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
""",
        (
            (
                "        pass\n",
                """
        ka, kb = begin + k[None, :], begin + k[:, None]
        a = tl.load(a_ptr + m * K + ka, mask=(m < M) & (ka < K), other=0.0)
        b = tl.load(b_ptr + kb * N + n, mask=(kb < K) & (n < N), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(c_ptr + m * N + n, total, mask=(m < M) & (n < N))
""",
            ),
        ),
        (
            ("mask=(m < M) & (ka < K)", "mask=m < M"),
            ("\n        total = tl.dot(a, b, total,", "\n        total = tl.dot(a, b,"),
            ("tile // tiles_n * BLOCK_M", "tile % tiles_n * BLOCK_M"),
        ),
    ),
    Right("08", "triton_copy.py", "inside = n < N", "", mistakes=(NO_MASK, FIXED_GRID)),
    Right(
        *("09", "small_triton.py", "# Step 4"),
        """
    inside = (i < N) & (j < N)
    a = tl.load(a_ptr + first + i * N + j, mask=inside, other=0.0)
    b = tl.load(b_ptr + first + i * N + j, mask=inside, other=0.0)
    tl.store(c_ptr + first + i * N + j, tl.dot(a, b), mask=inside)
""",
        mistakes=(("(i < N) & (j < N)", "i < N"), ("tl.program_id(0).to(tl.int64) * N * N", "0")),
    ),
    Right(
        *("10", "torch_flash.py", "# Step 3"),
        """
    new_max = torch.maximum(seen_max, scores.amax(dim=3, keepdim=True))
    base = new_max.masked_fill(new_max == -math.inf, 0.0)
    weights, factor = (scores - base).exp(), (seen_max - base).exp()
    seen_sum = seen_sum * factor + weights.sum(dim=3, keepdim=True)
    o, seen_max = o * factor + weights @ v, new_max
""",
        mistakes=(("o * factor + weights", "o + weights"), (".masked_fill(new_max == -math.inf, 0.0)", "")),
    ),
    Right(
        *("11", "mine.py", "# Step 5"),
        """
    x = x.contiguous()
    y = torch.empty_like(x)
    M, N = x.shape
    if y.numel():
        norm_kernel[(M,)](x, weight, y, N, EPS, BLOCK_N=triton.next_power_of_2(N))
    return y
""",
        (
            (
                "EPS = 1e-5",
                """
import triton
import triton.language as tl

EPS = 1e-5

@triton.jit
def norm_kernel(x_ptr, w_ptr, y_ptr, N, eps, BLOCK_N: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + m * N + n, mask=n < N, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / N + eps)
    tl.store(y_ptr + m * N + n, x * scale * w, mask=n < N)
""",
            ),
        ),
        (("triton.next_power_of_2(N)", "1024"), ("x * scale * w", "x * scale")),
    ),
)
