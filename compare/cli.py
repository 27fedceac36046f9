"""The command line: arguments in, exit code out.  Nothing heavy is imported before they are understood."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from compare import registry
from compare.command_line import options as commands
from compare.command_line import outputs as writing
from compare.spec import WRONG, Case, Comparison, Op, Options, UsageError
from compare.tuning import sweep as trials

if TYPE_CHECKING:
    from compare.report.progress import Steps

T = TypeVar("T")

AGREE, DISAGREE, USAGE, INCONCLUSIVE = 0, 1, 2, 3

_SEVERITY = (AGREE, INCONCLUSIVE, DISAGREE)

BUDGET_S = 5.0
SWEEP_BUDGET_S = 4.0
TRIAL_S = 0.3
"""More for each row that ``--tune`` adds."""
TIMEOUT_S = Options.timeout_s

_OWN_ARGUMENTS = {
    "pipeline": "compare.toolchain.pipeline.command",
    "aot": "compare.toolchain.aot.command",
    "cache": "compare.toolchain.caches.command",
    "map": "compare.commands.map",
}
"""Commands with arguments of their own, and the modules that they are."""
_TAKES = {
    "diff": {"only", "json", "csv", "markdown"},
    "list": {"only", "load", "device"},
    "doctor": {"calibrate", "verbose"},
}
"""Commands that compare nothing, and the options that they look at."""
_COMMANDS = ("all", "list", "doctor", "diff", *_OWN_ARGUMENTS)

_EPILOG = """\
examples:
  python -m compare softmax
  python -m compare softmax --case M=4096,N=781,fp16 --only 'triton.*'
  python -m compare softmax --load examples/my_softmax.py
  python -m compare all --sweep --record
  python -m compare softmax --crossover N
  python -m compare matmul --matched
  python -m compare vector_add --tune BLOCK_SIZE
  python -m compare diff old.json new.json
  python -m compare pipeline vector_add --arch sm_90
  python -m compare aot vector_add --arch sm_90 --out programs/
  python -m compare cache vector_add
  python -m compare map

exit status:
  0  every implementation that this machine can run agrees with the fp64 result
  1  at least one disagrees, or was faster than its work can be done
  2  a mistake in the command, its files or the machine's setup: nothing was compared, or a file not written
  3  inconclusive: interrupted, an implementation raised an error or does not compile, or none could be run
and of diff:
  0  nothing is slower
  1  a row is slower, lost, or no longer right
  2  a mistake in the command or in its files, or one was not written
  3  nothing is known to be slower, but a row is ambiguous, or none was timed in both

