"""Marks: the words and points of every way in which a part may pass or fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import made_up
from compare.labs import lab as labs
from compare.labs import marking, running
from compare.labs.marking import Marks, Part, best, correctness, speeds
from compare.labs.running import HandedIn, Run
from compare.labs.work import read_folder
from compare.model.result import NOT_SANITIZED, Finding, Mismatch, Row, Status
from loops import for_each

SMALL, ODD, BIG = "M=4,N=8,fp32", "M=4,N=9,fp32", made_up.CASE
HEAD = """
title = "Made up"
op = "softmax"
hours = 1
prediction = []
hint = []
tiers = {}
"""
TASK = """
[[task]]
title = "T"
file = "mine.py"
label = "triton.mine"
reference = "triton.onepass"
speed = [{ case = "M=4096,N=4096,fp32", at_least = 0.9, points = 4 }]
limit = [{ figure = "registers", at_most = 40, points = 1 }]
group = [{ name = "small", points = 2, cases = ["M=4,N=8,fp32", "M=4,N=9,fp32"] }]
"""
QUESTION = """
[[question]]
name = "why"
text = "Why?"
points = 3
rubric = "Because."
words = 2
"""
LAB = HEAD + TASK + QUESTION
BASELINE = Row("torch.eager", "vendor", "ok", agreement=made_up.AGREEMENT)
MINE = replace(BASELINE, label="triton.mine", resources=(made_up.kernel("triton.mine"),))


@pytest.fixture
def rubric(tmp_path: Path) -> Path:
    file = tmp_path / "01_made_up" / "lab.toml"
    file.parent.mkdir()
    file.write_text(LAB)
    return file


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    folder = tmp_path / "alice"
    folder.mkdir()
    (folder / "mine.py").touch()
    (folder / "answers.toml").write_text('[answers]\nwhy = "Bandwidth binds."')
    return folder


Ran = Callable[..., Run]


Graded = Callable[..., dict[str, Part]]


@pytest.fixture
def graded(submission: Path, rubric: Path, monkeypatch: pytest.MonkeyPatch) -> Graded:
    """Mark ``submission``: its parts by name, where every comparison gives what ``ran`` makes of it."""

    def parts(ran: Ran, device: str = "cpu") -> dict[str, Part]:
        monkeypatch.setattr(marking, "run", ran)
        monkeypatch.setattr(marking, "pick", lambda word: torch.device(device))
        work = read_folder(submission, rubric=rubric)
        marks = correctness(work, "auto", 1.0, lambda what: None)
        return {part.name: part for part in speeds(work, marks, "auto", 1.0, lambda what: None).parts}

    return parts


def rows(*found: Row, on_odd: Row | None = None, asked: list[list[str]] | None = None) -> Ran:
    """A run with these rows on every case, but for ``on_odd``; adds the cases of each run to ``asked``."""

    def ran(op: str, cases: list[str], *_: Any, **__: Any) -> Run:
        if asked is not None:
            asked.append(cases)
        odd = found if on_odd is None else (*found[:-1], on_odd)
        made = (made_up.case(case, odd if case == ODD else found) for case in cases)
        return Run(made_up.comparison(*made, environment=made_up.LAPTOP))

    return ran


REFERENCE = replace(BASELINE, label="triton.onepass", resources=MINE.resources)


def beside(ran: Ran, reference: Row) -> Ran:
    """As ``ran``, and with this row where the reference runs alone."""

    def either(op: str, cases: list[str], only: list[str], *more: Any, **others: Any) -> Run:
        alone = only == ["triton.onepass"]
        return (rows(BASELINE, replace(reference, label=only[0])) if alone else ran)(
            op, cases, only, *more, **others
        )

    return either


GROUP, LIMIT, SPEED = "T: small", "T: at most 40 registers", "T: speed of at least 0.9x triton.onepass"


def test_everything_right(graded: Graded) -> None:
    parts = graded(rows(BASELINE, MINE))
    assert {name: (part.result, part.points) for name, part in parts.items()} == {
        GROUP: ("passed", 2),
        LIMIT: ("passed", 1),
        SPEED: ("left out", 0),
        "answer why": ("to be read", 0),
    }
    assert parts["answer why"].answer == "Bandwidth binds."
    assert not parts["answer why"].counted


@pytest.mark.parametrize(
    ("line", "device", "sanitized"),
    [("", "cuda", 0), ("sanitize = true", "cuda", 1)],
)
def test_a_lab_asks_for_compute_sanitizer(
    graded: Graded, rubric: Path, line: str, device: str, sanitized: bool
) -> None:
    rubric.write_text(f"{line}\n{LAB}")
    asked: list[bool] = []

    def ran(*given: Any, **named: Any) -> Run:
        file = next((each for each in given if isinstance(each, HandedIn)), None)
        asked.append(bool(file and file.sanitized))
        return rows(BASELINE, MINE)(*given, **named)

    graded(ran, device)
    assert asked[0] == sanitized
    assert sum(asked) == sanitized  # not where speed is measured


WRONG = replace(
    MINE,
    status="disagrees",
    reason="values: 3 elements are wrong",
    agreement=replace(made_up.DISAGREEMENT, mismatch=Mismatch((0, 5), 1.0, 2.0, 3, 32, "tail mask?")),
)
BORROWED = replace(made_up.DISAGREEMENT, findings=(Finding("own work", False, "it called aten::softmax"),))


FAULTY = replace(BASELINE, status="failed", reason="CUDA error")


def failed(reason: str, status: Status = "failed") -> tuple[Row, Row]:
    return BASELINE, replace(MINE, status=status, reason=reason)


@for_each(
    "made, result, says",
    [
        ((BASELINE, WRONG), "wrong", "3 elements"),
        ((BASELINE, replace(WRONG, agreement=BORROWED, reason="own work: aten")), "refused", "aten"),
        (failed("faster than the floor", "impossible"), "refused", "floor"),
        (failed("mine.py:3: NameError: x"), "error", "mine.py:3"),
        (failed("it took longer than 10 s"), "timeout", "10 s"),
        (failed("it forked its process: it may not"), "refused", "forked"),
        (failed("not written yet: step 1", "unavailable"), "not started", "step 1"),
        (
            failed("multiples of 64 only", "unavailable"),
            "wrong",
            "multiples of 64 only; the reference runs here",
        ),
        # what a file says of itself decides nothing
        (failed("needs whole blocks", "unavailable"), "wrong", "needs whole blocks; the reference runs here"),
        (failed("needs sm_100, this is sm_90", "unavailable"), "wrong", "your file refuses this case"),
        (failed("it needs a GPU: its kernels have no CPU version", "unavailable"), "wrong", "refuses"),
        (failed("it imports triton_impl.softmax: hand in your own code"), "refused", "own code"),
        (failed(f"{NOT_SANITIZED}: no driver"), "error", "no driver"),
        (
            (BASELINE, replace(MINE, status="failed", reason=f"{NOT_SANITIZED}: no device", by_judge=True)),
            "machine",
            "no device",
        ),
        # the reference failed too
        ((FAULTY, replace(MINE, status="failed", reason="x")), "machine", "CUDA error"),
        ((BASELINE,), "error", "registers no implementation"),
    ],
    ids=lambda case: case[2],
)
def test_what_rows_are_worth(made: tuple[Row, ...], result: str, says: str, graded: Graded) -> None:
    parts = graded(beside(rows(*made), FAULTY if result == "machine" else REFERENCE))
    assert (parts[GROUP].result, parts[GROUP].points) == (result, 0)
    assert says in parts[GROUP].detail
    assert (parts[LIMIT].result, parts[LIMIT].points) == ("not started", 0)


@for_each(
    "reference, result",
    [
        (replace(REFERENCE, status="unavailable", reason="needs sm_90, this is sm_75"), "left out"),
        (REFERENCE, "wrong"),
        (replace(REFERENCE, status="failed", reason="CUDA error"), "machine"),
    ],
)
def test_the_reference_decides_what_is_left_out(reference: Row, result: str, graded: Graded) -> None:
    part = graded(beside(rows(*failed("needs sm_90, this is sm_75", "unavailable")), reference))[GROUP]
    assert (part.result, part.points) == (result, 0)


REFUSED = "does not compile for sm_90a: Refused: num_warps must be a power of 2"
NO_KERNEL = "launches no kernel when it is compiled for a GPU"


@for_each(
    "first, result, says",
    [
        (replace(MINE, status="failed", reason=REFUSED, resources=()), "error", REFUSED),
        (
            replace(MINE, resources=(), reason="resources unread: mine.py:3: ValueError"),
            "error",
            "ValueError",
        ),
        (replace(MINE, resources=(), reason="resources unread: needs sm_100"), "error", "compiles here"),
        (replace(MINE, resources=()), "error", NO_KERNEL),
        (replace(MINE, resources=(), label="torch.mine"), "passed", ""),
    ],
)
def test_what_no_compiler_takes_has_no_points_for_any_case(
    first: Row, result: str, says: str, graded: Graded, rubric: Path
) -> None:
    text = LAB.replace('["M=4,N=8,fp32", "M=4,N=9,fp32"]', '["M=4,N=8,fp32"]')
    other = '{ name = "odd", points = 2, cases = ["M=4,N=9,fp32"] }]'
    text = text.replace('cases = ["M=4,N=8,fp32"] }]', f'cases = ["M=4,N=8,fp32"] }}, {other}')
    text = text.replace(text[text.index("speed =") : text.index("group =")], "")
    rubric.write_text(text.replace('"triton.mine"', '"*.mine"'))
    other_row = replace(first, status="ok", reason="", resources=())
    parts = graded(beside(rows(BASELINE, first, on_odd=other_row), REFERENCE))
    assert [parts[name].result for name in (GROUP, "T: odd")] == [result, result]
    assert says in parts["T: odd"].detail


def test_a_right_answer_on_an_empty_case_needs_no_kernel(graded: Graded, rubric: Path) -> None:
    rubric.write_text(LAB.replace('"M=4,N=9,fp32"]', '"M=0,N=9,fp32"]'))
    empty = replace(MINE, resources=())

    def ran(op: str, cases: list[str], *more: Any, **others: Any) -> Run:
        made = [made_up.case(each, (BASELINE, empty if "M=0" in each else WRONG)) for each in cases]
        return Run(made_up.comparison(*made, environment=made_up.LAPTOP))

    assert graded(beside(ran, REFERENCE))[GROUP].result == "wrong"


@for_each("on_odd, result", [(WRONG, "passed"), (MINE, "wrong")])
def test_other_sizes_cost_a_group_no_points_that_another_one_loses(
    on_odd: Row, result: str, graded: Graded, rubric: Path
) -> None:
    other = ', { name = "odd", points = 2, cases = ["M=4,N=9,fp32"] }]'
    text = LAB.replace(', "M=4,N=9,fp32"]', "]").replace("] }]", f"] }}{other}")
    rubric.write_text(text)
    found = replace(made_up.DISAGREEMENT, findings=(Finding("other sizes", False, "M=4,N=7,fp32: values"),))
    unmasked = replace(MINE, status="ordinary", reason="other sizes: M=4,N=7,fp32: values", agreement=found)
    assert graded(beside(rows(BASELINE, unmasked, on_odd=on_odd), REFERENCE))[GROUP].result == result


def test_a_file_that_hangs_in_a_task_is_not_run_for_the_next(
    submission: Path, rubric: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if another file's tasks end meanwhile: each would take its whole limit."""
    tasks = [("hangs.py", "1"), ("mine.py", "2"), ("hangs.py", "3"), ("mine.py", "4")]
    texts = (TASK.replace("mine.py", file).replace('"T"', f'"{title}"') for file, title in tasks)
    rubric.write_text("".join((HEAD, *texts, QUESTION)))
    (submission / "hangs.py").touch()
    files: list[str] = []
    late = replace(MINE, status="failed", reason="it took longer than 20 s, the limit for loading its file")

    def compared(op: str, cases: list[str], *more: Any) -> Run:
        file = more[3].file.name
        files.append(file)
        if file == "hangs.py":
            time.sleep(0.1)  # the others have ended by then
        return rows(BASELINE, late if file == "hangs.py" else MINE)(op, cases)

    monkeypatch.setattr(running, "_compared", compared)
    correctness(read_folder(submission, rubric), "cpu", 1.0, lambda what: None)
    assert sorted(files) == ["hangs.py", "mine.py", "mine.py"]


