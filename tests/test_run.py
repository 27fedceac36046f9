"""A run: every implementation is a row, whatever it does, and an interruption keeps what was finished."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import case_sets
import made_up
from compare import registry
from compare import run as running
from compare.command_line import status
from compare.model.op import Case, Op, UsageError, case
from compare.model.result import Comparison, KernelResources, Options, Row
from compare.records import archive
from compare.registry import implementations
from compare.resources.static import CompileError, Refused
from compare.run.checking import SEEDS
from compare.run.compiling import Compilation
from compare.run.context import CaseResult, Context, Meter, RowState, silent
from compare.run.interrupts import saving
from compare.run.verdict import verdict
from compare.sandbox.isolation import Isolation
from compare.worker import user_files
from compare.worker.checking import Checking
from compare.worker.messages import Held
from compare.worker.pool import WorkerPool
from cuda_impl import build
from loaded_files import SMALL, own_registry, rows_of, written
from loops import for_each

OP = """
from dataclasses import replace

import torch

from compare import registry
from compare.registry import implementation, register_op
from compare.model.op import UsageError

register_op(replace(registry.get_op("vector_add"), name="adding"))


def adding(label, **more):
    return implementation("adding", label, level="tiled", **more)


def added(x, y):
    return torch.from_numpy(x.numpy() + y.numpy())


eager = implementation("adding", "torch.eager", level="vendor")(lambda x, y: x + y)
"""
"""vector_add under another name.  Its implementations run in processes of their own, so it is a file."""


@pytest.fixture
def write(tmp_path: Path, own_registry: None) -> Callable[[str], Op]:
    """Loads the op with these lines after it."""

    def load(more: str = "") -> Op:
        file = tmp_path / f"adding_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(OP + more)
        registry._implementations.pop("adding", None)
        registry._ops.pop("adding", None)
        registry.load(str(file))
        return registry.get_op("adding")

    return load


@pytest.fixture
def op(write: Callable[[str], Op]) -> Op:
    """With nothing but its baseline."""
    return write("")


def compared(
    op: Op,
    results: Path,
    *cases: Case,
    compiling: type[Compilation] = made_up.NoCompilation,
    **options: object,
) -> Comparison:
    asked = Options(cases=cases or (SMALL,), device="cpu", **options)  # type: ignore[arg-type]
    with (
        made_up.compiled_by(compiling),
        mock.patch("compare.checking.check._idling", return_value=None),  # they launch no kernel
    ):
        return running.run(op, asked, results=results)


def compare(*words: Any, **options: Any) -> dict[str, Row]:
    """The rows of `compared`."""
    return rows_of(compared(*words, **options))


LARGE = case("fp32", N=1 << 26)
"""Too large to be checked without a GPU."""


def test_what_one_case_is_refused_for_is_not_said_of_a_large_one(
    write: Callable[[str], Op], tmp_path: Path
) -> None:
    refusing = """
def refusing(sizes):
    def run(x, y):
        if x.numel() in sizes or x.dtype != torch.float32:
            raise NotImplementedError(f"N={x.numel()}")
        return added(x, y)

    return run

adding("cupy.picky")(refusing((7,)))
adding("cupy.never")(refusing(range(1 << 30)))
"""
    rows = compare(write(refusing), tmp_path, case("fp32", N=7), SMALL, LARGE)
    assert rows["cupy.picky"].status == "ok", rows["cupy.picky"].reason
    assert rows["cupy.never"].status == "unavailable"


RAISING = """
def raising(error):
    def run(x, y):
        if x.is_meta:  # its code is being counted, in this process
            raise NotImplementedError
        raise error

    return run


