"""Profiles of the project's own kernels are kept, so that a second run profiles what is new only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from compare import registry
from compare.resources import profiles
from compare.resources.static import Request
from compare.spec import Case, KernelResources
from compare.stages.resources import profile_case
from compare.worker.messages import Profile

OP = registry.get_op("vector_add")
CASE = Case.parse("N=4096,fp32", OP)
KERNEL = KernelResources("some_kernel", "sm_90", "profiler", 28, 0, 0, 1024)
CARD = "a card"


@pytest.fixture(autouse=True)
def _new_cache(_own_cache: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))


def request(label: str) -> Request:
    (impl,) = registry.implementations("vector_add", [label])
    return Request(OP, impl, CASE, "sm_90")


def test_a_profile_is_kept_for_its_card_and_its_case() -> None:
    one = request("cupy.scalar")
    assert profiles.kept(one, CARD) == ()
    profiles.keep(one, CARD, ())  # a process's first profile may be empty: no result
    assert profiles.kept(one, CARD) == ()
    profiles.keep(one, CARD, (KERNEL,))
    assert profiles.kept(one, CARD) == (KERNEL,)
    assert profiles.kept(one, "another card") == ()
    assert profiles.kept(replace(one, case=Case.parse("N=1024,fp32", OP)), CARD) == ()


def test_what_is_known_is_not_profiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's file and what compiles anew are profiled every time."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: CARD)
    monkeypatch.setattr("compare.stages.resources.default_archs", lambda device: ("sm_90",))
    monkeypatch.setattr("compare.stages.resources.Checking", lambda *_: mock.Mock(width=lambda count: 1))
    labels = ["torch.eager", "torch.compile", "triton.blocked", "cupy.scalar"]
    impls = registry.implementations("vector_add", labels)
    impls = [replace(impl, foreign=impl.label == "triton.blocked") for impl in impls]

    def profiled() -> list[str]:
        """The labels of those whose workers are asked; every row gets its kernels."""
        asked: list[str] = []
        worker = mock.Mock(ask=lambda *_: Profile((KERNEL,), ("some_kernel",)))
        pool = mock.Mock(of=lambda impl: asked.append(impl.label) or worker)
        context = mock.MagicMock(op=OP, pool=pool, device=torch.device("cuda"))
        rows = [mock.Mock(impl=impl) for impl in impls]
        found = dict(profile_case(context, CASE, rows, mock.MagicMock(), last=True))
        assert found.keys() == set(labels)
        assert found["cupy.scalar"] == (KERNEL,)
        assert {call.args[0].label for call in pool.dismiss.call_args_list} == set(labels)
        return sorted(asked)

    assert profiled() == sorted(labels)
    assert profiled() == ["torch.compile", "triton.blocked"]
