"""The same GPU operation in PyTorch, Triton and CUDA C++: correctness, speed, registers and
shared memory, and code size of each.

examples:
  python -m compare softmax
  python -m compare softmax --case M=4096,N=781,fp16 --only 'triton.*'
  python -m compare softmax --load examples/my_softmax.py
  python -m compare all --sweep --record
  python -m compare all --sweep --record --cluster local
  python -m compare softmax --crossover N
  python -m compare matmul --matched
  python -m compare vector_add --tune BLOCK_SIZE
  python -m compare diff old.json new.json
  python -m compare pipeline vector_add --arch sm_90
  python -m compare aot vector_add --arch sm_90 --out programs/
  python -m compare map
  python -m compare show softmax
  python -m compare new-op squared
  python -m compare predict softmax
  python -m compare lab start 01 my_lab/
  python -m compare grade my_lab/
  python -m compare serve

exit status of a comparison (of a command: COMMAND --help):
  0  every implementation that this machine can run is correct: it matches fp64 within tolerance
  1  at least one is wrong, raised an error, does not compile, or beats the lower bound on its time
  2  a mistake in the command, its files or the machine's setup, or a file could not be written
  3  inconclusive: interrupted, none ran, one of --load never ran, or a task of --cluster was given up
  141  the reader of the output has closed the pipe, as 'head' does

COMPARE_TRACEBACK=1 shows where an error was raised.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare import registry
from compare.cluster import packages
from compare.command_line import options, outputs, status
from compare.model.op import Case, Op, UsageError
from compare.model.result import Comparison, KernelCounters, Options
from compare.report.steps import Log, starting, steps
from compare.tuning import sweep

if TYPE_CHECKING:
    import torch

    from compare.report.trace import Timeline

BUDGET_S = 3.0
SWEEP_BUDGET_S = 2.0
TRIAL_S = 0.3
"""Added for each row of ``--tune``."""
RECORD_SAMPLES = (30, 5)
"""Samples of each row of a record, at least: of one that takes at most 10 ms, and of a slower one."""

_START_S = 4.0
"""To start workers and to compile, for each op, on two cores with what earlier runs have compiled."""
_CHECK_S = 0.25
"""To check an implementation on a smoke case, likewise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="OP|all|COMMAND",
        help="the op to compare, or all of them; or a command: all ops (list), what this machine can run "
        "(doctor), what changed between two files (diff), an op through its compilers stage by stage "
        "(pipeline), its kernels as programs without Python (aot), the "
        "fastest way over all records (map), all that is on record of an op (show), the files of a new op "
        "(new-op), predictions before measurements (predict), labs of a course (lab) and their marks "
        "(grade), or a page to edit and run kernels in (serve). COMMAND --help shows its options",
    )
    add: Any = parser.add_argument_group("cases and implementations").add_argument
    options.add_repeatable(add, "--case", "CASE", "sizes and dtype, e.g. M=4096,N=781,fp16")
    swept = (
        "every size in the op's list, or in its list of shapes: those of use, a line each (without a GPU: "
    )
    swept += "as recorded)"
    add("--sweep", nargs="?", const="sweep", choices=("sweep", "shapes"), metavar="shapes", help=swept)
    add("--crossover", metavar="DIM", help="find the size of DIM at which the fastest way changes")
    options.add_only(add, ", e.g. 'triton.*', and the baseline")
    options.add_load(add)
    own = "refuse --load files that use the project's kernels; hide these and others' files in DIR from them"
    add("--own-code", type=Path, metavar="DIR", help=own)
    _add_how(parser.add_argument_group("how").add_argument)
    add = parser.add_argument_group("screen").add_argument
    add("--all", action="store_true", dest="every", help="every row and case, not only the best of each way")
    add("--explain", action="store_true", help="each column's meaning and how it was measured")
    add("--details", action="store_true", help="further tables: errors, times, resources, code size")
    add = parser.add_argument_group("files").add_argument
    options.add_tables(add, "all results, raw samples included", "implementation and case")
    options.add_page(add)
    options.add_junit(add)
    ncu = "print the command that profiles a row with Nsight Compute; or read the FILE that it has written"
    add("--ncu", action="append", nargs="?", type=Path, const=None, metavar="FILE", help=ncu)
    add("--record", action="store_true", help="add the run to results/ (needs a GPU)")
    add("--results", type=Path, metavar="DIR", help="with --record: write there, and not to results/")
    add("--resume", action="store_true", help="with --cluster: leave out what a stopped sweep has recorded")
    trace = (
        "what the run did when, each worker and step: a Chrome trace for ui.perfetto.dev or speedscope.app"
    )
    options.add_file(add, "trace", trace)
    options.add_verbose(add)


