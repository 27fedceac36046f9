"""Recordings as plain data: their form, what is wrong with one, and where two differ."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from compare.records.encoding import decode, encode
from compare.replay.arena import BASE, GRANULE
from compare.replay.nodes import (
    MOST_KEPT_BYTES,
    MOST_NODES,
    Copy,
    CudaSource,
    Kept,
    Kernel,
    Memset,
    Output,
    Recording,
    TritonSource,
    difference,
    problem,
)
from compare.worker import answers

OWN = BASE + GRANULE
"""Behind the inputs."""
KERNEL = Kernel(
    "k", 0, (4, 1, 1), (128, 1, 1), (0, 0, 0), 0, False, False, (BASE.to_bytes(8, "little"), b"\x05\0\0\0")
)
RECORDING = Recording(
    (Memset(OWN + 4096, 0, 4, 16), KERNEL, replace(KERNEL, source=1), Copy(BASE, OWN, 64)),
    (
        CudaSource("__global__", ("k<float>",), ("-ftz=true",)),
        TritonSource("module", "ttir", {"num_warps": 4, "debug": False}),
    ),
    (Output(OWN, "float32", (4, 8), (8, 1)),),
    (Kept(OWN + 8192, b"\x01\x02"),),
    2 * GRANULE,
)
EXPECTED = {"y": torch.empty(4, 8, device="meta")}


def as_answer(recording: Recording) -> bytes:
    return json.dumps({"number": "1", "forked": False, "answer": encode(recording)}).encode()


def test_a_recording_comes_across() -> None:
    told = answers.read(as_answer(RECORDING), "record").answer
    assert decode(Recording, told) == RECORDING
    assert problem(RECORDING, GRANULE, 4 * GRANULE, EXPECTED) is None


@pytest.mark.parametrize(
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
        answers.read(as_answer(replace(RECORDING, **changed)), "record")


@pytest.mark.parametrize(
    ("changed", "why"),
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
        ({"outputs": (Output(BASE, "float32", (4, 8), (8, 1)),)}, "outside its own memory"),
        ({"outputs": (Output(OWN, "float16", (4, 8), (8, 1)),)}, "y has dtype float16"),
        ({"outputs": (Output(OWN, "float32", (8, 4), (4, 1)),)}, "shape (8, 4)"),
        ({"outputs": (Output(OWN, "float32", (4, 8), (-8, 1)),)}, "strides"),
        ({"outputs": (Output(OWN, "float32", (4, 8), (1 << 40, 1)),)}, "outside its own memory"),
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


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (RECORDING.nodes[:3], "4 GPU operations on some inputs, and 3 on others"),
        ((RECORDING.nodes[0], *RECORDING.nodes), "5 on others"),
        ((Memset(OWN, 1, 4, 16), *RECORDING.nodes[1:]), "a memset differs"),
        ((KERNEL, *RECORDING.nodes[1:]), "operations differ"),
        (
            (RECORDING.nodes[0], replace(KERNEL, name="m"), *RECORDING.nodes[2:]),
            "k on some inputs, and m on others",
        ),
        ((RECORDING.nodes[0], replace(KERNEL, grid=(5, 1, 1)), *RECORDING.nodes[2:]), "launched as"),
        (
            (
                RECORDING.nodes[0],
                replace(KERNEL, parameters=(KERNEL.parameters[0], b"\x06\0\0\0")),
                *RECORDING.nodes[2:],
            ),
            "a parameter of k differs",
        ),
        (
            (
                RECORDING.nodes[0],
                replace(KERNEL, parameters=(bytes(8), KERNEL.parameters[1])),
                *RECORDING.nodes[2:],
            ),
            "a parameter of k differs",
        ),
        ((*RECORDING.nodes[:3], Copy(BASE, OWN, 32)), "operations differ"),
    ],
)
def test_all_else_may_not(nodes: tuple[Any, ...], why: str) -> None:
    assert why in (difference(RECORDING, replace(RECORDING, nodes=nodes)) or "")
