"""``python -m compare lab``: a student's folder started, checked, and reported on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from compare.command_line import options, outputs, status
from compare.model.op import Case, UsageError

if TYPE_CHECKING:
    from compare.labs.lab import Lab, Task
    from compare.labs.work import Work
    from compare.model.result import Comparison

_TAKES: dict[str, tuple[str, ...]] = {
    "list": (),
    "start": ("LAB", "DIR"),
    "check": ("DIR",),
    "hint": ("LAB", "NUMBER"),
    "report": ("DIR",),
}
"""By what it does: the words that follow."""

_EPILOG = """\
examples:
  python -m compare lab list
  python -m compare lab start 04 my_lab/        write the hand-out, the starters and answers.toml
  python -m compare lab check my_lab/           run the tests; shows no speed
  python -m compare lab hint 04 2               the second hint
  python -m compare lab report my_lab/          predictions beside measurements, your rows among ours

exit status:
  0  done; of check: every case is correct
  1  check: something is wrong or missing
  2  a mistake in the command or its files
  4  check: your code raised an error, or does not compile
  5  check: your code took too long
  6  check: a fault of the machine: the reference failed too
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Labs of a course: start one, check it, ask for a hint, write its report."
    parser.epilog = _EPILOG
    parser.add_argument("what", nargs="?", default="list", choices=tuple(_TAKES), metavar="|".join(_TAKES))
    parser.add_argument("words", nargs="*", metavar="LAB|DIR", help="a lab's number or name; your folder")
    options.add_device(parser.add_argument)
    options.add_timeout(parser.add_argument)


def run(arguments: argparse.Namespace) -> int:
    """Do what ``arguments.what`` says; the exit status.

    Raises:
        UsageError: there is no such lab or folder, or one cannot be written.
    """
    options.check_timeout(arguments.timeout)
    words = arguments.words
    if len(words) != len(_TAKES[arguments.what]):
        form = " ".join(("lab", arguments.what, *_TAKES[arguments.what]))
        raise UsageError(f"lab {arguments.what}: got {len(words)} words behind it; write {form}")
    if arguments.what == "start":
        return start(words[0], Path(words[1]))
    if arguments.what == "hint":
        return hint(*words)
    if arguments.what == "list":
        return show_labs()
    act = check if arguments.what == "check" else report
    return act(Path(words[0]), arguments.device, arguments.timeout)


# --------------------------------------------------------------------------- the work


def show_labs() -> int:
    """Print every lab."""
    from compare.labs import lab as labs
    from compare.report import terminal
    from compare.report.tables import Table

    rows = tuple(
        (lab.number, lab.title, lab.op, f"{lab.hours:g} h", str(len(lab.task))) for lab in labs.every()
    )
    table = Table("Labs", ("lab", "title", "op", "time", "tasks"), rows, ("title", "op"))
    terminal.put(lambda width: terminal.laid_out(table, width))
    print("\nNEXT  python -m compare lab start 01 my_lab/")
    return status.SUCCESS


def start(word: str, folder: Path) -> int:
    """Write the files of a lab into ``folder``."""
    from compare.labs import lab as labs
    from compare.labs import work

    lab = labs.find(word)
    written = work.start(lab, folder)
    print(f"Lab {lab.number}: {lab.title}. About {lab.hours:g} hours. Wrote")
    print("\n".join(f"  {path}" for path in written))
    print(f"\nNEXT  read {folder / 'README.md'} · fill in [predictions] of {folder / work.ANSWERS}")
    print(f"      python -m compare lab check {folder}")
    return status.SUCCESS


def hint(word: str, number: str) -> int:
    """Print one hint of a lab."""
    from compare.labs import lab as labs
    from compare.report import terminal

    lab = labs.find(word)
    if not (number.isascii() and number.isdigit() and 1 <= int(number[:4]) <= len(lab.hint)):
        raise UsageError(f"lab {lab.number} has hints 1 to {len(lab.hint)}, not {number}")
    text = f"Hint {number} of {len(lab.hint)}: {lab.hint[int(number) - 1].strip()}"
    terminal.put(lambda width: terminal.paragraph(text, min(width, 80)))
    return status.SUCCESS


