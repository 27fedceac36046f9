"""``--tune``: implementations run with other values of their parameters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import made_up
from compare import cli, registry
from compare.code_size.hashes import source_hash
from compare.command_line import status
from compare.command_line.status import FAILURE
from compare.commands import compare
from compare.history.recorded import recorded
from compare.model.op import Case, Implementation, UsageError
from compare.model.result import CaseComparison, Comparison, Configuration, Options, Row
from compare.records import archive
from compare.report import markdown, tables, terminal
from compare.report.sentences import sentences
from compare.run import run, tuned
from compare.timing import figures
from compare.tuning import sweep
from loops import for_each

OP = "vector_add"


def add(
    x: torch.Tensor, y: torch.Tensor, *, THREADS: int = 256, VECTORS: int = 2, unused: int = 3
) -> torch.Tensor:
    return x + y


def impl(label: str, **tunable: tuple[int, ...]) -> Implementation:
    return Implementation("op", label, "tiled", add, tunable=tuple(tunable.items()))


IMPLS = [
    impl("torch.eager"),
    impl("triton.a"),
    impl("cupy.a", THREADS=(64, 256, 512), VECTORS=(1, 2)),
    impl("cupy.b", THREADS=(128, 256), WARPS=(8,)),
    impl("pybind.a"),
    impl("pybind.c"),
]
LABELS = [impl.label for impl in IMPLS]


def tried(*texts: str, among: list[str] = LABELS, keep: tuple[str, ...] = ("torch.eager",)) -> sweep.Trials:
    return sweep.trials(IMPLS, sweep.parse(texts), among, keep)


# --------------------------------------------------------------------------- what is run


def test_every_declared_value_but_the_default_is_a_row_behind_its_own() -> None:
    found = tried("THREADS")
    assert [impl.label for impl in found.impls] == [
        "torch.eager",
        "cupy.a",
        "cupy.a:THREADS=64",
        "cupy.a:THREADS=512",
        "cupy.b",
        "cupy.b:THREADS=128",
        "pybind.a",
    ]
    assert found.count == 3
    assert found.parameters["cupy.a"] == (("THREADS", 256),)
    assert found.parameters["cupy.a:THREADS=64"] == (("THREADS", 64),)
    assert "torch.eager" not in found.parameters
    other = found.impls[2]
    assert (other.base, other.parameters) == ("cupy.a", (("THREADS", 64),))
    assert other.run.keywords == {"THREADS": 64}  # type: ignore[attr-defined]


def test_values_by_hand_and_several_parameters_make_every_choice_that_a_row_has() -> None:
    found = tried("THREADS=1024, 32,32,256", among=["cupy.a"], keep=())
    assert [impl.label for impl in found.impls] == ["cupy.a", "cupy.a:THREADS=32", "cupy.a:THREADS=1024"]
    found = tried("THREADS", "VECTORS=1,4", among=["cupy.a", "cupy.b"], keep=())
    labels = [impl.label for impl in found.impls if impl.base]
    assert labels == [
        *(f"cupy.a:THREADS={threads},VECTORS={vectors}" for threads in (64, 256, 512) for vectors in (1, 4)),
        "cupy.b:THREADS=128",
    ]
    assert found.parameters["cupy.a"] == (("THREADS", 256), ("VECTORS", 2))


def test_what_is_fixed_says_so_and_names_who_can_change_it() -> None:
    found = tried("THREADS")
    assert found.parameters["pybind.a"] == (("THREADS", 256),)
    assert "its C++ is compiled for the default of THREADS" in found.notes["pybind.a"]
    assert "cupy.a launches the same kernel" in found.notes["pybind.a"]
    assert "cupy.a" not in found.notes
    found = tried("THREADS", "WARPS=4", among=["cupy.b"], keep=())
    assert [impl.label for impl in found.impls] == ["cupy.b", "cupy.b:THREADS=128,WARPS=8"]
    assert found.notes["cupy.b"] == "its WARPS is always 8"


@for_each(
    "texts, among, says",
    [
        (
            ["NONE"],
            LABELS,
            r"op has no such parameter.*THREADS of cupy\.a, cupy\.b; VECTORS of cupy\.a; WARPS of",
        ),
        (["VECTORS"], ["cupy.b"], r"none of cupy\.b has it.*VECTORS of cupy\.a"),
        (["THREADS"], ["pybind.a"], r"none of pybind\.a has it"),
        (["THREADS", "NONE"], LABELS, "NONE"),
        (["WARPS"], LABELS, r"no other value to try: cupy\.b: its WARPS is always 8"),
        (["VECTORS=2"], ["cupy.a"], "no other value to try: these are the defaults"),
        ([f"VECTORS={','.join(map(str, range(1, 99)))}"], LABELS, "at least 97 rows, and 64 are the limit"),
        (["THREADS=1,2,3,4,5,6,7,8", "VECTORS=1,2,3,4,5,6,7,8,9"], LABELS, "64 are the limit"),
        ([f"THREADS={','.join(map(str, range(1, 34)))}"], LABELS, "at least 66 rows"),
        (["THREADS="], LABELS, "write --tune BLOCK_SIZE"),
        (["THREADS=a"], LABELS, "write --tune BLOCK_SIZE"),
        (["THREADS=-1"], LABELS, "write --tune BLOCK_SIZE"),
        ([f"THREADS={'1' * 5000}"], LABELS, "11: write --tune BLOCK_SIZE"),
        (["64"], LABELS, "write --tune BLOCK_SIZE"),
        (["VECTORS=1", "VECTORS=2"], LABELS, "VECTORS is given twice"),
    ],
)
def test_a_mistake_names_what_there_is(texts: list[str], among: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tried(*texts, among=among)


def test_where_nothing_can_be_chosen_that_is_said() -> None:
    with pytest.raises(UsageError, match="declare no parameters"):
        sweep.trials(IMPLS[:2], (("THREADS", ()),), LABELS, ())


def test_only_what_has_the_parameter_is_run_unless_others_are_named() -> None:
    op = registry.get_op(OP)
    options = Options((), tune=(("BLOCK_SIZE", (64,)),))
    found = tuned(op, options)
    assert [i.label for i in found.impls] == ["torch.eager", "triton.blocked", "triton.blocked:BLOCK_SIZE=64"]
    named = tuned(op, replace(options, only=("triton.*", "cupy.scalar")))
    assert "cupy.scalar" in [i.label for i in named.impls]
    assert tuned(op, replace(options, tune=())) is None


EVERY = [
    (op, name) for op in registry.op_names() for i in registry.implementations(op) for name, _ in i.tunable
]


@for_each("op, name", sorted(set(EVERY)))
def test_every_declared_parameter_can_be_tuned_or_says_why_not(op: str, name: str) -> None:
    impls = registry.implementations(op)
    among = [i.label for i in impls]
    if not any(name in registry.keywords(i.run) for i in impls if name in dict(i.tunable)):
        with pytest.raises(UsageError, match="is always"):
            sweep.trials(impls, ((name, ()),), among, ())
        return
    found = sweep.trials(impls, ((name, ()),), among, ())
    for i in found.impls:
        if i.base:
            assert i.run.keywords == dict(found.parameters[i.label])  # type: ignore[attr-defined]
            assert found.parameters[i.base] != found.parameters[i.label]
    for i in impls:
        if i.route == "pybind" and i.label in found.parameters:
            assert found.notes[i.label]


# --------------------------------------------------------------------------- run, without a GPU


@pytest.mark.thorough
def test_a_run_checks_and_compiles_every_value(tmp_path: Path) -> None:
    op = registry.get_op(OP)
    case = Case.parse("N=1000,fp32", op)
    tune = (("THREADS", (64, 512, 4096)),)
    options = Options((case,), ("cupy.scalar", "pybind.scalar"), ("sm_90",), device="cpu", tune=tune)
    compared = run(op, options, results=tmp_path)
    (found,) = compared.cases
    rows = {row.label: row for row in found.rows}
    for threads in (64, 512):
        row = rows[f"cupy.scalar:THREADS={threads}"]
        assert row.status == "ok", row.reason
        assert row.configuration.parameters == (("THREADS", threads),)
        assert (row.configuration.default, row.configuration.model) == ("cupy.scalar", "")
        (kernel,) = row.resources
        assert kernel.block == (threads, 1, 1)
        assert kernel.registers > 0
        assert kernel.occupancy is not None
    default = rows["cupy.scalar"]
    assert default.resources[0].block == (256, 1, 1)
    assert (default.configuration.text, default.configuration.default) == ("THREADS=256", "")
    assert "is compiled for the default of THREADS" in rows["pybind.scalar"].configuration.unmatched
    assert rows["torch.eager"].configuration.text == ""
    assert set(compared.code_sizes) == {"torch.eager", "cupy.scalar", "pybind.scalar"}
    text = terminal.render(compared, 200)
    assert "With other values on N=1000,fp32, compiled here for sm_90" in text
    assert "compiled for the default of THREADS" in text


def test_a_value_that_is_not_taken_is_a_row_that_says_so(tmp_path: Path) -> None:
    op = registry.get_op(OP)
    options = Options(
        (Case.parse("N=1000,fp32", op),), device="cpu", resources=False, tune=(("BLOCK_SIZE", (100, 64)),)
    )
    compared = run(op, options, results=tmp_path)
    rows = {row.label: row for row in compared.cases[0].rows}
    assert rows["triton.blocked:BLOCK_SIZE=64"].status == "ok"
    wrong = rows["triton.blocked:BLOCK_SIZE=100"]
    assert (wrong.status, wrong.configuration.parameters) == ("failed", (("BLOCK_SIZE", 100),))
    assert "power of 2" in wrong.reason
    assert status.of(compared) == FAILURE


USERS = """
import torch
from compare.registry import implementation

