"""The map of all records, as a screen, Markdown and CSV."""

from __future__ import annotations

from statistics import median

from compare.history.map import Best, Map, Place, Point, Summary, summaries
from compare.model.op import WAYS
from compare.report import csv_file, markdown, terminal
from compare.report.lines import grouped
from compare.report.tables import NOTHING, SAME, Table, number, percent, table, times

_LEGEND = (
    "Each way is represented by its fastest implementation, cold. of the ceiling: of the copy bandwidth of "
    "the same run, or of its measured peak (p) where the case lies beyond the measured ridge. binds: what "
    "reaches 60% of its ceiling, or launch overhead where the host takes longer than the GPU; else the "
    "nearest ('near'). lines / tokens: of code to read, without comments; of cuda.X, cupy and pybind "
    "within noise, those of cupy. within noise: the 95% interval of the speedup includes 1."
)
_OPS_LEGEND = (
    "in 8 of 9: of the cases in which both ways were timed and launch overhead does not bind, those on which "
    "it is alone. fastest way: alone on more than half of these; else the ways within noise on more than "
    "half; else by case. speedup: cold, the median and the range over the cases. share: median, of copy "
    "bandwidth or of the measured peak. lines: code size."
)
_FEW_LEGEND = "n: rounds, where they are too few for an interval."
_ACROSS_LEGEND = "~: recorded in different runs, so the speedup is the ratio of two medians."
_CHANGED_LEGEND = "*: its source has changed since it was recorded, or is gone."
_FRONT_LEGEND = (
    "Effort: lines / tokens of code to read. Share: of the ceiling, the "
    "median over the cases in which launch overhead does not bind the fastest, with the lowest and the "
    "highest. Pareto front: no implementation with as few tokens reaches as much, noise aside."
)
_CHOICES = {
    "torch": "PyTorch is the fastest",
    "triton": "Triton is the fastest",
    "cuda": "CUDA is the fastest",
    "within 2%": "The fastest is ahead by at most 2%, in the median,",
    "within noise": "Within noise, so that the least code decides (lines),",
    "by case": "The case decides",
}
"""By verdict or way: how the line of the ops with it begins."""


def render(chart: Map, width: int, *, whole: bool = True) -> str:
    """The screen as plain text: which way to choose, a line per op, and how to see the rest.

    Args:
        chart: the map.
        width: of the terminal.
        whole: also further columns, every case, how often each way is the fastest, and the Pareto fronts.
    """
    prose = min(width, terminal.PROSE_WIDTH)

    def explained(shown: Table, text: str) -> list[str]:
        return [text, *(terminal.paragraph(line, prose) for line in shown.legend)]

    by_op = ops(chart)
    blocks = ["\n".join(terminal.paragraph(line, prose) for line in _head(chart, whole=whole))]
    chosen = choices(chart, whole=whole)
    blocks.append("\n".join(terminal.paragraph(line, prose, hanging="  ") for line in chosen))
    if not whole:
        # How to see what the screen leaves out.
        rest = f"--all {len(chart.places)} cases · map {chart.places[0].op} · --plot map.svg · --csv map.csv"
        follow = terminal.paragraph(f"NEXT  {rest}", prose, hanging="      ")
        return "\n\n".join([*blocks, *explained(by_op, terminal.layout(by_op, width)[0]), follow])
    for each in (by_op, cases(chart), wins(chart)):
        blocks += explained(each, terminal.laid_out(each, width))
    if chart.points:
        title = "What effort buys: the Pareto fronts, in tokens and share of the ceiling"
        title = terminal.paragraph(title, prose)
        shown = [terminal.paragraph(line, prose, "  ") for line in fronts(chart)]
        blocks += ["\n".join([title, *shown]), terminal.paragraph(_FRONT_LEGEND, prose)]
    return "\n\n".join(blocks)


