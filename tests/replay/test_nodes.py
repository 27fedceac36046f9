"""Recordings as plain data: their form, what is wrong with one, and where two differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from compare.replay.arena import BASE, GRANULE
from compare.replay.nodes import (
    MOST_KEPT_BYTES,
    MOST_NODES,
    ArenaOutput,
    Copy,
    CudaSource,
    Kept,
    KernelLaunch,
    Memset,
    Recording,
    TritonSource,
    difference,
    problem,
)
from compare.worker import messages
from loops import for_each

OWN = BASE + GRANULE
"""Behind the inputs."""
KERNEL = KernelLaunch(
    "k", 0, (4, 1, 1), (128, 1, 1), (0, 0, 0), 0, False, False, (BASE.to_bytes(8, "little"), b"\x05\0\0\0")
)
RECORDING = Recording(
    (Memset(OWN + 4096, 0, 4, 16), KERNEL, replace(KERNEL, source=1), Copy(BASE, OWN, 64)),
    (
        CudaSource("__global__", ("k<float>",), ("-ftz=true",)),
        TritonSource("module", "ttir", {"num_warps": 4, "debug": False}),
    ),
    (ArenaOutput(OWN, "float32", (4, 8), (8, 1)),),
    (Kept(OWN + 8192, b"\x01\x02"),),
    2 * GRANULE,
)
RECORD = messages.Record((), 0)
EXPECTED = {"y": torch.empty(4, 8, device="meta")}


def as_answer(recording: Recording) -> bytes:
    return messages.encode(messages.Answer("1", value=recording))


def test_a_recording_comes_across() -> None:
    assert messages.read_answer(as_answer(RECORDING), RECORD).value == RECORDING
    assert problem(RECORDING, GRANULE, 4 * GRANULE, EXPECTED) is None


@for_each(
    "changed",
    [
        {"nodes": ({"address": BASE},)},
        {"nodes": (replace(KERNEL, grid=(1, 1)),)},  # type: ignore[arg-type]
        {"nodes": (Memset(OWN, 0, 3, 1),)},  # type: ignore[arg-type]
        {"used_bytes": 1 << 64},
        {"sources": (TritonSource("module", "llir", {}),)},  # type: ignore[arg-type]
    ],
)
def test_an_answer_of_another_form_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        messages.read_answer(as_answer(replace(RECORDING, **changed)), RECORD)


@for_each(
    "changed, why",
    [
        ({"used_bytes": 5 * GRANULE}, "of an arena of"),
        ({"used_bytes": GRANULE - 1}, "of an arena of"),
        ({"nodes": (KERNEL,) * (MOST_NODES + 1)}, "the most is 256"),
        ({"nodes": (replace(KERNEL, source=2),)}, "k has no source"),
        ({"nodes": (replace(KERNEL, source=-1),)}, "k has no source"),
        ({"nodes": (replace(KERNEL, grid=(0, 1, 1)),)}, "no GPU takes"),
        ({"nodes": (replace(KERNEL, parameters=(bytes(40_000),)),)}, "no GPU takes"),
        ({"nodes": (Memset(BASE, 0, 4, 16),)}, "outside its own memory"),
        ({"nodes": (Memset(BASE + 2 * GRANULE - 4, 0, 4, 2),)}, "outside its own memory"),
        ({"nodes": (Copy(BASE + 2 * GRANULE, OWN, 1),)}, "it copies from"),
        ({"nodes": (Copy(BASE, OWN, -1),)}, "outside its own memory"),
        ({"kept": (Kept(BASE, b"0"),)}, "outside its own memory"),
        ({"kept": (Kept(OWN, bytes(MOST_KEPT_BYTES + 1)),)}, "allocate it in the call"),
        ({"outputs": ()}, "0 outputs, expected 1"),
        ({"outputs": (ArenaOutput(BASE, "float32", (4, 8), (8, 1)),)}, "outside its own memory"),
        ({"outputs": (ArenaOutput(OWN, "float16", (4, 8), (8, 1)),)}, "y has dtype float16"),
        ({"outputs": (ArenaOutput(OWN, "float32", (8, 4), (4, 1)),)}, "shape (8, 4)"),
        ({"outputs": (ArenaOutput(OWN, "float32", (4, 8), (-8, 1)),)}, "strides"),
        ({"outputs": (ArenaOutput(OWN, "float32", (4, 8), (1 << 40, 1)),)}, "outside its own memory"),
    ],
)
def test_what_is_wrong_with_it_is_said(changed: dict[str, Any], why: str) -> None:
    found = problem(replace(RECORDING, **changed), GRANULE, 4 * GRANULE, EXPECTED)
    assert why in (found or "")


def moved(by: int) -> Recording:
    """The same call on inputs at another address."""
    kernel = replace(KERNEL, parameters=((BASE + by).to_bytes(8, "little"), KERNEL.parameters[1]))
    nodes = Memset(OWN + 4096 + by, 0, 4, 16), kernel, replace(kernel, source=1), Copy(BASE + by, OWN, 64)
    return replace(RECORDING, nodes=nodes)


def test_addresses_may_differ() -> None:
    assert difference(RECORDING, moved(512)) is None


MEMSET, *OTHERS = RECORDING.nodes


@for_each(
    "nodes, why",
    [
        (RECORDING.nodes[:3], "4 GPU operations on some inputs, and 3 on others"),
        ((MEMSET, *RECORDING.nodes), "5 on others"),
        ((Memset(OWN, 1, 4, 16), *OTHERS), "a memset differs"),
        ((KERNEL, *OTHERS), "operations differ"),
        ((MEMSET, replace(KERNEL, name="m"), *OTHERS[1:]), "k on some inputs, and m on others"),
        ((MEMSET, replace(KERNEL, grid=(5, 1, 1)), *OTHERS[1:]), "launched as"),
        *(
            ((MEMSET, replace(KERNEL, parameters=changed), *OTHERS[1:]), "a parameter of k differs")
            for changed in ((KERNEL.parameters[0], b"\x06\0\0\0"), (bytes(8), KERNEL.parameters[1]))
        ),
        ((*RECORDING.nodes[:3], Copy(BASE, OWN, 32)), "operations differ"),
    ],
)
def test_all_else_may_not(nodes: tuple[Any, ...], why: str) -> None:
    assert why in (difference(RECORDING, replace(RECORDING, nodes=nodes)) or "")