COMPARE_TRACEBACK=1 shows where an error was raised.
"""


def parser() -> argparse.ArgumentParser:
    found = commands.parser(
        "",
        "The same GPU operation in PyTorch, Triton and CUDA C++: whether they agree, how fast each is, what "
        "each takes of the GPU and how much code it is.",
        _EPILOG,
    )
    found.add_argument(
        "what",
        metavar="OP|all|list|doctor|diff|pipeline|aot|cache|map",
        help="the op to compare; all of them; what there is; what this machine can run; what has changed "
        "between two files; what the compilers make of an op (pipeline --help); its kernels as programs "
        "without Python (aot --help); what the compilers keep on disk (cache --help); or which way is "
        "fastest over all that is recorded (map --help)",
    )
    found.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="with diff: OLD.json NEW.json, each from --json or from results/",
    )
    add = found.add_argument_group("what is compared").add_argument
    commands.add_repeatable(add, "--case", "CASE", "sizes and dtype, e.g. M=4096,N=781,fp16")
    add("--sweep", action="store_true", help="every size in the op's list")
    add("--crossover", metavar="DIM", help="find the size of DIM at which the fastest way changes")
    commands.add_only(add, ", e.g. 'triton.*', and the baseline")
    commands.add_load(add)
    add = found.add_argument_group("how").add_argument
    add("--device", default="auto", help="auto, cpu, cuda or cuda:NUMBER (default: a GPU if there is one)")
    commands.add_arch(add, "compile")
    add("--seed", type=int, default=0, help="of the random inputs and the order of timing (default: 0)")
    add(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="most time to spend on timing, for all cases of an op together "
        f"(default: {BUDGET_S:.0f} a case, in a sweep {SWEEP_BUDGET_S:.0f})",
    )
    add("--calibrate", action="store_true", help="with doctor: find the least difference this GPU shows")
    add(
        "--matched",
        action="store_true",
        help="run CUDA with the tile, warps and stages that Triton chose as well, so that compiler and "
        "tuning can be told apart",
    )
    add(
        "--tune",
        action="append",
        default=[],
        metavar="NAME[=VALUES]",
        help="run what has the parameter NAME with other values as well, e.g. BLOCK_SIZE or "
        "BLOCK_SIZE=64,128,256; repeatable, for every choice of several",
    )
    add("--retune", action="store_true", help="search for configurations again that earlier runs have found")
    add("--sustained", action="store_true", help="time bursts and sustained load as well (longer)")
    add(
        "--timer",
        choices=("events", "nvbench"),
        default="events",
        help="whose cold GPU times: ours, by CUDA events, or nvbench's (default: events)",
    )
    add(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help="most time for one step of an implementation: its first call with what it builds, a check, "
        f"a turn of timing, compiling it for an architecture (default: {TIMEOUT_S:.0f})",
    )
    add = found.add_argument_group("what is written, beside the screen").add_argument
    add("--json", type=Path, metavar="FILE", help="everything, raw samples included")
    add("--csv", type=Path, metavar="FILE", help="one line for each implementation and case")
    add("--markdown", type=Path, metavar="FILE", help="the tables")
    add("--html", type=Path, metavar="FILE", help="one page with figures and sources, which needs no network")
    add("--record", action="store_true", help="add the run to results/ (needs a GPU)")
    add("-v", "--verbose", action="store_true", help="each step on stderr, with the seconds it took")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status (see ``--help``)."""
    words = sys.argv[1:] if argv is None else list(argv)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by whoever started this
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as this runs
    if words and words[0] in _OWN_ARGUMENTS:
        return _guarded(lambda: _own(words[0], words[1:]))
    arguments = parser().parse_args(words)
    return _guarded(lambda: _command(arguments))


def _own(name: str, words: Sequence[str]) -> int:
    return int(importlib.import_module(_OWN_ARGUMENTS[name]).main(words))


def _command(arguments: argparse.Namespace) -> int:
    if arguments.calibrate and arguments.what != "doctor":
        raise UsageError("--calibrate belongs to 'python -m compare doctor'")
    if arguments.what in _TAKES:
        _check_taken(arguments)
    if arguments.what == "diff":
        return _diff(arguments)
    if arguments.files:
        raise UsageError(
            f"{arguments.files[0]}: only 'diff' takes files. Name one op, or 'all'. A file of your own: "
            "--load FILE"
        )
    if arguments.what == "doctor":
        return _doctor(arguments)
    if arguments.what == "list":
        return _list(arguments)
    return _crossover(arguments) if arguments.crossover else _compare(arguments)


def _check_taken(arguments: argparse.Namespace) -> None:
    """Refuse what a command that compares nothing would not look at."""
    options = {action.dest: action for action in parser()._actions if action.option_strings}
    for name, given in vars(arguments).items():
        if name in options and name not in _TAKES[arguments.what] and given != options[name].default:
            raise UsageError(
                f"{options[name].option_strings[-1]} goes with an op; leave it out of '{arguments.what}'"
            )


