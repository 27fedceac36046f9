"""Every Triton kernel with the Triton at hand: right in the interpreter, and compiled for every architecture.

`make test-triton` runs this file with an older and the newest Triton put before the environment's own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import triton

import case_sets
from compare import registry
from compare.checking.check import check
from compare.device import STATIC_ARCHS, lacks, outdated, supports
from compare.model.op import Implementation
from compare.pipeline.triton_way import STAGES
from compare.resources.static import Request
from compare.run.compiling import from_cubins
from processes import command

pytestmark = pytest.mark.thorough

EXPECTED = os.environ.get("TRITON_LEG")
"""The folder whose Triton this run is about, where it is not the environment's own."""

KERNELS = [
    impl for op in registry.op_names() for impl in registry.implementations(op) if impl.way == "triton"
]
TYPICAL = [impl for op in registry.op_names() for impl in case_sets.typical(op, "triton")]


def test_the_expected_triton_is_imported():
    home = Path(triton.__file__).resolve().parent
    if EXPECTED is not None:
        assert home.is_relative_to(Path(EXPECTED).resolve())
    assert tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)


def test_there_are_kernels():
    assert {impl.op for impl in KERNELS} == set(registry.op_names())


@pytest.mark.skipif(EXPECTED is None, reason="tests/kernels/test_agreement.py does so on many more cases")
@pytest.mark.parametrize("impl", KERNELS, ids=lambda impl: f"{impl.op}-{impl.label}")
def test_agrees(impl: Implementation, device: torch.device):
    op = registry.get_op(impl.op)
    if (reason := supports(impl, device)) is not None:
        pytest.skip(reason)
    taken = 0
    for case in op.cases.smoke:
        with suppress(NotImplementedError):  # a dtype that it does not take
            agreement = check(op, impl, case, device, seeds=(0,))
            assert agreement.passed, f"{case}: {agreement.reason}"
            taken += 1
    assert taken


def in_turn() -> list[tuple[Implementation, str]]:
    """Each kernel for one architecture, which take turns at those that can run it.

    Not Turing for what multiplies on tensor cores: Triton unrolls it there, which takes ptxas many seconds.
    With a Triton beside the environment's own: what is typical.
    """
    found = []
    for place, impl in enumerate(KERNELS if EXPECTED is None else TYPICAL):
        able = [arch for arch in STATIC_ARCHS if not impl.requires or not lacks(impl.requires, arch)]
        if impl.level == "tensor_core":
            able = [arch for arch in able if arch != "sm_75"]
        found.append((impl, able[place % len(able)]))
    return found


def all_of_them() -> list[tuple[Implementation, str]]:
    """Every kernel for every architecture."""
    return [(impl, arch) for impl in KERNELS for arch in STATIC_ARCHS]


@pytest.mark.long
@pytest.mark.parametrize(
    "chosen", [in_turn, pytest.param(all_of_them, marks=[pytest.mark.exhaustive, pytest.mark.timeout(900)])]
)
def test_compiles_for_every_architecture(chosen: Callable[[], list[tuple[Implementation, str]]]):
    """On one case, as this takes a second each: the last of the smoke cases that it takes."""
    left = [(impl, arch, list(registry.get_op(impl.op).cases.smoke)) for impl, arch in chosen()]
    assert {arch for _, arch, _ in left} == set(STATIC_ARCHS)
    while left:
        untaken = [f"{impl.op} {impl.label} for {arch}" for impl, arch, cases in left if not cases]
        assert untaken == [], "they take no smoke case"
        requests = [Request(registry.get_op(impl.op), impl, cases.pop(), arch) for impl, arch, cases in left]
        tried, left = left, []
        for one, request, kernels in zip(tried, requests, from_cubins(requests), strict=True):
            what = f"{request.impl.label} on {request.case} for {request.arch}"
            if isinstance(kernels, NotImplementedError):
                needs = request.impl.requires
                unable = (needs and lacks(needs, request.arch)) or outdated(request.impl)
                if "is autotuned" not in str(kernels) and not unable:
                    left.append(one)
                continue
            assert isinstance(kernels, tuple), f"{what}: {kernels}"
            assert kernels, f"{what}: nothing was launched"
            for kernel in kernels:
                assert kernel.registers > 0, what
                assert kernel.code_bytes, what


