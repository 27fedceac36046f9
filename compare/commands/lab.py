"""Labs of a course: start one, check it, ask for a hint, write its report.

examples:
  python -m compare lab list
  python -m compare lab start 04 my_lab   write the hand-out, the starters and answers.toml
  python -m compare lab check my_lab      run the tests; shows no speed
  python -m compare lab hint 04 2         the second hint
  python -m compare lab report my_lab     predictions beside measurements, your rows among ours

exit status:
  0  done; of check: every case is correct
  1  check: something is wrong or missing
  2  a mistake in the command or its files
  4  check: your code raised an error, or does not compile
  5  check: your code took too long
  6  check: a fault of the machine: the reference failed too
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from compare.command_line import options, outputs, status
from compare.model.op import Case, UsageError
from compare.model.result import Options

if TYPE_CHECKING:
    from compare.labs.lab import Lab, Task
    from compare.labs.marking import Part
    from compare.labs.work import Work
    from compare.report.labs import TaskRun

_TAKES: dict[str, tuple[str, ...]] = {
    "list": (),
    "start": ("LAB", "DIR"),
    "check": ("DIR",),
    "hint": ("LAB", "NUMBER"),
    "report": ("DIR",),
}
"""By what it does: the words that follow."""

_CHECK_S = 20.0
"""An endless loop ends after this."""
_TRIED = ("wrong", "error")
"""Results of code that was written, and that a hint helps."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", nargs="?", default="list", choices=tuple(_TAKES), metavar="|".join(_TAKES))
    add("words", nargs="*", metavar="LAB|DIR", help="a lab's number or name; your folder")
    options.add_device(add)
    options.add_timeout(add, None, f"; of check: {_CHECK_S:.0f}")


def run(arguments: argparse.Namespace) -> int:
    """Do what ``arguments.what`` says; the exit status."""
    what, words = arguments.what, arguments.words
    timeout_s = arguments.timeout
    if timeout_s is None:
        timeout_s = _CHECK_S if what == "check" else Options.timeout_s
    options.check_timeout(timeout_s)
    if len(words) != len(_TAKES[what]):
        form = " ".join(("lab", what, *_TAKES[what]))
        raise UsageError(f"lab {what}: got {' '.join(words) or 'nothing'}; write {form}")
    if what == "start":
        return start(words[0], Path(words[1]))
    if what == "hint":
        return hint(*words)
    if what == "list":
        return show_labs()
    return (check if what == "check" else report)(Path(words[0]), arguments.device, timeout_s)


# --------------------------------------------------------------------------- the work


