"""PyTorch's way: the Triton source that Inductor writes for torch.compile, where there is a GPU."""

from __future__ import annotations

from compare.spec import Implementation

STAGES = ("inductor",)


def why_not(impl: Implementation) -> str:
    """Why there is nothing of PyTorch's to compile here."""
    if impl.variant == "compile":
        return "Inductor writes Triton only where there is a GPU; here it would write C++"
    return "PyTorch launches kernels of libraries that were compiled before: there is no source to open up"
