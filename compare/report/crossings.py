"""Where the fastest way changes, as a screen and as Markdown."""

from __future__ import annotations

from compare.history.crossover import Crossing, Crossover, Standing, binding
from compare.model.op import WAYS
from compare.model.result import Row
from compare.report import markdown, terminal
from compare.report.tables import NOTHING, Table, number

_RECORDED = (
    "No GPU here: these are the sizes recorded on {}. With a GPU the same command also tries the sizes in "
    "between."
)
_LEGEND = (
    "Each way is represented by its fastest implementation, cold. within noise: the 95% interval "
    "of the speedup includes 1."
)


def render(found: Crossover, width: int) -> str:
    prose = min(width, terminal.PROSE_WIDTH)
    blocks = [terminal.paragraph(line, prose) for line in _head(found)]
    blocks.append(terminal.laid_out(table(found), width))
    blocks += [terminal.paragraph(line, prose, "  ") for line in findings(found)]
    return "\n\n".join([*blocks, terminal.paragraph(_LEGEND, prose)])


def as_markdown(found: Crossover) -> str:
    return markdown.document([*_head(found), markdown.table(table(found)), *findings(found), _LEGEND])


def table(found: Crossover) -> Table:
    """A line for each size: the best of each way, and the fastest way."""
    headers = [header for way in WAYS for header in (way, f"{way}\nµs")]
    return Table(
        f"{found.op}: the fastest way as {found.dim} grows, else {found.base}",
        (found.dim, "fastest", *headers),
        tuple((str(s.size), leaders(s), *_best(s)) for s in found.standings),
        ("fastest", *WAYS),
    )


def leaders(standing: Standing) -> str:
    """``triton``, or the ways within noise: ``triton, cuda within noise``."""
    names = ", ".join(way for way in WAYS if way in standing.leaders)
    return f"{names} within noise" if len(standing.leaders) > 1 else names or NOTHING


def findings(found: Crossover) -> list[str]:
    """Some sentences for each crossover; one if there is none."""
    if found.crossings:
        return [_crossing(found.dim, crossing) for crossing in found.crossings]
    timed = [standing for standing in found.standings if standing.leaders]
    if not timed:
        return ["Nothing was timed."]
    always = frozenset.intersection(*(standing.leaders for standing in timed))
    names = " and ".join(way for way in WAYS if way in always)
    lead = "leads" if len(always) == 1 else "lead"
    if any(standing.leaders != always for standing in timed):
        lead += ", alone or within noise of another,"
    who = f"{names} {lead} at every size" if always else "changes are within noise"
    return [f"No crossover between {found.dim}={timed[0].size} and {found.dim}={timed[-1].size}: {who}."]


def _crossing(dim: str, crossing: Crossing) -> str:
    below, above = crossing.below, crossing.above
    return (
        f"Between {dim}={below.size} and {dim}={above.size} the fastest way changes from {leaders(below)} to "
        f"{leaders(above)}. {_side(dim, below)} {_side(dim, above)}"
    )


def _side(dim: str, standing: Standing) -> str:
    """The fastest implementation at this size, its time and what binds it."""
    row: Row = next(iter(standing.best.values()))
    why = binding(row, standing.comparison.cost, standing.comparison.ceilings)
    return f"At {dim}={standing.size} {row.label} takes {_us(row)} µs: {why}."


def _best(standing: Standing) -> list[str]:
    cells: list[str] = []
    for way in WAYS:
        row = standing.best.get(way)
        cells += [row.label, _us(row)] if row else [NOTHING, NOTHING]
    return cells


def _us(row: Row) -> str:
    return number(row.timing.cold_us.median if row.timing and row.timing.cold_us else None, 4)


def _head(found: Crossover) -> list[str]:
    lines = ["INTERRUPTED: sizes finished so far."] if found.interrupted else []
    if found.recorded_on:
        lines.append(_RECORDED.format(found.recorded_on))
    elif found.runs:
        lines.append(f"Measured on {found.runs[0].environment.device}, {found.runs[0].created}.")
    return lines
