"""A lab, as ``labs/NN_name/lab.toml`` describes it: tasks with points, predictions, questions and hints."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from compare import places, registry
from compare.model.op import ARCHITECTURE, Case, Op, UsageError
from compare.records.encoding import decode, encode
from compare.records.reading import read_text
from compare.sandbox.words import bounded

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

FOLDER = places.DATA / "labs"
SOLUTIONS = FOLDER / "solutions"
_LABS = "[0-9][0-9]_*/lab.toml"
_SOURCE = "compare/labs/lab.py"
RUBRIC = "rubric.toml"
"""Beside a description: by question, what a full answer has."""

_LARGEST = 1 << 18
_NAME_PARTS = 32
_LONG_NAME = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*)""" + f"{{{_NAME_PARTS}}}"
)
"""The parser's time grows with the square of a name's parts, ``a.b.c = 1``."""
_INSPECTED = 3
"""A run of more cases reads no registers or shared memory of them: `compare.run`."""
_RESOURCES = ("registers", "shared_bytes", "spilled_bytes", "load_bits", "instruction")

_PYTHON_FILE = re.compile(r"\w[\w.-]*\.py")

TIERS = ("cpu", "t4", "ampere", "hopper")
"""No GPU; sm_75; sm_80 or later; sm_90."""

Measure = Literal[
    "fastest", "binding", "speedup", "share", "time_us", "registers", "shared_bytes", "lines", "instruction"
]
Visibility = Literal["visible", "after_due_date", "after_published", "hidden"]
"""When Gradescope shows a part to students, in its own words; the later the further on."""


@dataclass(frozen=True)
class Group:
    """Cases that test one step, with its points."""

    name: str
    points: float
    cases: tuple[str, ...]
    visibility: Visibility = "visible"
    hint: int = 0
    """Which of the lab's hints is about it, from 1; 0: none."""

    def __post_init__(self) -> None:
        _check_numbers(points=self.points)
        if not self.cases:
            raise ValueError(f"group {self.name!r} has no cases")


@dataclass(frozen=True)
class Speed:
    """Points for a speed relative to the reference's, both timed in the same run."""

    case: str
    at_least: float
    """The reference's time over the student's."""
    points: float
    full: float | None = None
    """On a scale: ``points * min(1, ratio / full)`` from ``at_least`` on; None: all points from there on."""

    def __post_init__(self) -> None:
        _check_numbers(points=self.points, at_least=self.at_least, full=self.full or self.at_least)
        if self.full is not None and self.full <= self.at_least:
            raise ValueError(f"full = {self.full:g}: write more than at_least, {self.at_least:g}")

    def worth(self, ratio: float) -> float:
        """The points of a ratio that is at least ``at_least``."""
        return self.points * min(1.0, ratio / self.full) if self.full else self.points


@dataclass(frozen=True)
class Limit:
    """Points for a figure of the kernel or its code: one of ``at_most``, ``at_least`` and ``one_of``."""

    figure: Literal[
        "lines", "tokens", "registers", "shared_bytes", "spilled_bytes", "load_bits", "instruction"
    ]
    points: float
    at_most: float | None = None
    at_least: float | None = None
    one_of: tuple[str, ...] = ()
    """``instruction``: without its shape, ``HMMA``."""
    requires: str = ""
    """The earliest architecture that can have it, ``sm_80``; on others the limit is left out."""
    hint: int = 0
    """As of a group."""

    def __post_init__(self) -> None:
        _check_numbers(points=self.points)
        if not all(math.isfinite(bound) for bound in (self.at_most, self.at_least) if bound is not None):
            raise ValueError(f"a limit of {self.figure} is a finite number")
        if self.requires and not ARCHITECTURE.fullmatch(self.requires):
            raise ValueError(f"requires {self.requires!r} is no architecture; write it as 'sm_90'")
        bound = {"load_bits": "at_least", "instruction": "one_of"}.get(self.figure, "at_most")
        given = [name for name in ("at_most", "at_least", "one_of") if getattr(self, name) not in (None, ())]
        if given != [bound]:
            got = ", ".join(given) or "none"
            raise ValueError(f"a limit of {self.figure} takes {bound}, got {got}")

    @property
    def bound(self) -> str:
        """``at most 32``."""
        if self.one_of:
            return " or ".join(self.one_of)
        return f"at most {self.at_most:g}" if self.at_least is None else f"at least {self.at_least:g}"

    @property
    def words(self) -> str:
        """``at most 32 registers``."""
        if self.figure == "instruction":
            return f"multiplies by {self.bound}"
        if self.figure == "load_bits":
            return f"loads of {self.bound} bits"
        return f"{self.bound} {self.figure.replace('_', ' ')}"

    def allows(self, figure: float | str) -> bool:
        """Whether a figure is within the limit."""
        if isinstance(figure, str):
            return figure.partition(".")[0] in self.one_of
        return figure <= self.at_most if self.at_most is not None else figure >= (self.at_least or 0.0)


