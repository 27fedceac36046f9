"""The generated parts of the labs' pages: a list of all, and the figures that a lab's students will see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compare import registry
from compare.labs import lab as labs
from compare.labs import marking
from compare.labs.prediction import outcome
from compare.labs.running import Run
from compare.model.op import Op
from compare.model.result import Comparison
from compare.report import markdown, tables
from compare.report.labs import shown
from compare.report.tables import Table


def block() -> str:
    """A line for each lab."""
    found = labs.every()
    rows = tuple((f"[{each.number}](../labs/{each.name}/README.md)", each.title, each.op) for each in found)
    headers = ("lab", "title", "op")
    return markdown.table(Table("Labs", headers, rows, headers))


MACHINES = {"cpu": "no GPU", "t4": "T4", "ampere": "A100, or another from sm_80 on", "hopper": "H100, H200"}
"""By tier."""


def machines(number: str) -> str:
    """What a lab needs a GPU for, and what differs between machines."""
    lab = labs.find(number)
    rows = tuple((name, lab.tiers[tier]) for tier, name in MACHINES.items())
    headers = ("machine", "what differs")
    points, of = (
        sum(speed.points for task in lab.task for speed in task.speed),
        marking.total(lab, speed=True),
    )
    needs = f"A GPU is needed for speed: {points:g} of {of:g} points, left out of the total without one."
    return f"{needs}\n\n{markdown.table(Table('Machines', headers, rows, headers))}"


def expected(number: str, recorded: Callable[[Op], Comparison | None]) -> str:
    """What the record says of a lab's predictions and of its references."""
    lab = labs.find(number)
    runs = {op: recorded(registry.get_op(op)) for op in dict.fromkeys(e.op or lab.op for e in lab.prediction)}
    device = next((run.environment.device for run in runs.values() if run), "")
    rows = tuple(
        (each.name, each.case, shown(outcome(each, None, Run(runs[each.op or lab.op])).measured))
        for each in lab.prediction
    )
    title = f"Predictions, as recorded on {device}"
    parts = [markdown.table(Table(title, ("prediction", "case", "measured"), rows, ("case", "measured")))]
    for task in lab.task:
        for text in dict.fromkeys(speed.case for speed in task.speed):
            run = recorded(labs.op_of(lab, task))
            for case in run.cases if run else ():
                chosen = tuple(row for row in case.rows if row.label in (task.reference, "torch.eager"))
                if case.case == text and chosen:
                    entry = tables.speed(replace(case, rows=chosen))
                    parts.append(markdown.table(replace(entry, title=f"{task.title}: {entry.title}")))
    return "\n\n".join(parts)