def _guarded(command: Callable[[], int]) -> int:
    """Run a command; what goes wrong becomes one sentence and an exit status."""
    try:
        return command()
    except UsageError as error:
        return _complain(str(error), USAGE)
    except KeyboardInterrupt:
        return _complain("interrupted before anything was finished", INCONCLUSIVE)
    except BrokenPipeError:
        _print_no_more(sys.stdout)  # whoever read the output has seen enough
        return INCONCLUSIVE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO):
            _print_no_more(sys.stdout)
            return _complain(f"what was to be printed could not be: {error.strerror}", USAGE)
        if os.environ.get("COMPARE_TRACEBACK"):
            raise
        lacking = error.name if isinstance(error, ModuleNotFoundError) else None
        if lacking and not (registry.ROOT / lacking.partition(".")[0]).exists():  # which is none of our own
            return _complain(
                f"this Python, {sys.executable}, has no module {lacking!r}: run 'make install' in "
                f"{registry.ROOT}, then 'source .venv/bin/activate'; 'python -m compare doctor' shows all "
                "that it lacks",
                USAGE,
            )
        for file in registry.op_files():
            line = registry.line_in(error, Path(file))
            if line is not None:
                return _complain(
                    f"--load {file}: {type(error).__name__} at line {line}: {error}. Mend the op "
                    "(COMPARE_TRACEBACK=1 shows how it was called)",
                    USAGE,
                )
        return _complain(
            f"an error of the tool itself, {type(error).__name__}: {error}. "
            "COMPARE_TRACEBACK=1 shows where; please report it",
            USAGE,
        )