@dataclass(frozen=True)
class Task:
    """One file that the student completes."""

    title: str
    file: str
    label: str
    """Of the implementation that the file registers; ``*.mine`` leaves the way open."""
    reference: str
    """The project's implementation that its speed is compared with."""
    group: tuple[Group, ...]
    speed: tuple[Speed, ...] = ()
    limit: tuple[Limit, ...] = ()
    op: str = ""
    """Empty: the lab's."""

    def __post_init__(self) -> None:
        if not _PYTHON_FILE.fullmatch(self.file):
            raise ValueError(f"file {self.file!r}: write the name of a Python file in the student's folder")
        if self.speed and self.label.startswith("torch."):
            raise ValueError(
                f"{self.title!r} has a speed, which is not verified for PyTorch: its kernels are not "
                "compiled from the file"
            )
        count = len(self.cases)
        if count > _INSPECTED and any(limit.figure in _RESOURCES for limit in self.limit):
            raise ValueError(
                f"{self.title!r} limits resources, and has {count} cases: they are read for {_INSPECTED} at "
                "most. Make it a task of its own"
            )

    @property
    def cases(self) -> list[str]:
        """Those of its groups."""
        return [case for group in self.group for case in group.cases]

    @property
    def visibility(self) -> Visibility:
        """Of speeds and limits, which say whether all groups passed: that of the group shown last."""
        order = get_args(Visibility)
        return max((group.visibility for group in self.group), key=order.index, default="visible")


@dataclass(frozen=True)
class Prediction:
    """A figure that the student predicts before it is measured."""

    name: str
    """Its key in ``answers.toml``."""
    question: str
    measure: Measure
    case: str
    label: str = ""
    """Whose figure; empty for ``fastest`` and ``binding``."""
    against: str = ""
    """``speedup``: over whose time."""
    choices: tuple[str, ...] = ()
    """``fastest``: among which implementations; ``instruction``: among which, without their shapes."""
    op: str = ""
    """Empty: the lab's."""


@dataclass(frozen=True)
class Question:
    """A question answered in writing; points are given by an instructor, by the rubric."""

    name: str
    text: str
    points: float
    rubric: str = ""
    """What a full answer has, from ``rubric.toml``: empty in the hand-out, which leaves that out."""
    words: int = 25
    """A shorter answer counts as missing."""

    def __post_init__(self) -> None:
        _check_numbers(points=self.points)


