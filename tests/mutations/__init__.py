"""Seeded bugs: each puts one mistake into a copy of the sources, and the suite's own check must catch it.

A file here named after an op, ``softmax.diff``, holds its mutations.  ``tests/kernels/test_mutations.py``
runs those that the machine at hand can show; ``make mutations`` runs all and records what caught each::

    @@ triton.online triton_impl/softmax.py         the implementation and the file, for all below
    missed tail: the last column is not written     the bug, and what goes wrong
    - mask=n < N                                    the source's words, which may be several lines
    + mask=n < N - 1                                what takes their place; may be missing
    = all written                                   what must be said of it
    huge                                            further fields of `Mutation`, or a name in `WHERE`

``sandbox.diff`` removes protections of the sandbox: ``tests/test_sandbox_alone.py`` runs it.

Backticks around a line's words keep a space at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

WHERE = {
    "huge": {"without_gpu": "", "with_gpu": "huge", "needs": "more than 2^31 elements"},
    "gluon": {"without_gpu": "", "needs": "a GPU: Gluon has no interpreter"},
    "many tiles": {"with_gpu": "", "needs": "more tiles than a GPU has multiprocessors"},
    "late": {"with_gpu": "", "needs": "a result that is late: on a GPU it is there in time"},
    "race": {"without_gpu": "apart", "with_gpu": "racecheck", "sign_with_gpu": "Race reported"},
}
"""Where a mistake shows: fields of its `Mutation`."""


@dataclass(frozen=True)
class Mutation:
    """One mistake, and what has to find it.

    It is words, not lines: `right` must stand in the file exactly once, whatever moves around it.  Keep it
    short, and of what the code means rather than of how it is laid out.
    """

    op: str
    label: str
    """The implementation that is run with it: ``triton.online``."""
    bug: str
    """The kind of mistake, in a word or three; unique together with op, label and file."""
    what: str
    """What goes wrong, in a clause."""
    file: str
    """Where it is made, from the project's root."""
    right: str
    wrong: str
    sign: str
    """What must be said about it: a regular expression over the findings of a failed check, an error's
    text or a sanitizer's report.  Caught for another reason is not caught."""
    without_gpu: str = "check"
    """Which instrument finds it (`mutations.instruments`); empty: none can, and `needs` says why."""
    with_gpu: str = "check"
    sign_with_gpu: str = ""
    """Where a GPU says it otherwise."""
    needs: str = ""
    case: str = ""
    """What its instrument is given in place of its own cases, where none of these can show it."""

    @property
    def name(self) -> str:
        return f"{self.op} {self.label}: {self.bug}"

    def instrument(self, machine: str) -> str:
        return self.with_gpu if machine == "cuda" else self.without_gpu

    def expected(self, machine: str) -> str:
        return (machine == "cuda" and self.sign_with_gpu) or self.sign


def every_mutation() -> list[Mutation]:
    """All mutations of all ops that have any."""
    from compare import registry  # not at the top: a worker imports this before it knows of which checkout

    files = (Path(__file__).with_name(f"{op}.diff") for op in registry.op_names())
    return [mutation for file in files if file.is_file() for mutation in mutations_in(file)]


def mutations_in(file: Path) -> Iterator[Mutation]:
    """The mutations of the op that the file is named after."""
    label = path = ""
    lines = (line for line in file.read_text().splitlines() if not line.startswith("#"))
    for block in (list(found) for full, found in groupby(lines, key=bool) if full):
        words: dict[str, list[str]] = {"-": [], "+": []}
        fields: dict[str, str] = {}
        for line in block:
            mark, _, rest = line.partition(" ")
            if mark == "@@":
                label, path = rest.split()
            elif mark in words:
                words[mark].append(rest[1:-1] if rest[:1] == rest[-1:] == "`" else rest)
            elif mark == "=":
                fields["sign"] = rest
            elif "bug" not in fields:
                fields["bug"], _, fields["what"] = line.partition(": ")
            else:
                fields |= WHERE.get(line, {mark: rest})
        right, wrong = ("\n".join(words[mark]) for mark in "-+")
        yield Mutation(op=file.stem, label=label, file=path, right=right, wrong=wrong, **fields)
