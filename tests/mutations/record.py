"""``results/mutations.json``: of each mutation what it is, and what caught it on which kind of machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from compare.records.archive import RESULTS
from mutations import Mutation

FILE = RESULTS / "mutations.json"

Entry = dict[str, Any]


def described(mutation: Mutation) -> Entry:
    """What a mutation is; a record of anything else is of another mutation."""
    names = ("op", "label", "bug", "what", "file", "right", "wrong", "needs")
    instruments = {machine: mutation.instrument(machine) for machine in ("cpu", "cuda")}
    return {**{name: getattr(mutation, name) for name in names}, "instruments": instruments}


def read() -> list[Entry]:
    return json.loads(FILE.read_text())["mutations"] if FILE.is_file() else []


def caught_of(mutation: Mutation, recorded: list[Entry]) -> dict[str, dict[str, str]]:
    """What is on record of this very mutation, by machine."""
    wanted = described(mutation).items()
    return next((entry["caught"] for entry in recorded if wanted <= entry.items()), {})


def case_of(mutation: Mutation, recorded: list[Entry]) -> str:
    """The case that showed it the last time, on whatever machine: the one to begin with."""
    cases = [caught["case"] for caught in caught_of(mutation, recorded).values() if caught["case"]]
    return cases[0] if cases else ""


def dumps(
    mutations: Iterable[Mutation],
    fresh: Mapping[Mutation, dict[str, str]],
    recorded: list[Entry],
    machine: str,
) -> str:
    """The record with what one machine has found anew; what is empty there was not caught any more."""
    entries = []
    for mutation in mutations:
        caught = caught_of(mutation, recorded)
        if mutation in fresh:
            caught = {name: of for name, of in caught.items() if name != machine}
            if fresh[mutation]:
                caught[machine] = fresh[mutation]
        entries.append({**described(mutation), "caught": dict(sorted(caught.items()))})
    return json.dumps({"schema": 1, "mutations": entries}, indent=1, ensure_ascii=False) + "\n"
