"""Every screen, of made-up data: no kernel runs, and nothing is compiled."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import made_up
from compare import cli, registry
from compare.aot.building import Program
from compare.aot.running import ProgramOutcome, ProgramReport, ProgramRun
from compare.aot.screen import render as aot_table
from compare.command_line.options import COMMANDS
from compare.history.crossover import Crossover, standing
from compare.labs import lab as labs
from compare.labs import work
from compare.labs.classroom import Pair
from compare.labs.lab import Prediction
from compare.labs.marking import Marks, Part
from compare.labs.prediction import ScoredPrediction
from compare.model.op import Case
from compare.model.result import Comparison, Configuration, KernelCounters, Mismatch, Row
from compare.pipeline import screen as pipeline
from compare.pipeline.records import CacheEntry, CompilerStage, Opened, Pass, StageFailure
from compare.report import crossings, terminal
from compare.report import labs as pages
from compare.report.summary import View
from compare.resources.sass.disassembly import Instruction
from compare.timing.statistics import estimate

SIGNATURE = "x[M,N] -> y[M,N]"
MANGLED = "_Z19softmax_tile_kernelIfLi256EEvPKfPfi"
_LAB = labs.find("01")
LONG = "1 of 2 cases is wrong: got 1.5 where 2 ± 0.001 was expected, because a mask of the tail is missing"


# --------------------------------------------------------------------------- made-up data


def opened() -> list[Opened]:
    """An op's kernels of which one stopped at a stage."""
    rows = tuple(Instruction(16 * i, code, code) for i, code in enumerate(("LDG.E.128", "HMMA.16816.F32")))
    stages = (
        CompilerStage("source", "CUDA C++", "// 2 µs · fast\nvoid k()".encode(), file="kernels.cu"),
        CompilerStage("ptx", "NVRTC", b"ld.global.f32 %f1, [%rd1];", took_ms=800.0),
        CompilerStage("cubin", "ptxas", b"\0", took_ms=1200.0),
        CompilerStage("sass", "nvdisasm", f".text.{MANGLED}:\n".encode()),
    )
    passes = (
        Pass("ttgir", "tritongpu-coalesce", "Coalesce", "a\nb", "a\nc"),
        Pass("", "cse", "CSE", "a", "a"),
    )
    kept = (CacheEntry("cupy", "kernel", "a" * 64, "/cache", {"k.cubin": 3000}, {"arch": "sm_90"}),)
    labels = ("triton.pipelined", "cupy.tensor_core", "pybind.tensor_core")
    every = [
        Opened(
            *("op", label, "M=4096,N=4096,fp32", "sm_90", "k", stages),
            instructions=rows,
            passes=passes,
            cached=kept,
        )
        for label in labels
    ]
    failed = Opened(
        "op", "cupy.b", "M=4096,N=4096,fp32", "sm_90", "k", failure=StageFailure("ptx", "word " * 40)
    )
    gone = Opened("op", "torch.eager", "M=4096,N=4096,fp32", "sm_90", unavailable="no source")
    return [failed, *every, gone]


@functools.cache
def with_trials() -> Comparison:
    """With the rows that ``--tune`` adds and the times that ``--sustained`` adds."""

    def changed(row: Row) -> Row:
        warm_us = row.timing.warm_us if row.timing else None
        timing = row.timing and replace(row.timing, burst_us=warm_us, sustained_us=warm_us)
        value = int(row.label.partition("=")[2] or 512)
        tuned = Configuration(f"BLOCK_N={value}", parameters=(("BLOCK_N", value),))
        return replace(
            row, timing=timing, configuration=tuned if "onepass" in row.label else row.configuration
        )

    medians = {
        **made_up.MEDIANS_US,
        **{f"triton.onepass:BLOCK_N={n}": ("tiled", 40.0 + n / 10) for n in (256, 1024)},
    }
    return made_up.comparison(made_up.case(made=tuple(map(changed, made_up.rows(medians)))))


