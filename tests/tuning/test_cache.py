"""Found configurations are kept by device and sources, and used by the next run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton

import made_up
from compare import registry
from compare.model.op import Case
from compare.model.result import Options
from compare.run import run
from compare.tuning import cache as tuning
from compare.tuning import matching
from compare.worker import checking
from compare.worker.messages import Choose, First, FirstCall
from rows import labelled


def test_what_was_found_is_kept_for_this_device_and_these_sources(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impl = labelled("matmul", "triton.autotuned")
    assert tuning.found_before(impl, "NVIDIA H100") == []
    tuning.keep(impl, "NVIDIA H100", [made_up.SEARCH])
    other = replace(made_up.SEARCH, key="(1024, 1024)")
    tuning.keep(impl, "NVIDIA H100", [other, replace(made_up.SEARCH, kept=True, search_s=0.0)])
    assert tuning.found_before(impl, "NVIDIA H100") == [made_up.SEARCH, other]
    assert tuning.found_before(impl, "NVIDIA H200") == []
    assert tuning.found_before(labelled("matmul", "triton.grouped"), "NVIDIA H100") == []
    monkeypatch.setattr(tuning, "rests_on", lambda impl: "other sources")
    assert tuning.found_before(impl, "NVIDIA H100") == []


def test_what_is_kept_can_be_read_and_a_damaged_file_is_none(cache: Path) -> None:
    impl = labelled("matmul", "triton.autotuned")
    tuning.keep(impl, "NVIDIA H100", [made_up.SEARCH])
    (file,) = cache.rglob("tuned/*.json")
    assert file.name.startswith("nvidia-h100.matmul.triton.autotuned.")
    entry = json.loads(file.read_text())
    assert (entry["device"], entry["op"], entry["implementation"]) == (
        "NVIDIA H100",
        "matmul",
        "triton.autotuned",
    )
    assert entry["found"][0]["found"] == made_up.SEARCH.found
    for damage in ("{", "[1]", '{"found": 3}', '{"found": [{"kernel": 3}]}'):
        file.write_text(damage)
        assert tuning.found_before(impl, "NVIDIA H100") == [], damage


@pytest.mark.parametrize("retune", [False, True])
def test_a_first_call_is_told_what_is_known_and_what_it_finds_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, retune: bool
) -> None:
    impl, op = labelled("matmul", "triton.autotuned"), registry.get_op("matmul")
    case = op.cases.smoke[0]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    tuning.keep(impl, "NVIDIA H100", [made_up.SEARCH])
    new = replace(made_up.SEARCH, key="(1, 2)", searched="")
    asked: list[First] = []

    def ask(request: First, step: str) -> FirstCall:
        asked.append(request)
        return FirstCall(8000.0, (new,))

    buffers = SimpleNamespace(
        hand_to=id, put=lambda inputs, start: None, poison=lambda: None, places=(), options={}
    )
    device = torch.device("cpu")
    it = checking.Checking(op, case, device, SimpleNamespace(), {impl.label: (0,)}, retune=retune)  # type: ignore[arg-type]
    ms, found = it._first_call(impl, SimpleNamespace(ask=ask), buffers)  # type: ignore[arg-type]
    assert ms == 8000.0
    assert asked[0].known == (() if retune else (made_up.SEARCH,))
    assert [told.found for told in found] == [new.found]
    assert found[0].searched.startswith("20")
    assert [told.key for told in tuning.found_before(impl, "NVIDIA H100")] == [made_up.SEARCH.key, "(1, 2)"]


def test_a_worker_tells_what_its_first_call_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton_impl.matmul as kernels
    from compare.worker.main import Handlers

    timed: list[object] = []
    again = triton.autotune(
        kernels.space()[:3], key=["M", "N", "K"], do_bench=lambda call, quantiles: timed.append(call) or [1.0]
    )(kernels.matmul_grouped_kernel)
    monkeypatch.setattr(kernels, "matmul_autotuned_kernel", again)
    monkeypatch.setattr(
        "compare.worker.main.first_call_ms",
        lambda impl, tensors, device: float(impl.call(*tensors).numel()),
    )
    worker = Handlers(None)  # type: ignore[arg-type]
    worker.handle(Choose("matmul", "triton.autotuned"))
    monkeypatch.setattr(worker, "_tensors", lambda places: (torch.ones(8, 4), torch.ones(4, 2)))
    first = worker.handle(First((), ()))
    (search,) = first.tunings
    assert first.ms == 16
    assert (search.kernel, search.tried, len(timed)) == ("matmul_grouped_kernel", 3, 3)
    again.cache = {}
    (known,) = worker.handle(First((), (search,))).tunings
    assert known == replace(search, kept=True)
    assert len(timed) == 3


@pytest.mark.gpu
@pytest.mark.alone
def test_a_search_is_made_once_and_cuda_takes_over_what_it_found(cache: Path, tmp_path: Path) -> None:
    op = registry.get_op("matmul")
    case = Case.parse("M=1024,N=1024,K=1024,bf16", op)
    only = ("triton.grouped", "triton.autotuned", "cupy.tensor_core")
    options = Options((case,), only, device="cuda", budget_s=2.0, matched=True)
    searches = []
    for retune in (False, False, True):
        (found,) = run(op, replace(options, retune=retune), results=tmp_path).cases
        rows = {row.label: row for row in found.rows}
        assert {row.status for row in rows.values()} == {"ok"}
        (search,) = rows["triton.autotuned"].configuration.tunings
        searches.append(search)
        assert rows["cupy.tensor_core:matched"].configuration == matching.configured(search.found)
        assert rows["cupy.tensor_core:matched"].timing is not None
    assert [search.kept for search in searches] == [False, True, False]
    assert searches[0].search_s > 0
    assert len(searches[0].space) > searches[0].tried - 1 > 1
