"""PyTorch on a GPU: the Triton that Inductor writes for torch.compile, and the kernels of eager mode."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from compare.device import pick
from compare.model.op import Case, Implementation, Op
from compare.pipeline import triton_way
from compare.pipeline.records import CompilerStage, Opened, StageFailure
from compare.pipeline.triton_adapter import watched
from compare.resources.profiler import from_profiler

STAGES = ("inductor",)


def why_not(op: Op, impl: Implementation, case: Case) -> str:
    """Why no stage can be shown, on a GPU with the launched kernels; empty if one can."""
    here = torch.cuda.is_available()
    if "compile" in impl.variant:
        return "" if here else "Inductor writes Triton only where there is a GPU; here it would write C++"
    names = _launched(op, impl, case) if here else []
    which = f"it launches {', '.join(names)}" if names else "PyTorch launches kernels of its libraries"
    return f"{which}, compiled beforehand: there is no source here"


def _launched(op: Op, impl: Implementation, case: Case) -> list[str]:
    """The kernels of one call, by the profiler; none where the call fails."""
    try:
        return [kernel.kernel for kernel in from_profiler(impl.given(op.options(case)), _inputs(op, case))]
    except Exception:  # of PyTorch, on this case: a comparison says what
        return []


def _inputs(op: Op, case: Case) -> tuple[torch.Tensor, ...]:
    device = pick("cuda")
    return op.make_inputs(case, torch.Generator(device).manual_seed(0), device)


def written(op: Op, impl: Implementation, case: Case, blank: Opened, dump: bool) -> list[Opened]:
    """The Python that Inductor writes for the GPU at hand, then each Triton kernel in it, stage by stage.

    Every configuration that Inductor tries is included.
    """
    inputs = _inputs(op, case)
    torch._dynamo.reset()  # Inductor does not write again what is compiled
    # In this process, where Triton can be watched, and not in workers of Inductor's.
    settings = {"force_disable_caches": True, "compile_threads": 1}
    begin = time.perf_counter()
    with watched(dump) as seen:
        try:
            with torch._inductor.config.patch(settings):
                _, sources = torch._inductor.utils.run_and_get_code(
                    impl.given(op.options(case)).call, *inputs
                )
        except Exception as error:
            return [blank.plus(StageFailure("inductor", f"{type(error).__name__}: {error}"))]
    took_ms = (time.perf_counter() - begin) * 1e3
    text = "\n".join(dict.fromkeys(sources))
    stage = CompilerStage("inductor", "torch.compile, all of it", text.encode(), took_ms)
    first = replace(blank, kernel=impl.variant, stages=(stage,))
    return [first, *triton_way.each_compiled(seen, blank, dump)]