adding("triton.broken")(raising(RuntimeError("boom\\nat line 3")))
adding("triton.exits")(raising(SystemExit(4)))
adding("triton.stops")(raising(KeyboardInterrupt()))
adding("triton.short")(raising(NotImplementedError("rows of at most 8")))
adding("triton.unbuilt")(raising(UsageError("no g++: apt install g++")))
adding("triton.hungry")(raising(torch.OutOfMemoryError("CUDA out of memory")))
wrong = adding("triton.wrong")(lambda x, y: added(x, -y))
right = adding("triton.right")(lambda x, y: added(y, x))
"""


@pytest.mark.thorough
def test_one_that_raises_is_a_row_and_the_others_go_on(write: Callable[[str], Op], tmp_path: Path) -> None:
    rows = compare(write(RAISING), tmp_path)
    assert {label: row.status for label, row in rows.items()} == {
        "torch.eager": "ok",
        "triton.broken": "failed",
        "triton.exits": "failed",
        "triton.stops": "failed",
        "triton.short": "unavailable",
        "triton.unbuilt": "unavailable",
        "triton.hungry": "unavailable",
        "triton.wrong": "disagrees",
        "triton.right": "ok",
    }
    assert "RuntimeError: boom at line 3" in rows["triton.broken"].reason
    assert rows["triton.short"].reason == "rows of at most 8"
    assert "apt install g++" in rows["triton.unbuilt"].reason
    assert "smaller --case" in rows["triton.hungry"].reason
    assert all(row.reason for row in rows.values() if row.status != "ok")
    agreement = rows["triton.right"].agreement
    assert agreement.seeds == SEEDS


def test_what_an_allocator_says_of_a_limit_is_in_the_row() -> None:
    said = "CUDA out of memory. Tried to allocate 37.25 GiB. 78.50 GiB is free. 9.90 GiB allowed; Of it ..."
    status, reason = verdict(MemoryError(said))
    assert status == "unavailable"
    assert "(tried to allocate 37.25 GiB, 9.90 GiB allowed)" in reason


def test_workers_that_are_given_stay(op: Op, tmp_path: Path) -> None:
    asked = Options(cases=(SMALL,), device="cpu", resources=False)
    (impl,) = implementations(op.name)
    with WorkerPool(op, torch.device("cpu"), asked.timeout_s) as pool:
        workers = []
        for _ in range(2):
            running.run(op, asked, results=tmp_path, pool=pool)
            workers.append(pool.of(impl))
        assert workers[0] is workers[1]
        assert workers[0].alive
    assert not workers[0].alive


def test_a_requirement_that_is_not_met_is_a_reason(write: Callable[[str], Op], tmp_path: Path) -> None:
    op = write(
        'adding("cupy.hopper", requires="sm_90")(added)\nadding("triton.gluon", without_gpu=False)(added)'
    )
    rows = compare(op, tmp_path)
    for label, reason in (("cupy.hopper", "sm_90"), ("triton.gluon", "needs a GPU")):
        assert rows[label].status == "unavailable"
        assert reason in rows[label].reason


@pytest.mark.thorough
def test_what_compiles_for_no_architecture_is_no_row_to_trust(
    write: Callable[[str], Op], tmp_path: Path
) -> None:
    """Of others it is a remark, and what a CPU cannot run is not spared."""
    op = write(
        """
for label in ("cupy.fine", "cupy.refused", "cupy.half", "cupy.slow"):
    adding(label)(added)
adding("cupy.hopper", requires="sm_90")(added)
"""
    )
    refused, late = Refused("mine: NVRTC failed: no such file"), CompileError("it took longer than 5 s")
    found: dict[str, tuple[object, object]] = {
        "cupy.refused": (refused, refused),
        "cupy.half": (refused, ()),
        "cupy.slow": (refused, late),
        "cupy.hopper": ((), refused),
    }

    class Refusing(made_up.NoCompilation):
        def results(self, progress: object = None) -> list[Any]:
            return [found.get(r.impl.label, ((), ()))[r.arch == "sm_90"] for r in self.requests]

    comparison = compared(op, tmp_path, compiling=Refusing, archs=("sm_75", "sm_90"))
    rows = rows_of(comparison)
    said = "mine: NVRTC failed: no such file (python -m compare pipeline shows all that its compiler says)"
    assert {label: (row.status, row.reason) for label, row in rows.items()} == {
        "torch.eager": ("ok", ""),
        "cupy.fine": ("ok", ""),
        "cupy.refused": ("failed", f"does not compile for sm_75, sm_90: {said}"),
        "cupy.half": ("ok", f"does not compile for sm_75: {said}"),
        "cupy.slow": ("ok", f"does not compile for sm_75: {said}"),
        "cupy.hopper": ("failed", f"does not compile for sm_90: {said}"),
    }
    assert status.of(comparison) == status.FAILURE


def test_what_one_architecture_is_refused_for_is_not_said_of_the_others(
    write: Callable[[str], Op], tmp_path: Path
) -> None:
    op = write(
        """
def of_floats(x, y):
    if x.dtype != torch.float32:
        raise NotImplementedError("floats only")
    return added(x, y)

