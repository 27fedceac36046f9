"""What Triton's interpreter has beside its arithmetic: libdevice, the first configuration, and bounds."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from triton_impl.addresses import within
from triton_impl.libdevice import functions

if torch.cuda.is_available():
    pytest.skip("Triton compiles its kernels here", allow_module_level=True)

libdevice = pytest.importorskip("triton.language.extra.cuda.libdevice")


@triton.jit
def both(x_ptr, y_ptr, z_ptr, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + n, mask=n < N, other=1.0)
    y = tl.load(y_ptr + n, mask=n < N, other=1.0)
    tl.store(z_ptr + n, libdevice.rsqrt(x) + libdevice.pow(x, y) + libdevice.fast_expf(-x), mask=n < N)


def test_libdevice_computes_as_pytorch() -> None:
    x, y, z = torch.rand(100) + 0.5, torch.rand(100), torch.empty(100)
    both[(1,)](x, y, z, 100, BLOCK=128)
    expected = x.double().rsqrt() + x.double() ** y.double() + (-x.double()).exp()
    assert torch.allclose(z.double(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("round", 2.5, 3.0),
        ("rint", 2.5, 2.0),
        ("cbrt", -8.0, -2.0),
        ("tgamma", -0.5, -2 * math.sqrt(math.pi)),
    ],
)
def test_where_libdevice_differs_from_pytorch_s_names(name: str, argument: float, value: float) -> None:
    assert float(functions()[name](torch.tensor(argument, dtype=torch.float64))) == pytest.approx(value)


@triton.jit
def copied(x_ptr, z_ptr, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    n = tl.arange(0, BLOCK)
    tl.store(z_ptr + n, tl.load(x_ptr + n), mask=n < N)


def test_a_load_outside_of_the_arguments_is_an_error_that_names_the_argument() -> None:
    z = torch.empty(128)
    copied[(1,)](torch.rand(128), z, 128, BLOCK=128)
    with pytest.raises(Exception, match=r"a load of 28 elements outside of the arguments, .* behind x_ptr"):
        copied[(1,)](torch.rand(100), z, N=100, BLOCK=128)
    arena = torch.rand(1000)
    x, begin = arena[100:200], arena.data_ptr()
    copied[(1,)](x, z, 100, BLOCK=128)  # within its storage
    with (
        within([(begin, begin + 4000)], [(begin + 400, begin + 800)]),
        pytest.raises(Exception, match="a load of 28 elements outside"),
    ):
        copied[(1,)](x, z, 100, BLOCK=128)


@triton.autotune([triton.Config({"BLOCK": block}) for block in (64, 128)], key=["N"])
@triton.jit
def written(z_ptr, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z_ptr + n, n * 0 + BLOCK, mask=n < N)


def test_an_autotuned_kernel_runs_with_its_first_configuration() -> None:
    z = torch.zeros(100, dtype=torch.int32)
    written[lambda tile: (triton.cdiv(100, tile["BLOCK"]),)](z, 100)
    assert z.unique().tolist() == [64]
