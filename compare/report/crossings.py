"""Where the fastest way changes, as a screen and as Markdown."""

from __future__ import annotations

from compare.history.crossover import Crossing, Crossover, Standing, binding
from compare.report import markdown, terminal
from compare.report.tables import NOTHING, Table, number
from compare.spec import WAYS, Row

_RECORDED = (
    "There is no GPU here: these are the sizes recorded on {}. On a machine with one, the same command also "
    "tries the sizes in between."
)
_LEGEND = (
    "Each way stands with its fastest implementation, cold. Ways are level where their best differ by no "
    "more than the machine shows between equals."
)


def render(found: Crossover, width: int) -> str:
    prose = min(width, terminal.PROSE_WIDTH)
    blocks = [terminal.paragraph(line, prose) for line in _head(found)]
    blocks.append(terminal.laid_out(table(found), width))
    blocks += [terminal.paragraph(line, prose, "  ") for line in findings(found)]
    return "\n\n".join([*blocks, terminal.paragraph(_LEGEND, prose)])


def as_markdown(found: Crossover) -> str:
    return "\n\n".join([*_head(found), markdown.table(table(found)), *findings(found), _LEGEND]) + "\n"


def table(found: Crossover) -> Table:
    """A line for each size: the best of each way, and who is the fastest."""
    headers = [header for way in WAYS for header in (way, f"{way}\nµs")]
    return Table(
        f"{found.op}: the fastest way as {found.dim} grows, beside {found.base}",
        (found.dim, "fastest", *headers),
        tuple((str(s.size), leaders(s), *_best(s)) for s in found.standings),
        ("fastest", *WAYS),
    )


def leaders(standing: Standing) -> str:
    """``triton``, or the ways that are level: ``triton, cuda level``."""
    names = ", ".join(way for way in WAYS if way in standing.leaders)
    return f"{names} level" if len(standing.leaders) > 1 else names or NOTHING


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
        lead += ", alone or level with another,"
    who = f"{names} {lead} at every size" if always else "no lead is lost"
    return [
        f"Between {found.dim}={timed[0].size} and {found.dim}={timed[-1].size} the fastest way does not "
        f"surely change: {who}."
    ]


def _crossing(dim: str, crossing: Crossing) -> str:
    below, above = crossing.below, crossing.above
    return (
        f"Between {dim}={below.size} and {dim}={above.size} the fastest way changes from {leaders(below)} to "
        f"{leaders(above)}. {_side(dim, below)} {_side(dim, above)}"
    )


def _side(dim: str, standing: Standing) -> str:
    """What the fastest takes there, and what keeps it from being faster."""
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
    lines = ["INTERRUPTED: what follows is what was finished by then."] if found.interrupted else []
    if found.recorded_on:
        lines.append(_RECORDED.format(found.recorded_on))
    elif found.runs:
        lines.append(f"Measured on {found.runs[0].environment.device}, {found.runs[0].created}.")
    return lines