adding("cupy.picky")(of_floats)
adding("cupy.never")(of_floats)
"""
    )

    class Lacking(made_up.NoCompilation):
        def results(self, progress: object = None) -> list[Any]:
            lacking = NotImplementedError("more than it has")
            never = [r.impl.label == "cupy.never" or r.arch == "sm_75" for r in self.requests]
            return [lacking if no else (made_up.kernel("cupy.a"),) for no in never]

    rows = compare(op, tmp_path, SMALL, LARGE, compiling=Lacking, archs=("sm_75", "sm_90"))
    assert rows["cupy.picky"].status == "ok", rows["cupy.picky"].reason
    assert rows["cupy.picky"].reason == "resources unread for sm_75: more than it has"
    assert len(rows["cupy.picky"].resources) == 1
    assert (rows["cupy.never"].status, rows["cupy.never"].reason) == ("unavailable", "more than it has")


def test_an_interruption_keeps_the_finished_rows(
    write: Callable[[str], Op], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches the process that judges, while a worker is at work."""
    monkeypatch.setattr("compare.worker.checking.cores", lambda: 1)
    op = write("".join(f'adding("triton.{name}")(added)\n' for name in ("first", "second", "third")))

    def interrupted(what: str, done: float) -> None:
        if "triton.second" in what:
            raise KeyboardInterrupt

    comparison = running.run(op, Options(cases=(SMALL,), device="cpu"), interrupted, results=tmp_path)
    assert comparison.interrupted
    assert [row.label for row in comparison.cases[0].rows] == ["torch.eager", "triton.first"]


