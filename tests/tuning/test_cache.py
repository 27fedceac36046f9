"""Searches for a configuration: watched, kept, told; and one way run with what another has found."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import made_up
from compare import registry
from compare.checking.check import check
from compare.cli import _check_timer, main, parser
from compare.records import archive
from compare.report import csv_file, markdown, tables, terminal
from compare.report.summary import View
from compare.run import run
from compare.spec import Case, Implementation, Options, Tuning, UsageError
from compare.tuning import cache as tuning
from compare.tuning.autotune import described, watched
from compare.worker import checking

FOUND = Tuning(
    "matmul_grouped_kernel",
    "(4096, 4096, 'torch.bfloat16')",
    "BLOCK_M=128 BLOCK_N=256 BLOCK_K=64 GROUP_M=8 num_warps=8 num_stages=3",
    (
        "BLOCK_M=128 BLOCK_N=128 BLOCK_K=32 GROUP_M=8 num_warps=4 num_stages=4",
        "BLOCK_M=128 BLOCK_N=256 BLOCK_K=64 GROUP_M=8 num_warps=8 num_stages=3",
        "BLOCK_M=64 BLOCK_N=64 BLOCK_K=64 GROUP_M=8 num_warps=4 num_stages=4",
    ),
    2,
    7.25,
    "2026-11-20T10:00:00+00:00",
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))
    return tmp_path


def labelled(op: str, label: str) -> Implementation:
    return next(impl for impl in registry.implementations(op) if impl.label == label)


# --------------------------------------------------------------------------- watched


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


def test_a_search_is_told_with_its_space_its_cost_and_what_it_found(device: torch.device) -> None:
    timed: list[str] = []
    x = torch.zeros(100, dtype=torch.int32, device=device)
    with watched([]) as found:
        tuned(timed)(x)
    assert x.unique().tolist() == [64]
    (told,) = found
    assert (told.kernel, told.tried, told.kept) == ("fill_kernel", 3, False)
    assert told.found == "BLOCK=64 num_warps=4 num_stages=2"
    assert told.space == tuple(f"BLOCK={block} num_warps=4 num_stages=2" for block in (32, 64, 128))
    assert told.search_s > 0
    assert "100" in told.key
    assert "int32" in told.key


def test_what_is_known_is_used_and_not_searched_for(device: torch.device) -> None:
    timed: list[str] = []
    x = torch.zeros(100, dtype=torch.int32, device=device)
    with watched([]) as found:
        tuned(timed)(x)
    known = replace(found[0], found="BLOCK=128 num_warps=4 num_stages=2", searched="2026-11-20")
    timed.clear()
    fill = tuned(timed)
    with watched([known, replace(known, kernel="another_kernel", found="BLOCK=32")]) as found:
        fill(x)
        fill(x)
    assert timed == []
    assert x.unique().tolist() == [128]
    assert found == [replace(known, kept=True)] * 2
    with watched([]) as found:  # of another class of shapes nothing is known
        fill(torch.zeros(7, dtype=torch.int32, device=device))
    assert len(timed) == 3
    assert not found[0].kept


def test_a_known_configuration_that_is_none_any_more_is_searched_for_again(device: torch.device) -> None:
    timed: list[str] = []
    x = torch.zeros(100, dtype=torch.int32, device=device)
    with watched([]) as found:
        tuned([])(x)
    with watched([replace(found[0], found="BLOCK=4096 num_warps=4 num_stages=2")]) as found:
        tuned(timed)(x)
    assert len(timed) == 3
    assert not found[0].kept


def test_nothing_is_watched_when_it_is_over(device: torch.device) -> None:
    from triton.runtime.autotuner import Autotuner

    before = Autotuner.run
    with watched([]) as found:
        pass
    assert Autotuner.run is before
    tuned([])(torch.zeros(100, dtype=torch.int32, device=device))
    assert found == []


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


# --------------------------------------------------------------------------- kept


def test_what_was_found_is_kept_for_this_device_and_these_sources(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impl = labelled("matmul", "triton.autotuned")
    assert tuning.found_before(impl, "NVIDIA H100") == []
    tuning.keep(impl, "NVIDIA H100", [FOUND])
    other = replace(FOUND, key="(1024, 1024)")
    tuning.keep(impl, "NVIDIA H100", [other, replace(FOUND, kept=True, search_s=0.0)])
    assert tuning.found_before(impl, "NVIDIA H100") == [FOUND, other]
    assert tuning.found_before(impl, "NVIDIA H200") == []
    assert tuning.found_before(labelled("matmul", "triton.grouped"), "NVIDIA H100") == []
    monkeypatch.setattr(tuning, "rests_on", lambda impl: "other sources")
    assert tuning.found_before(impl, "NVIDIA H100") == []


def test_what_is_kept_can_be_read_and_a_damaged_file_is_none(cache: Path) -> None:
    impl = labelled("matmul", "triton.autotuned")
    tuning.keep(impl, "NVIDIA H100", [FOUND])
    (file,) = cache.rglob("tuned/*.json")
    assert file.name.startswith("nvidia-h100.matmul.triton.autotuned.")
    entry = json.loads(file.read_text())
    assert (entry["device"], entry["op"], entry["implementation"]) == (
        "NVIDIA H100",
        "matmul",
        "triton.autotuned",
    )
    assert entry["found"][0]["found"] == FOUND.found
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
    tuning.keep(impl, "NVIDIA H100", [FOUND])
    new = replace(FOUND, key="(1, 2)", searched="")
    asked: dict[str, Any] = {}

    def ask(what: str, step: str, **arguments: Any) -> dict[str, Any]:
        asked.update(arguments)
        return {"ms": 8000.0, "tunings": [archive.encoded(new)]}

    exchange = SimpleNamespace(hand_to=id, put=lambda inputs, start: None, poison=lambda: None, as_json=list)
    device = torch.device("cpu")
    it = checking.Checking(op, case, device, SimpleNamespace(), {impl.label: (0,)}, retune=retune)  # type: ignore[arg-type]
    ms, found = it._first_call(impl, SimpleNamespace(ask=ask), exchange)  # type: ignore[arg-type]
    assert ms == 8000.0
    assert asked["known"] == ([] if retune else [archive.encoded(FOUND)])
    assert [told.found for told in found] == [new.found]
    assert found[0].searched.startswith("20")
    assert [told.key for told in tuning.found_before(impl, "NVIDIA H100")] == [FOUND.key, "(1, 2)"]


def test_a_worker_tells_what_its_first_call_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton_impl.matmul as kernels
    from compare.worker.main import _Work

    timed: list[object] = []
    again = triton.autotune(
        kernels.space()[:3], key=["M", "N", "K"], do_bench=lambda call, quantiles: timed.append(call) or [1.0]
    )(kernels.matmul_grouped_kernel)
    monkeypatch.setattr(kernels, "matmul_autotuned_kernel", again)
    monkeypatch.setattr(
        "compare.timing.measure.first_call_ms",
        lambda impl, tensors, device: float(impl.run(*tensors).numel()),
    )
    work = _Work(None)  # type: ignore[arg-type]
    work.choose("matmul", "triton.autotuned", {})
    monkeypatch.setattr(work, "_tensors", lambda view, places: (torch.ones(8, 4), torch.ones(4, 2)))
    told = work.first([], [])
    (search,) = told["tunings"]
    assert told["ms"] == 16
    assert (search["kernel"], search["tried"], len(timed)) == ("matmul_grouped_kernel", 3, 3)
    json.dumps(told)
    again.cache = {}
    (known,) = work.first([], [search])["tunings"]
    assert known == {**search, "kept": True}
    assert len(timed) == 3


# --------------------------------------------------------------------------- declared


EVERY = [impl for op in registry.op_names() for impl in registry.implementations(op)]


@pytest.mark.parametrize("impl", EVERY, ids=lambda impl: f"{impl.op}-{impl.label}")
def test_what_is_declared_is_there(impl: Implementation) -> None:
    labels = {other.label for other in EVERY if other.op == impl.op}
    assert {impl.untuned, impl.matches} - {""} <= labels
    for name, values in impl.tunable:
        default = registry.keywords(impl.run).get(name)
        # 0: what it takes depends on the case.
        assert default in (0, *values) if default is not None else len(values) == 1
    if impl.matches:
        source = labelled(impl.op, impl.matches)
        assert source.untuned or source.tunable, "it has a configuration"


def test_what_is_tunable_is_a_parameter_with_a_default() -> None:
    def run(x: torch.Tensor, *, BLOCK: int = 4, WARPS: int) -> torch.Tensor:
        return x

    for name in ("WARPS", "x", "NONE"):
        with pytest.raises(UsageError, match=f"{name} is tunable, but no keyword-only parameter"):
            registry.implementation("op", "cupy.mine", rung="tiled", tunable={name: (1, 2)})(run)


def test_another_parameter_is_what_is_called() -> None:
    def run(x: int, *, BLOCK: int = 4) -> tuple[int, int]:
        return x, BLOCK

    impl = Implementation("op", "cupy.mine", "tiled", run, tunable=(("BLOCK", (4, 8)), ("WARPS", (4,))))  # type: ignore[arg-type]
    other = registry.with_parameters(impl, "cupy.mine:8", {"BLOCK": 8, "WARPS": 4})
    assert other.run(1) == (1, 8)
    assert (other.label, other.base, other.parameters) == ("cupy.mine:8", "cupy.mine", (("BLOCK", 8),))


# --------------------------------------------------------------------------- matched


WANTED = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8, "WARPS": 8, "STAGES": 3}


def stand_in(op: str, label: str) -> Implementation:
    (found,) = (i for i in tuning.stand_ins(registry.implementations(op)) if i.base == label)
    return found


def test_what_cuda_is_run_with_is_what_triton_found() -> None:
    source = labelled("matmul", "triton.autotuned")
    row = replace(made_up.rows()[0], label=source.label, tunings=(FOUND,))
    assert tuning.configuration(source, row) == WANTED
    impl, words, short = tuning.matched(stand_in("matmul", "cupy.tensor_core"), WANTED)
    assert (impl.label, impl.base) == ("cupy.tensor_core:matched", "cupy.tensor_core")
    assert words == "128x256x64, GROUP_M=8, 8 warps, 3 stages"
    assert short == ""
    with pytest.raises(NotImplementedError, match=r"triton\.autotuned is searched for on a GPU"):
        tuning.configuration(source, None)


def test_where_a_template_takes_less_the_nearest_is_run_and_said() -> None:
    impl, words, short = tuning.matched(
        stand_in("matmul", "cupy.specialized"), {**WANTED, "BLOCK_K": 32, "STAGES": 5}
    )
    assert dict(impl.parameters) == {"BLOCK_N": 256, "STAGES": 4}
    assert words.startswith("128x256x64")
    assert short == (
        "as near as it can be to triton.autotuned, which has BLOCK_K 32, where it takes 64 alone; GROUP_M 8, "
        "which it does not have; STAGES 5, where it takes 2, 3 or 4"
    )


def test_warps_are_threads_where_these_are_what_is_chosen() -> None:
    source = labelled("vector_add", "triton.blocked")
    wanted = tuning.configuration(source, None)
    impl, _, short = tuning.matched(stand_in("vector_add", "cupy.vectorized"), wanted)
    assert dict(impl.parameters) == {"THREADS": 32 * wanted["WARPS"]}
    assert "BLOCK_SIZE" in short
    assert "WARPS" not in short


SPACE = [
    {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "WARPS": 8, "STAGES": 3},
    {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 64, "WARPS": 4, "STAGES": 5},
]


@pytest.mark.parametrize("wanted", SPACE, ids=tuning.worded)
def test_another_tile_computes_the_same(wanted: dict[str, int], device: torch.device) -> None:
    op = registry.get_op("matmul")
    impl, _, _ = tuning.matched(stand_in("matmul", "cupy.tensor_core"), wanted)
    case = Case.parse("M=130,N=66,K=70,fp16", op)
    agreement = check(op, impl, case, device, seeds=(0,))
    assert agreement.passed, agreement.reason


def test_every_configuration_of_the_search_is_one_that_a_tensor_core_kernel_takes() -> None:
    from triton_impl.matmul import space

    for config in space():
        row = replace(made_up.rows()[0], tunings=(replace(FOUND, found=described(config)),))
        wanted = tuning.configuration(labelled("matmul", "triton.autotuned"), row)
        _, _, short = tuning.matched(stand_in("matmul", "cupy.tensor_core"), wanted)
        assert not short or wanted["BLOCK_K"] == 16, short


def test_a_run_adds_a_row_that_is_matched(tmp_path: Path) -> None:
    op = registry.get_op("vector_add")
    case = Case.parse("N=1000,fp32", op)
    only = ("triton.blocked", "cupy.vectorized")
    options = Options((case,), only, device="cpu", resources=False, matched=True)
    (compared,) = run(op, options, results=tmp_path).cases
    rows = {row.label: row for row in compared.rows}
    assert list(rows) == ["torch.eager", "triton.blocked", "cupy.vectorized", "cupy.vectorized:matched"]
    matched = rows["cupy.vectorized:matched"]
    assert matched.status == "ok"
    assert (matched.default, matched.model) == ("cupy.vectorized", "triton.blocked")
    assert "128 threads" in matched.configuration


def test_what_searches_is_called_alone_and_what_matches_it_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compare import run as running

    op = registry.get_op("matmul")
    asked: list[list[str]] = []

    class Checking:
        def __init__(self, *_: object, **more: object) -> None:
            assert more["retune"] is True

        def width(self, count: int) -> int:
            return count

        def run(self, impls: list[Implementation], begin: object) -> Any:
            asked.append([impl.label for impl in impls])
            for impl in impls:
                tunings = (FOUND,) if impl.label == "triton.autotuned" else ()
                yield impl, checking.Outcome(agreement=made_up.AGREEMENT, tunings=tunings)

    monkeypatch.setattr(checking, "Checking", Checking)
    only = ("torch.eager", "torch.compile", "triton.grouped", "triton.autotuned", "cupy.tensor_core")
    impls = tuning.stand_ins(registry.implementations("matmul", only))
    options = Options((), only, matched=True, retune=True)
    case = op.cases.smoke[1]
    step, meter = running.Step(case, True, False), running._Meter(running.silent, 1.0)
    crew = SimpleNamespace(start=list)
    bench = running._Bench(op, impls, options, torch.device("cpu"), [step], tmp_path, meter, crew)  # type: ignore[arg-type]
    bench._read_sources()
    bench.rows[case] = {}
    bench._check(step)
    assert asked == [
        ["torch.eager", "triton.grouped", "cupy.tensor_core"],
        ["torch.compile"],
        ["triton.autotuned"],
        ["cupy.tensor_core:matched"],
    ]
    row = bench.rows[case]["cupy.tensor_core:matched"]
    assert row.configuration == "128x256x64, GROUP_M=8, 8 warps, 3 stages"
    assert (row.default, row.model) == ("cupy.tensor_core", "triton.autotuned")
    assert bench.rows[case]["triton.autotuned"].default == "triton.grouped"


def test_what_matches_a_search_that_was_not_made_says_so(tmp_path: Path) -> None:
    op = registry.get_op("matmul")
    case = op.cases.smoke[1]
    only = ("triton.autotuned", "cupy.tensor_core")
    options = Options((case,), only, device="cpu", resources=False, matched=True)
    (compared,) = run(op, options, results=tmp_path).cases
    row = compared.rows[-1]
    assert (row.label, row.status) == ("cupy.tensor_core:matched", "unavailable")
    assert row.reason == "no configuration is known: that of triton.autotuned is searched for on a GPU"


@pytest.mark.parametrize(
    "arguments", [["softmax"], ["vector_add", "--only", "cupy.*"]], ids=lambda arguments: arguments[0]
)
def test_matched_with_nothing_to_match_is_a_mistake(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--matched", "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "--matched: nothing that was asked for" in said
    assert "vector_add's cupy.vectorized that of triton.blocked" in said


def test_nvbench_times_what_is_registered() -> None:
    arguments = parser().parse_args(["matmul", "--matched", "--timer", "nvbench"])
    with pytest.raises(UsageError, match="leave out --matched"):
        _check_timer(arguments, "cuda")


# --------------------------------------------------------------------------- told


def compared() -> Any:
    """A comparison with a row that was tuned and one that is matched."""
    times = {"torch.eager": 200.0, "triton.grouped": 240.0, "triton.autotuned": 160.0}
    times |= {"cupy.tensor_core": 180.0, "cupy.tensor_core:matched": 320.0}
    rows = {
        row.label: row for row in made_up.rows({label: ("tensor_core", us) for label, us in times.items()})
    }
    rows["triton.autotuned"] = replace(rows["triton.autotuned"], tunings=(FOUND,), default="triton.grouped")
    rows["cupy.tensor_core:matched"] = replace(
        rows["cupy.tensor_core:matched"],
        default="cupy.tensor_core",
        model="triton.autotuned",
        configuration="128x256x64, 8 warps, 3 stages",
        unmatched="as near as it can be",
    )
    return made_up.comparison(made_up.case(made=tuple(rows.values())))


def test_the_table_says_what_the_search_cost_and_bought() -> None:
    comparison = compared()
    (case,) = comparison.cases
    table = tables.configurations(case)
    assert table is not None
    tuned_line, default, model = table.rows
    assert tuned_line[:5] == (
        "triton.autotuned",
        "128x256x64, GROUP_M=8, 8 warps, 3 stages",
        "2 of 3",
        "7.25",
        "this run, 2026-11-20",
    )
    assert tuned_line[5].startswith("1.50 (")
    assert tuned_line[6] == "triton.grouped"
    assert default[:2] == ("cupy.tensor_core:matched", "128x256x64, 8 warps, 3 stages")
    assert default[5].startswith("0.56 (")
    assert default[6] == "cupy.tensor_core"
    assert model[0] == ""
    assert model[5].startswith("0.50 (")
    assert model[6] == "triton.autotuned"
    assert "64x64x64, GROUP_M=8, 4 warps, 4 stages" in table.legend[-1]
    for text in (terminal.render(comparison, 110, View(details=True)), markdown.dumps([comparison])):
        assert "7.25" in text
        assert "2 of 3" in text
        assert "64x64x64, GROUP_M=8, 4 warps" in " ".join(text.split())
        assert "as near as it can be" in text


def test_what_is_from_the_cache_says_so() -> None:
    comparison = compared()
    case = made_up.with_row(comparison.cases[0], "triton.autotuned", tunings=(replace(FOUND, kept=True),))
    table = tables.configurations(case)
    assert table is not None
    assert table.rows[0][3:5] == ("7.25", "cache, 2026-11-20")


def test_no_search_no_table() -> None:
    assert tables.configurations(made_up.case()) is None


def test_csv_and_json_hold_the_whole_search() -> None:
    comparison = compared()
    lines = {
        line["implementation"]: line for line in csv.DictReader(io.StringIO(csv_file.dumps([comparison])))
    }
    line = lines["triton.autotuned"]
    assert (line["configurations"], line["configurations_tried"], line["search_s"]) == ("3", "2", "7.25")
    assert line["configuration"] == FOUND.found
    assert line["search_space"].split(" | ") == list(FOUND.space)
    assert line["default"] == "triton.grouped"
    assert float(line["times_as_fast_as_default"]) == pytest.approx(1.5, rel=0.02)
    matched = lines["cupy.tensor_core:matched"]
    assert float(matched["times_as_fast_as_model"]) == pytest.approx(0.5, rel=0.02)
    (again,) = archive.loads(archive.dumps([comparison]))
    assert again.cases[0].rows[2].tunings == (FOUND,)


# --------------------------------------------------------------------------- on a GPU


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
        (search,) = rows["triton.autotuned"].tunings
        searches.append(search)
        assert rows["cupy.tensor_core:matched"].configuration == tuning.configured(search.found)
        assert rows["cupy.tensor_core:matched"].timing is not None
    assert [search.kept for search in searches] == [False, True, False]
    assert searches[0].search_s > 0
    assert len(searches[0].space) > searches[0].tried - 1 > 1