@dataclass(frozen=True)
class Lab:
    title: str
    op: str
    hours: float
    task: tuple[Task, ...]
    tiers: dict[str, str] = field(default_factory=dict)
    """By tier: what differs there."""
    prediction: tuple[Prediction, ...] = ()
    question: tuple[Question, ...] = ()
    hint: tuple[str, ...] = ()
    sanitize: bool = False
    """Run the tasks' files under compute-sanitizer too: on a GPU."""
    leaderboard: bool = False
    """Show measured speeds and limits of all students, best first."""
    path: Path = field(default=Path(), compare=False)

    def __post_init__(self) -> None:
        _check_numbers(hours=self.hours)

    @property
    def name(self) -> str:
        """``09_odd_shapes``."""
        return self.path.parent.name

    @property
    def number(self) -> str:
        return self.name.partition("_")[0]

    def hint_of(self, number: str) -> str:
        """A hint's text; a `UsageError` if it has none of this number, which a user has written."""
        if number not in map(str, range(1, len(self.hint) + 1)):
            raise UsageError(f"lab {self.number} has hints 1 to {len(self.hint)}, not {number!r}")
        return self.hint[int(number) - 1].strip()

    @property
    def ops(self) -> list[str]:
        """Of its tasks and predictions, each once."""
        named = [*(task.op for task in self.task), *(each.op for each in self.prediction)]
        return list(dict.fromkeys([self.op, *filter(None, named)]))

    @property
    def starters(self) -> list[Path]:
        """The tasks' files, each once."""
        folder = self.path.parent / "starter"
        return list(dict.fromkeys(folder / task.file for task in self.task))


def every() -> list[Lab]:
    """All labs, in order."""
    return [read(path) for path in sorted(FOLDER.glob(_LABS))]


def listed() -> list[Lab]:
    """`every` for a list: what the ops say of a lab, which takes PyTorch's import, is not checked."""
    return [described(Lab, path, _SOURCE) for path in sorted(FOLDER.glob(_LABS))]


def find(word: str) -> Lab:
    """The lab of a number or name, as ``04``, ``4`` or ``09_odd_shapes``.

    Raises:
        UsageError: there is no such lab, or its description is wrong.
    """
    names = [path.parent.name for path in sorted(FOLDER.glob(_LABS))]
    for each in names:
        number, _, name = each.partition("_")
        if word in (number, number.lstrip("0"), name, each):
            return read(FOLDER / each / "lab.toml")
    raise UsageError(registry.unknown("lab", word, names))


def read(path: Path) -> Lab:
    """The lab that a file describes.

    Raises:
        UsageError: the file cannot be read, or describes no lab.
    """
    lab = described(Lab, path, _SOURCE, _check_meaning)
    rubric = path.with_name(RUBRIC)
    if rubric.is_file():
        answers = toml(rubric)
        questions = (replace(each, rubric=str(answers.get(each.name, each.rubric))) for each in lab.question)
        lab = replace(lab, question=tuple(questions))
    return lab


def described(kind: type[T], path: Path, source: str, check: Callable[[T], None] = lambda _: None) -> T:
    """What a TOML file describes.

    Args:
        kind: a dataclass with a ``path``.
        path: the file.
        source: of the project; it lists the fields.
        check: what else has to hold.

    Raises:
        UsageError: the file cannot be read, or describes none; with the line.
    """
    table = toml(path)
    try:
        value = decode(kind, {**table, "path": path})
        _check_names(table, encode(value), path.name)
        check(value)
    except (ValueError, UsageError) as error:
        where = f"{path}{_line(path, str(error))}"
        more = "" if isinstance(error, UsageError) else f". {source} lists all fields and values"
        raise UsageError(f"{where}: {error}{more}") from None
    return value


