"""PyTorch's way: the Triton source that Inductor writes for torch.compile, where there is a GPU."""

from __future__ import annotations

import time
from dataclasses import replace

from compare.pipeline.records import Failure, Opened, Stage
from compare.spec import Case, Implementation, Op

STAGES = ("inductor",)


def why_not(impl: Implementation) -> str:
    """Why there is nothing of PyTorch's to open up; empty if there is."""
    import torch

    if "compile" not in impl.variant:
        return (
            "PyTorch launches kernels of libraries that were compiled before: there is no source to open up"
        )
    if not torch.cuda.is_available():
        return "Inductor writes Triton only where there is a GPU; here it would write C++"
    return ""


def written(op: Op, impl: Implementation, case: Case, blank: Opened) -> Opened:
    """The Python that Inductor writes, its Triton kernels within, for the GPU at hand.

    Args:
        op: the op.
        impl: PyTorch's, by torch.compile.
        case: of which inputs are made.
        blank: what is known already.
    """
    import torch
    from torch._inductor.utils import run_and_get_code

    device = torch.device("cuda", torch.cuda.current_device())
    inputs = op.make_inputs(case, torch.Generator(device).manual_seed(0), device)
    torch._dynamo.reset()  # what was compiled before is not written again
    begin = time.perf_counter()
    try:
        with torch._inductor.config.patch(force_disable_caches=True):
            _, sources = run_and_get_code(impl.run, *inputs)
    except Exception as error:
        return replace(blank, failure=Failure("inductor", f"{type(error).__name__}: {error}"))
    took_ms = (time.perf_counter() - begin) * 1e3
    text = "\n".join(dict.fromkeys(sources))
    stage = Stage("inductor", "torch.compile, all of it", text.encode(), took_ms)
    return replace(blank, kernel=impl.variant, stages=(stage,))
