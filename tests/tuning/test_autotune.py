"""A search for a configuration is watched where it happens, and told."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from compare.model.result import Tuning
from compare.tuning.autotune import watched


def tuned(timed: list[str]) -> Any:
    """A kernel that triton.autotune tunes, with a benchmark that notes what it times and likes 64 best."""

    def do_bench(call: Callable[[], None], quantiles: object) -> list[float]:
        call()
        timed.append("one")
        return [{1: 3.0, 2: 1.0}.get(len(timed), 2.0)] * 3

    @triton.autotune(
        [triton.Config({"BLOCK": block}, num_warps=4, num_stages=2) for block in (32, 64, 128)],
        key=["N"],
        do_bench=do_bench,
    )
    @triton.jit
    def fill_kernel(x_ptr, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + n, n * 0 + BLOCK, mask=n < N)

    def fill(x: torch.Tensor) -> torch.Tensor:
        fill_kernel[lambda tile: (triton.cdiv(x.numel(), tile["BLOCK"]),)](x, x.numel())
        return x

    return fill


def filled(
    device: torch.device, known: Sequence[Tuning] = (), size: int = 100, calls: int = 1
) -> tuple[list[Tuning], int, list[int]]:
    """What is told of calls, how often configurations were timed for them, and the values written."""
    timed: list[str] = []
    x = torch.zeros(size, dtype=torch.int32, device=device)
    fill = tuned(timed)
    with watched(list(known)) as found:
        for _ in range(calls):
            fill(x)
    return found, len(timed), x.unique().tolist()


def test_a_search_is_told_with_its_space_its_cost_and_what_it_found(device: torch.device) -> None:
    (told,), timed, written = filled(device)
    assert (timed, written) == (3, [64])
    assert (told.kernel, told.tried, told.kept) == ("fill_kernel", 3, False)
    assert told.found == "BLOCK=64 num_warps=4 num_stages=2"
    assert told.space == tuple(f"BLOCK={block} num_warps=4 num_stages=2" for block in (32, 64, 128))
    assert told.search_s > 0
    assert "100" in told.key
    assert "int32" in told.key


def test_what_is_known_is_used_and_only_else_searched_for(device: torch.device) -> None:
    (told,), *_ = filled(device)
    known = replace(told, found="BLOCK=128 num_warps=4 num_stages=2", searched="2026-11-20")
    others = replace(known, kernel="another_kernel", found="BLOCK=32")
    assert filled(device, [known, others], calls=2) == ([replace(known, kept=True)] * 2, 0, [128])
    none_any_more = replace(told, found="BLOCK=4096 num_warps=4 num_stages=2")
    for before, size in ((known, 7), (none_any_more, 100)):
        (again,), timed, _ = filled(device, [before], size)
        assert (timed, again.kept) == (3, False)


def test_nothing_is_watched_when_it_is_over(device: torch.device) -> None:
    from triton.runtime.autotuner import Autotuner

    before = Autotuner.run
    with watched([]) as found:
        pass
    assert Autotuner.run is before
    tuned([])(torch.zeros(100, dtype=torch.int32, device=device))
    assert found == []


@pytest.mark.thorough
def test_what_torch_compile_chose_among_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("torch._inductor.compile_fx")
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    logged: list[object] = []
    monkeypatch.setattr(
        AlgorithmSelectorCache, "log_results", staticmethod(lambda name, *more, **named: logged.append(name))
    )

    class Choice:
        def __init__(self, name: str, description: str) -> None:
            self.name, self.description = name, description

    timings = {Choice("mm", ""): 0.2, Choice("triton_mm_4", "BLOCK_M=128, num_warps=8"): 0.1}
    with watched([]) as found:
        AlgorithmSelectorCache.log_results("mm", [], timings, 1.5, 4.0, None, hint_override=None)
    assert logged == ["mm"]
    (told,) = found
    assert told.found == "triton_mm_4: BLOCK_M=128, num_warps=8"
    assert (told.space[0], told.tried, told.search_s) == ("mm", 2, 5.5)
