"""``--matched``: one way run with the configuration that another has found, and how reports show it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import made_up
from compare import registry
from compare.checking.check import check
from compare.cli import main
from compare.model.op import Case, Implementation
from compare.model.result import Configuration, Options
from compare.records import archive
from compare.report import markdown, tables, terminal
from compare.report.summary import View
from compare.run import run
from compare.run.checking import check_case
from compare.run.context import CaseResult, Context, Meter, Step, silent
from compare.tuning import matching
from compare.tuning.autotune import described
from compare.worker import checking
from loops import for_each
from rows import every_implementation, labelled

# --------------------------------------------------------------------------- declared


@every_implementation
def test_what_is_declared_is_there(impl: Implementation) -> None:
    labels = {other.label for other in registry.implementations(impl.op)}
    assert {impl.untuned, impl.matches} - {""} <= labels
    for name, values in impl.tunable:
        default = registry.keywords(impl.run).get(name)
        # 0: the value depends on the case.
        assert default in (0, *values) if default is not None else len(values) == 1
    if impl.matches:
        source = labelled(impl.op, impl.matches)
        assert source.untuned or source.tunable, "it has a configuration"


# --------------------------------------------------------------------------- matched


WANTED = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8, "WARPS": 8, "STAGES": 3}


def stand_in(op: str, label: str) -> Implementation:
    (found,) = (i for i in matching.stand_ins(registry.implementations(op)) if i.base == label)
    return found


def test_what_cuda_is_run_with_is_what_triton_found() -> None:
    source = labelled("matmul", "triton.autotuned")
    row = replace(
        made_up.rows()[0], label=source.label, configuration=Configuration(tunings=(made_up.SEARCH,))
    )
    assert matching.configuration(source, row) == WANTED
    impl, words, short = matching.matched(stand_in("matmul", "cupy.tensor_core"), WANTED)
    assert (impl.label, impl.base) == ("cupy.tensor_core:matched", "cupy.tensor_core")
    assert words == "128x256x64, GROUP_M=8, 8 warps, 3 stages"
    assert short == ""


def test_where_a_template_takes_less_the_nearest_is_run_and_said() -> None:
    impl, words, short = matching.matched(
        stand_in("matmul", "cupy.specialized"), {**WANTED, "BLOCK_K": 32, "STAGES": 5}
    )
    assert dict(impl.parameters) == {"BLOCK_N": 256, "STAGES": 4}
    assert words.startswith("128x256x64")
    assert short == (
        "nearest configuration to that of triton.autotuned: BLOCK_K 32 (this takes only 64); "
        "GROUP_M 8 (this has none); STAGES 5 (this takes 2, 3 or 4)"
    )


def test_warps_are_threads_where_these_are_what_is_chosen() -> None:
    source = labelled("vector_add", "triton.blocked")
    wanted = matching.configuration(source, None)
    impl, words, short = matching.matched(stand_in("vector_add", "cupy.vectorized"), wanted)
    assert dict(impl.parameters) == {"THREADS": 32 * wanted["WARPS"]}
    assert "128 threads" in words
    assert "BLOCK_SIZE" in short
    assert "WARPS" not in short


SPACE = [
    {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "WARPS": 8, "STAGES": 3},
    {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 64, "WARPS": 4, "STAGES": 5},
]


@pytest.mark.parametrize("wanted", SPACE, ids=matching.worded)
def test_another_tile_computes_the_same(wanted: dict[str, int], device: torch.device) -> None:
    op = registry.get_op("matmul")
    impl, _, _ = matching.matched(stand_in("matmul", "cupy.tensor_core"), wanted)
    case = Case.parse("M=130,N=66,K=70,fp16", op)
    agreement = check(op, impl, case, device, seeds=(0,))
    assert agreement.passed, agreement.reason


def test_every_configuration_of_the_search_is_one_that_a_tensor_core_kernel_takes() -> None:
    from triton_impl.matmul import space

    for config in space():
        row = replace(
            made_up.rows()[0],
            configuration=Configuration(tunings=(replace(made_up.SEARCH, found=described(config)),)),
        )
        wanted = matching.configuration(labelled("matmul", "triton.autotuned"), row)
        _, _, short = matching.matched(stand_in("matmul", "cupy.tensor_core"), wanted)
        assert not short or wanted["BLOCK_K"] == 16, short


def test_what_searches_is_called_alone_and_what_matches_it_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = registry.get_op("matmul")
    asked: list[list[str]] = []

    class FakeChecking:
        def __init__(self, *_: object, **more: object) -> None:
            assert more["retune"] is True

        def width(self, count: int) -> int:
            return count

        def run(self, impls: list[Implementation], begin: object) -> Any:
            asked.append([impl.label for impl in impls])
            for impl in impls:
                tunings = (made_up.SEARCH,) if impl.label == "triton.autotuned" else ()
                yield impl, checking.CheckOutcome(agreement=made_up.AGREEMENT, tunings=tunings)

    monkeypatch.setattr("compare.run.checking.Checking", FakeChecking)
    only = ("torch.eager", "torch.compile", "triton.grouped", "triton.autotuned", "cupy.tensor_core")
    impls = matching.stand_ins(registry.implementations("matmul", only))
    options = Options((), only, matched=True, retune=True)
    case = op.cases.smoke[1]
    step, pool = Step(case, True, False), SimpleNamespace(start=list)
    meter, hashes = Meter(silent, 1.0), {impl.label: "" for impl in impls}
    context = Context(op, tuple(impls), (step,), options, torch.device("cpu"), pool, meter, hashes)
    result = CaseResult(case)
    check_case(context, step, result)
    rows = {label: entry.row for label, entry in result.entries.items()}
    assert asked == [
        ["torch.eager", "triton.grouped", "cupy.tensor_core"],
        ["torch.compile"],
        ["triton.autotuned"],
        ["cupy.tensor_core:matched"],
    ]
    row = rows["cupy.tensor_core:matched"]
    assert row.configuration.text == "128x256x64, GROUP_M=8, 8 warps, 3 stages"
    assert (row.configuration.default, row.configuration.model) == ("cupy.tensor_core", "triton.autotuned")
    assert rows["triton.autotuned"].configuration.default == "triton.grouped"


@pytest.mark.thorough
@for_each(
    "name, model, default, status, reason",
    [
        ("vector_add", "triton.blocked", "cupy.vectorized", "ok", ""),
        (
            "matmul",
            "triton.autotuned",
            "cupy.tensor_core",
            "unavailable",
            "no configuration of triton.autotuned is known: finding one needs a GPU",
        ),
    ],
)
def test_a_run_adds_a_row_that_is_matched_or_says_why_it_cannot_be(
    name: str, model: str, default: str, status: str, reason: str, tmp_path: Path
) -> None:
    op = registry.get_op(name)
    only = (model, default)
    options = Options((op.cases.smoke[1],), only, device="cpu", resources=False, matched=True)
    (compared,) = run(op, options, results=tmp_path).cases
    row = compared.rows[-1]
    assert (row.label, row.configuration.default, row.status, row.reason) == (
        f"{default}:matched",
        default,
        status,
        reason,
    )
    assert row.configuration.model == model


def test_matched_with_nothing_to_match_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["softmax"], ["vector_add", "--only", "cupy.*"]):
        assert main([*arguments, "--matched", "--device", "cpu"]) == 2
        said = capsys.readouterr().err
        assert "--matched: none of these implementations can run with" in said
        assert "vector_add's cupy.vectorized that of triton.blocked" in said


# --------------------------------------------------------------------------- told


def compared() -> Any:
    """A comparison with a row that was tuned and one that is matched."""
    times = {"torch.eager": 200.0, "triton.grouped": 240.0, "triton.autotuned": 160.0}
    times |= {"cupy.tensor_core": 180.0, "cupy.tensor_core:matched": 320.0}
    case = made_up.case(made=made_up.rows({label: ("tensor_core", us) for label, us in times.items()}))
    tuned = Configuration(tunings=(made_up.SEARCH,), default="triton.grouped")
    case = made_up.with_row(case, "triton.autotuned", configuration=tuned)
    matched = Configuration(
        default="cupy.tensor_core",
        model="triton.autotuned",
        text="128x256x64, 8 warps, 3 stages",
        unmatched="nearest configuration",
    )
    return made_up.comparison(made_up.with_row(case, "cupy.tensor_core:matched", configuration=matched))


def test_the_table_says_what_the_search_cost_and_bought() -> None:
    comparison = compared()
    (case,) = comparison.cases
    table = tables.configurations(case)
    tuned_line, default, model = table.rows
    configuration = "128x256x64, GROUP_M=8, 8 warps, 3 stages"
    assert tuned_line[:5] == ("triton.autotuned", configuration, "2 of 3", "7.25", "2026-11-20")
    assert default[:2] == ("cupy.tensor_core:matched", "128x256x64, 8 warps, 3 stages")
    speedups = [(line[5].partition(" (")[0], line[6]) for line in (tuned_line, default, model)]
    assert speedups == [
        ("1.50", "triton.grouped"),
        ("0.56", "cupy.tensor_core"),
        ("0.50", "triton.autotuned"),
    ]
    for text in (terminal.render(comparison, 110, View(details=True)), markdown.dumps([comparison])):
        assert "2 of 3" in text
        assert "64x64x64, GROUP_M=8, 4 warps" in " ".join(text.split())
        assert "nearest configuration" in text
    kept = made_up.with_row(
        case, "triton.autotuned", configuration=Configuration(tunings=(replace(made_up.SEARCH, kept=True),))
    )
    table = tables.configurations(kept)
    assert table.rows[0][3:5] == ("7.25", "2026-11-20, kept")
    assert tables.configurations(made_up.case()) is None
    unknown = made_up.with_row(case, "cupy.tensor_core:matched", timing=None, reason="it needs a GPU")
    added = tables.added(replace(comparison, cases=(unknown,)))
    assert added == ["nearest configuration", "--matched: it needs a GPU"]


def test_csv_and_json_hold_the_whole_search() -> None:
    comparison = compared()
    lines = made_up.in_csv(comparison)
    line = lines["triton.autotuned"]
    assert (line["configurations"], line["configurations_tried"], line["search_s"]) == ("3", "2", "7.25")
    assert line["configuration"] == made_up.SEARCH.found
    assert line["search_space"].split(" | ") == list(made_up.SEARCH.space)
    assert line["default"] == "triton.grouped"
    assert float(line["speedup_vs_default"]) == pytest.approx(1.5, rel=0.02)
    matched = lines["cupy.tensor_core:matched"]
    assert float(matched["speedup_vs_model"]) == pytest.approx(0.5, rel=0.02)
    (again,) = archive.loads(archive.dumps([comparison]))
    assert again.cases[0].rows[2].configuration.tunings == (made_up.SEARCH,)