def test_a_group_needs_all_its_cases(graded: Graded) -> None:
    part = graded(rows(BASELINE, MINE, on_odd=WRONG))[GROUP]
    assert (part.result, part.points) == ("wrong", 0)
    assert part.detail.startswith(ODD)
    assert part.mismatch


@pytest.mark.parametrize(("alone", "result"), [(True, "error"), (False, "machine")])
def test_where_no_comparison_came_of_it(alone: bool, result: str, graded: Graded) -> None:
    """The reference without the file decides whose fault it is."""

    def ran(op: str, cases: list[str], only: list[str], *more: Any, **__: Any) -> Run:
        works = alone and only == ["triton.onepass"] and len(more) < 3
        return rows(BASELINE)(op, cases) if works else Run(None, "killed")

    assert graded(ran)[GROUP].result == result


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("SyntaxError at line 1", "error"),
        ("it took longer than 20 s, the limit for loading it (--timeout)", "timeout"),
        ("it forked its process: an implementation may not do this", "refused"),
    ],
)
def test_a_file_that_is_missing_or_cannot_be_loaded(
    said: str, result: str, submission: Path, graded: Graded
) -> None:
    refused = Run(None, said, refused=True)
    part = graded(lambda *_, **__: refused)[GROUP]
    assert (part.result, part.detail) == (result, said)
    (submission / "mine.py").unlink()
    parts = graded(rows(BASELINE), "cuda")
    assert parts[GROUP].detail == "there is no mine.py"
    assert parts[SPEED].result == "not started"  # and counted: the machine could have shown it