def _add_how(add: Any) -> None:
    options.add_device(add)
    options.add_arch(add, "compile")
    seed = "seed of the random inputs and of the order of timing (default: 0)"
    add("--seed", type=int, default=0, help=seed)
    budget = "time limit of the timing, for all cases of an op together "
    budget += f"(default: {BUDGET_S:.0f} a case, in a sweep {SWEEP_BUDGET_S:.0f})"
    add("--budget", type=float, metavar="SECONDS", help=budget)
    add(
        "--matched",
        action="store_true",
        help="also run CUDA with the tile, warps and stages that Triton chose: separates the compiler's "
        "share of a speedup from the tuning's",
    )
    add(
        "--tune",
        action="append",
        default=[],
        metavar="NAME[=VALUES]",
        help="also run implementations with other values of their parameter NAME, e.g. BLOCK_SIZE or "
        "BLOCK_SIZE=64,128,256; repeatable: every combination",
    )
    add("--retune", action="store_true", help="autotune again, not with configurations of earlier runs")
    add(
        "--no-hard-inputs",
        dest="hard_inputs",
        action="store_false",
        help="check --load files on these cases only, not on the op's small hard ones as well",
    )
    quick = "read no registers or shared memory: a run that only checks compiles nothing for a GPU"
    add("--no-resources", dest="resources", action="store_false", help=quick)
    sanitize = (
        "also run --load files, or what --only names, under compute-sanitizer: memory accesses, races, "
    )
    add("--sanitize", action="store_true", help=f"{sanitize}barriers, unwritten memory (needs a GPU)")
    add("--sustained", action="store_true", help="also time bursts and sustained load (needs a GPU)")
    options.add_timeout(add)
    options.add_cluster(add, "compare on many GPUs, an op on each")


def run(arguments: argparse.Namespace) -> int:
    """Compare the ops of ``arguments``; the exit status."""
    _check(arguments)
    if arguments.cluster in (None, "local"):
        from compare.worker import server

        _check_gpu(arguments, not server.likely_cpu(arguments.device))  # before it takes seconds to know
    names = registry.op_names() if arguments.what == "all" else [arguments.what]
    if arguments.cluster:
        return _on_cluster(arguments, names)
    with steps(arguments.verbose) as verbose, _traced(arguments.trace) as trace, _early(arguments):
        log = Log(verbose, trace)
        log("importing PyTorch")
        from compare.worker.start import prepare

        # Workers are forks of what this starts: those of a lab's hand-in know no kernel of the project.
        with starting(f"{arguments.what}: loading PyTorch", verbose):
            device = prepare(arguments.device, () if arguments.own_code else names)
        _check_gpu(arguments, device.type == "cuda")
        if None in (arguments.ncu or ()):
            return _print_ncu(_work(arguments, device, log))
        work = search_crossover if arguments.crossover else compare_ops
        return work(arguments, device, log)


def _on_cluster(arguments: argparse.Namespace, names: Sequence[str]) -> int:
    """`run` by the workers of a cluster; a mistake in cases or patterns is found before it is started."""
    with packages():
        from compare.cluster import command

    if arguments.only or arguments.case:
        one = None if arguments.what == "all" else arguments.what
        selected = options.select(options.load([], one), arguments.only)
        names = [op.name for op in selected]
        for op in selected:
            run_options(op, arguments)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return command.run(arguments, parser, names)


def _check_gpu(arguments: argparse.Namespace, has_gpu: bool) -> None:
    """A `UsageError` for options of timing where nothing is timed."""
    mistakes = {
        "--record needs a GPU: without one nothing is timed, so there is nothing to record": arguments.record,
        "--sustained needs a GPU: without one nothing is timed": arguments.sustained,
    }
    for text, mistaken in mistakes.items():
        if mistaken and not has_gpu:
            raise UsageError(text)


@contextmanager
def _traced(file: Path | None) -> Iterator[Timeline | None]:
    """The trace of a whole command if there is a file for it; it is written however the command ends."""
    if file is None:
        yield None
        return
    from compare.report.trace import Timeline

    trace = Timeline()
    try:
        yield trace
    finally:
        outputs.write(file, trace.dumps())