def choices(chart: Map, *, whole: bool = True) -> list[str]:
    """Which way to choose: the ops by the way that is the fastest, those within noise, and those by case.

    Args:
        chart: the map.
        whole: also name those within noise, which the table of ops has.
    """
    by_op = summaries(chart.places)
    chosen: dict[str, list[str]] = {verdict: [] for verdict in _CHOICES}
    for op in by_op:
        if op.verdict == "fastest":
            lead = f" {median(op.leads):.2f}x" if op.leads else ""
            chosen[op.first.way].append(f"{op.op}{lead} {_cases_alone(op)}")
        elif op.verdict == "within 2%":
            chosen[op.verdict].append(f"{op.op} {op.first.way} {_cases_alone(op)}")
        elif op.verdict == "within noise":
            chosen[op.verdict].append(f"{op.op} {op.level[0].label} {_lines(op.level[0])}")
        else:
            chosen[op.verdict].append(f"{op.op} ({_counts(op)})")
    return [
        f"{_CHOICES[verdict]} on {len(names)} of {len(by_op)} ops"
        + (f": {', '.join(names)}." if whole or verdict != "within noise" else ".")
        for verdict, names in chosen.items()
        if names
    ]


def _cases_alone(op: Summary) -> str:
    """``in 10 of 16``: on so many of its cases it is the fastest alone."""
    return f"in {op.alone[op.first.way]} of {op.cases}"


def _counts(op: Summary) -> str:
    counts = {**{way: op.alone[way] for way in WAYS}, "within noise": op.noise}
    return ", ".join(f"{what} {count}" for what, count in counts.items() if count)


def as_markdown(chart: Map) -> str:
    tables = [ops(chart), wins(chart), cases(chart), efforts(chart)]
    choice = "\n".join(f"- {line}" for line in choices(chart))
    legends = (line for each in tables for line in each.legend)
    parts = ["## The map", *_head(chart), choice, *map(markdown.table, tables), *legends]
    return markdown.document(parts)


def as_csv(chart: Map) -> str:
    """One line for each op and case; of every way its fastest implementation."""
    lines = [dict(_cells(place)) for place in chart.places]
    return csv_file.table(lines, list(lines[0]))


# --------------------------------------------------------------------------- tables


def ops(chart: Map) -> Table:
    """A line for each op, the columns by importance: a screen shows as many as fit."""
    return table(
        f"The fastest way, op by op, as recorded on {chart.device}",
        summaries(chart.places),
        {
            "op": lambda op: op.op,
            "fastest way": _fastest_way,
            "speedup over\nthe next way": _lead_of_op,
            "share": lambda op: percent(op.share),
            "lines": _lines_to_write,
            "cases": lambda op: f"{op.cases}/{op.of}",
            "next way": lambda op: _marked(_next_way(op)),
            "its\nlines": lambda op: _lines(_next_way(op)),
            "binds": lambda op: op.binds or NOTHING,
            "fastest alone on": _counts,
        },
        ("fastest way", "next way", "binds", "fastest alone on"),
        (" ".join([_OPS_LEGEND, *([_CHANGED_LEGEND] if chart.changed else [])]),),
    )


def cases(chart: Map) -> Table:
    """A line for each op and case: the fastest way, and its speedup over the next."""
    legends = {
        _LEGEND: True,
        _FEW_LEGEND: any(place.rounds for place in chart.places),
        _ACROSS_LEGEND: any(place.across for place in chart.places),
        _CHANGED_LEGEND: bool(chart.changed),
    }
    return table(
        f"The fastest way, by op and case, as recorded on {chart.device}",
        chart.places,
        {
            "case": lambda place: f"{place.op} {place.case}",
            "lowest median": lambda place: _marked(place.ways[0]),
            "cold\nµs": lambda place: number(place.ways[0].cold_us.median, 4),
            "of the\nceiling": _share,
            "binds": lambda place: _binds(place.ways[0]),
            "lines /\ntokens": lambda place: _size(place.ways[0]),
            "speedup over\nthe next way": _lead,
            "next way": lambda place: _marked(place.second),
            "its lines /\ntokens": lambda place: _size(place.second),
        },
        ("lowest median", "binds", "next way"),
        (" ".join(text for text, needed in legends.items() if needed),),
    )


def wins(chart: Map) -> Table:
    """A line for each op: on how many of its cases each way is the fastest alone."""
    return table(
        "On how many cases each way is the fastest alone",
        summaries(chart.places),
        {
            "op": lambda op: op.op,
            "cases": lambda op: str(op.cases),
            "torch": lambda op: str(op.alone["torch"]),
            "triton": lambda op: str(op.alone["triton"]),
            "cuda": lambda op: str(op.alone["cuda"]),
            "within noise": lambda op: str(op.noise),
        },
    )


