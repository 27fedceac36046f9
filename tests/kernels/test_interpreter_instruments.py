"""What Triton's interpreter has beside its arithmetic: libdevice, the first configuration, and bounds."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from triton_impl.addresses import within
from triton_impl.libdevice import functions
from triton_impl.notes import taken
from triton_impl.recorded_device import RecordedDriver

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
    taken()
    written[lambda tile: (triton.cdiv(100, tile["BLOCK"]),)](z, 100)
    assert z.unique().tolist() == [64]
    assert taken() == ("ran with the first of 2 configurations: a search needs a GPU",)
    assert taken() == ()


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["N"])})
@triton.jit
def filled(z_ptr, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    n = tl.arange(0, BLOCK)
    tl.store(z_ptr + n, n * 0 + BLOCK, mask=n < N)


@triton.jit
def product(x_ptr, z_ptr, HOW: tl.constexpr):  # type: ignore[no-untyped-def]
    n = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + n)
    tl.store(z_ptr + n, tl.dot(x, x, input_precision=HOW).to(z_ptr.dtype.element_ty))


def test_only_a_product_that_is_rounded_says_so() -> None:
    taken()
    x = torch.rand(16, 16)
    for dtype, how, says in (
        (torch.float32, "tf32", 1),
        (torch.float32, "ieee", 0),
        (torch.float16, "tf32", 0),
    ):
        product[(1,)](x.to(dtype), torch.empty(16, 16, dtype=dtype), HOW=how)
        assert taken() == ("tl.dot rounded fp32 operands to TF32, as a GPU does",) * says


def test_a_kernel_is_warmed_up_as_on_a_recorded_gpu() -> None:
    z = torch.zeros(100, dtype=torch.int32)
    kernel = written.fn.warmup(z, 100, BLOCK=64, num_warps=8, grid=(1,))
    kernel._init_handles()
    assert (kernel.n_regs, kernel.n_spills, kernel.metadata.num_warps) == (32, 0, 8)
    assert kernel.metadata.shared > 0  # host code divides by it
    assert not z.any()
    kernel[(2, 1, 1)](z, 100, 64)
    assert z.unique().tolist() == [64]
    kernel[(2, 1, 1)](z.zero_(), 100)  # an older Triton wants no constants
    assert z.unique().tolist() == [64]
    assert any("assumed 32 registers" in note for note in taken())
    filled.warmup(z, 100, grid=(1,))
    with pytest.raises(
        NotImplementedError, match=r"written.warmup\(...\).asm needs a GPU: without one, read n_regs"
    ):
        kernel.asm  # noqa: B018


def test_host_code_is_told_of_a_recorded_gpu() -> None:
    driver = RecordedDriver()
    assert driver.utils.get_device_properties(driver.get_active_torch_device().index)["warpSize"] == 32
    assert driver.utils.get_device_properties(0)["multiprocessor_count"] == 132
    assert (driver.get_current_target().backend, driver.get_current_target().arch) == ("cuda", 90)
    with pytest.raises(
        NotImplementedError, match="get_benchmarker needs a GPU: without one, take get_current"
    ):
        driver.get_benchmarker()
