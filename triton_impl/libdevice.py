"""NVIDIA's libdevice for Triton's interpreter: the same functions, by PyTorch on the CPU.

On a GPU ``libdevice.rsqrt`` links machine code, which the interpreter cannot.  Results are rounded once from
fp64, where libdevice's are off by up to a few roundings of fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice as portable
from triton.language.extra.cuda import libdevice as cuda
from triton.runtime import interpreter

_SAME_NAME = (
    "abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1 floor "
    "fmod hypot lgamma log log10 log1p log2 nextafter pow remainder rsqrt sin sinh sqrt tan tanh trunc"
)
_OTHERS: dict[str, Callable[..., torch.Tensor]] = {
    "add_rn": torch.add,
    "cbrt": lambda x: x.abs().pow(1 / 3).copysign(x),
    "cospi": lambda x: torch.cos(math.pi * x),
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "div_rn": torch.div,
    "erfcx": torch.special.erfcx,
    "exp10": lambda x: torch.pow(10.0, x),
    "fast_dividef": torch.div,
    "fdim": lambda x, y: (x - y).clamp(min=0.0),
    "fma": lambda x, y, z: x * y + z,
    "fma_rn": lambda x, y, z: x * y + z,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "mul_rn": torch.mul,
    "nearbyint": torch.round,
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
    "rcbrt": lambda x: 1 / x.abs().pow(1 / 3).copysign(x),
    "rcp_rn": torch.reciprocal,
    "rhypot": lambda x, y: 1 / torch.hypot(x, y),
    "rint": torch.round,
    "round": lambda x: (x.abs() + 0.5).floor().copysign(x),
    "rsqrt_rn": torch.rsqrt,
    "saturatef": lambda x: x.nan_to_num(nan=0.0).clamp(0.0, 1.0),
    "sinpi": lambda x: torch.sin(math.pi * x),
    "sqrt_rn": torch.sqrt,
    "sub_rn": torch.sub,
    "tgamma": lambda x: torch.where(x > 0, 1.0, torch.sin(math.pi * x).sign()) * x.lgamma().exp(),
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
}
_FAST = ("cosf", "exp10f", "expf", "log10f", "log2f", "logf", "powf", "sinf", "tanf", "tanhf")
_PREDICATES: dict[str, Callable[..., torch.Tensor]] = {
    "finitef": torch.isfinite,
    "isfinited": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "signbit": torch.signbit,
}


def functions() -> dict[str, Callable[..., torch.Tensor]]:
    """libdevice's functions of floating-point numbers, by name."""
    named = {name: getattr(torch, name) for name in _SAME_NAME.split()} | _OTHERS
    return named | {f"fast_{name}": named[name.removesuffix("f")] for name in _FAST}


def interpret_libdevice(unseen: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace libdevice's functions in this process.

    Args:
        unseen: makes a function whose PyTorch calls do not count as the kernel's own.
    """
    for name, function in functions().items():
        _set(name, unseen(_on_tensors(function, None)))
    for name, function in _PREDICATES.items():
        _set(name, unseen(_on_tensors(function, np.int32)))


def _set(name: str, function: Callable[..., Any]) -> None:
    for module in (portable, cuda):
        if hasattr(module, name):
            setattr(module, name, function)


def _on_tensors(function: Callable[..., torch.Tensor], kind: type | None) -> Callable[..., Any]:
    def run(*args: Any, **_: Any) -> Any:
        handles = [arg.handle for arg in args if isinstance(arg, tl.core.tensor)]
        data = [arg.handle.data if isinstance(arg, tl.core.tensor) else np.asarray(arg) for arg in args]
        wide = [torch.from_numpy(np.array(values, dtype=np.float64)) for values in np.broadcast_arrays(*data)]
        dtype = tl.int32 if kind else handles[0].dtype.scalar
        result = function(*wide).numpy().astype(kind or handles[0].data.dtype)
        block = tl.block_type(dtype, list(result.shape)) if result.ndim and args[0].shape else dtype
        return tl.core.tensor(interpreter.TensorHandle(result, dtype), block)

    return run