ONE_OF, LATER = 'one_of = ["HMMA", "HGMMA"]', 'one_of = ["HGMMA"], requires = "sm_100"'
NAMES, BITS = "multiplies by HMMA or HGMMA", "loads of at least 128 bits"
LATE = "resources unread: compiling it for sm_90 took longer than 20 s, the limit (--timeout)"
HGMMA, FFMA = {"instruction": "HGMMA.64x128x16"}, {"instruction": "FFMA"}


@for_each(
    "figure, limit, name, kernel, marked",
    [
        ("registers", "at_most = 32", "at most 32 registers", {}, ("wrong", "got 40, expected at most 32")),
        ("load_bits", "at_least = 128", BITS, {"load_bits": 128}, ("passed", "128")),
        ("load_bits", "at_least = 128", BITS, {"load_bits": 32}, ("wrong", "got 32")),
        ("load_bits", "at_least = 128", BITS, {}, ("left out", "was not read")),
        ("instruction", ONE_OF, NAMES, HGMMA, ("passed", "HGMMA.64x128x16")),
        ("instruction", ONE_OF, NAMES, FFMA, ("wrong", "got FFMA, expected HMMA or HGMMA")),
        ("instruction", LATER, "multiplies by HGMMA", FFMA, ("left out", "needs sm_100, this is sm_90")),
        ("registers", "at_most = 40", "at most 40 registers", None, ("timeout", LATE)),
    ],
)
def test_a_limit(
    figure: str,
    limit: str,
    name: str,
    kernel: dict[str, object] | None,
    marked: tuple[str, str],
    rubric: Path,
    graded: Graded,
) -> None:
    rubric.write_text(LAB.replace('figure = "registers", at_most = 40', f'figure = "{figure}", {limit}'))
    mine = replace(MINE, resources=(), reason=LATE)
    if kernel is not None:
        mine = replace(MINE, resources=(made_up.kernel("triton.mine", **kernel),))
    part = graded(rows(BASELINE, mine))[f"T: {name}"]
    result, says = marked
    assert (part.result, part.points, part.of) == (result, float(result == "passed"), 1)
    assert says in part.detail


