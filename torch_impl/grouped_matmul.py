"""grouped_matmul in plain PyTorch.

a[M,K], b[G,K,N], offsets[G] -> c[M,N]

    eager    a loop over groups, one cuBLAS product each; copies the offsets to the host: it waits for the GPU
    grouped  the library call, torch._grouped_mm: one launch, which reads the offsets on the device
"""

import torch

from compare.arguments import check_grouped_product
from compare.registry import implementation
from torch_impl.matmul import on_terms


@implementation("grouped_matmul", "torch.eager", level="vendor")
def eager(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    check_grouped_product("grouped_matmul", a, b, offsets)
    on_terms(tf32=False)
    c = a.new_empty((a.shape[0], b.shape[2]))
    begin = 0
    for g, end in enumerate(offsets.tolist()):
        torch.mm(a[begin:end], b[g], out=c[begin:end])
        begin = end
    return c


@implementation("grouped_matmul", "torch.grouped", level="vendor", requires="sm_80")
def grouped(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    check_grouped_product("grouped_matmul", a, b, offsets)
    (M, K), N = a.shape, b.shape[2]
    if a.device.type == "cpu":
        raise NotImplementedError("torch._grouped_mm is a kernel on GPUs only; on a CPU it is eager's loop")
    if a.dtype is not torch.bfloat16 or N % 8 or K % 8:
        raise NotImplementedError(f"{a.dtype}, N={N}, K={K}: torch._grouped_mm takes bf16 and multiples of 8")
    if M * N * K == 0:
        return a.new_zeros((M, N))
    if a.stride(1) != 1 or a.stride(0) % 8 or a.stride(0) < K or a.data_ptr() % 16:
        a = a.clone(memory_format=torch.contiguous_format)
    strides = sorted(b.stride())
    if strides[0] != 1 or strides[1] % 8 or strides[2] % 8 or b.stride(0) < K * N or b.data_ptr() % 16:
        b = b.clone(memory_format=torch.contiguous_format)
    return torch._grouped_mm(a, b, offsets.contiguous())