def test_ctrl_c_after_the_last_case_waits_until_the_results_are_saved(op: Op, tmp_path: Path) -> None:
    def interrupted(what: str, done: float) -> None:
        if what == "counting lines of code":
            signal.raise_signal(signal.SIGINT)

    saved: list[str] = []

    def save() -> None:
        with saving():
            comparison = running.run(op, Options(cases=(SMALL,), device="cpu"), interrupted, results=tmp_path)
            assert not comparison.interrupted
            saved.extend(row.status for row in comparison.cases[0].rows)

    with pytest.raises(KeyboardInterrupt):
        save()
    assert saved == ["ok"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_cpu_checks_as_many_rows_at_once_as_it_has_cores(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compare.worker.checking.cores", lambda: 2)
    checking = Checking(op, SMALL, torch.device("cpu"), mock.MagicMock(), {})
    assert [checking.width(count) for count in (0, 1, 17)] == [1, 1, 2]


def test_a_file_that_looks_up_an_op_does_not_define_it(write: Callable[[str], Op]) -> None:
    registry._ops.pop("vector_add", None)
    write("")
    assert "vector_add" in registry._ops
    registry._ops.pop("adding")
    assert registry.op_files() == []


def test_the_baseline_comes_along(write: Callable[[str], Op], tmp_path: Path) -> None:
    op = write('adding("triton.a")(added)\nadding("triton.b")(added)\n')
    assert list(compare(op, tmp_path, only=("*.b",))) == ["torch.eager", "triton.b"]


def test_one_seed_is_the_one_asked_for_and_others_nobody_knows(
    write: Callable[[str], Op], tmp_path: Path
) -> None:
    op = write(
        """
def keep(x, y):
    print("sum", x.numpy().sum(dtype="float64"), file=open(__file__ + ".seen", "a"))
    return added(x, y)


adding("triton.keep")(keep)
"""
    )
    file = Path(registry.op_files()[0] + ".seen")

    def sums(seed: int) -> list[str]:
        file.unlink(missing_ok=True)
        assert compare(op, tmp_path, seed=seed)["triton.keep"].status == "ok"
        return file.read_text().splitlines()

    once, again, other = sums(0), sums(0), sums(100)
    assert len(once) == SEEDS + 1
    assert len(set(once)) == SEEDS
    assert once[0] == once[-1] == again[0] != other[0]  # the last call has the inputs of the first
    assert set(once[1:-1]).isdisjoint(again)


def test_the_baseline_sets_the_tolerance_once_a_seed(write: Callable[[str], Op], tmp_path: Path) -> None:
    op = write(
        """
def counted(x, y):
    print("called", file=open(__file__ + ".calls", "a"))
    return x + y


registry._implementations["adding"].clear()
implementation("adding", "torch.eager", level="vendor")(counted)
adding("triton.a")(added)
adding("triton.b")(added)
adding("triton.c")(added)
"""
    )
    rows = compare(op, tmp_path)
    limits = {row.agreement.limit for row in rows.values() if row.agreement}
    assert len(rows) == 4
    assert len(limits) == 1
    calls = Path(registry.op_files()[0] + ".calls").read_text().splitlines()
    assert len(calls) == 2 * SEEDS + 1  # for the tolerance, to be checked itself, and again on equal inputs


def test_a_case_beyond_the_memory_is_refused(op: Op, tmp_path: Path) -> None:
    with (
        mock.patch.object(Op, "interpretable", return_value=True),
        pytest.raises(UsageError, match="Give a smaller --case"),
    ):
        compare(op, tmp_path, case("fp32", N=2**50))


def test_progress_only_rises_and_ends_near_one(op: Op, tmp_path: Path) -> None:
    shares: list[float] = []
    running.run(
        op, Options(cases=(SMALL,), device="cpu"), lambda what, done: shares.append(done), results=tmp_path
    )
    assert shares == sorted(shares)
    assert 0.5 <= shares[-1] <= 1.0


@pytest.mark.thorough
def test_torch_compile_is_left_out_on_a_cpu_unless_asked_for(
    write: Callable[[str], Op], tmp_path: Path
) -> None:
    op = write('same = adding("torch.compile")(lambda x, y: x + y)')

    def status(options: Options) -> str:
        with made_up.compiled_by(made_up.NoCompilation):
            first = running.run(op, options, results=tmp_path).cases[0]
        return next(row.status for row in first.rows if row.label == "torch.compile")

    assert status(Options(cases=(), device="cpu")) == "unavailable"
    assert status(Options(cases=(), device="cpu", only=("torch.*",))) == "ok"
    assert status(Options(cases=(SMALL,), device="cpu")) == "ok"


@pytest.mark.thorough
def test_torch_compile_runs_on_a_cpu_with_any_build_of_pytorch(tmp_path: Path) -> None:
    """Inductor asks the recorded GPU for more where PyTorch is built without CUDA."""
    op = registry.get_op("vector_add")
    case = Case.parse("N=64,fp32", op)
    options = Options(cases=(case,), device="cpu", only=("torch.compile",), resources=False)
    rows = running.run(op, options, results=tmp_path).cases[0].rows
    assert {row.label: row.status for row in rows} == {"torch.eager": "ok", "torch.compile": "ok"}


# --------------------------------------------------------------------------- built in the background


class Builds:
    """In place of `cuda_impl.ahead.Building`."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.stopped = 0

    def wait(self) -> float:
        if self.error is not None:
            raise self.error
        return 2.5

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    """A module that the implementations ``built`` and ``too`` wait for."""
    made = Builds()
    pool = "compare.worker.pool"
    monkeypatch.setattr(f"{pool}.building", lambda impls, device, dtypes: {("adding", "here"): made})
    monkeypatch.setattr(f"{pool}.target_of", lambda device, dtype: "here")
    monkeypatch.setattr(
        f"{pool}.module_of", lambda impl, device: "adding" if impl.variant in ("built", "too") else ""
    )
    return made


def test_a_build_that_fails_is_the_reason_of_every_row_that_needs_it(
    write: Callable[[str], Op], tmp_path: Path, builds: Builds
) -> None:
    builds.error = build.refusal("adding.cu", "nvcc", "In a file:\nadding.cuh(7): error: no such luck")
    rows = compare(write('adding("cupy.built")(added)\nadding("cupy.too")(added)\n'), tmp_path)
    assert rows["torch.eager"].status == "ok"
    for label in ("cupy.built", "cupy.too"):
        assert rows[label].status == "failed"
        assert "adding.cu: nvcc failed: adding.cuh(7): no such luck (COMPARE_TRACEBACK" in rows[label].reason
    assert builds.stopped == 1


def test_what_a_static_assertion_refuses_is_not_there(
    write: Callable[[str], Op], tmp_path: Path, builds: Builds
) -> None:
    """It is how a kernel says at compile time what it does not take."""
    builds.error = build.refusal(
        "adding.cu", "nvcc", 'a.cuh(7): error: static assertion failed with "too wide"'
    )
    row = compare(write('adding("cupy.built")(added)\n'), tmp_path)["cupy.built"]
    assert row.status == "unavailable"
    assert row.reason == 'adding.cu: nvcc failed: a.cuh(7): static assertion failed with "too wide"'


def test_a_build_in_the_background_counts_in_every_first_call_that_needs_it(
    write: Callable[[str], Op], monkeypatch: pytest.MonkeyPatch, builds: Builds
) -> None:
    """Each is the first of its process."""
    op = write("".join(f"adding('{label}')(added)\n" for label in ("triton.a", "cupy.built", "cupy.too")))
    device, impls = torch.device("cuda"), implementations("adding")
    worker = mock.Mock(ask=mock.Mock(return_value=Held(0, 0)))
    for name in ("expected_outputs", "CaseBuffers", "check"):
        monkeypatch.setattr(f"compare.worker.checking.{name}", mock.MagicMock())
    monkeypatch.setattr(Checking, "width", lambda self, count: 1)
    monkeypatch.setattr(Checking, "allowance", lambda self: 1)
    monkeypatch.setattr(Checking, "_probe", lambda self, stage: self._probes.set_result(None))
    monkeypatch.setattr(Checking, "_first_call", lambda *_: (1.5, ()))
    pool = WorkerPool(op, device, 1.0)
    pool.build(impls, [SMALL.dtype])
    monkeypatch.setattr(pool, "of", lambda impl: worker)
    pool.contexts_s.update({impl.label: 0.1 for impl in impls})
    checking = Checking(op, SMALL, device, pool, {impl.label: (0,) for impl in impls})
    first = {impl.label: outcome.first_call_ms for impl, outcome in checking.run(impls, lambda impl: None)}
    assert first == {"torch.eager": 1.5, "triton.a": 1.5, "cupy.built": 2501.5, "cupy.too": 2501.5}


def test_compilers_are_done_before_anything_is_timed(
    op: Op, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Noting(made_up.NoCompilation):
        def results(self, progress: object = None) -> list[tuple[KernelResources, ...]]:
            done.append("compiled")
            return super().results(progress)

    (impl,) = impls = tuple(implementations("adding"))
    step, options = running.Step(SMALL, True, True), Options(cases=(SMALL,), archs=("sm_90",))
    meter, hashes = Meter(silent, 1.0), {impl.label: ""}
    device = torch.device("cuda")
    context = Context(op, impls, (step,), options, device, mock.Mock(), meter, hashes)
    found = CaseResult(SMALL, {impl.label: RowState(impl, context.row(impl), 1.0)})
    ceilings = mock.Mock(on=mock.Mock(side_effect=lambda *_: done.append("a copy") or mock.Mock()))
    monkeypatch.setattr("compare.run.expected_outputs", mock.Mock())
    monkeypatch.setattr("compare.run.CaseBuffers", mock.MagicMock())
    monkeypatch.setattr("compare.run.profile_case", lambda *_, **__: done.append("profiled") or [])
    monkeypatch.setattr("compare.run.timing.CeilingMeter", ceilings)
    monkeypatch.setattr("compare.run.timing.CudaStopwatch", mock.Mock())
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: mock.Mock(total_memory=1))
    monkeypatch.setattr("compare.run.timing.measure", lambda *_, **__: done.append("timed") or {})
    running._measure(context, step, Noting([]), found)
    assert done == ["compiled", "a copy", "timed", "profiled"]


# --------------------------------------------------------------------------- plan and replay


every_op = for_each("op", map(registry.get_op, registry.op_names()), ids=lambda op: op.name)


@every_op
def test_without_a_gpu_smoke_cases_are_checked_and_the_default_is_looked_at(op: Op) -> None:
    steps = running.plan(op, Options(cases=()), "cpu")
    assert [step.case for step in steps if step.check] == list(op.cases.smoke)
    assert [step.case for step in steps if step.inspect] == [op.cases.default]


@every_op
def test_a_sweep_checks_all_on_a_gpu_and_without_one_smoke_cases_and_replays_the_rest(op: Op) -> None:
    for listed in (op.cases.sweep, op.cases.shapes):
        swept = tuple(dict.fromkeys((op.cases.default, *(listed or op.cases.sweep))))
        steps = running.plan(op, Options(cases=swept), "cuda")
        assert all(step.check for step in steps)
        assert [step.case for step in steps if step.inspect] == [op.cases.default]
        steps = running.plan(op, Options(cases=swept), "cpu")
        assert {step.case for step in steps if step.check} == set(op.cases.smoke)
        assert [step.case for step in steps if step.case in swept] == list(swept)


def test_a_small_case_is_checked_where_it_is_a_large_one_is_not() -> None:
    op = registry.get_op("vector_add")
    large = op.cases.default
    assert running.plan(op, Options(cases=(SMALL,)), "cpu") == [running.Step(SMALL, True, True)]
    steps = running.plan(op, Options(cases=(SMALL, large)), "cpu")
    assert {step.case: step.check for step in steps if step.inspect} == {SMALL: True, large: False}
    assert set(op.cases.smoke) <= {step.case for step in steps if step.check}


def test_the_first_of_many_cases_is_inspected_where_a_user_s_file_is(tmp_path: Path) -> None:
    """A CPU may run what no compiler takes."""
    op = registry.get_op("vector_add")
    cases = tuple(case("fp32", N=n) for n in (16, 1, 77, 99))
    assert not any(step.inspect for step in running.plan(op, Options(cases=cases), "cpu"))
    with own_registry():
        user_files.load([written(tmp_path / "mine.py", "")], "vector_add")
        steps = running.plan(op, Options(cases=cases), "cpu")
        assert [step.case for step in steps if step.inspect] == [cases[0]]


def test_a_small_case_named_beside_a_sweep_is_checked_and_so_is_one_of_it_by_itself() -> None:
    op, other = registry.get_op("vector_add"), case("fp32", N=77)
    steps = running.plan(op, Options(cases=(op.cases.default, other, *op.cases.sweep)), "cpu")
    assert {step.case for step in steps if step.check} == {other, *op.cases.smoke}
    small = min(op.cases.sweep, key=lambda case: op.cost(case).bytes)
    assert running.plan(op, Options(cases=(small,)), "cpu") == [running.Step(small, True, True)]


def test_recorded_times_are_replayed_with_their_label(write: Callable[[str], Op], tmp_path: Path) -> None:
    op = write(
        'adding("triton.same")(added)\nadding("triton.changed")(added)\n'
        'wrong = adding("triton.wrong")(lambda x, y: added(x, -y))\n'
    )
    fresh = compare(op, tmp_path)
    recorded = [made_up.rows({label: ("tiled", 50.0)})[0] for label in fresh]
    hashes = {label: row.source_hash for label, row in fresh.items()} | {"triton.changed": "another"}
    recorded = [replace(row, source_hash=hashes[row.label]) for row in recorded]
    entry = made_up.case(str(SMALL), tuple(recorded))
    archive.record(replace(made_up.comparison(entry), op="adding"), tmp_path)

    rows = compare(op, tmp_path)
    assert rows["triton.same"].timing is not None
    assert str(rows["triton.same"].recorded) == "NVIDIA H100 80GB HBM3, 2026-11-21"
    assert archive.changed_since(rows["triton.changed"])
    # What is wrong here shows no speed, wherever it may have been right.
    assert rows["triton.wrong"].status == "disagrees", rows["triton.wrong"].reason
    assert rows["triton.wrong"].timing is None


def test_all_cases_of_a_run_have_the_times_of_one_device(op: Op, tmp_path: Path) -> None:
    other, rows = case("fp32", N=77), made_up.rows({"torch.eager": ("vendor", 50.0)})
    for device, year, each in (("NVIDIA L4", 2026, SMALL), ("NVIDIA T4", 2025, other)):
        there = replace(made_up.H100, device=device)
        run = made_up.comparison(made_up.case(str(each), rows), environment=there, op="adding")
        archive.record(replace(run, created=f"{year}-12-01T00:00:00+00:00"), tmp_path)
    for asked, timed in ((SMALL, other), [True, False]), ((other,), [True]):
        cases = {each.case: each.rows for each in compared(op, tmp_path, *asked).cases}
        assert [cases[str(each)][0].timing is not None for each in asked] == timed


@pytest.mark.alone
@pytest.mark.parametrize("name", case_sets.every(7))
def test_every_implementation_is_a_row_on_this_machine(name: str, device: torch.device) -> None:
    """The real thing, without compiling for other architectures: no row is missing, none disagrees.

    On a CPU without torch.compile, which takes many seconds there and is left out unless asked for.
    """
    op = registry.get_op(name)
    smallest = min(op.cases.smoke, key=lambda c: op.cost(c).bytes)
    labels = {impl.label for impl in implementations(name)}
    if device.type == "cpu":
        labels -= {"torch.compile"}
    options = Options(cases=(smallest,), device=device.type, budget_s=1.0, only=tuple(labels))
    with made_up.compiled_by(made_up.NoCompilation):
        comparison = running.run(op, options)
    rows = comparison.cases[0].rows
    assert {row.label for row in rows} == labels
    assert {row.status for row in rows} <= {"ok", "unavailable"}, [row.reason for row in rows]
    assert comparison.code_sizes.keys() == {row.label for row in rows}
    assert all(row.source_hash for row in rows)


@pytest.fixture(autouse=True)
def _files_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of these tests write down their calls; tests/test_sandbox.py isolates others."""
    monkeypatch.setattr("compare.sandbox.isolation.found", Isolation)