def test_a_figure_that_only_the_reference_has_is_missing(rubric: Path, graded: Graded) -> None:
    limit = 'figure = "load_bits", at_least = 128'
    rubric.write_text(LAB.replace('figure = "registers", at_most = 40', limit))
    theirs = replace(REFERENCE, resources=(made_up.kernel("triton.onepass", load_bits=128),))
    part = graded(beside(rows(BASELINE, MINE), theirs))[f"T: {BITS}"]
    assert (part.result, part.points) == ("wrong", 0)
    assert "that of triton.onepass was read here" in part.detail


def test_an_unverified_speed_counts_as_wrong(graded: Graded) -> None:
    medians = {**made_up.MEDIANS_US, "triton.mine": ("tiled", 10.0)}
    *others, mine = made_up.rows(medians)
    assert mine.label == "triton.mine"
    assert mine.timing
    mine = replace(mine, timing=replace(mine.timing, unverified="its launches depend on data"))
    part = graded(rows(*others, mine), "cuda")[SPEED]
    assert (part.result, part.points) == ("wrong", 0)
    assert part.counted
    assert "its launches depend on data. Launch kernels of your own" in part.detail


def test_a_reference_that_fails_beside_a_file_only_is_no_fault_of_the_machine(graded: Graded) -> None:
    mine = replace(MINE, timing=made_up.timing("triton.mine", 10.0, None))
    part = graded(beside(rows(BASELINE, mine), REFERENCE), "cuda")[SPEED]
    assert (part.result, part.points) == ("error", 0)
    broken = replace(MINE, status="failed", reason="killed")
    assert graded(beside(rows(FAULTY, broken), REFERENCE))[GROUP].result == "error"