def _early(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """The build of the op's C++ module, where a CPU will need it; PyTorch is imported meanwhile."""
    from compare.worker.server import likely_cpu
    from cuda_impl.ahead import begun_early

    known = arguments.what in registry.op_names() and not (arguments.only or arguments.own_code)
    return begun_early(arguments.what) if known and likely_cpu(arguments.device) else nullcontext()


def _check(arguments: argparse.Namespace) -> None:
    """A `UsageError` for mistakes that can be found without PyTorch."""
    every = arguments.what == "all"
    # A file of the user's may define the op; then it is looked for when that is loaded.
    if not every and not arguments.load and arguments.what not in registry.op_names():
        known = [*registry.op_names(), "all", *options.COMMANDS]
        raise UsageError(registry.unknown("op", arguments.what, known))
    beside_crossover = {
        "all": every,
        "--sweep": arguments.sweep,
        "--record": arguments.record,
        "a second --case": len(arguments.case) > 1,
        "--tune": arguments.tune,
        "--matched": arguments.matched,
        "--sanitize": arguments.sanitize,
    }
    for option, given in beside_crossover.items():
        if arguments.crossover and given:
            raise UsageError(f"--crossover goes with one op and one case; leave out {option}")
    seed, budget_s = arguments.seed, arguments.budget
    mistakes = {
        "--case belongs to one op; name it instead of 'all'": every and arguments.case,
        "--tune goes with one op, as parameters differ by op; name it instead of 'all'": (
            every and arguments.tune
        ),
        "--tune and --matched both say what rows are run with; give one of them": (
            arguments.tune and arguments.matched
        ),
        "--resume goes with --cluster and --record": (
            arguments.resume and not (arguments.cluster and arguments.record)
        ),
        "--results goes with --record": arguments.results and not arguments.record,
        "--own-code goes with --load": arguments.own_code and not arguments.load,
        f"--budget {budget_s}: give a number of seconds above 0": (
            budget_s is not None and not 0 < budget_s < float("inf")
        ),
        f"--seed {seed}: give a number of at most 63 bits": not -(1 << 63) <= seed < 1 << 63,
    }
    for text, mistaken in mistakes.items():
        if mistaken:
            raise UsageError(text)
    options.check_folders([arguments.own_code] if arguments.own_code else [])
    sweep.parse(arguments.tune)
    options.archs(arguments.arch)
    options.check_timeout(arguments.timeout)


def run_options(op: Op, arguments: argparse.Namespace) -> Options:
    """How ``op`` is to be compared.

    Raises:
        UsageError: a case is not of this op, or it has no inputs for one.
    """
    from compare.run import tuned

    cases = [Case.parse(text, op) for text in arguments.case]
    if arguments.sweep:
        listed = getattr(op.cases, arguments.sweep)
        if not listed:
            raise UsageError(f"--sweep shapes: {op.name} lists none. Give --sweep, or --case with your sizes")
        cases = [op.cases.default, *cases, *listed]
    cases = list(dict.fromkeys(cases))
    _check_sizes(op, cases or [op.cases.default])
    number = max(1, len(cases))
    how = Options(
        cases=tuple(cases),
        only=tuple(arguments.only),
        archs=options.archs(arguments.arch),
        device=arguments.device,
        seed=arguments.seed,
        budget_s=arguments.budget or number * (SWEEP_BUDGET_S if arguments.sweep else BUDGET_S),
        resources=arguments.resources,
        hard_inputs=arguments.hard_inputs,
        sanitize=arguments.sanitize,
        sustained=arguments.sustained,
        timeout_s=arguments.timeout,
        matched=arguments.matched,
        tune=sweep.parse(arguments.tune),
        retune=arguments.retune,
        samples=RECORD_SAMPLES if arguments.record else Options.samples,
        shorten=True,
    )
    added = tuned(op, how)
    if added is None or arguments.budget is not None:
        return how
    return replace(how, budget_s=how.budget_s + TRIAL_S * added.count * number)


def _check_sizes(op: Op, cases: Sequence[Case]) -> None:
    """Have the op refuse sizes that it has no inputs for before any op runs."""
    from compare.capture import meta_inputs

    for case in cases:
        try:
            meta_inputs(op, case)
        except UsageError:
            raise
        except Exception:  # of a user's op: shown where its inputs are made
            return


def compare_ops(arguments: argparse.Namespace, device: torch.device, log: Log) -> int:
    """Compare one op after another: show, record and write what is finished; the exit status."""
    from compare import device as machine
    from compare import run as driver
    from compare.records import gpu_lock
    from compare.report import terminal
    from compare.report.progress import of_run
    from compare.report.summary import View
    from compare.resources import ncu
    from compare.run.interrupts import saving

    renderers = outputs.renderers(arguments)
    counters = {file.stem: ncu.read(file) for file in arguments.ncu or ()}
    work = _work(arguments, device, log)
    _check_counted(counters, work)
    lock = machine.uuid(device)
    done: list[Comparison] = []
    statuses: list[int] = []
    failures: list[str] = []
    try:
        for op, how in work:
            with saving():
                with gpu_lock.held(lock, outputs.say), of_run(op.name, log.steps, log.begun_s) as progress:
                    comparison = driver.run(op, how, log.beside(op.name, progress))
                comparison = _with_counters(comparison, counters)
                log("printing")
                done.append(comparison)
                if arguments.record:  # a failure is reported at the end: the next op is compared all the same
                    failures += outputs.failures([partial(_record, comparison, arguments.results)])
                if len(done) > 1:
                    print("\n")
                yours = frozenset(impl.label for impl in registry.implementations(op.name) if impl.user_file)
                statuses.append(status.of(comparison, yours))
                shapes = arguments.sweep == "shapes"
                view = View(
                    arguments.every, arguments.explain, arguments.details, bool(arguments.html), yours, shapes
                )
                terminal.show(comparison, view)
                sys.stdout.flush()
                if comparison.interrupted:
                    break
    except KeyboardInterrupt:
        if not done:
            raise
        if len(done) < len(work):
            statuses.append(status.INCONCLUSIVE)
    finally:
        if done:
            log("writing files")
            failures += outputs.failures(outputs.writes(arguments, done, **renderers))
    if failures:
        raise UsageError("; ".join(failures))
    return status.worst(statuses)


def _work(arguments: argparse.Namespace, device: torch.device, log: Log) -> list[tuple[Op, Options]]:
    """The ops and how each is to be compared: a mistake in any of them is found before the first is run."""
    log("importing the implementations")
    one = None if arguments.what == "all" else arguments.what
    with starting(
        f"{arguments.what}: loading its implementations in PyTorch, Triton and CUDA C++", log.steps
    ):
        files = options.load(arguments.load, one, others=arguments.own_code)
    selected = options.select(files, arguments.only)
    if arguments.matched:
        _check_matched(selected, arguments.only)
    work = [(op, run_options(op, arguments)) for op in selected]
    if device.type != "cuda" and (arguments.sweep or len(work) > 1):
        print(_estimate(work, device), file=sys.stderr, flush=True)
    if device.type != "cuda" and not arguments.sweep:
        for op, how in work:
            _say_shortened(op, how)
    return work


def _say_shortened(op: Op, how: Options) -> None:
    """Say which cases are checked on fewer rows, as a CPU takes minutes for all."""
    from compare.run import shorter

    for case, short in shorter(op, how, how.cases).items():
        outputs.say(f"{case} takes minutes on a CPU: {short} is checked in its place")


def _check_matched(selected: Sequence[Op], only: Sequence[str]) -> None:
    """A `UsageError` if ``--matched`` adds no row."""
    from compare.tuning.matching import stand_ins

    if any(impl.base for op in selected for impl in stand_ins(registry.implementations(op.name, only))):
        return
    every = [impl for name in registry.op_names() for impl in registry.implementations(name)]
    pairs = [f"{impl.op}'s {impl.label} that of {impl.matches}" for impl in every if impl.matches]
    raise UsageError(
        "--matched: none of these implementations can run with the configuration of another. Those that can: "
        f"{', '.join(pairs)}; both have to be among the rows (--only)"
    )


def _print_ncu(work: Sequence[tuple[Op, Options]]) -> int:
    """Print what to type to profile a row of each op, the fastest on record but of PyTorch; the status."""
    from compare.records import archive
    from compare.timing import figures
    from compare.worker import profiled

    for op, how in work:
        case = (*how.cases, op.cases.default)[0]
        on_record = archive.find(op.name, str(case))
        impls = registry.implementations(op.name, how.only)
        own = [impl for impl in impls if impl.way != "torch"] or impls
        rows = [on_record[impl.label].row for impl in own if impl.label in on_record]
        best = figures.fastest(row for row in rows if row.timing)
        impl = next((impl for impl in own if best and impl.label == best.label), own[-1])
        print(profiled.command(op, impl, case))
        print(f"NEXT  python -m compare {op.name} --case {case} --ncu {impl.label}.csv --details")
        print("      --only LABEL --ncu: the command for another row")
    return status.SUCCESS


def _check_counted(labels: Iterable[str], work: Sequence[tuple[Op, Options]]) -> None:
    """A `UsageError` if a file of ``--ncu`` is named after no row."""
    known = dict.fromkeys(
        impl.label
        for op, how in work
        for impl in registry.implementations(op.name, (*how.only, op.baseline) if how.only else ())
    )
    for label in labels:
        if label not in known:
            raise UsageError(registry.unknown("row for --ncu, which takes LABEL.csv,", label, [*known]))


def _with_counters(comparison: Comparison, counters: Mapping[str, tuple[KernelCounters, ...]]) -> Comparison:
    """``comparison``, whose main case's rows have what ``--ncu`` has read, by label."""
    from compare.timing import figures

    main = figures.main_case(comparison)
    cases = (
        replace(case, rows=tuple(replace(row, counters=counters.get(row.label, ())) for row in case.rows))
        if case is main
        else case
        for case in comparison.cases
    )
    return replace(comparison, cases=tuple(cases))


def _estimate(work: Sequence[tuple[Op, Options]], device: torch.device) -> str:
    """``about 10 s: 3 smoke cases x 11 implementations``: what a run without a GPU checks."""
    from compare import run as driver
    from compare.device import supports
    from compare.run.checking import left_out

    cases = checks = 0
    for op, how in work:
        checked = [step.case for step in driver.plan(op, how, device.type) if step.check]
        impls = registry.implementations(op.name, how.only)
        able = [impl for impl in impls if supports(impl, device) is None]
        cases += len(checked)
        checks += sum(not left_out(how, impl, case) for case in checked for impl in able)
    what = f"x {checks / max(1, cases):.0f} implementations" if len(work) == 1 else f"of {len(work)} ops"
    seconds = _START_S * len(work) + _CHECK_S * checks
    return f"about {seconds:.0f} s, more on the first run: {cases} smoke cases {what}; times are replayed"


def _record(comparison: Comparison, folder: Path | None) -> None:
    from compare.records import archive

    print(f"recorded in {archive.record(comparison, folder or archive.RESULTS)}", file=sys.stderr)


def search_crossover(arguments: argparse.Namespace, device: torch.device, log: Log) -> int:
    """Where the fastest way changes, from runs of the op on a GPU or else ``results/``; the exit status."""
    from compare import device as machine
    from compare import run as driver
    from compare.history import crossover
    from compare.records import gpu_lock
    from compare.report import crossings, terminal
    from compare.report.progress import of_run
    from compare.worker.pool import WorkerPool

    renderers = outputs.renderers(arguments)
    (op,) = options.select(
        options.load(arguments.load, arguments.what, others=arguments.own_code), arguments.only
    )
    crossover.check(op, arguments.crossover)
    how = run_options(op, arguments)
    base = how.cases[0] if how.cases else op.cases.default
    if device.type == "cuda":
        memory_bytes = machine.environment(device).memory_bytes
        with (
            gpu_lock.held(machine.uuid(device), outputs.say),
            WorkerPool(op, device, how.timeout_s) as pool,  # one for all sizes
            of_run(op.name, log.steps, log.begun_s) as progress,
        ):
            search = crossover.find(
                *(op, arguments.crossover, base, how, memory_bytes),
                lambda each: driver.run(op, each, log.beside(op.name, progress), pool=pool),
            )
    elif arguments.json or arguments.csv or arguments.html or arguments.junit:
        raise UsageError(
            "--json, --csv, --html and --junit need times measured here, and there is no GPU: --markdown has "
            "the table, results/ the records that it is made from"
        )
    else:
        search = crossover.recorded(op, arguments.crossover, base)
    renderers["markdown"] = lambda _: crossings.as_markdown(search)
    writes = outputs.writes(arguments, search.runs, **renderers)
    outputs.beside(lambda: terminal.put(lambda width: crossings.render(search, width)), writes)
    if search.recorded_on:
        return status.SUCCESS
    statuses = [status.INCONCLUSIVE] if search.interrupted else []
    return status.worst([*statuses, *map(status.of, search.runs)])
