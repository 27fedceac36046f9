"""PyTorch's way, on a GPU: what Inductor writes for torch.compile, and what eager mode launches."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from dataclasses import replace

import torch

from compare.device import pick
from compare.resources.profiler import from_profiler
from compare.spec import Case, Implementation, Op
from compare.toolchain.pipeline import triton_way
from compare.toolchain.pipeline.records import Failure, Opened, Stage
from compare.toolchain.pipeline.triton_adapter import watched

STAGES = ("inductor",)


def why_not(op: Op, impl: Implementation, case: Case) -> str:
    """Why there is nothing to open up, on a GPU with the kernels that are launched; empty if there is."""
    here = torch.cuda.is_available()
    if "compile" in impl.variant:
        return "" if here else "Inductor writes Triton only where there is a GPU; here it would write C++"
    names = _launched(op, impl, case) if here else []
    which = f"it launches {', '.join(names)}, compiled before by others"
    which = which if names else "PyTorch launches kernels of libraries that were compiled before"
    return f"{which}: there is no source to open up"


def _launched(op: Op, impl: Implementation, case: Case) -> list[str]:
    """The kernels of one call, by the profiler; none where the call fails."""
    try:
        return [kernel.kernel for kernel in from_profiler(impl, _inputs(op, case))]
    except Exception:  # of PyTorch, on this case: a comparison says what
        return []


def _inputs(op: Op, case: Case) -> tuple[torch.Tensor, ...]:
    device = pick("cuda")
    return op.make_inputs(case, torch.Generator(device).manual_seed(0), device)


def written(
    op: Op, impl: Implementation, case: Case, blank: Opened, dump: bool, later: Executor
) -> list[Opened]:
    """The Python that Inductor writes for the GPU at hand, then each Triton kernel in it, stage by stage.

    Where Inductor tries several configurations of a kernel, each is there.  The rest is as for
    `triton_way.compiled`.
    """
    inputs = _inputs(op, case)
    torch._dynamo.reset()  # what was compiled before is not written again
    # In this process, where Triton can be watched, and not in workers of Inductor's.
    settings = {"force_disable_caches": True, "compile_threads": 1}
    begin = time.perf_counter()
    with watched(dump) as seen:
        try:
            with torch._inductor.config.patch(settings):
                _, sources = torch._inductor.utils.run_and_get_code(impl.run, *inputs)
        except Exception as error:
            return [replace(blank, failure=Failure("inductor", f"{type(error).__name__}: {error}"))]
    took_ms = (time.perf_counter() - begin) * 1e3
    text = "\n".join(dict.fromkeys(sources))
    stage = Stage("inductor", "torch.compile, all of it", text.encode(), took_ms)
    first = replace(blank, kernel=impl.variant, stages=(stage,))
    return [first, *triton_way.each_compiled(seen, blank, dump, later)]