@functools.cache
def failures() -> Comparison:
    """Interrupted, with a row that is wrong, failed, not run or impossibly fast."""
    case = made_up.case()
    for label, status in (
        ("triton.online", "failed"),
        ("cupy.online", "unavailable"),
        ("pybind.online", "impossible"),
    ):
        case = made_up.with_row(case, label, status=status, reason=LONG)
    case = made_up.with_row(
        case, "cupy.onepass", status="disagrees", agreement=made_up.DISAGREEMENT, timing=None
    )
    return replace(made_up.comparison(case), interrupted=True)


@functools.cache
def swept() -> Comparison:
    """Of more cases than are shown one by one."""
    return made_up.comparison(*(made_up.case(f"M=4096,N={n},fp32") for n in (4096, 1024, 781, 32768)))


@functools.cache
def counted() -> Comparison:
    """With what Nsight Compute counted."""
    counters = KernelCounters("softmax_onepass_kernel", {"long_scoreboard": 0.41, "barrier": 0.2}, 0.5, 0.1)
    return made_up.comparison(made_up.with_row(made_up.case(), "cupy.onepass", counters=(counters,)))


@functools.cache
def crossover() -> Crossover:
    """A crossover between two sizes."""
    faster = {1024: ("triton.onepass",), 2048: ("cupy.onepass", "pybind.onepass")}
    standings = []
    for n, labels in faster.items():
        medians = {**made_up.MEDIANS_US, **dict.fromkeys(labels, ("tiled", 31.0))}
        standings.append(standing(n, made_up.case(f"M=4096,N={n},fp32", made_up.rows(medians))))
    base = Case.parse(made_up.CASE, registry.get_op("softmax"))
    return Crossover(
        *("softmax", "N", base, tuple(standings)), recorded_on=f"{made_up.H100.device}, 2026-11-21"
    )


def programs() -> ProgramReport:
    """An op's programs: one ran, one was built, one failed and one cannot be."""
    times = estimate([1.0 + i / 100 for i in range(10)])
    program = Program("cupy.onepass", "sm_90", "k<float, 256>", "NVRTC", Path("p"), ("x.bin",), 9000, 99000)
    outcomes = (
        ProgramOutcome("cupy.onepass", "sm_90", program, ProgramRun(made_up.AGREEMENT, times, times, times)),
        ProgramOutcome("triton.onepass", "sm_90", replace(program, label="triton.onepass", tool="Triton")),
        ProgramOutcome("triton.online", "sm_90", failed="nvcc: error: " + "word " * 30),
        ProgramOutcome("cupy.online", "sm_75", cannot="it needs a tensor map by value"),
    )
    return ProgramReport("softmax", SIGNATURE, made_up.CASE, outcomes, made_up.H100.device, "no second GPU")


def marks(student: str = "alice") -> Marks:
    title = _LAB.task[0].title
    parts = (
        Part(f"{title}: small", 2, 2, "passed"),
        Part(f"{title}: odd", 0, 1, "wrong", LONG, Mismatch((0, 5), 1.5, 2.0, 3, 32, "tail mask?")),
        Part(f"{title}: speed", 0, 4, "left out", "speed needs a GPU"),
    )
    return Marks(student, _LAB.name, "AMD EPYC", False, "2026-11-24T03:00:00+00:00", "d", parts)


def predictions() -> list[ScoredPrediction]:
    def one(name: str, *values: object) -> ScoredPrediction:
        return ScoredPrediction(Prediction(name, "Which?", "fastest", made_up.CASE), *values)  # type: ignore[arg-type]

    return [
        one("fastest", "triton", "cuda.onepass", f"recorded on {made_up.H100.device}, 2026-11-21", 0.0),
        one("speedup", 1.5, 1.4213, "compiled here for sm_90", 1.0),
        one("registers", 40.0, None, "nothing was measured: no GPU", None),
    ]


# --------------------------------------------------------------------------- commands on made-up data