def efforts(chart: Map) -> Table:
    """A line for each implementation, by growing effort."""
    return table(
        f"Effort against speed, as recorded on {chart.device}",
        chart.points,
        {
            "op": lambda point: point.op,
            "implementation": _marked,
            "lines /\ntokens": _size,
            "share of\nthe ceiling": lambda point: percent(point.share),
            "lowest to\nhighest": lambda point: f"{percent(point.lowest)} to {percent(point.highest)}",
            "cases": lambda point: f"{point.cases} of {point.of}",
            "front": lambda point: "yes" if point.front else "",
        },
        ("implementation", "front"),
        (_FRONT_LEGEND,),
    )


def fronts(chart: Map) -> list[str]:
    """A line for each op: ``softmax: torch.eager 35 tokens, 50%; triton.onepass 385, 96%``."""
    by_op: dict[str, list[str]] = {}
    for point in chart.points:
        names = by_op.setdefault(point.op, [])
        if point.front:
            some = f" ({point.cases} of {point.of} cases)" if point.cases < point.of else ""
            unit = "" if names else " tokens"
            names.append(f"{_marked(point)} {point.tokens}{unit}, {percent(point.share)}{some}")
    return [f"{op}: {'; '.join(names)}" for op, names in by_op.items()]


def _fastest_way(op: Summary) -> str:
    if op.verdict == "within noise":
        return ", ".join(best.way for best in op.level)
    return op.verdict if op.verdict == "by case" else _marked(op.first)


def _lead_of_op(op: Summary) -> str:
    if op.verdict == "within noise":
        return SAME
    leads = op.leads
    return f"{median(leads):.2f}, {min(leads):.2f} to {max(leads):.2f}" if leads else NOTHING


def _lines_to_write(op: Summary) -> str:
    if op.verdict == "by case":
        return NOTHING
    return "/".join(map(_lines, op.level)) if op.verdict == "within noise" else _lines(op.first)


def _next_way(op: Summary) -> Best | None:
    return None if op.verdict == "within noise" else op.second


def _lines(best: Best | None) -> str:
    return NOTHING if best is None or best.lines is None else str(best.lines)


def _share(place: Place) -> str:
    return percent(place.ways[0].share) + ("" if place.share_of == "copy bandwidth" else " p")


def _lead(place: Place) -> str:
    if place.lead is None:
        return NOTHING
    shown = times(place.lead, place.rounds or 0) if place.differs or place.rounds else SAME
    return shown + (" ~" if place.across else "")


def _binds(best: Best) -> str:
    bound = best.bound
    return bound.limit or (f"near {bound.nearest}, {percent(bound.share)}" if bound.nearest else NOTHING)


def _size(entry: Best | Point | None) -> str:
    return NOTHING if entry is None or entry.tokens is None else f"{entry.lines} / {entry.tokens}"


def _marked(entry: Best | Point | None) -> str:
    return NOTHING if entry is None else f"{entry.label} *" if entry.changed else entry.label


def _head(chart: Map, *, whole: bool = True) -> list[str]:
    """Where and when; and whose source has changed since, by name or how many."""
    head = [f"Recorded on {chart.device}, {' to '.join(chart.dates)}."]
    if by_op := grouped(chart.changed):
        named = "; ".join(f"{op}: {', '.join(labels)}" for op, labels in by_op.items())
        counted = f"{len(chart.changed)} implementations of {len(by_op)} ops"
        what = "Source changed since, or gone, so figures may have changed"
        head.append(f"{what}: {named if whole else counted}.")
    return head


def _cells(place: Place) -> csv_file.Cells:
    yield from csv_file.fields(place, "op", "case", "share_of")
    yield "fastest", ";".join(place.leaders)
    yield from csv_file.estimate("speedup", place.lead)
    yield from (("differs", place.differs), ("few_rounds", place.rounds or ""), ("across_runs", place.across))
    for way in WAYS:
        best = place.by_way.get(way)
        yield way, best.label if best else ""
        yield from csv_file.estimate(f"{way}_cold_us", best.cold_us if best else None)
        yield f"{way}_share", best.share if best else ""
        yield f"{way}_binds", (best.bound.limit or "") if best else ""
        for name, value in csv_file.fields(best, "lines", "tokens", "changed"):
            yield f"{way}_{name}", value
