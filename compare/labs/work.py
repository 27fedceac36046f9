"""A student's folder: written by ``lab start``, read by ``check``, ``report`` and ``grade``."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from compare.code_size.sources import USER_FILE_BYTES
from compare.device import project_commit
from compare.labs.lab import Lab, Task, find, read, toml
from compare.labs.running import Allowance, HandedIn
from compare.model.op import UsageError
from compare.records.encoding import write_whole
from compare.records.reading import read_bytes
from compare.registry import ROOT
from compare.sandbox.words import printable

ANSWERS = "answers.toml"
_CODE = (".py", ".cu", ".cuh", ".h")
_MOST_FILES = 1000
STARTED_FROM = '"where this project is"'
"""In a notebook: `start` writes this project's folder there."""


@dataclass(frozen=True)
class Work:
    """What a student has handed in."""

    lab: Lab
    folder: Path
    predictions: dict[str, str | float]
    """By name; only those that are filled in."""
    answers: dict[str, str]
    """By the question's name; empty text: not answered."""
    problem: str = ""
    """Why ``answers.toml`` could not be used."""
    student: str = ""
    """Empty: as the folder is called."""
    others: Path | None = None
    """The class's folder: its code sees of this its own folder only."""
    allowance: Allowance = field(default_factory=Allowance, compare=False)
    """Of all calls of its code together."""

    @property
    def name(self) -> str:
        return self.student or shown(self.folder.resolve().name)

    def handed_in(self, task: Task) -> HandedIn:
        """A task's file."""
        return HandedIn(self.folder / task.file, self.others, self.lab.sanitize)

    @property
    def digest(self) -> str:
        """Changes with any file that counts (the tasks' files, what they may import or include, the answers,
        the lab's description) and with this project's version."""
        names = [ANSWERS, *(task.file for task in self.lab.task)]
        files = sorted(islice(files_within(self.folder), _MOST_FILES))
        names += [file.relative_to(self.folder).as_posix() for file in files if file.suffix in _CODE]
        texts = [project_commit() or "", read_bytes(self.lab.path).hex()]
        for name in names:
            try:
                texts.append(self.content(name).hex())
            except UsageError as error:  # it counts as that
                texts.append(str(error))
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()

    def content(self, name: str) -> bytes:
        """One of its files.

        Raises:
            UsageError: it is missing, too large, no regular file, or a link to another folder.
        """
        return read_bytes(self.folder / name, USER_FILE_BYTES, self.folder)


def files_within(folder: Path) -> Iterator[Path]:
    """Every file below a folder; unlike `Path.rglob`, without those deeper than a path may be long."""
    return (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


def shown(name: str) -> str:
    """A name on one line that changes nothing around it and is no spreadsheet's formula."""
    flat = " ".join(printable(name).split()) or "?"
    return f"'{flat}" if flat.startswith(("=", "+", "-", "@")) else flat


def start(lab: Lab, folder: Path) -> list[Path]:
    """Copy the hand-out, the starters and the answer form into an empty folder; the files written.

    Raises:
        UsageError: the folder has files, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty: name a new folder, so that no work is overwritten")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in [lab.path.parent / "README.md", *lab.starters]:
            shutil.copyfile(path, folder / path.name)
        for path in lab.path.parent.glob("*.ipynb"):
            there = json.dumps(json.dumps(str(ROOT)))[1:-1]  # a string of Python's in one of JSON's
            text = path.read_text().replace(json.dumps(STARTED_FROM)[1:-1], there)
            write_whole(folder / path.name, text)
        write_whole(folder / ANSWERS, form(lab))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}. Name another folder") from None
    return sorted(folder.iterdir())


def form(lab: Lab) -> str:
    """An ``answers.toml`` to be filled in."""
    lines = [
        f"# {lab.title}: your predictions and answers. Text goes between the quotes.",
        f'lab = "{lab.name}"',
        "",
        "# Fill in the predictions before you measure: 'lab report' shows no figures until then.",
        "[predictions]",
    ]
    for prediction in lab.prediction:
        lines += ["", *(f"# {line}" for line in prediction.question.strip().split("\n"))]
        if prediction.choices:
            lines.append(f"# One of: {', '.join(prediction.choices)}")
        lines.append(f'{prediction.name} = ""')
    lines += ["", "[answers]"]
    for question in lab.question:
        lines += ["", f"# {question.points:g} points, {question.words} words at least."]
        lines += [
            *(f"# {line}" for line in question.text.strip().split("\n")),
            f'{question.name} = """',
            '"""',
        ]
    return "\n".join(lines) + "\n"


_MAKES = "'python -m compare lab start 01 DIR' makes one"


def read_folder(folder: Path, rubric: Path | None = None) -> Work:
    """A student's folder; mistakes in its answers are in `Work.problem`.

    Args:
        folder: with ``answers.toml`` and the tasks' files.
        rubric: the lab's description; None: of the lab that ``answers.toml`` names.

    Raises:
        UsageError: it is no folder, or no lab is named.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; {_MAKES}")
    if not rubric and not os.path.lexists(folder / ANSWERS):
        raise UsageError(f"{folder / ANSWERS} cannot be read: there is no such file; {_MAKES}")
    content, problem = {}, ""
    try:
        content = toml(folder / ANSWERS, folder)
    except UsageError as error:
        problem = str(error)
    if rubric:
        lab = read(rubric)
    elif isinstance(content.get("lab"), str):
        lab = find(content["lab"])
    else:
        raise UsageError(problem or f'{folder / ANSWERS} names no lab: add a line, lab = "04"')
    predictions, answers = content.get("predictions", {}), content.get("answers", {})
    if not (isinstance(predictions, dict) and isinstance(answers, dict)):
        predictions, answers = {}, {}
        problem = f"{folder / ANSWERS}: [predictions] and [answers] are tables"
    values = {each.name: predictions.get(each.name, "") for each in lab.prediction}
    filled = {
        name: value if isinstance(value, str) else float(value)
        for name, value in values.items()
        if (isinstance(value, str) and value) or (isinstance(value, (int, float)) and math.isfinite(value))
    }
    written = {question.name: str(answers.get(question.name, "")).strip() for question in lab.question}
    return Work(lab, folder, filled, written, problem)