@functools.cache
def _files(folder: Path, count: int) -> list[str]:
    """Files of runs: the second is slower, and later ones vary."""
    from compare.records import archive

    names = []
    for i in range(count):
        slow = made_up.SLOWER if i % 2 else {}
        file = folder / f"{i}.json"
        run = made_up.one({**made_up.MEDIANS_US, **slow}, created=f"2026-11-2{i}T00:00:00+00:00")
        file.write_text(archive.dumps([run]))
        names.append(str(file))
    return names


@functools.cache
def _records(folder: Path) -> str:
    """Records of two ops and two cases."""
    from compare.records import archive

    first = made_up.comparison()
    for run in (
        first,
        made_up.comparison(made_up.case("M=1,N=1024,fp32"), created="2026-11-23T00:00:00+00:00"),
        replace(first, op="vector_add"),
    ):
        archive.record(run, folder)
    return str(folder / archive.device_slug(made_up.H100.device))


@functools.cache
def _devices(folder: Path) -> tuple[str, str]:
    """Records of two devices."""
    from compare.records import archive

    other = replace(made_up.H100, device="NVIDIA H200")
    file = archive.record(made_up.comparison(environment=other), folder)
    return _records(folder), str(file.parent)


def _ops() -> tuple[object, ...]:
    from compare.command_line.inventory import Listed, ListedOp

    impls = tuple(
        Listed(label, level, "sm_90" if "onepass" in label else None, "", True, False)
        for label, (level, _) in made_up.MEDIANS_US.items()
    )
    summary = "each row of a matrix is exponentiated and divided by its sum, in one pass or in two"
    return tuple(ListedOp(op, SIGNATURE, summary, ("fp32",), impls) for op in ("softmax", "vector_add"))


def _list(*words: str) -> None:
    with mock.patch("compare.command_line.inventory.inventory", _ops):
        cli.main(["list", *words, "--device", "cpu"])


def _doctor() -> None:
    from compare.commands import doctor

    checks = [
        doctor.Capability("torch", "all; rows of PyTorch", True, "2.11.0"),
        doctor.Capability("GPU", "times, and rows that need one", False, LONG, "see a GPU", optional=True),
        doctor.Capability("C++ compiler", "CUDA rows without a GPU", False, "no g++", "apt-get install g++"),
    ]
    with mock.patch.object(doctor, "diagnose", return_value=checks):
        cli.main(["doctor"])


def _lab(what: str) -> None:
    """A lab in the current folder."""
    mine = Path("my_lab")
    shutil.rmtree(mine, ignore_errors=True)
    if what == "start":
        cli.main(["lab", "start", "01", str(mine)])
        return
    work.start(_LAB, mine)
    form = mine / work.ANSWERS
    form.write_text(re.sub(r'(?m)^(\w+) = ""$', r'\1 = "1"', form.read_text()))
    with _nothing_runs():
        cli.main(["lab", what, str(mine), "--device", "cpu"])


@contextmanager
def _nothing_runs() -> Iterator[None]:
    """Of a lab and of a prediction the results are `marks` and `predictions`."""
    stand_ins: dict[str, Callable[..., object]] = {
        "compare.worker.start.prepare": lambda *_, **__: SimpleNamespace(type="cpu"),
        "compare.labs.running.stop_on_signals": lambda: None,
        "compare.labs.marking.correctness": lambda *_: marks(),
        "compare.labs.marking.first_look": lambda _, task, *__: marks().parts[task == _LAB.task[0]],
        "compare.labs.prediction.read_all": lambda *_: {},
        "compare.labs.prediction.outcomes": lambda *_: predictions(),
        "compare.commands.lab._task": lambda *_: None,
    }
    with ExitStack() as stack:
        for name, stand_in in stand_ins.items():
            stack.enter_context(mock.patch(name, stand_in))
        yield


def _predict(folder: Path) -> None:
    answers = folder / "mine.toml"
    answers.write_text('fastest = "triton"')
    with _nothing_runs():
        cli.main(["predict", "softmax", "--answers", str(answers)])


