"""The end of a page of docs/ops/: what each level of abstraction costs and buys there, from records."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from compare import registry
from compare.history.crossover import best_of_ways
from compare.history.map import Place, survey
from compare.history.recorded import case_of, recorded
from compare.model.op import WAYS
from compare.model.result import CaseComparison, Comparison, Row
from compare.records import archive
from compare.report import tables
from compare.timing import figures

_NAMES = {"torch": "PyTorch", "triton": "Triton", "cuda": "CUDA"}


def block(op: str, results: Path) -> str:
    """Three sentences: Triton beside PyTorch and CUDA beside Triton on the default case, and all cases.

    Raises:
        UsageError: there is no such op.
    """
    case = str(registry.get_op(op).cases.default)
    comparison = recorded(registry.get_op(op), results)
    found = case_of(comparison, case)
    if comparison is None or found is None:
        return f"Nothing is recorded yet of {case}."
    device = comparison.environment.device
    runs = [run for run in archive.runs_of(op, results) if run.environment.device == device]
    best = best_of_ways(found)
    baseline = figures.row_of(found, figures.baseline_of(found))
    sentences = [f"On {case}, {device}:"]
    for row, other in ((best.get("triton"), baseline), (best.get("cuda"), best.get("triton"))):
        if row and other:
            sentences.append(_step(comparison, found, row, other))
    return " ".join(sentences) + "\n" + _everywhere(survey(runs).places)


def _step(comparison: Comparison, case: CaseComparison, row: Row, other: Row) -> str:
    """A row beside that of the next higher level of abstraction."""
    (name, row), (other_name, other) = (figures.represented(case, each) for each in (row, other))
    gained = tables.lead(row, other)
    if gained == tables.SAME:
        speed = f"`{name}` is within noise of `{other_name}`"
    else:
        speed = f"`{name}` has a speedup of {gained} vs `{other_name}`"
    lines, fewer = (comparison.code_sizes[each.label].lines for each in (row, other))
    return f"{speed}, for {lines} lines of code to read and not {fewer}."


def _everywhere(places: tuple[Place, ...]) -> str:
    """Who is the fastest over the recorded cases that launch overhead does not bind."""
    places = tuple(place for place in places if place.about_kernels) or places
    alone = [place.leaders[0] for place in places if len(place.leaders) == 1]
    counts = [f"{_NAMES[way]} is the fastest on {alone.count(way)}" for way in WAYS if way in alone]
    if len(alone) < len(places):
        counts.append(f"several ways are within noise on {len(places) - len(alone)}")
    fastest = ", ".join(counts)
    cases = f"{len(places)} recorded cases" if len(places) > 1 else "the one recorded case"
    ratios = [
        place.by_way["triton"].cold_us.median / place.by_way["cuda"].cold_us.median
        for place in places
        if {"triton", "cuda"} <= place.by_way.keys()
    ]
    speedup = f"; CUDA's speedup over Triton is {median(ratios):.2f} in the median" if ratios else ""
    return f"Of {cases} that launch overhead does not bind, {fastest}{speedup}."