CLUSTERS = [impl for impl in KERNELS if impl.variant == "gluon_cluster"]


@pytest.mark.skipif(outdated(CLUSTERS[0]) is not None, reason=str(outdated(CLUSTERS[0])))
@pytest.mark.parametrize("impl", CLUSTERS, ids=lambda impl: impl.op)
def test_a_cluster_s_blocks_read_each_other_s_shared_memory_and_nothing_spills(
    impl: Implementation, tmp_path: Path
):
    rows, columns = registry.get_op(impl.op).dims
    words = ("--only", impl.label, "--arch", "sm_90", "--case", f"{rows}=64,{columns}=262144,bf16")
    done = command("pipeline", impl.op, *words, "--json", str(tmp_path / "all.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    (kernel,) = json.loads((tmp_path / "all.json").read_text())
    stages = {stage["name"]: stage["text"] for stage in kernel["stages"]}
    assert stages["ptx"].count("mapa.shared::cluster") == 1
    assert re.search("UCGABAR_ARV.*UCGABAR_WAIT", stages["sass"], re.DOTALL)
    assert not re.search(r"\b(STL|LDL)\b", stages["sass"])


@pytest.mark.skipif(outdated(CLUSTERS[0]) is not None, reason=str(outdated(CLUSTERS[0])))
def test_both_blocks_of_a_multicast_arrive_at_one_barrier(tmp_path: Path):
    """Triton 3.7 gives each block a barrier of its own: b is overwritten while the other block reads it."""
    words = ("--only", "triton.gluon_multicast", "--arch", "sm_90a", "--json", str(tmp_path / "all.json"))
    done = command("pipeline", "matmul", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (kernel,) = json.loads((tmp_path / "all.json").read_text())
    stages = {stage["name"]: stage["text"] for stage in kernel["stages"]}
    assert stages["ptx"].count("complete_tx::bytes.multicast::cluster") == 4  # b in pieces of 64 columns
    assert stages["ptx"].count("mbarrier.arrive.shared::cluster") == 4
    assert not re.search(r"\b(STL|LDL)\b", stages["sass"])


@pytest.mark.parametrize("op", case_sets.every(7) if EXPECTED is None else case_sets.last())
def test_every_stage_and_pass_is_seen(op: str, tmp_path: Path):
    file = tmp_path / "all.json"
    only = [word for impl in case_sets.typical(op, "triton") for word in ("--only", impl.label)]
    words = (op, *only, "--arch", "sm_90", "--passes", "--json", str(file))
    done = command("pipeline", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    everything = json.loads(file.read_text())
    kernels = [kernel for kernel in everything if not kernel["unavailable"]]
    assert {kernel["arch"] for kernel in kernels} == {"sm_90"}
    for kernel in kernels:
        stages = {stage["name"]: stage["text"] for stage in kernel["stages"]}
        in_gluon = "ttg.num-warps" in stages["frontend"]  # which is TTGIR from the start
        assert tuple(stages) == tuple(name for name in STAGES if name != "ttir" or not in_gluon)
        assert kernel["mix"]["branches"]["EXIT"] > 0
        assert [ran["stage"] for ran in kernel["passes"]] == sorted(
            (ran["stage"] for ran in kernel["passes"]), key=["ttir", "ttgir", "llir"].index
        )
        changed = {ran["name"] for ran in kernel["passes"] if ran["changed"]}
        first = "gluon-inline" if in_gluon else "convert-triton-to-tritongpu"
        assert {first, "convert-triton-gpu-to-llvm"} <= changed
        for earlier, later in zip(kernel["passes"], kernel["passes"][1:], strict=False):
            assert earlier["after"] == later["before"]
        assert kernel["passes"][-1]["after"], "what the last pass left behind"