def _class() -> None:
    alike = [Pair("triton_add.py", "alice", "bob", 0.93)]
    notes = ["No hand-in of: Cy Oh, Dee Lin, Eve Mott, Flo Ng, Gus Orr, Hal Poe, Ida Quinn, Jo Reed, Kai Su."]
    pages.put_marks([_LAB], [marks(), marks("bob · Ray")], alike, notes)


def _pipeline(shown: str, name: str = "") -> Screen:
    return lambda _: pipeline.put(opened(), SIGNATURE, shown, name)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _command(*words: str) -> Screen:
    return lambda _: cli.main(words)


def _compared(comparison: Callable[[], Comparison], *flags: str) -> Screen:
    return lambda _: terminal.show(comparison(), View(**dict.fromkeys(flags, True)))


_plain = functools.cache(made_up.comparison)
Screen = Callable[[Path], object]
"""Prints a screen; may write into that folder."""

SCREENS: dict[str, Screen] = {
    "start": _command(),
    "--version": _command("--version"),
    "--help": _command("--help"),
    **{f"{name} --help": _command(name, "--help") for name in COMMANDS},
    "list": lambda _: _list(),
    "list OP": lambda _: _list("softmax"),
    "list --all": lambda _: _list("--all"),
    "doctor": lambda _: _doctor(),
    "comparison": _compared(_plain),
    "comparison --all": _compared(_plain, "every"),
    "comparison --explain": _compared(_plain, "explain"),
    "comparison --details": _compared(_plain, "details"),
    "comparison without a GPU": _compared(lambda: replace(_plain(), environment=made_up.LAPTOP)),
    "comparison of failures": _compared(failures),
    "comparison --sweep": _compared(swept),
    "comparison --sweep shapes": _compared(swept, "shapes"),
    "comparison --ncu": _compared(counted, "details"),
    "comparison --ncu, the command": _command("softmax", "--ncu"),
    "comparison --tune --sustained": _compared(with_trials),
    "comparison --tune --sustained --details": _compared(with_trials, "details"),
    "comparison --crossover": lambda _: terminal.put(lambda width: crossings.render(crossover(), width)),
    "diff": lambda folder: cli.main(["diff", *_files(folder, 2), "--all"]),
    "diff, the changed": lambda folder: cli.main(["diff", *_files(folder, 2)]),
    "diff of three": lambda folder: cli.main(["diff", *_files(folder, 3), "--all"]),
    "map": lambda folder: cli.main(["map", "--records", _records(folder)]),
    "map OP": lambda folder: cli.main(["map", "softmax", "--records", _records(folder)]),
    "map --devices": lambda folder: cli.main(["map", "--devices", "--records", *_devices(folder)]),
    "map --all": lambda folder: cli.main(["map", "--all", "--records", _records(folder)]),
    "show": lambda folder: cli.main(["show", "softmax", "--records", _records(folder)]),
    "pipeline": _pipeline("summary"),
    "pipeline --all": _pipeline("overview"),
    "pipeline --caches": _pipeline("caches"),
    "pipeline --passes": _pipeline("passes"),
    "pipeline --pass": _pipeline("pass_name", "tritongpu-coalesce"),
    "pipeline --stage": _pipeline("stage", "source"),
    "pipeline --source-map": _pipeline("source_map"),
    "new-op": lambda folder: cli.main(["new-op", "screened", "--into", str(_emptied(folder / "new"))]),
    "aot": lambda _: terminal.put(lambda width: aot_table(programs(), width)),
    "lab list": _command("lab", "list"),
    "lab hint": _command("lab", "hint", "01", "1"),
    "lab start": lambda _: _lab("start"),
    "lab check": lambda _: _lab("check"),
    "lab report": lambda _: _lab("report"),
    "predict": _predict,
    "grade of one": lambda _: pages.put_marks([_LAB], [marks()], None),
    "grade of a class": lambda _: _class(),
}
