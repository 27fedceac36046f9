"""``python -m compare lab``: a student's folder started, checked, and reported on."""

from __future__ import annotations

import sys
from pathlib import Path

from compare.command_line import outputs, status
from compare.commands.running import marked
from compare.labs import lab as labs
from compare.labs import marking, prediction, running, work
from compare.report import labs as pages
from compare.report import terminal
from compare.report.tables import Table
from compare.spec import Case, Comparison, UsageError
from compare.worker.start import prepare


def listed() -> int:
    found = labs.every()
    rows = tuple((lab.number, lab.title, lab.op, f"{lab.hours:g} h", str(len(lab.task))) for lab in found)
    table = Table("Labs", ("lab", "title", "op", "time", "tasks"), rows, ("title", "op"))
    terminal.put(lambda width: terminal.laid_out(table, width))
    print("\nNEXT  python -m compare lab start 01 my_lab/")
    return status.SUCCESS


def start(word: str, folder: Path) -> int:
    lab = labs.find(word)
    written = work.start(lab, folder)
    print(f"Lab {lab.number}: {lab.title}. About {lab.hours:g} hours. Wrote")
    print("\n".join(f"  {path}" for path in written))
    print(f"\nNEXT  read {folder / 'README.md'} · fill in [predictions] of {folder / work.ANSWERS}")
    print(f"      python -m compare lab check {folder}")
    return status.SUCCESS


def hint(word: str, number: str) -> int:
    lab = labs.find(word)
    if not (number.isascii() and number.isdigit() and 1 <= int(number[:4]) <= len(lab.hint)):
        raise UsageError(f"lab {lab.number} has hints 1 to {len(lab.hint)}, not {number}")
    text = f"Hint {number} of {len(lab.hint)}: {lab.hint[int(number) - 1].strip()}"
    terminal.put(lambda width: terminal.paragraph(text, min(width, 80)))
    return status.SUCCESS


def check(folder: Path, device: str, timeout_s: float) -> int:
    """Run the tests of every task that is started; no speed is shown."""
    done = work.read_folder(folder)
    prepare(device, done.lab.ops)
    marks = marking.correctness(done, device, timeout_s, marked.say)
    if done.problem:
        print(done.problem, file=sys.stderr)
    firsts = {
        part.name.partition(": ")[0]: part.name for part in reversed(marks.parts) if part.result != "passed"
    }
    table = pages.marks_table(marks)
    terminal.put(lambda width: marked.screen(table, width, firsts.values()))
    follow = f"lab report {folder}"
    if firsts:
        follow = f"lab hint {done.lab.number} {_first_hint(done.lab, next(reversed(firsts)))}"
    print(f"\nNEXT  python -m compare {follow}")
    return marked.status_of([marks])


def _first_hint(lab: labs.Lab, title: str) -> int:
    """The number of the first hint about a task or its file."""
    position, task = next((i, task) for i, task in enumerate(lab.task, 1) if task.title == title)
    for start in (f"Task {position}:", f"{task.file}:"):
        for number, text in enumerate(lab.hint, 1):
            if text.startswith(start):
                return number
    return 1


def report(folder: Path, device: str, timeout_s: float) -> int:
    """Measure, and write ``report.md`` and ``report.html`` into the folder."""
    done = work.read_folder(folder)
    if done.problem:
        raise UsageError(done.problem)
    missing = [each.name for each in done.lab.prediction if each.name not in done.predictions]
    if missing:
        raise UsageError(
            f"predict first: fill in {', '.join(missing)} under [predictions] of {folder / work.ANSWERS}. "
            "A prediction costs no points, whatever the measurement says"
        )
    for each in done.lab.prediction:
        try:
            prediction.read(each, done.predictions[each.name])
        except ValueError as error:
            raise UsageError(f"{folder / work.ANSWERS}: {error}") from None
    prepare(device, done.lab.ops)
    marked.say("measuring what was predicted")
    outcomes = prediction.outcomes(done.lab.prediction, done.predictions, done.lab.op, device, timeout_s)
    runs = [found for task in done.lab.task if (found := _task(done, task, device, timeout_s))]
    page = pages.student_page(done, outcomes, runs)
    outputs.write(folder / "report.md", page)
    outputs.write(folder / "report.html", pages.html(page, f"Lab {done.lab.number}: {done.name}"))
    terminal.put(lambda width: terminal.laid_out(pages.outcomes_table(outcomes), width))
    print(f"\nwrote {folder / 'report.md'} and {folder / 'report.html'}")
    return status.SUCCESS


def _task(done: work.Work, task: labs.Task, device: str, timeout_s: float) -> tuple[str, Comparison] | None:
    """The student's row among ours, at the size whose speed counts, or else at the largest that is tested."""
    marked.say(f"measuring {task.file}")
    file, op = done.folder / task.file, labs.op_of(done.lab, task)
    texts = [task.speed[0].case] if task.speed else [text for group in task.group for text in group.cases]
    case = max((Case.parse(text, op) for text in texts), key=lambda case: op.cost(case).bytes)
    found = running.run(op.name, [str(case)], [task.label, task.reference], device, timeout_s, file)
    if found.comparison is None:
        print(f"{task.file}: {found.error}", file=sys.stderr)
        return None
    return task.title, found.comparison