def show_labs() -> int:
    """Print every lab."""
    from compare.labs import lab as labs
    from compare.report import terminal
    from compare.report.tables import Table

    rows = tuple(
        (lab.number, lab.title, lab.op, f"{lab.hours:g} h", str(len(lab.task))) for lab in labs.listed()
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
    print(f"\nNEXT  read {folder / 'README.md'}")
    print(f"      fill in [predictions] of {folder / work.ANSWERS}")
    print(f"      python -m compare lab check {shlex.quote(str(folder))}")
    return status.SUCCESS


def hint(word: str, number: str) -> int:
    """Print one hint of a lab."""
    from compare.labs import lab as labs
    from compare.report import terminal

    lab = labs.find(word)
    text = f"Hint {number} of {len(lab.hint)}: {lab.hint_of(number)}"
    terminal.put(lambda width: terminal.paragraph(text, min(width, 80)))
    return status.SUCCESS


def check(folder: Path, device: str, timeout_s: float) -> int:
    """Run the tests of every task that is started; no speed is shown."""
    from compare.device import pick
    from compare.labs import marking, work
    from compare.labs.running import COMMAND_MODULES, Allowance, stop_on_signals
    from compare.report import labs as pages
    from compare.worker.start import prepare

    mine = work.read_folder(folder)
    prepare(device, mine.lab.ops, COMMAND_MODULES)
    mine = replace(mine, allowance=Allowance(stop=stop_on_signals()))
    shown: list[tuple[str, str]] = []
    if pick(device).type == "cpu":
        outputs.say(f"{mine.name}: the first group of each file, then all groups")
        for task in reversed({task.file: task for task in reversed(mine.lab.task)}.values()):
            part = marking.first_look(mine, task, device, timeout_s)
            pages.put_part(part)
            shown.append((part.name, pages.detail(part)))
    marks = marking.correctness(mine, device, timeout_s, outputs.say)
    if mine.problem:
        print(mine.problem, file=sys.stderr)
    failed = [part for part in marks.parts if part.result != "passed"]
    first = {part.name.partition(": ")[0]: part for part in reversed(failed)}
    names = [part.name for part in first.values()]
    unseen = [part.name for part in first.values() if (part.name, pages.detail(part)) not in shown]
    pages.put(pages.marks_table(marks), unseen, terms_of=names)
    follow = f"lab report {shlex.quote(str(folder))}"
    if failed:
        wrong = (part for part in failed if part.result in _TRIED)
        follow = _help(mine.lab, next(wrong, failed[0]), folder)
    print(f"\nNEXT  python -m compare {follow}")
    return status.of_marks([marks])


def _help(lab: Lab, part: Part, folder: Path) -> str:
    """Print the hint about a part that is wrong; what to type next."""
    from compare.report import terminal

    title, _, name = part.name.partition(": ")
    task = next(task for task in lab.task if task.title == title)
    about = [each.hint for each in task.group if each.name == name]
    about += [each.hint for each in task.limit if each.words == name]
    number = next((number for number in about if 0 < number <= len(lab.hint)), 0)
    if not number or part.result not in _TRIED:
        return f"lab hint {lab.number} {number or _first_hint(lab, title)}"
    text = f"HINT  {number} of {len(lab.hint)}, {name}: {lab.hint[number - 1].strip()}"
    print()
    terminal.put(lambda width: terminal.paragraph(text, min(width, 80), hanging="      "))
    return f"lab check {shlex.quote(str(folder))}"


def _first_hint(lab: Lab, title: str) -> int:
    """The number of the first hint about a task or its file."""
    position, task = next((i, task) for i, task in enumerate(lab.task, 1) if task.title == title)
    starts = (f"Task {position}:", f"{task.file}:")
    hints = (n for start in starts for n, text in enumerate(lab.hint, 1) if text.startswith(start))
    return next(hints, 1)


def report(folder: Path, device: str, timeout_s: float) -> int:
    """Measure, and write ``report.md`` and ``report.html`` into the folder."""
    from compare.labs import prediction, work
    from compare.report import labs as pages
    from compare.report import terminal
    from compare.worker.start import prepare

    mine = work.read_folder(folder)
    lab = mine.lab
    if mine.problem:
        raise UsageError(mine.problem)
    missing = [each.name for each in lab.prediction if each.name not in mine.predictions]
    if missing:
        raise UsageError(
            f"predict first: fill in {', '.join(missing)} under [predictions] of {folder / work.ANSWERS}. "
            "A prediction costs no points, whatever the measurement says"
        )
    predictions = prediction.read_all(lab.prediction, mine.predictions, folder / work.ANSWERS)
    prepare(device, lab.ops)
    outputs.say("measuring what was predicted")
    outcomes = prediction.outcomes(lab.prediction, predictions, lab.op, device, timeout_s)
    runs = [measured for task in lab.task if (measured := _task(mine, task, device, timeout_s))]
    page = pages.student_page(mine, outcomes, runs)
    pictures = [picture for done in runs for picture in done.pictures]
    outputs.write(folder / "report.md", page)
    outputs.write(folder / "report.html", pages.html(page, f"Lab {lab.number}: {mine.name}", pictures))
    terminal.put(lambda width: terminal.laid_out(pages.outcomes_table(outcomes), width))
    print(f"\nwrote {folder / 'report.md'} and {folder / 'report.html'}")
    return status.SUCCESS


def _task(mine: Work, task: Task, device: str, timeout_s: float) -> TaskRun | None:
    """The student's row among ours, at the size whose speed counts, or else at the largest that is tested.

    The pictures are of a small case that is tested.
    """
    from compare.labs import lab as labs
    from compare.labs import running, traces
    from compare.report import labs as pages

    outputs.say(f"measuring {task.file}")
    file, op = mine.handed_in(task), labs.op_of(mine.lab, task)
    texts = [task.speed[0].case] if task.speed else task.cases
    case = max((Case.parse(text, op) for text in texts), key=lambda case: op.cost(case).bytes)
    measured = running.run(op.name, [str(case)], [task.label, task.reference], device, timeout_s, file)
    if measured.comparison is None:
        print(f"{task.file}: {measured.error}", file=sys.stderr)
        return None
    accesses = traces.of_task(mine.lab, task, file, timeout_s)
    pictures = pages.pictures_of(measured.comparison, task.label, accesses)
    return pages.TaskRun(task.title, measured.comparison, pictures)