def check(folder: Path, device: str, timeout_s: float) -> int:
    """Run the tests of every task that is started; no speed is shown."""
    from compare.labs import marking, work
    from compare.report import labs as pages
    from compare.worker.start import prepare

    done = work.read_folder(folder)
    prepare(device, done.lab.ops)
    marks = marking.correctness(done, device, timeout_s, outputs.say)
    if done.problem:
        print(done.problem, file=sys.stderr)
    firsts = {
        part.name.partition(": ")[0]: part.name for part in reversed(marks.parts) if part.result != "passed"
    }
    outputs.put_explained(pages.marks_table(marks), firsts.values())
    follow = f"lab report {folder}"
    if firsts:
        follow = f"lab hint {done.lab.number} {_first_hint(done.lab, next(reversed(firsts)))}"
    print(f"\nNEXT  python -m compare {follow}")
    return status.of_marks([marks])


def _first_hint(lab: Lab, title: str) -> int:
    """The number of the first hint about a task or its file."""
    position, task = next((i, task) for i, task in enumerate(lab.task, 1) if task.title == title)
    for start in (f"Task {position}:", f"{task.file}:"):
        for number, text in enumerate(lab.hint, 1):
            if text.startswith(start):
                return number
    return 1


def report(folder: Path, device: str, timeout_s: float) -> int:
    """Measure, and write ``report.md`` and ``report.html`` into the folder."""
    from compare.labs import prediction, work
    from compare.report import labs as pages
    from compare.report import terminal
    from compare.worker.start import prepare

    done = work.read_folder(folder)
    _check_predictions(done, folder / work.ANSWERS)
    prepare(device, done.lab.ops)
    outputs.say("measuring what was predicted")
    outcomes = prediction.outcomes(done.lab.prediction, done.predictions, done.lab.op, device, timeout_s)
    runs = [measured for task in done.lab.task if (measured := _task(done, task, device, timeout_s))]
    page = pages.student_page(done, outcomes, runs)
    outputs.write(folder / "report.md", page)
    outputs.write(folder / "report.html", pages.html(page, f"Lab {done.lab.number}: {done.name}"))
    terminal.put(lambda width: terminal.laid_out(pages.outcomes_table(outcomes), width))
    print(f"\nwrote {folder / 'report.md'} and {folder / 'report.html'}")
    return status.SUCCESS


def _check_predictions(done: Work, answers: Path) -> None:
    """A `UsageError` unless the file ``answers`` has every prediction of the lab."""
    from compare.labs import prediction

    if done.problem:
        raise UsageError(done.problem)
    missing = [each.name for each in done.lab.prediction if each.name not in done.predictions]
    if missing:
        raise UsageError(
            f"predict first: fill in {', '.join(missing)} under [predictions] of {answers}. "
            "A prediction costs no points, whatever the measurement says"
        )
    for each in done.lab.prediction:
        try:
            prediction.read(each, done.predictions[each.name])
        except ValueError as error:
            raise UsageError(f"{answers}: {error}") from None


def _task(done: Work, task: Task, device: str, timeout_s: float) -> tuple[str, Comparison] | None:
    """The student's row among ours, at the size whose speed counts, or else at the largest that is tested."""
    from compare.labs import lab as labs
    from compare.labs import running

    outputs.say(f"measuring {task.file}")
    file, op = done.folder / task.file, labs.op_of(done.lab, task)
    texts = [task.speed[0].case] if task.speed else [text for group in task.group for text in group.cases]
    case = max((Case.parse(text, op) for text in texts), key=lambda case: op.cost(case).bytes)
    measured = running.run(op.name, [str(case)], [task.label, task.reference], device, timeout_s, file)
    if measured.comparison is None:
        print(f"{task.file}: {measured.error}", file=sys.stderr)
        return None
    return task.title, measured.comparison
