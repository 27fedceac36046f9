"""Seeded bugs: each puts one mistake into a copy of the sources, and the suite's own check must catch it.

A module here named after an op holds its `MUTATIONS`.  ``tests/kernels/test_mutations.py`` runs those that
the machine at hand can show; ``make mutations`` runs them too and writes down what caught each.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

HUGE = {"without_gpu": "", "with_gpu": "huge", "needs": "more than 2^31 elements"}
HOPPER = {"without_gpu": "", "needs": "a Hopper GPU"}
GLUON = {"without_gpu": "", "needs": "a GPU: Gluon has no interpreter"}
"""Where a mistake shows that a CPU cannot show: fields of its `Mutation`."""

STRAY = "guard zones|illegal memory access|SIGSEGV|SIGABRT"
"""How a write that may go anywhere is noticed; by SIGABRT where what it hits is the allocator's own."""


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

    modules = [f"{__name__}.{op}" for op in registry.op_names()]
    found = [importlib.import_module(module) for module in modules if importlib.util.find_spec(module)]
    return [mutation for module in found for mutation in module.MUTATIONS]