def _check_numbers(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ValueError(f"{name} = {number:g}: write a number above 0")


def _check_meaning(lab: Lab) -> None:
    """Check what the words of a description mean.

    Raises:
        UsageError: a case, an op or a reference is none, or a case stands twice or does not fit a CPU;
            with the place, as `decode` gives it.
    """
    for number, task in enumerate(lab.task):
        where = f"at `$.task[{number}]"
        op = op_of(lab, task)
        if not _is_registered(op.name, task.reference):
            raise UsageError(f"{op.name} has no {task.reference} - {where}.reference`")
        seen: set[Case] = set()
        for position, group in enumerate(task.group):
            place = f"{where}.group[{position}].cases`"
            for case in (_case(text, op, place) for text in group.cases):
                if case in seen:
                    raise UsageError(f"{case} stands twice in the groups of {task.title!r} - {place}")
                if not op.interpretable(case):
                    raise UsageError(f"{case} is too large to be checked without a GPU - {place}")
                seen.add(case)
        for position, speed in enumerate(task.speed):
            _case(speed.case, op, f"{where}.speed[{position}].case`")


def _case(text: str, op: Op, place: str) -> Case:
    try:
        return Case.parse(text, op)
    except UsageError as error:
        raise UsageError(f"{error} - {place}") from None


def _is_registered(op: str, label: str) -> bool:
    """Whether the project has an implementation, by the text of its modules: to import them takes seconds."""
    route, _, variant = label.partition(".")
    folder = {"torch": "torch_impl", "triton": "triton_impl"}.get(route, "cuda_impl/launches")
    file = registry.ROOT / folder / f"{op}.py"
    # @implementation("softmax", "triton.online" or @variant("softmax", "online"; the op may have a name: OP
    name = re.escape(label if route in ("torch", "triton") else variant)
    written = rf'(?m)^@\w+\(\s*[\w"]+,\s*"{name}"'
    return file.is_file() and re.search(written, file.read_text()) is not None


def _line(path: Path, error: str) -> str:
    """``, line 7``: the place in a file that an error names, as ``$.task[1].points``; else empty."""
    text, at = read_text(path, _LARGEST), 0
    words = (r"\w+\.toml\.([\w.]+): unknown", r"`\$\.([\w.\[\]]+)`", r"^(\w+) = ", r"unknown (\w+)")
    named = ".".join(found[1] for pattern in words if (found := re.search(pattern, error)))
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", named):
        # A list is a table [[name]] for each entry, or { ... } for each behind name = [.
        places = [*re.finditer(rf"^[ \t]*\[\[?(\w+\.)*{name}\]|\b{name}\s*=", text[at:], re.MULTILINE)]
        if not index:
            places = [place for place in places if "=" in place[0]] or places
        elif places and "=" in places[0][0]:
            at += places[0].end()
            places = [*re.finditer("{", text[at:])]
        else:
            places = [place for place in places if "=" not in place[0]]
        if places:
            at += places[min(int(index or 0), len(places) - 1)].start()
    return f", line {text.count(chr(10), 0, at) + 1}" if named else ""


def _check_names(table: Any, lab: Any, where: str) -> None:
    """Check that a table holds no name that ``lab``, what it was read as, does not have."""
    if isinstance(table, list):
        for one, read_as in zip(table, lab, strict=True):
            _check_names(one, read_as, where)
    elif isinstance(table, dict):
        unknown = sorted(table.keys() - lab.keys())
        if unknown:
            raise ValueError(f"{where}: unknown {', '.join(unknown)}")
        for name, value in table.items():
            _check_names(value, lab[name], f"{where}.{name}")


def op_of(lab: Lab, part: Task | Prediction) -> Op:
    """The op that a task or a prediction is about."""
    return registry.get_op(part.op or lab.op)


def toml(path: Path, within: Path | None = None) -> dict[str, Any]:
    """A TOML file's content, with printable text and numbers of at most 64 bits.

    Args:
        path: the file.
        within: as of `compare.records.reading.read_bytes`.

    Raises:
        UsageError: the file cannot be read, or is not TOML.
    """
    text = read_text(path, _LARGEST, within)
    try:
        if _LONG_NAME.search(text):
            raise ValueError(f"a name has more than {_NAME_PARTS} parts")
        content: dict[str, Any] = bounded(tomllib.loads(text))
        return content
    except (ValueError, RecursionError) as error:
        raise UsageError(f'{path} is not TOML: {error}. Text goes between quotes: name = "..."') from None
