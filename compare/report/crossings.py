"""Where the fastest way changes, as a screen and as Markdown."""

from __future__ import annotations

from compare.history.crossover import Crossover, Standing, bound, crossings
from compare.model.op import WAYS
from compare.model.result import CaseComparison, Row
from compare.report import markdown
from compare.report.layout import page
from compare.report.tables import NOTHING, Block, Table, number, percent
from compare.timing import figures

_RECORDED = (
    "No GPU here: these are the sizes recorded on {}. With a GPU the same command also tries the sizes in "
    "between."
)
_LEGEND = (
    "Each way is represented by its fastest implementation, cold. within noise: the 95% interval "
    "of the speedup includes 1."
)


def render(crossover: Crossover, width: int) -> str:
    return page(_blocks(crossover), width)


def as_markdown(crossover: Crossover) -> str:
    return markdown.document(_blocks(crossover))


def _blocks(crossover: Crossover) -> list[Block]:
    """Where the figures are from, a line for each size, and some sentences for each crossover."""
    head = ["INTERRUPTED: sizes finished so far."] if crossover.interrupted else []
    if crossover.recorded_on:
        head.append(_RECORDED.format(crossover.recorded_on))
    elif crossover.runs:
        head.append(f"Measured on {crossover.runs[0].environment.device}, {crossover.runs[0].created}.")
    return [*head, _table(crossover), *(f"  {text}" for text in findings(crossover)), _LEGEND]


def _table(crossover: Crossover) -> Table:
    """The best of each way, and the fastest way."""
    headers = [header for way in WAYS for header in (way, f"{way}\nµs")]
    rows = []
    for standing in crossover.standings:
        best = (standing.best.get(way) for way in WAYS)
        cells = [cell for row in best for cell in ((row.label, _us(row)) if row else (NOTHING, NOTHING))]
        rows.append((str(standing.size), leaders(standing), *cells))
    title = f"{crossover.op}: the fastest way as {crossover.dim} grows, else {crossover.base}"
    return Table(title, (crossover.dim, "fastest", *headers), tuple(rows), ("fastest", *WAYS))


def leaders(standing: Standing) -> str:
    """``triton``, or the ways within noise: ``triton, cuda within noise``."""
    names = ", ".join(way for way in WAYS if way in standing.leaders)
    return f"{names} within noise" if len(standing.leaders) > 1 else names or NOTHING


def findings(crossover: Crossover) -> list[str]:
    """Some sentences for each crossover; one if there is none."""
    dim = crossover.dim
    if changes := crossings(crossover.standings):
        return [_change(dim, sizes[0], sizes[-1]) for sizes in changes]
    timed = [standing for standing in crossover.standings if standing.leaders]
    if not timed:
        return ["Nothing was timed."]
    always = frozenset.intersection(*(standing.leaders for standing in timed))
    names = " and ".join(way for way in WAYS if way in always)
    lead = "leads" if len(always) == 1 else "lead"
    if any(standing.leaders != always for standing in timed):
        lead += ", alone or within noise of another,"
    who = f"{names} {lead} at every size" if always else "changes are within noise"
    return [f"No crossover between {dim}={timed[0].size} and {dim}={timed[-1].size}: {who}."]


def _change(dim: str, below: Standing, above: Standing) -> str:
    """The ways on both sides, and of each side the fastest implementation, its time and what binds it."""
    text = (
        f"Between {dim}={below.size} and {dim}={above.size} the fastest way changes from {leaders(below)} to "
        f"{leaders(above)}."
    )
    for standing in (below, above):
        row = next(iter(standing.best.values()))
        why = binding(standing.comparison, row)
        text += f" At {dim}={standing.size} {row.label} takes {_us(row)} µs: {why}."
    return text


def binding(case: CaseComparison, row: Row) -> str:
    """What binds ``row``, with the figure."""
    binds = bound(case, row)
    if binds.limit == "launch" and row.timing and row.timing.back_to_back_us:
        return f"launch overhead binds ({row.timing.back_to_back_us.median:.3g} µs a call back to back)"
    if binds.nearest is None:
        return "the bound is not known"
    of = "measured bandwidth" if binds.nearest == "bandwidth" else "peak (measured)"
    return f"{binds.nearest} {'binds,' if binds.limit else 'is nearest, at'} {percent(binds.share)} of {of}"


def _us(row: Row) -> str:
    return number(figures.cold_us(row), 4)