@implementation("vector_add", "triton.mine", level="tiled", tunable={"SIZE": (1, 2, 3)})
def mine(x, y, *, SIZE=1, dtype=torch.float32):
    if SIZE == 3:
        raise NotImplementedError("3 of them")
    return torch.empty_like(x).copy_(x) if SIZE == 2 else x + y
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("own_registry")
def test_a_user_s_file_declares_its_parameters(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "out.json"
    file.write_text(USERS)
    words = [OP, "--load", str(file), "--only", "triton.mine", "--case", "N=1000,fp32", "--device", "cpu"]
    assert cli.main([*words, "--tune", "SIZE", "--arch", "sm_90", "--json", str(out)]) == FAILURE
    rows = {row["label"]: row for row in json.loads(out.read_text())["runs"][0]["cases"][0]["rows"]}
    assert list(rows) == ["torch.eager", "triton.mine", "triton.mine:SIZE=2", "triton.mine:SIZE=3"]
    assert rows["triton.mine:SIZE=2"]["status"] == "disagrees"  # it was run with that value
    assert rows["triton.mine:SIZE=3"]["reason"] == "3 of them"


def test_more_rows_have_more_time_unless_it_is_given() -> None:
    op = registry.get_op(OP)

    def budget_s(*words: str) -> float:
        return compare.run_options(op, cli.parser_of().parse_args([OP, *words])).budget_s

    assert budget_s("--tune", "BLOCK_SIZE=64,128") == pytest.approx(budget_s() + 2 * compare.TRIAL_S)
    assert budget_s("--tune", "BLOCK_SIZE", "--budget", "3") == 3


# --------------------------------------------------------------------------- told


def compared(default_us: float = 60.0, **times_us: float) -> Comparison:
    """A run that tried ``SIZE``: the time of each value, and 256 is the default."""
    medians = {"torch.eager": 70.0, "cupy.a": default_us}
    medians |= {f"cupy.a:{name.replace('_', '=')}": us for name, us in times_us.items()}
    rows = made_up.rows({label: ("tiled", us) for label, us in medians.items()})
    return made_up.comparison(made_up.case(made=tuple(map(with_values, rows))))


def with_values(row: Row) -> Row:
    if row.label == "torch.eager":
        return row
    value = int(row.label.partition("=")[2] or 256)
    kernel = made_up.kernel("cupy.a", registers=value // 4, spilled_bytes=8 if value > 512 else 0)
    return replace(
        row,
        configuration=Configuration(
            parameters=(("SIZE", value),),
            text=f"SIZE={value}",
            default="cupy.a" if ":" in row.label else "",
        ),
        resources=(kernel,),
    )


def shown(found: Comparison) -> dict[str, dict[str, str]]:
    table = tables.trials(found.cases[0])
    headers = [header.replace("\n", " ") for header in table.headers]
    return {line[0].removeprefix("cupy.a "): dict(zip(headers, line, strict=True)) for line in table.rows}


def test_the_table_has_time_and_resources_beside_each_value() -> None:
    found = compared(SIZE_64=50.0, SIZE_128=50.2, SIZE_1024=90.0)
    lines = shown(found)
    assert list(lines) == ["SIZE=64", "SIZE=128", "SIZE=256", "SIZE=1024"]
    assert [line["which is"] for line in lines.values()] == ["fastest", "within noise", "default", "-"]
    assert lines["SIZE=64"]["speedup vs its default"].startswith("1.20 (")
    assert lines["SIZE=256"]["speedup vs its default"] == "1"
    assert lines["SIZE=1024"]["speedup vs its default"].startswith("0.67 (")
    assert lines["SIZE=64"]["cold µs"].startswith("50.")
    assert lines["SIZE=1024"]["registers /thread"] == "256"
    assert lines["SIZE=1024"]["spilled B /thread"] == "8"
    assert lines["SIZE=64"]["occupancy"] == "75%"
    for text in (terminal.render(found, 200), markdown.dumps([found])):
        assert "With other values on" in text
    first = sentences(found)[0]
    assert "cupy.a is the fastest with SIZE=64: speedup 1.20x (" in first
    assert "its default, SIZE=256" in first


def test_a_default_that_nothing_beats_is_said_to_be_so() -> None:
    found = compared(SIZE_64=59.9, SIZE_128=120.0)
    assert [line["which is"] for line in shown(found).values()] == ["fastest", "-", "default, within noise"]
    first = sentences(found)[0]
    assert first.startswith("No other value is measurably faster than the default of cupy.a, SIZE=256")
    assert "the slowest, SIZE=128, is at 0.50x (" in first


def test_what_is_wrong_or_was_not_timed_is_the_fastest_of_nothing() -> None:
    found = compared(SIZE_64=10.0, SIZE_128=50.0)
    (case,) = found.cases
    wrong = made_up.with_row(case, "cupy.a:SIZE=64", status="disagrees", timing=None)
    lines = shown(replace(found, cases=(wrong,)))
    assert (lines["SIZE=64"]["which is"], lines["SIZE=64"]["cold µs"]) == ("WRONG", "-")
    assert lines["SIZE=128"]["which is"] == "fastest"
    untimed = replace(found, cases=(made_up.with_row(wrong, "cupy.a:SIZE=128", timing=None),))
    assert [line["which is"] for line in shown(untimed).values()] == ["WRONG", "-", "default"]
    assert not [said for said in sentences(untimed) if "other value" in said]


def test_a_table_for_trials_alone_names_several_kernels() -> None:
    assert tables.trials(made_up.case()) is None
    assert figures.trials(made_up.case()) == []
    (case,) = compared(SIZE_64=50.0).cases
    assert tables.configurations(case) is None
    left = tables.resources(case)
    assert "cupy.a:SIZE=64" not in [line[0] for line in left.rows]
    row = next(row for row in case.rows if row.label == "cupy.a")
    two = (*row.resources, replace(row.resources[0], kernel="second_kernel<float>"))
    table = tables.trials(made_up.with_row(case, "cupy.a", resources=two))
    assert "kernel" in table.headers
    assert table.rows[-1][:2] == ("", "")
    assert "second_kernel" in table.rows[-1]


# --------------------------------------------------------------------------- recorded


def test_rows_are_recorded_read_and_no_older_than_their_source(tmp_path: Path) -> None:
    op = registry.get_op(OP)
    now = {i.label: i for i in registry.implementations(OP)}
    label = "triton.blocked:BLOCK_SIZE=64"
    rows = made_up.rows(dict.fromkeys(("torch.eager", "triton.blocked", label), ("tiled", 50.0)))
    values = {"triton.blocked": 1024, label: 64}
    rows = tuple(
        replace(
            row,
            source_hash=source_hash(now[row.label.partition(":")[0]]),
            configuration=Configuration(
                parameters=(("BLOCK_SIZE", values[row.label]),) if row.label in values else (),
                default="triton.blocked" if row.label == label else "",
            ),
        )
        for row in rows
    )
    case = "N=67108864,fp32"  # too large to be checked here
    run_ = made_up.comparison(CaseComparison(case, made_up.case().cost, rows), op=OP)
    archive.record(run_, tmp_path)
    (again,) = archive.read(archive.path_of(run_.environment.device, OP, tmp_path))
    assert [row.configuration for row in again.cases[0].rows] == [row.configuration for row in rows]
    told = recorded(op, tmp_path)
    assert not [row.label for row in told.cases[0].rows if archive.changed_since(row)]
    # Without a GPU the recorded time of each value is replayed.
    options = Options((Case.parse(case, op),), device="cpu", resources=False, tune=(("BLOCK_SIZE", (64,)),))
    replayed = run(op, options, results=tmp_path).cases[-1]
    assert {row.label for row in replayed.rows if row.timing and row.recorded} == {"torch.eager", *values}
    assert made_up.in_csv(replace(run_, cases=(replayed,)))[label]["configuration"] == "BLOCK_SIZE=64"


# --------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.alone
def test_a_gpu_times_every_value_beside_what_it_takes(tmp_path: Path) -> None:
    op = registry.get_op(OP)
    case = Case.parse("N=16777216,fp32", op)
    tune = (("BLOCK_SIZE", (128, 4096)), ("THREADS", (64, 1024)))
    options = Options((case,), device="cuda", budget_s=6.0, tune=tune)
    compared = run(op, options, results=tmp_path)
    (found,) = compared.cases
    rows = {row.label: row for row in found.rows}
    assert {row.status for row in rows.values()} == {"ok"}, {row.label: row.reason for row in rows.values()}
    for label, threads in (("cupy.scalar:THREADS=64", 64), ("cupy.scalar:THREADS=1024", 1024)):
        profiled = [kernel for kernel in rows[label].resources if kernel.reader == "profiler"]
        assert [kernel.block for kernel in profiled] == [(threads, 1, 1)]
    for value in (128, 4096):
        profiled = [
            kernel
            for kernel in rows[f"triton.blocked:BLOCK_SIZE={value}"].resources
            if kernel.reader == "profiler"
        ]
        assert [kernel.grid for kernel in profiled] == [(16777216 // value, 1, 1)]
    groups = figures.trials(found)
    assert {len(group) for group in groups} == {3, 1}
    for group in groups:
        assert all(row.timing and row.timing.cold_us for row in group)
    table = tables.trials(found)
    assert "as run on" in table.title
    which = [line[2] for line in table.rows]
    assert sum("fastest" in word for word in which) == sum(len(group) > 1 for group in groups)
    assert sum("default" in word for word in which) == len(groups)
