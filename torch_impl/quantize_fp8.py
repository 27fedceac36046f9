"""quantize_fp8 in plain PyTorch.

x[M,K] -> values[M,K], scales[M,K/group]

    naive    elementary operations: one kernel per step, and each reads and writes all of x's size in fp32
    eager    the library's maximum norm, which reads x as it is, then a division and a conversion
    compile  the naive expression through torch.compile, which fuses it
"""

import functools
from collections.abc import Callable

import torch
from torch.nn.functional import pad

from compare.arguments import check_groups
from compare.registry import implementation

LARGEST, LEAST = 448.0, 1e-12


def _grouped(x: torch.Tensor, group: int) -> torch.Tensor:
    """``[M, groups, columns]``; zeros fill the last group."""
    M, K = x.shape
    columns = group or max(K, 1)
    groups = -(-K // columns) if group else 1
    short = groups * columns - K
    return (pad(x, (0, short)) if short else x).reshape(M, groups, columns)


def _quantized(
    x: torch.Tensor, largest: torch.Tensor, group: int, code: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and scales, from the largest magnitude of each group: ``[M, groups]``."""
    # By a tensor: PyTorch multiplies by the reciprocal of a number, which is off by a rounding.
    scales = largest.clamp(min=LEAST) / code
    if not group:
        return (x / scales).float().to(torch.float8_e4m3fn), scales[:, 0]
    of_column = scales[:, torch.arange(x.shape[1], device=x.device) // group]
    return (x / of_column).float().to(torch.float8_e4m3fn), scales


@functools.cache
def _code(device: torch.device) -> torch.Tensor:
    """The largest number of e4m3 as ``[1]``, in fp32."""
    return torch.full((1,), LARGEST, device=device)


def _primitives(x: torch.Tensor, group: int, code: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.float()
    return _quantized(wide, _grouped(wide, group).abs().amax(2), group, code)


@implementation("quantize_fp8", "torch.naive", level="naive")
def naive(x: torch.Tensor, *, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    check_groups("quantize_fp8", x, group)
    return _primitives(x, group, _code(x.device))


@implementation("quantize_fp8", "torch.eager", level="vendor")
def eager(x: torch.Tensor, *, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    check_groups("quantize_fp8", x, group)
    largest = torch.linalg.vector_norm(_grouped(x, group), torch.inf, dim=2, dtype=torch.float32)
    return _quantized(x, largest, group, _code(x.device))


@functools.cache
def _compiled() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    # torch.compile specialises one kernel per shape and stops compiling past this many shapes.
    torch._dynamo.config.recompile_limit = 256
    # Its own division on a GPU is off by a rounding or two, which changes codes.  Older versions misspell the
    # option's name.
    known = torch._inductor.list_options()
    exact = {name: True for name in known if name.endswith(("division_rounding", "divison_rounding"))}
    return torch.compile(_primitives, dynamic=False, fullgraph=True, options=exact)


@implementation("quantize_fp8", "torch.compile", level="vendor", requires="sm_89")
def compiled(x: torch.Tensor, *, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    check_groups("quantize_fp8", x, group)
    return _compiled()(x, group, _code(x.device))