def _print_no_more(stream: TextIO) -> None:
    """Keep Python from saying once more at exit that it could not."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# --------------------------------------------------------------------------- compare


@dataclass(frozen=True)
class _Outputs:
    """The files that were asked for, each with what makes its text."""

    json: Path | None
    csv: Path | None
    markdown: Path | None
    html: Path | None = None

    def check(self) -> None:
        """Find out now, not after minutes of timing, whether they can be written."""
        files = {"--json": self.json, "--csv": self.csv, "--markdown": self.markdown, "--html": self.html}
        writing.check(files)
        if self.html:
            # Start-up: only --html needs it.
            from compare.report.html import page

            page.check()

    def writes(self, comparisons: Sequence[Comparison]) -> list[Callable[[], None]]:
        from compare.records import archive as records
        from compare.report import csv_file, markdown

        return [
            *self.writes_as(comparisons, records.dumps, csv_file.dumps, markdown.dumps),
            *self.html_writes(comparisons),
        ]

    def html_writes(self, comparisons: Sequence[Comparison]) -> list[Callable[[], None]]:
        if self.html is None:
            return []
        # Start-up: only --html needs it.
        from compare.report.html import page

        return [partial(writing.write, self.html, page.dumps(comparisons))]

    def writes_as(
        self, what: T, json: Callable[[T], str], csv: Callable[[T], str], markdown: Callable[[T], str]
    ) -> list[Callable[[], None]]:
        """What writes ``what`` to the files that were asked for, each in its own form."""
        made = ((self.json, json), (self.csv, csv), (self.markdown, markdown))
        return [partial(writing.write, path, make(what)) for path, make in made if path]


def _compare(arguments: argparse.Namespace) -> int:
    names = _names(arguments)
    _check_tune(arguments)
    outputs = _Outputs(arguments.json, arguments.csv, arguments.markdown, arguments.html)
    outputs.check()
    archs = commands.archs(arguments.arch)
    if arguments.budget is not None and not 0 < arguments.budget < float("inf"):
        raise UsageError(f"--budget {arguments.budget}: give a number of seconds above 0")

    if not -(1 << 63) <= arguments.seed < 1 << 63:
        raise UsageError(f"--seed {arguments.seed}: give a number of at most 63 bits")
    commands.check_timeout(arguments.timeout)

    from compare.report.progress import steps

    with steps(arguments.verbose) as told:
        return _run(arguments, names, archs, outputs, told)


def _run(
    arguments: argparse.Namespace,
    names: Sequence[str],
    archs: tuple[str, ...],
    outputs: _Outputs,
    told: Steps | None,
) -> int:
    """Compare ops whose names, architectures and outputs are understood."""

    def say(what: str) -> None:
        if told:
            told(what)

    say("importing PyTorch")
    from compare.run import prepare, run

    device = prepare(arguments.device, names)
    if arguments.record and device.type != "cuda":
        raise UsageError("--record needs a GPU: without one nothing is timed, so there is nothing to record")
    _check_timer(arguments, device.type)
    say("importing the implementations")
    _load(arguments, names)
    if arguments.what == "all":
        names = registry.op_names()  # with those of the user's files
    if arguments.matched:
        _check_matched(names, arguments.only)
    # All of them are understood before the first is run.
    work = [(op, _options(op, arguments, archs)) for op in _having(names, arguments.only)]

    from compare.report import terminal
    from compare.report.progress import of_run

    done: list[Comparison] = []
    unrecorded: list[str] = []
    unwritten: list[str] = []
    for op, options in work:
        with of_run(op.name, told) as progress:
            comparison = run(op, options, progress)
        say("writing and printing")
        done.append(comparison)
        # What cannot be kept is on the screen all the same, and the next op is compared.
        if arguments.record:
            unrecorded += writing.failures([partial(_record, comparison)])
        unwritten = writing.failures(outputs.writes(done))  # of all ops so far: the last time counts
        if len(done) > 1:
            print("\n")
        terminal.show(comparison)
        sys.stdout.flush()
        if comparison.interrupted:
            break
    if unrecorded or unwritten:
        raise UsageError("; ".join([*unrecorded, *unwritten]))
    return max(map(exit_status, done), key=_SEVERITY.index)


def _record(comparison: Comparison) -> None:
    from compare.records import archive as records

    path = records.record(comparison)
    print(f"recorded in {path}", file=sys.stderr)


def _crossover(arguments: argparse.Namespace) -> int:
    for given, option in (
        (arguments.what == "all", "all"),
        (arguments.sweep, "--sweep"),
        (arguments.record, "--record"),
        (len(arguments.case) > 1, "a second --case"),
        (arguments.tune, "--tune"),
    ):
        if given:
            raise UsageError(f"--crossover goes with one op and one case; leave out {option}")
    (name,) = _names(arguments)
    commands.check_timeout(arguments.timeout)
    outputs = _Outputs(arguments.json, arguments.csv, arguments.markdown, arguments.html)
    outputs.check()

    from compare import device as machine
    from compare.history import crossover
    from compare.records import archive as records
    from compare.report import crossings, csv_file, terminal
    from compare.report.progress import of_run, steps
    from compare.run import prepare, run
    from compare.worker.pool import Crew

    device = prepare(arguments.device, [name])
    _check_timer(arguments, device.type)
    _load(arguments, [name])
    (op,) = _having([name], arguments.only)
    crossover.check(op, arguments.crossover)
    options = _options(op, arguments, commands.archs(arguments.arch))
    base = options.cases[0] if options.cases else op.cases.default
    if device.type != "cuda":
        if arguments.json or arguments.csv or arguments.html:
            raise UsageError(
                "--json, --csv and --html hold what was timed, and without a GPU nothing is: --markdown has "
                "the table, results/ the records that it is made from"
            )
        found = crossover.recorded(op, arguments.crossover, base)
    else:
        memory_bytes = machine.environment(device).memory_bytes
        with (
            Crew(op, device, options.timeout_s) as crew,  # one for all sizes
            steps(arguments.verbose) as told,
            of_run(op.name, told) as progress,
        ):
            found = crossover.find(
                op,
                arguments.crossover,
                base,
                options,
                memory_bytes,
                lambda asked: run(op, asked, progress, crew=crew),
            )
    writes = outputs.writes_as(
        found,
        lambda found: records.dumps(found.runs),
        lambda found: csv_file.dumps(found.runs),
        crossings.as_markdown,
    )
    writes += outputs.html_writes(found.runs)
    writing.beside(lambda: terminal.put(lambda width: crossings.render(found, width)), writes)
    if found.recorded_on:
        return AGREE
    statuses = [INCONCLUSIVE] if found.interrupted else []
    statuses += map(exit_status, found.runs)
    return max(statuses, key=_SEVERITY.index, default=INCONCLUSIVE)


def _check_timer(arguments: argparse.Namespace, device_type: str) -> None:
    if arguments.timer == "events":
        return
    if device_type != "cuda":
        raise UsageError("--timer nvbench needs a GPU: without one nothing is timed")
    if arguments.load:
        raise UsageError("--timer nvbench times the project's own implementations only; leave out --load")
    for given in ("matched", "tune"):
        if getattr(arguments, given):
            raise UsageError(
                f"--timer nvbench times implementations as they are registered; leave out --{given}"
            )
    from compare.timing import nvbench

    nvbench.load()


def _check_tune(arguments: argparse.Namespace) -> None:
    """Before anything is imported: whether it can be read, and goes with the rest."""
    trials.parse(arguments.tune)
    if arguments.tune and arguments.what == "all":
        raise UsageError(
            "--tune goes with one op, as ops differ in what can be chosen; name it instead of 'all'"
        )
    if arguments.tune and arguments.matched:
        raise UsageError("--tune and --matched both say what rows are run with; give one of them")


def _check_matched(names: Sequence[str], only: Sequence[str]) -> None:
    from compare.tuning.cache import stand_ins

    chosen = [registry.implementations(op.name, only) for op in _having(names, only)]
    if any(impl.base for impls in chosen for impl in stand_ins(impls)):
        return
    every = [impl for name in registry.op_names() for impl in registry.implementations(name)]
    pairs = [f"{impl.op}'s {impl.label} that of {impl.matches}" for impl in every if impl.matches]
    raise UsageError(
        "--matched: nothing that was asked for can be run with the configuration of another. What can: "
        f"{', '.join(pairs)}; both have to be among the rows (--only)"
    )


def exit_status(comparison: Comparison) -> int:
    """0 agree, 1 disagree, 3 inconclusive."""
    rows = [row for case in comparison.cases for row in case.rows]
    if any(row.status in WRONG for row in rows):
        return DISAGREE
    checked = any(row.agreement for row in rows)
    failed = any(row.status == "failed" for row in rows)
    return INCONCLUSIVE if comparison.interrupted or failed or not checked else AGREE


def _names(arguments: argparse.Namespace) -> list[str]:
    """The ops to compare.  A name that no file given with --load can add is refused at once."""
    if arguments.what == "all":
        if arguments.case:
            raise UsageError("--case belongs to one op; name it instead of 'all'")
        return registry.op_names()
    if not arguments.load and arguments.what not in registry.op_names():
        known = [*registry.op_names(), *_COMMANDS]
        raise UsageError(registry.unknown("op", arguments.what, known))
    return [arguments.what]


def _load(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Load the user's files after the project's own, so that their rows come after them."""
    for name in set(names) & set(registry.op_names()):
        registry.implementations(name)
    if arguments.load:
        from compare.worker import user_files as files

        asked = None if arguments.what in _COMMANDS else arguments.what
        files.load(arguments.load, arguments.timeout, asked)
        for name in set(registry.op_names()) & set(_COMMANDS):
            raise UsageError(
                f"--load: an op named {name} cannot be asked for, as that is a command: rename it"
            )