@for_each("us, result, points", [(47.9, "passed", 4), (52.0, "passed", 4), (60.0, "wrong", 0)])
def test_speed_is_relative_to_the_reference(us: float, result: str, points: float, graded: Graded) -> None:
    medians = {**made_up.MEDIANS_US, "triton.mine": ("tiled", us)}
    part = graded(rows(*made_up.rows(medians)), "cuda")[SPEED]
    assert (part.result, part.points) == (result, points)
    assert "triton.onepass (95% interval" in part.detail


@for_each("us, result, points", [(40.0, "passed", 4), (60.0, "partial", 3.19), (200.0, "wrong", 0)])
def test_speed_on_a_scale(us: float, result: str, points: float, rubric: Path, graded: Graded) -> None:
    rubric.write_text(LAB.replace("at_least = 0.9", "at_least = 0.5, full = 1.0"))
    medians = {**made_up.MEDIANS_US, "triton.mine": ("tiled", us)}
    part = graded(rows(*made_up.rows(medians)), "cuda")["T: speed of 0.5x to 1x triton.onepass"]
    assert (part.result, part.points) == (result, pytest.approx(points, abs=0.1))
    assert (part.figure is not None) == (result != "wrong")
    assert graded(rows(BASELINE, MINE))[part.name].result == "left out"


def test_a_task_s_speeds_and_limits_are_shown_when_its_last_group_is(rubric: Path, graded: Graded) -> None:
    rubric.write_text(LAB.replace('name = "small",', 'name = "small", visibility = "after_published",'))
    parts = graded(rows(BASELINE, MINE))
    assert {name: part.visibility for name, part in parts.items()} == {
        **dict.fromkeys((GROUP, LIMIT, SPEED), "after_published"),
        "answer why": "visible",
    }


def test_a_speed_too_close_to_tell_is_tried_again_and_costs_nothing(graded: Graded) -> None:
    reference = made_up.rows({"triton.onepass": ("tiled", 86.0)})[0]
    noisy = made_up.samples(100.0, "noisy", spread=0.3)
    timed = made_up.timing("triton.mine", 100.0, None)
    mine = replace(MINE, timing=replace(timed, cold_us=made_up.estimate(noisy)))
    runs: list[list[str]] = []
    part = graded(rows(BASELINE, reference, mine, asked=runs), "cuda")[SPEED]
    assert (part.result, part.points) == ("inconclusive", 0)
    assert len(runs) == 1 + 3
    marks = Marks("alice", "01", "", True, "", "", (part, Part("other", 1, 2, "wrong")))
    assert (marks.points, marks.of, marks.share) == (1, 2, 0.5)


def test_a_task_s_speeds_are_of_one_run(rubric: Path, graded: Graded) -> None:
    speed = '{ case = "M=4096,N=4096,fp32", at_least = 0.9, points = 4 }'
    rubric.write_text(LAB.replace(speed, f"{speed}, {speed.replace('0.9', '0.5')}"))
    medians = {**made_up.MEDIANS_US, "triton.mine": ("tiled", 60.0)}
    runs: list[list[str]] = []
    parts = graded(rows(*made_up.rows(medians), asked=runs), "cuda")
    assert [part.result for name, part in parts.items() if "speed" in name] == ["wrong", "passed"]
    assert runs[1:] == [["M=4096,N=4096,fp32"]]


def test_a_later_submission_never_loses_points() -> None:
    old = Marks("alice", "01", "", True, "1", "a", (Part("x", 2, 2, "passed"), Part("y", 0, 3, "wrong")))
    new = replace(old, digest="b", parts=(Part("x", 0, 2, "error"), Part("y", 3, 3, "passed")))
    assert best(old, new).points == 5
    assert best(old, new).digest == "b"
    unsure = replace(new, parts=(Part("x", 0, 2, "inconclusive"), Part("y", 0, 3, "machine")))
    assert best(old, unsure).parts == old.parts
    assert best(replace(old, lab="02"), new) == new
    unread = replace(new, parts=(Part("x", 0, 2, "to be read"),))
    assert best(old, unread).parts == unread.parts


def test_short_or_missing_answers(submission: Path, graded: Graded) -> None:
    (submission / "answers.toml").write_text('[answers]\nwhy = "Because."')
    part = graded(rows(BASELINE, MINE))["answer why"]
    assert (part.result, part.detail) == ("not started", "1 words; 2 are asked for")


def test_the_total_has_speed_only_on_a_gpu() -> None:
    lab = labs.find("01")
    assert marking.total(lab, speed=True) > marking.total(lab)