def _having(names: Sequence[str], only: Sequence[str]) -> list[Op]:
    """The ops that have what ``--only`` asks for; a `UsageError` if none has."""
    errors = []
    found = []
    for op in map(registry.get_op, names):
        try:
            registry.implementations(op.name, only)
            found.append(op)
        except UsageError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def _options(op: Op, arguments: argparse.Namespace, archs: tuple[str, ...]) -> Options:
    cases = [Case.parse(text, op) for text in arguments.case]
    if arguments.sweep:
        cases = [op.cases.default, *cases, *op.cases.sweep]
    cases = list(dict.fromkeys(cases))
    _check_sizes(op, cases or [op.cases.default])
    budget = arguments.budget
    if budget is None:
        budget = SWEEP_BUDGET_S * len(cases) if arguments.sweep else BUDGET_S * max(1, len(cases))
    options = Options(
        cases=tuple(cases),
        only=tuple(arguments.only),
        archs=archs,
        device=arguments.device,
        seed=arguments.seed,
        budget_s=budget,
        sustained=arguments.sustained,
        timer=arguments.timer,
        timeout_s=arguments.timeout,
        matched=arguments.matched,
        tune=trials.parse(arguments.tune),
        retune=arguments.retune,
    )
    if not options.tune:
        return options
    from compare.run import tuned

    added = tuned(op, options)
    if added is None or arguments.budget is not None:
        return options
    return replace(options, budget_s=budget + TRIAL_S * added.count * max(1, len(cases)))


def _check_sizes(op: Op, cases: Iterable[Case]) -> None:
    """Have the op refuse now, not after others have run, what it has no inputs for."""
    from compare.capture import meta_inputs

    for case in cases:
        try:
            meta_inputs(op, case)
        except UsageError:
            raise
        except Exception:  # of a user's op: it shows, and is told of, where its inputs are made
            return


# --------------------------------------------------------------------------- diff, list, doctor


def _diff(arguments: argparse.Namespace) -> int:
    if len(arguments.files) != 2:
        raise UsageError("diff takes two files: python -m compare diff OLD.json NEW.json")
    outputs = _Outputs(arguments.json, arguments.csv, arguments.markdown)
    outputs.check()

    from compare.history.diff import diff
    from compare.records import archive as records
    from compare.report import differences, terminal

    old, new = map(records.read, arguments.files)
    found = diff(old, new, arguments.only)
    if not found.changes:
        which = f"--only {' '.join(arguments.only)}: " if arguments.only else ""
        raise UsageError(f"{which}neither {arguments.files[0]} nor {arguments.files[1]} holds such a row")
    writes = outputs.writes_as(found, differences.as_json, differences.as_csv, differences.as_markdown)
    writing.beside(lambda: terminal.put(lambda width: differences.render(found, width)), writes)
    return DISAGREE if found.worse else INCONCLUSIVE if found.undecided else AGREE


def _list(arguments: argparse.Namespace) -> int:
    from compare.run import prepare

    device = prepare(arguments.device)
    _load(arguments, registry.op_names())

    from tabulate import tabulate

    from compare.device import supports

    for op in _having(registry.op_names(), arguments.only):
        print(f"{op.name}  {op.signature}\n  {op.summary}\n  dtypes: {', '.join(op.dtypes)}")
        rows = [
            (impl.label, impl.rung, impl.requires or "", supports(impl, device) or "runs here")
            for impl in registry.implementations(op.name, arguments.only)
        ]
        print(_indented(tabulate(rows, ("implementation", "rung", "requires", "here"), "simple")), end="\n\n")
    return AGREE


def _doctor(arguments: argparse.Namespace) -> int:
    from compare import doctor

    if arguments.calibrate:
        from compare.report.progress import of_run, steps

        with steps(arguments.verbose) as told, of_run("calibrating", told) as progress:
            shown = doctor.calibrate(lambda share: progress("holding a call against itself", share))
        print(shown)
        return AGREE
    return USAGE if doctor.report() else AGREE


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def _complain(message: str, status: int) -> int:
    try:
        print(f"python -m compare: {message}", file=sys.stderr)
    except OSError:  # nobody reads it; the status says what it can
        _print_no_more(sys.stderr)
    return status
